"""word2vec: a vector for each word, learned by predicting the words near it.

    python examples/word2vec.py --train_file 'books/*.txt' --output_dir runs/vectors/skipgram
    python examples/word2vec.py --train_file 'books/*.txt' --output_dir runs/vectors/cbow --method cbow
    python examples/word2vec.py --train_file 'books/*.txt' --output_dir runs/vectors/both --compare gensim

It writes out two articles of 2013 by Mikolov and others, whose sections and equations it names:
[1] Efficient Estimation of Word Representations in Vector Space, arXiv 1301.3781
[2] Distributed Representations of Words and Phrases and their Compositionality, arXiv 1310.4546

Shapes: N words of the text, V of the vocabulary, P predictions of an update, C words that a prediction is made from (1
for skip-gram, up to 2 * WINDOW for CBOW), K negative words, H numbers of a vector.

OUTPUT_DIR receives vectors.txt in word2vec's text format and, with --compare gensim, gensim.txt, which gensim has
learned from the same text. The same flags give the same files. examples/word_similarity.py scores them.

What differs from the released code: it makes an update after each prediction, this file after those of 128 words, by
the sum of their gradients. Where the code differs from the articles, this file has the code's way, and says so.
"""

import argparse
import importlib.util
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from elmo_gpt_bert.tasks.pretraining.text import find_files, read_documents, split_sentences
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import ExistingFileError, InputError, PackageError
from elmo_gpt_bert.training.files import make_folder, new_file
from modeling import ElmoTokenizer


SIZE, WINDOW, NEGATIVES, EPOCHS = 100, 5, 5, 5
FREQUENT = 1e-3  # t of equation 5. The article has 1e-5, its released code and gensim have this.
POWER = 0.75  # of frequencies, for negative words: [2], section 2.2
LEARNING_RATES = {"skipgram": 0.025, "cbow": 0.05}  # at the start, as in the released code
WORDS_AT_ONCE = 128  # of an update. Of many more, the sum of a frequent word's gradients is too long a step.


# The text


def read_sentences(pattern: str, max_words: int | None, flag: str = "--train_file") -> list[list[str]]:
    """The words of each sentence, as ELMo's pre-training reads them. The text ends after `max_words`."""
    tokenizer, spelling, sentences, left = ElmoTokenizer(), {}, [], max_words
    for document in chain.from_iterable(map(read_documents, find_files(pattern, flag))):
        for sentence in split_sentences(document):
            words = tokenizer.tokenize(sentence)[:left]
            sentences.append([spelling.setdefault(word, word) for word in words])  # one object for equal words
            if left is not None and (left := left - len(words)) == 0:
                return sentences
    return sentences


class Text:
    """A text as numbers of words. Words that occur fewer than `min_count` times are left out.

    words: (V,) the vocabulary, the most frequent word first
    counts: (V,) how often each occurs
    tokens: (N,) the number of each word of the text
    sentence: (N,) the number of the sentence that it is in
    """

    def __init__(self, sentences: Sequence[list[str]], min_count: int):
        counts = Counter(chain.from_iterable(sentences))
        frequent = [word for word in counts if counts[word] >= min_count]
        if not frequent:
            raise InputError(f"no word of the text occurs --min_count {min_count} times: lower it, or give more text")
        self.words = sorted(frequent, key=lambda word: (-counts[word], word))
        self.counts = torch.tensor([counts[word] for word in self.words])
        number = {word: place for place, word in enumerate(self.words)}
        self.sentences = [[word for word in sentence if word in number] for sentence in sentences]
        self.tokens = torch.tensor([number[word] for sentence in self.sentences for word in sentence])
        lengths = torch.tensor([len(sentence) for sentence in self.sentences])
        self.sentence = torch.arange(len(lengths)).repeat_interleave(lengths)


# Training


