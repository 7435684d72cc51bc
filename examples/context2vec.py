"""context2vec: a vector for the sentence around a word, in the space of the words' own vectors.

    python examples/context2vec.py --train_file 'books/train-*.txt.xz' --validation_file books/valid.txt.xz \\
        --max_train_words 1000000 --output_dir runs/context2vec --compare checkpoints/elmo-books checkpoints/bert-books

It writes out Melamud, Goldberger and Dagan, context2vec: Learning Generic Context Embedding with Bidirectional LSTM,
CoNLL 2016: the equations of its section 2, which are numbered here from 1 to 5. The model fills a blank with the words
whose vectors are nearest to that of the sentence around it. With --compare, ELMo's two directions and BERT's mask fill
the same blanks.

Shapes: B sentences of T words, V words of the vocabulary, K negative words, H numbers of a vector.

OUTPUT_DIR receives metrics.json: how often the word of the text is the first answer, or among the first five; and
vectors.txt, the words' own vectors in word2vec's text format. The same flags give the same files on a CPU.
"""

import argparse
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
import transformers
from accelerate import Accelerator
from torch import nn
from torch.nn import functional
from word2vec import Text, read_sentences, write_vectors

from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import ExistingFileError, InputError, as_user_errors
from elmo_gpt_bert.training.files import make_folder, write_json
from modeling import ElmoForPreTraining, ElmoTokenizer, ZooBertForMaskedLM
from modeling.elmo.pipeline_elmo import ElmoFillMaskPipeline


EMBEDDING, CELLS, H = 100, 200, 200  # the article has 300, 600 and 600
NEGATIVES, POWER = 10, 0.75  # k of equation 4, and alpha of the negative words' distribution
LONGEST = 64  # words of a sentence; longer ones are left out
WORDS_AT_ONCE, LEARNING_RATE = 1000, 1e-3  # of an update; of Adam
BEGIN, END, UNKNOWN, MARKS = 0, 1, 2, 3  # the numbers of <S>, </S> and <UNK>; words are numbered from MARKS
MASK = "[MASK]"
BLANKS = ("The ship sailed across the [MASK] .", "She opened the [MASK] and looked out .", "He was [MASK] and tired .")

Blank = tuple[str, str]  # a text with a mask, and the word that was there
Fill = Callable[[str, list[str], int], list[str]]  # (text, candidates, how many) -> the best answers


# The model (section 2)


class Context2Vec(nn.Module):
    """Equations 1 to 3, the vector of a context, and the vector t of each word.

    biLS(w, i) = lLS(w_1 ... w_{i-1}) + rLS(w_n ... w_{i+1})   (+ concatenates)      (1)
    MLP(x) = L2(ReLU(L1(x)))                                                        (2)
    c = MLP(biLS(w, i))                                                             (3)
    """

    def __init__(self, counts: torch.Tensor):
        super().__init__()
        words = MARKS + len(counts)
        self.left_words, self.right_words = nn.Embedding(words, EMBEDDING), nn.Embedding(words, EMBEDDING)
        self.lLS, self.rLS = (nn.LSTM(EMBEDDING, CELLS, batch_first=True) for _ in range(2))
        self.L1, self.L2 = nn.Linear(2 * CELLS, 2 * CELLS), nn.Linear(2 * CELLS, H)
        self.t = nn.Embedding(len(counts), H)
        nn.init.zeros_(self.t.weight)
        self.noise = nn.Buffer(counts.double() ** POWER / (counts.double() ** POWER).sum())

    def forward(self, sentences: torch.Tensor) -> torch.Tensor:
        """(B, T) sentences of equal length -> (B, T, H) the vector c of the context of each word.

        The word itself is in neither direction: at word i, each LSTM has read up to the word before it.
        """
        before = functional.pad(sentences[:, :-1], (1, 0), value=BEGIN)
        behind = functional.pad(sentences[:, 1:], (0, 1), value=END).flip(1)
        left, _ = self.lLS(self.left_words(before))
        right, _ = self.rLS(self.right_words(behind))
        x = torch.cat([left, right.flip(1)], -1)  # (B, T, 2 CELLS)
        return self.L2(torch.relu(self.L1(x)))

    def objective(self, sentences: torch.Tensor, negatives: torch.Tensor) -> torch.Tensor:
        """Equation 4, its mean over the words that have a vector t; (B, T) and (B, T, K).

        log sigma(t . c) + sum over K negative words of log sigma(-t_i . c)
        """
        c, known = self(sentences), sentences >= MARKS
        targets = torch.cat([(sentences - MARKS).clamp(min=0)[..., None], negatives], -1)  # (B, T, 1 + K)
        scores = torch.einsum("btkh,bth->btk", self.t(targets), c)
        positive, negative = functional.logsigmoid(scores[..., 0]), functional.logsigmoid(-scores[..., 1:]).sum(-1)
        return ((positive + negative) * known).sum() / known.sum().clamp(min=1)

    def draw_negatives(self, sentences: torch.Tensor) -> torch.Tensor:
        """(B, T) -> (B, T, K) words by p_alpha, their frequencies to the power of alpha."""
        return self.noise.multinomial(sentences.numel() * NEGATIVES, replacement=True).view(*sentences.shape, -1)

    def shares(self, sentence: torch.Tensor, place: int) -> torch.Tensor:
        """(V,) the probability of each word at a place of a sentence (T,).

        At the optimum of equation 4, t . c = log(p(t | c) / p_alpha(t)) - log k (equation 5), so that p(t | c) is
        proportional to p_alpha(t) exp(t . c). The article ranks words by their cosine with c.
        """
        c = self(sentence[None])[0, place]
        return (self.noise.log() + self.t.weight.double() @ c.double()).softmax(0)


