"""A neural language model of 2003: the next word, from the vectors of the words before it.

    python examples/neural_lm.py --train_file 'books/train-*.txt.xz' --validation_file books/valid.txt.xz \\
        --max_train_words 1000000 --output_dir runs/neural_lm

It writes out Bengio, Ducharme, Vincent and Jauvin, A Neural Probabilistic Language Model, JMLR 3 (2003), and names its
sections and its equation. What was best until then stands beside it: n-grams, smoothed by the method of Kneser and Ney
as Chen and Goodman modified it (1999). Both read the same words, and predict the same words of other text.

Shapes: N predictions, V words of the vocabulary, n words of an n-gram, m numbers of a word's vector, h hidden units.

OUTPUT_DIR receives metrics.json with the perplexities, and vectors.txt with the vectors C in word2vec's text format.
With --bilm, a biLM's forward direction predicts the same words. The same flags give the same files on a CPU.

What differs from the article: an n-gram ends with its sentence, and AdamW takes a step for 256 predictions at a time,
where the article follows the plain gradient of each.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from word2vec import read_sentences, write_vectors

from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import ExistingFileError, InputError, as_user_errors
from elmo_gpt_bert.training.files import make_folder, write_json
from modeling import ElmoForPreTraining, ElmoTokenizer


N, M, H = 5, 60, 100  # n, m and h of section 4.2
BATCH, LEARNING_RATE, WEIGHT_DECAY = 256, 2e-3, 1e-4
AT_ONCE = 2048  # predictions that are evaluated at a time
BEGIN, END, UNKNOWN = 0, 1, 2  # the numbers of <S>, </S> and of words outside the vocabulary
SHOWN = ("king", "sea", "said", "three", "white", "quickly")  # their neighbours are printed


# The text


def choose_words(sentences: Sequence[list[str]], min_count: int, bilm: str | None = None) -> list[str]:
    """The vocabulary: three marks, then what occurs often enough and a biLM knows, the most frequent word first."""
    known = counts = Counter(chain.from_iterable(sentences))
    if bilm:
        with as_user_errors(f"--bilm {bilm} is no folder of a biLM: ", AttributeError, TypeError):
            known = {**ElmoTokenizer.from_pretrained(bilm).targets}
    words = [word for word in counts if counts[word] >= min_count and word in known]
    if not words:
        raise InputError(f"no word of the text occurs --min_count {min_count} times: lower it, or give more text")
    return ["<S>", "</S>", "<UNK>", *sorted(words, key=lambda word: (-counts[word], word))]


def windows_of(sentences: Sequence[list[str]], words: Sequence[str], n: int = N) -> torch.Tensor:
    """(N, n): each word of the text, and each end of a sentence, behind the n - 1 words before it."""
    number = {word: place for place, word in enumerate(words)}
    numbers = ([number.get(word, UNKNOWN) for word in sentence] for sentence in sentences)
    line = [each for sentence in numbers for each in (*[BEGIN] * (n - 1), *sentence, END)]
    windows = torch.tensor(line, dtype=torch.long).unfold(0, n, 1)
    return windows[windows[:, -1] != BEGIN]


# The network


class NeuralLanguageModel(nn.Module):
    """Equation 1, the scores of all words for the place behind n - 1 words:

        y = b + W x + U tanh(d + H x),    x = (C(w_{t-1}), C(w_{t-2}), ..., C(w_{t-n+1}))

    W, the direct connections from the words to the scores, is optional.
    """

    def __init__(self, words: int, direct: bool, n: int = N):
        super().__init__()
        self.C = nn.Embedding(words, M)
        self.H = nn.Linear((n - 1) * M, H)  # and d
        self.U = nn.Linear(H, words)  # and b
        self.W = nn.Linear((n - 1) * M, words, bias=False) if direct else None

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        """(N, n - 1) -> (N, V). Their softmax is P(w_t | w_{t-1}, ..., w_{t-n+1}) (section 2)."""
        x = self.C(context).flatten(1)  # (N, (n - 1) m)
        y = self.U(torch.tanh(self.H(x)))
        return y if self.W is None else y + self.W(x)


def train(windows: torch.Tensor, words: int, direct: bool, epochs: int, seed: int) -> NeuralLanguageModel:
    """Maximises the mean of log P(w_t | ...) over the text, less a penalty on the weights (section 2)."""
    torch.manual_seed(seed)
    accelerator, model = Accelerator(), NeuralLanguageModel(words, direct, windows.shape[1])
    groups = [
        {"params": [p for p in model.parameters() if (p.dim() > 1) == matrix], "weight_decay": WEIGHT_DECAY * matrix}
        for matrix in (True, False)  # biases do not decay (section 2)
    ]
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(groups, lr=LEARNING_RATE))
    updates, done = epochs * -(-len(windows) // BATCH), 0
    for epoch in range(epochs):
        total = torch.zeros((), device=accelerator.device)
        for batch in torch.randperm(len(windows)).split(BATCH):
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * (1 - done / updates)
            *context, word = windows[batch].to(accelerator.device).unbind(1)
            loss = functional.cross_entropy(model(torch.stack(context, 1)), word)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            total += loss.detach() * len(batch)
            done += 1
        print(f"epoch {epoch + 1} of {epochs}: -log P is {total.item() / len(windows):.4f}")
    return accelerator.unwrap_model(model)


@torch.no_grad()
def probabilities(model: NeuralLanguageModel, windows: torch.Tensor) -> np.ndarray:
    """(N,) of the last word of each window."""
    pieces = windows.to(model.C.weight.device).split(AT_ONCE)
    scores = [model(piece[:, :-1]).log_softmax(-1).gather(1, piece[:, -1:])[:, 0] for piece in pieces]
    return torch.cat(scores).double().exp().cpu().numpy()


# The n-gram model


def kneser_ney(train: np.ndarray, text: np.ndarray, words: int) -> np.ndarray:
    """(N,) the probability of the last word of each window of the text, by the n-grams of the training windows.

        P(w | h) = (c(h w) - D(c(h w)) + sum of the D of all words behind h * P(w | h')) / c(h)

    h' is h without its first word. Below n, c counts the different words before an n-gram, not its occurrences.
    """
    both, size = np.concatenate([train, text]), len(train)
    n = both.shape[1]
    grams, contexts = [both[:, -1]], [np.zeros(len(both), int)]
    for order in range(2, n + 1):  # each gram gets a number, from its first word and the number of the others
        for numbers in (grams, contexts):
            pairs = both[:, -order] * (numbers[-1].max() + 1) + numbers[-1]
            numbers.append(np.unique(pairs, return_inverse=True)[1])
    # One mark begins a sentence. A window with two of them holds a shorter gram.
    is_whole = [(both[:, -order] != BEGIN) | (both[:, min(1 - order, -1)] != BEGIN) for order in range(1, n + 1)]
    probability = np.full(len(text), 1 / (words - 1))  # <S> is never predicted
    for order, (gram, context) in enumerate(zip(grams, contexts, strict=True)):
        rows = is_whole[order][:size].nonzero()[0]
        if order < n - 1:  # nothing stands before the mark: such grams are counted by their occurrences
            longer = is_whole[order + 1][:size].nonzero()[0]
            _, first = np.unique(grams[order + 1][longer], return_index=True)
            rows = np.concatenate([longer[first], rows[both[rows, -order - 1] == BEGIN]])
        counts = np.bincount(gram[rows], minlength=gram.max() + 1)
        discounts = discounts_of(counts)[counts.clip(max=3)]
        place = np.zeros(len(counts), int)  # the context of each gram
        place[gram[rows]] = context[rows]
        sums, removed = (np.bincount(place, part, context.max() + 1) for part in (counts, discounts))
        gram, context = gram[size:], context[size:]
        is_known = is_whole[order][size:] & (sums[context] > 0)
        mass = counts[gram] - discounts[gram] + removed[context] * probability
        probability = np.where(is_known, mass / sums[context].clip(min=1), probability)
    return probability


def discounts_of(counts: np.ndarray) -> np.ndarray:
    """(4,) what is taken from a count of 0, 1, 2, and 3 or more (Chen and Goodman 1999, section 3)."""
    n1, n2, n3, n4 = (max(np.sum(counts == count), 1) for count in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2)
    return np.array([0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3]).clip(0, [0, 1, 2, 3])


# The comparison


@torch.no_grad()
def bilm_probabilities(folder: str, words: Sequence[str], sentences: Sequence[list[str]]) -> Iterator[np.ndarray]:
    """Yields the probabilities of each sentence's words and of its end by the forward direction of a biLM.

    It knows more words. Its probability of <UNK> is what it gives to all those that are not among `words`.
    """
    tokenizer, model = ElmoTokenizer.from_pretrained(folder), ElmoForPreTraining.from_pretrained(folder).eval()
    number = {word: tokenizer.targets[word] for word in words if word not in ("<S>", "<UNK>")}
    for sentence in sentences:
        # A last word, which the forward direction does not see, gets the scores of the end.
        inputs = tokenizer([*sentence, "."], is_split_into_words=True, return_tensors="pt")
        shares = model(**inputs).logits[0].double().softmax(-1)
        unknown = 1 - shares[:, list(number.values())].sum(1)
        targets = enumerate(number.get(word) for word in (*sentence, "</S>"))
        yield np.array([unknown[place] if word is None else shares[place, word] for place, word in targets])


def perplexity(probabilities: np.ndarray) -> float:
    """The geometric mean of 1 / P."""
    return float(np.exp(-np.log(probabilities).mean()))


def neighbours(vectors: torch.Tensor, words: Sequence[str], word: str, count: int = 5) -> list[str]:
    """The words with the most similar vectors, by their cosine."""
    unit = functional.normalize(vectors, dim=1)
    nearest = (unit @ unit[words.index(word)]).topk(min(count + 1, len(words))).indices.tolist()
    return [words[place] for place in nearest if words[place] != word][:count]


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Carries out what `argv`, by default the command line, asks for; returns the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--train_file", required=True, help="the text, as in a.txt,b.jsonl or 'books/*.txt.xz'")
    parser.add_argument("--validation_file", required=True, help="the text whose words are predicted")
    parser.add_argument("--max_train_words", type=int, help="train on the first words only, this many")
    parser.add_argument("--max_eval_words", type=int, help="predict the first words only, this many")
    parser.add_argument("--min_count", type=int, default=5, help="what occurs less often is <UNK> (default: 5)")
    parser.add_argument("--num_train_epochs", type=int, default=5, help="(default: 5)")
    parser.add_argument("--direct", action="store_true", help="with direct connections from the words to the scores")
    parser.add_argument("--bilm", help="folder of a biLM, to predict the words of the text that it knows, too")
    parser.add_argument("--seed", type=int, default=42, help="of all random choices (default: 42)")
    parser.add_argument("--output_dir", type=Path, required=True, help="the folder to write")
    args = parser.parse_args(argv)
    if (args.output_dir / "metrics.json").exists():
        raise ExistingFileError(f"--output_dir {args.output_dir} has results: choose another")
    for flag in ("max_train_words", "max_eval_words", "num_train_epochs"):
        if getattr(args, flag) is not None and getattr(args, flag) < 1:
            raise InputError(f"--{flag} must be positive, not {getattr(args, flag)}")
    make_folder(args.output_dir)
    sentences = read_sentences(args.train_file, args.max_train_words)
    text = read_sentences(args.validation_file, args.max_eval_words, "--validation_file")
    if not text:
        raise InputError(f"--validation_file {args.validation_file} has no words: give another")
    words = choose_words(sentences, args.min_count, args.bilm)
    windows, held_out = windows_of(sentences, words), windows_of(text, words)
    print(f"{len(windows):,} predictions of {len(words):,} words; {len(held_out):,} of other text")
    by = {"kneser_ney": kneser_ney(windows.numpy(), held_out.numpy(), len(words))}
    model = train(windows, len(words), args.direct, args.num_train_epochs, args.seed)
    by["neural"] = probabilities(model, held_out)
    by["mixture"] = (by["neural"] + by["kneser_ney"]) / 2  # equal weights
    if args.bilm:
        by["bilm"] = np.concatenate([*bilm_probabilities(args.bilm, words, text)])
    results = {f"eval_perplexity_{name}": perplexity(each) for name, each in by.items()}
    results |= {"train_predictions": len(windows), "eval_predictions": len(held_out), "words": len(words)}
    vectors = model.C.weight.detach().cpu()
    for word in filter(words.__contains__, SHOWN):
        print(f"{word}: {' '.join(neighbours(vectors, words, word))}")
    write_vectors(args.output_dir / "vectors.txt", words, vectors.numpy())
    write_json(args.output_dir / "metrics.json", results)
    print(*(f"{name}: {value:,.1f}" for name, value in results.items()), sep="\n")
    return results


if __name__ == "__main__":
    run_command(main)