class Word2Vec:
    """Two vectors of each word: from `inputs` (V, H) other words are predicted, by their rows of `outputs` (V, H).

    They are v and v' of [2], equation 2. The result is `inputs`.
    """

    def __init__(self, text: Text):
        self.inputs = (torch.rand(len(text.words), SIZE) - 0.5) / SIZE
        self.outputs = torch.zeros(len(text.words), SIZE)
        # Negative words are drawn from P_n(w), the frequencies to the power of 3/4 ([2], section 2.2): their sums.
        self.noise = (text.counts.double() ** POWER).cumsum(0)

    def update(self, places: torch.Tensor, is_there: torch.Tensor, targets: torch.Tensor, rate: float) -> float:
        """Goes a step up [2], equation 4, summed over P predictions. Returns its mean.

            log sigma(v'_target . h) + sum over K negative words w of log sigma(-v'_w . h)

        h is the vector of the word ([2], equation 2) or, in CBOW, the mean of the context's ([1], section 3.1).
        places: (P, C) the words to predict from; is_there: (P, C) 1, or 0 where there is none; targets: (P,)
        """
        vectors = functional.embedding(places, self.inputs)  # (P, C, H)
        h = torch.einsum("pc,pch->ph", is_there / is_there.sum(1, keepdim=True), vectors)
        draws = torch.rand(len(targets), NEGATIVES, dtype=torch.double) * self.noise[-1]
        negatives = torch.searchsorted(self.noise, draws)
        predicted = torch.cat([targets[:, None], negatives], 1)  # (P, 1 + K)
        rows = functional.embedding(predicted, self.outputs)  # (P, 1 + K, H)
        scores = torch.einsum("pkh,ph->pk", rows, h)
        is_target = torch.zeros_like(scores)
        is_target[:, 0] = 1
        counts = (predicted != targets[:, None]) + is_target  # a negative word that is the target does not count
        # d log sigma(s) / ds = 1 - sigma(s), and d log sigma(-s) / ds = -sigma(s)
        step = rate * counts * (is_target - torch.sigmoid(scores))
        self.outputs.index_add_(0, predicted.flatten(), torch.einsum("pk,ph->pkh", step, h).flatten(0, 1))
        # Each word of a context moves by the whole gradient of the mean, not by its share, as in the released code.
        moves = torch.einsum("pc,ph->pch", is_there, torch.einsum("pk,pkh->ph", step, rows))
        self.inputs.index_add_(0, places.flatten(), moves.flatten(0, 1))
        return (counts * functional.logsigmoid((2 * is_target - 1) * scores)).sum(1).mean().item()


def drop_frequent(text: Text) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens and sentences without some of the frequent words. A word of frequency f is kept with the probability

        sqrt(t / f)            in [2], equation 5,
        sqrt(t / f) + t / f    in the released code and in gensim, as here.

    It saves time, and the words that are left reach further with their windows.
    """
    frequency = text.counts / text.counts.sum()
    probability = torch.sqrt(FREQUENT / frequency) + FREQUENT / frequency
    is_kept = torch.rand(len(text.tokens)) < probability[text.tokens]
    return text.tokens[is_kept], text.sentence[is_kept]


def contexts(
    tokens: torch.Tensor, sentence: torch.Tensor
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yields n words (n,), the words around each (n, 2 * WINDOW), and which of those are its context.

    The context has R words to each side, and R is drawn from 1 to WINDOW for each word, so that near words count more
    ([1], section 3.2). It ends with the sentence.
    """
    distance = torch.tensor([*range(-WINDOW, 0), *range(1, WINDOW + 1)])
    around = functional.pad(tokens, (WINDOW, WINDOW)).unfold(0, 2 * WINDOW + 1, 1)  # (N, 2 * WINDOW + 1), a view
    theirs = functional.pad(sentence, (WINDOW, WINDOW), value=-1).unfold(0, 2 * WINDOW + 1, 1)
    for begin in range(0, len(tokens), WORDS_AT_ONCE):
        part = slice(begin, begin + WORDS_AT_ONCE)
        reach = torch.randint(1, WINDOW + 1, (len(tokens[part]), 1))
        is_near = (theirs[part] == sentence[part, None])[:, WINDOW + distance] & (distance.abs() <= reach)
        yield tokens[part], around[part][:, WINDOW + distance], is_near