# Training


def batches(sentences: Sequence[list[int]]) -> Iterator[torch.Tensor]:
    """Yields (B, T) sentences of equal length, in random order."""
    lengths = defaultdict(list)
    for place in torch.randperm(len(sentences)).tolist():
        if 1 < len(sentences[place]) <= LONGEST:
            lengths[len(sentences[place])].append(sentences[place])
    rows = ((length, torch.tensor(lengths[length])) for length in sorted(lengths))
    parts = [part for length, same in rows for part in same.split(WORDS_AT_ONCE // length)]
    for place in torch.randperm(len(parts)).tolist():
        yield parts[place]


def train(text: Text, sentences: Sequence[list[int]], epochs: int, seed: int) -> Context2Vec:
    """Climbs equation 4 by Adam, as the article does."""
    torch.manual_seed(seed)
    accelerator = Accelerator()
    model = Context2Vec(text.counts).to(accelerator.device)
    optimizer = accelerator.prepare(torch.optim.Adam(model.parameters(), LEARNING_RATE))
    for epoch in range(epochs):
        values = []
        for batch in batches(sentences):
            batch = batch.to(accelerator.device)
            value = model.objective(batch, model.draw_negatives(batch))
            optimizer.zero_grad()
            accelerator.backward(-value)
            optimizer.step()
            values.append(value.item())
        print(f"epoch {epoch + 1} of {epochs}: equation 4 is {sum(values) / len(values):.4f}")
    return model


# Filling a blank


def fill_by(model: Context2Vec, number: dict[str, int]) -> Fill:
    """The answers of context2vec."""

    @torch.no_grad()
    def fill(text: str, candidates: list[str], count: int) -> list[str]:
        words = text.split()
        sentence = torch.tensor([number.get(word, UNKNOWN) for word in words], device=model.noise.device)
        shares = model.shares(sentence, words.index(MASK))
        places = [number[word] - MARKS for word in candidates]
        return [candidates[place] for place in shares[places].topk(min(count, len(candidates))).indices.tolist()]

    return fill


def load_fill(folder: str) -> tuple[Fill, set[str]]:
    """The answers of a biLM, whose two directions are multiplied, or of a BERT; and the words that it knows."""
    with as_user_errors(f"--compare {folder} is no folder of a biLM or a BERT: ", KeyError, AttributeError):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        if isinstance(tokenizer, ElmoTokenizer):
            known, model = {*tokenizer.targets}, ElmoForPreTraining.from_pretrained(folder).eval()
            pipeline = ElmoFillMaskPipeline(model, tokenizer=tokenizer)
        else:
            known, model = {*tokenizer.get_vocab()}, ZooBertForMaskedLM.from_pretrained(folder).eval()
            pipeline = transformers.FillMaskPipeline(model, tokenizer=tokenizer)

    def fill(text: str, candidates: list[str], count: int) -> list[str]:
        return [answer["token_str"] for answer in pipeline(text, targets=candidates, top_k=count)]

    return fill, known


def draw_blanks(sentences: Sequence[list[str]], candidates: set[str], count: int, seed: int) -> list[Blank]:
    """One word of each sentence that has 5 to 40 words, drawn from the candidates in it."""
    draw, blanks = random.Random(seed), []
    for sentence in draw.sample(sentences, len(sentences)):
        places = [place for place, word in enumerate(sentence) if word in candidates]
        if places and 5 <= len(sentence) <= 40 and len(blanks) < count:
            place = draw.choice(places)
            blanks.append((" ".join([*sentence[:place], MASK, *sentence[place + 1 :]]), sentence[place]))
    return blanks


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--train_file", required=True, help="the text, as in a.txt,b.jsonl or 'books/*.txt.xz'")
    parser.add_argument("--validation_file", required=True, help="the text whose words are hidden")
    parser.add_argument("--max_train_words", type=int, help="train on the first words only, this many")
    parser.add_argument("--max_eval_samples", type=int, default=500, help="words that are hidden (default: 500)")
    parser.add_argument("--min_count", type=int, default=5, help="what occurs less often is <UNK> (default: 5)")
    parser.add_argument("--num_train_epochs", type=int, default=3, help="(default: 3)")
    parser.add_argument("--compare", nargs="+", default=[], help="folders of biLMs and BERTs to fill the blanks, too")
    parser.add_argument("--blanks", nargs="+", default=BLANKS, help="texts with [MASK], whose answers are printed")
    parser.add_argument("--seed", type=int, default=42, help="of all random choices (default: 42)")
    parser.add_argument("--output_dir", type=Path, required=True, help="the folder to write")
    args = parser.parse_args(argv)
    if (args.output_dir / "metrics.json").exists():
        raise ExistingFileError(f"--output_dir {args.output_dir} has results: choose another")
    for flag in ("max_train_words", "max_eval_samples", "num_train_epochs"):
        if getattr(args, flag) is not None and getattr(args, flag) < 1:
            raise InputError(f"--{flag} must be positive, not {getattr(args, flag)}")
    if wrong := [blank for blank in args.blanks if blank.split().count(MASK) != 1]:
        raise InputError(f"--blanks {wrong[0]!r} must have {MASK} once, with spaces around it")
    return args


def score(fills: dict[str, Fill], blanks: list[Blank], candidates: list[str]) -> dict[str, float]:
    """The shares of the blanks whose word is the first answer, and among the first five."""
    results = {}
    for name, fill in fills.items():
        answers = [(word, fill(text, candidates, 5)) for text, word in blanks]
        ranks = [best.index(word) if word in best else 5 for word, best in answers]
        results |= {f"{name}_accuracy": ranks.count(0) / len(ranks), f"{name}_top5": 1 - ranks.count(5) / len(ranks)}
    return results


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Carries out what `argv`, by default the command line, asks for; returns the results."""
    args = parse(argv)
    make_folder(args.output_dir)
    others = {Path(folder).name: load_fill(folder) for folder in args.compare}
    sentences = read_sentences(args.train_file, args.max_train_words)
    held_out = read_sentences(args.validation_file, None, "--validation_file")
    text = Text(sentences, args.min_count)
    number = {word: MARKS + place for place, word in enumerate(text.words)}
    # What all models know, in lower case, because an uncased BERT knows no other.
    lower = (word for word in text.words if word.isalpha() and word.islower())
    candidates = [word for word in lower if all(word in known for _, known in others.values())]
    blanks = draw_blanks(held_out, {*candidates}, args.max_eval_samples, args.seed)
    if not blanks:
        raise InputError(f"--validation_file {args.validation_file} has no word to hide: give more text")
    print(f"{len(text.tokens):,} words of a vocabulary of {len(text.words):,}; {len(candidates):,} may fill a blank")
    numbers = [[number.get(word, UNKNOWN) for word in sentence] for sentence in sentences]
    model = train(text, numbers, args.num_train_epochs, args.seed)
    fills = {"context2vec": fill_by(model, number)} | {name: fill for name, (fill, _) in others.items()}
    for blank in args.blanks:
        for name, fill in fills.items():
            print(f"{blank} {name}: {', '.join(fill(blank, candidates, 5))}")
    results = score(fills, blanks, candidates)
    results |= {"train_words": len(text.tokens), "eval_samples": len(blanks), "candidates": len(candidates)}
    write_vectors(args.output_dir / "vectors.txt", text.words, model.t.weight.detach().cpu().numpy())
    write_json(args.output_dir / "metrics.json", results)
    print(*(f"{name}: {value:,.3f}" for name, value in results.items()), sep="\n")
    return results


if __name__ == "__main__":
    run_command(main)