def train(text: Text, method: str, seed: int) -> np.ndarray:
    """(V, H), the vectors of the vocabulary."""
    torch.manual_seed(seed)
    model = Word2Vec(text)
    for epoch in range(EPOCHS):
        tokens, sentence = drop_frequent(text)
        values, done = [], 0
        for words, around, is_near in contexts(tokens, sentence):
            if method == "skipgram":  # each word of the context, from the word ([2], equation 1)
                word, place = is_near.nonzero(as_tuple=True)
                places, is_there, targets = words[word, None], torch.ones(len(word), 1), around[word, place]
            else:  # the word, from its context if there is one
                has_context = is_near.any(1)
                places, is_there, targets = around[has_context], is_near[has_context].float(), words[has_context]
            # The learning rate falls linearly and is zero at the end ([1], section 4.2).
            rate = LEARNING_RATES[method] * (1 - (epoch + done / len(tokens)) / EPOCHS)
            if len(targets):
                values.append(model.update(places, is_there, targets, rate))
            done += len(words)
        print(f"{method}, epoch {epoch + 1} of {EPOCHS}: equation 4 is {np.mean(values):.4f}")
    return model.inputs.numpy()


def train_gensim(text: Text, method: str, seed: int) -> np.ndarray:
    """(V, H), what gensim learns from the same sentences with the same settings."""
    from gensim.models import Word2Vec as Gensim  # asked for by --compare

    settings = {"vector_size": SIZE, "window": WINDOW, "negative": NEGATIVES, "ns_exponent": POWER, "sample": FREQUENT}
    settings |= {"alpha": LEARNING_RATES[method], "sg": int(method == "skipgram"), "min_count": 1, "sorted_vocab": 0}
    model = Gensim(**settings, seed=seed, workers=1)
    total = len(text.sentences)
    model.build_vocab_from_freq(dict(zip(text.words, text.counts.tolist(), strict=True)), corpus_count=total)
    model.train([*filter(None, text.sentences)], total_examples=total, epochs=EPOCHS)
    return model.wv[text.words]


def write_vectors(path: Path, words: Sequence[str], vectors: np.ndarray) -> None:
    """word2vec's text format: V and H, then a word and its numbers a line, with all digits that a float32 has."""
    with new_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write(f"{len(words)} {vectors.shape[1]}\n")
        for word, vector in zip(words, vectors, strict=True):
            file.write(f"{word} {' '.join(map(str, vector))}\n")


def main(argv: list[str] | None = None) -> None:
    """Carries out what `argv`, by default the command line, asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--train_file", required=True, help="the text, as in a.txt,b.jsonl or 'books/*.txt.xz'")
    parser.add_argument("--max_train_words", type=int, help="train on the first words only, this many")
    parser.add_argument("--min_count", type=int, default=5, help="leave out what occurs less often (default: 5)")
    parser.add_argument("--method", choices=LEARNING_RATES, default="skipgram", help="(default: skipgram)")
    parser.add_argument("--seed", type=int, default=42, help="of all random choices (default: 42)")
    parser.add_argument("--compare", choices=["gensim"], help="also train with gensim")
    parser.add_argument("--output_dir", type=Path, required=True, help="the folder to write")
    args = parser.parse_args(argv)
    if (args.output_dir / "vectors.txt").exists():
        raise ExistingFileError(f"--output_dir {args.output_dir} has vectors: choose another")
    if args.max_train_words is not None and args.max_train_words < 1:
        raise InputError(f"--max_train_words must be positive, not {args.max_train_words}")
    if args.compare and importlib.util.find_spec("gensim") is None:
        raise PackageError("--compare gensim needs gensim: pip install gensim")
    learners = {"gensim": train_gensim} if args.compare else {}
    make_folder(args.output_dir)
    text = Text(read_sentences(args.train_file, args.max_train_words), args.min_count)
    print(f"{len(text.tokens):,} words of a vocabulary of {len(text.words):,}")
    for name, learn in (learners | {"vectors": train}).items():
        write_vectors(args.output_dir / f"{name}.txt", text.words, learn(text, args.method, args.seed))


if __name__ == "__main__":
    run_command(main)
