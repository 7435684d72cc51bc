"""Times what run_squad.py does before and after the model, and prints Markdown tables.

    python -m benchmarks.squad [ROW ...] [--data_dir FOLDER] [--tokenizer_name vocab.txt] [--questions N] [--json FILE]

The baseline works like transformers' example run_qa.py (plain_squad.py). `windows-...` makes the windows for training
and evaluation, `answers` finds the best spans by a model's scores, and `answers-n-best` also makes our n best of each
question; the baseline always makes its own. In rows called `...-map`, the baseline does all that the example does:
features are padded to the full length, made by datasets.map, and kept in its data set. In other rows, it makes plain
lists without padding. `answers-all-pairs` compares with a loop over every start and every end.
The scores are random, and high at the right answer.

A second table shows the scores of a model that knows all answers: how many questions a span of one window can answer,
and why others cannot be answered.
"""

import argparse
import csv
import gc
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import itemgetter
from pathlib import Path

import datasets
import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from elmo_gpt_bert.metrics.squad_scores import normalize_answer, squad1_scores
from elmo_gpt_bert.tasks.squad.answering import find_answers
from elmo_gpt_bert.tasks.squad.data import read_folder
from elmo_gpt_bert.tasks.squad.features import Windows, include_marks, make_windows
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.loading import load_tokenizer

from . import plain_squad
from .measure import Contest, Outputs, Side, assert_equal, results_file, take_turns
from .reporting import describe_machine, markdown, print_head, print_machine, write_json
from .scripts import ROOT


MAX_LENGTH, STRIDE, LONGEST = 384, 128, 30  # tokens, as published
BATCH = 1000  # questions in a call of datasets.map
PAIRED = 300  # questions in the row with all pairs
SAMPLE = 200  # questions in the sample
Logits = dict[str, list[np.ndarray]]  # one array per window
REASONS = ["in no single window", f"longer than {LONGEST} tokens", "inside a token"]


# Data


def load_examples(folder: str | None, questions: int | None) -> Dataset:
    """The first `questions` of dev-v1.1.json in `folder`, or of a sample."""
    examples = make_sample() if folder is None else read_folder(Path(folder), ["validation"], False)["validation"]
    return examples.select(range(min(questions or len(examples), len(examples))))


def make_sample() -> Dataset:
    """Questions about contexts of 10 to 80 reviews of the demo. They ask how a review continues."""
    with Path(ROOT, "demo/data/train.tsv").open(encoding="utf-8", newline="") as file:
        reviews = [row["sentence"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    rng = random.Random(0)
    rows = []
    while len(rows) < SAMPLE:
        sample = rng.sample(reviews, rng.randint(10, 80))
        context = " ".join(sample)
        for place in rng.sample(range(len(sample)), 5):
            first, answer = sample[place].removesuffix(" .").split(" ", maxsplit=1)
            begin = len(" ".join([*sample[:place], first, ""]))
            answers = {"text": [answer], "answer_start": [begin]}
            question = f"how does it go on after {first} ?"
            rows.append({"id": str(len(rows)), "context": context, "question": question, "answers": answers})
    return Dataset.from_list(rows)


def make_logits(windows: Windows) -> Logits:
    """Start and end scores of training windows: noise, with high scores for the right span and for a wrong one.

    The wrong span may have higher scores, so that some answers are wrong.
    """
    rng = np.random.default_rng(0)
    logits = {"start_logits": [], "end_logits": []}
    right = [windows.features[name][:] for name in ("start_positions", "end_positions")]
    for first, tokens, *span in zip(windows.column, windows.tokens, *right, strict=True):
        start = rng.integers(tokens)
        wrong = first + start, first + min(start + rng.integers(LONGEST), tokens - 1)
        right_score, wrong_score = rng.uniform(5, 12), rng.uniform(4, 9)
        for values, column, wrong_column in zip(logits.values(), span, wrong, strict=True):
            scores = rng.normal(-6, 1, first + tokens + 1)
            scores[wrong_column] += wrong_score
            scores[column] += right_score
            values.append(scores.astype(np.float32))
    return logits


# Results as numbers, which can be compared


def window_numbers(windows: Windows, train: bool) -> Outputs:
    """The features of the windows and, for evaluation, their questions and the characters of their tokens."""
    numbers = flatten(windows.features[:])
    if not train:  # the example's training windows lack these columns
        places = zip(windows.first, windows.tokens, strict=True)
        spans = np.concatenate([windows.spans[first : first + tokens] for first, tokens in places])
        columns = {"question": windows.question, "column": windows.column, "spans": spans}
        numbers |= {name: torch.from_numpy(values) for name, values in columns.items()}
    return numbers


def feature_numbers(features: dict[str, list], examples: Dataset) -> Outputs:
    """The same of the example's features, without padding; a token's characters get the accents after them."""
    lengths = [sum(row) for row in features["attention_mask"]]
    features = {
        name: [row[:length] for row, length in zip(rows, lengths, strict=True)] if isinstance(rows[0], list) else rows
        for name, rows in features.items()
    }
    numbers = flatten({name: rows for name, rows in features.items() if name not in ("example_id", "offset_mapping")})
    if "example_id" in features:
        question = {name: number for number, name in enumerate(examples["id"])}
        contexts = dict(zip(examples["id"], examples["context"], strict=True))
        numbers["question"] = torch.tensor([question[name] for name in features["example_id"]])
        places = [[column for column, span in enumerate(row) if span] for row in features["offset_mapping"]]
        numbers["column"] = torch.tensor([columns[0] for columns in places])
        spans = [np.array([span for span in row if span]) for row in features["offset_mapping"]]
        for name, window_spans in zip(features["example_id"], spans, strict=True):
            include_marks(contexts[name], window_spans)
        numbers["spans"] = torch.from_numpy(np.concatenate(spans))
    return numbers


def flatten(columns: dict[str, list]) -> Outputs:
    """Columns of numbers as tensors. Lists of numbers are concatenated, and their lengths are another column."""
    numbers = {}
    for name, rows in columns.items():
        if isinstance(rows[0], list):
            numbers[f"lengths of {name}"] = torch.tensor(list(map(len, rows)))
            rows = list(chain.from_iterable(rows))
        numbers[name] = torch.tensor(rows)
    return numbers


def answer_numbers(predictions: dict[str, str], nbest: dict[str, list[dict]] | None = None) -> Outputs:
    """The characters of ids and answers and, with `nbest`, the n best answers with probabilities and scores."""
    numbers = {"answers": text_numbers([*predictions, *predictions.values()])}
    if nbest is not None:
        entries = list(chain.from_iterable(nbest.values()))
        numbers["lengths of n best"] = torch.tensor(list(map(len, nbest.values())))
        numbers["n best"] = text_numbers([entry["text"] for entry in entries])
        for name in ("probability", "start_logit", "end_logit"):
            numbers[name] = torch.tensor([entry[name] for entry in entries])
    return numbers


def text_numbers(texts: list[str]) -> torch.Tensor:
    return torch.tensor([ord(character) for character in "\0".join(texts)])


# Rows


@dataclass(frozen=True)
class Work:
    """The input of all rows: examples and a tokenizer."""

    examples: Dataset
    tokenizer: PreTrainedTokenizerBase

    def head(self, questions: int) -> "Work":
        return Work(self.examples.select(range(min(questions, len(self.examples)))), self.tokenizer)

    def describe(self, windows: Windows) -> str:
        return f"{len(self.examples):,} questions, {len(windows.question):,} windows"

    def windows(self, train: bool) -> Windows:
        return make_windows(self.examples, self.tokenizer, MAX_LENGTH, STRIDE, train=train)

    def lists(self, train: bool) -> dict[str, list]:
        """The example's features without padding, from a call of its function for each batch."""
        make, columns = self._function(train, pad=False), {}
        for begin in range(0, len(self.examples), BATCH):
            for name, rows in make(self.examples[begin : begin + BATCH]).items():
                columns.setdefault(name, []).extend(rows)
        return columns

    def mapped(self, train: bool) -> Dataset:
        """The example's features as it makes them: by datasets.map and with padding, its default."""
        make, names = self._function(train, pad=True), self.examples.column_names
        return self.examples.map(make, batched=True, remove_columns=names, load_from_cache_file=False)

    def _function(self, train: bool, pad: bool) -> Callable[[dict[str, list]], dict[str, list]]:
        function = plain_squad.train_features if train else plain_squad.validation_features
        return partial(function, tokenizer=self.tokenizer, max_length=MAX_LENGTH, stride=STRIDE, pad=pad)


def windows_row(work: Work, train: bool, mapped: bool) -> Contest:
    make = partial(work.mapped if mapped else work.lists, train)

    def check() -> Outputs:
        features = make()
        return feature_numbers(features[:] if mapped else features, work.examples)

    return Contest(
        Side("zoo", lambda _: work.windows(train), lambda: window_numbers(work.windows(train), train)),
        Side("run_qa, mapped" if mapped else "run_qa", lambda _: make(), check),
        work.describe(work.windows(train)),
        tolerance=0.0,
    )


def answers_row(work: Work, mapped: bool = False, pairs: bool = False, nbest: bool = False) -> Contest:
    """Ours are without the n best unless `pairs` or `nbest` is set, as evaluation needs them.

    Only answers are compared with the example's: its n best repeat equal texts and lack some spans.
    """
    windows, logits = work.windows(train=False), make_logits(work.windows(train=True))
    features = work.mapped(train=False) if mapped else list_rows(work.lists(train=False))
    examples = work.examples if mapped else work.examples.to_list()
    scores = tuple(pad(values) if mapped else values for values in logits.values())
    best = plain_squad.all_pairs if pairs else plain_squad.best_of_best

    def ours() -> plain_squad.Answered:
        answers = find_answers(work.examples, windows, logits, max_answer_length=LONGEST)
        return answers.predictions, answers.nbest if nbest or pairs else {}

    def theirs() -> plain_squad.Answered:
        return plain_squad.find_answers(examples, features, scores, best, pairs, longest=LONGEST)

    name = "all pairs" if pairs else "run_qa, mapped" if mapped else "run_qa"
    compared = slice(None if pairs else 1)  # predictions only, or also the n best
    return Contest(
        Side("zoo", lambda _: ours(), lambda: answer_numbers(*ours()[compared])),
        Side(name, lambda _: theirs(), lambda: answer_numbers(*theirs()[compared])),
        work.describe(windows),
        tolerance=1e-6 if pairs else 0.0,  # the two sides sum probabilities in different orders
    )


def pad(logits: list[np.ndarray]) -> list[np.ndarray]:
    """A model's scores of padded windows: low scores at padding."""
    return [np.pad(values, (0, MAX_LENGTH - len(values)), constant_values=-20) for values in logits]


def list_rows(columns: dict[str, list]) -> list[dict]:
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


ROWS: dict[str, Callable[[Work], Contest]] = {
    "windows-train": partial(windows_row, train=True, mapped=False),
    "windows-train-map": partial(windows_row, train=True, mapped=True),
    "windows-validation": partial(windows_row, train=False, mapped=False),
    "windows-validation-map": partial(windows_row, train=False, mapped=True),
    "answers": answers_row,
    "answers-map": partial(answers_row, mapped=True),
    "answers-n-best": partial(answers_row, nbest=True),
    "answers-all-pairs": lambda work: answers_row(work.head(PAIRED), pairs=True),
}
HEADER = ["row", "on", "compared", "CPU seconds", "CPU time ratio", "wall"]


def measure(row: str, work: Work, pairs: int) -> dict[str, object]:
    """Measures one row in `pairs` pairs of turns. Raises DifferentResults if the results of the two sides differ."""
    contest = ROWS[row](work)
    assert_equal(contest)
    gc.collect()
    gc.freeze()  # so that no side pays for the collection of earlier objects
    timing = take_turns(contest, pairs, seconds=0.0)
    gc.unfreeze()
    names = {"row": row, "side": contest.side.name, "baseline": contest.baseline.name, "work": contest.work}
    ratios = {"cpu_ratio": timing.cpu_ratio, "wall_ratio": timing.wall_ratio}
    return names | ratios | vars(timing)


def table_line(result: dict[str, object]) -> list[str]:
    return [
        result["row"],
        result["work"],
        f"{result['side']} : {result['baseline']}",
        f"{result['cpu_seconds']:.2f} : {result['baseline_cpu_seconds']:.2f}",
        f"**{result['cpu_ratio']:.2f}** ({min(result['cpu_ratios']):.2f} - {max(result['cpu_ratios']):.2f})",
        f"{result['wall_ratio']:.2f}",
    ]


# Oracle


def oracle(work: Work) -> dict[str, float]:
    """The scores of a model that always predicts a right span, and how many questions have none, by REASONS.

    A span is right if it equals an answer for the metric. If there is none, the model predicts the tokens that come
    nearest to an answer.
    """
    windows = work.windows(train=False)
    lengths = map(len, windows.features["input_ids"][:])
    zeros = [np.zeros(length, dtype=np.float32) for length in lengths]
    logits = {"start_logits": zeros, "end_logits": [values.copy() for values in zeros]}
    best: dict[int, tuple] = {}  # (how near it comes, window, first and last column)
    contexts, answers = work.examples["context"][:], work.examples["answers"][:]
    for window, question in enumerate(windows.question.tolist()):
        spans = spans_of(answers[question], contexts[question], windows, window)
        best[question] = max([best.get(question, (-1,)), *spans], key=itemgetter(0))
    for _, *span in best.values():
        if span:
            window, *columns = span
            for values, column in zip(logits.values(), columns, strict=True):
                values[window][column] = 100.0
    predicted = find_answers(work.examples, windows, logits, max_answer_length=LONGEST)
    references = {name: answer["text"] for name, answer in zip(work.examples["id"], answers, strict=True)}
    scores = squad1_scores(predicted.predictions, references)
    reasons = Counter(REASONS[max(nearness, 0)] for nearness, *_ in best.values() if nearness < len(REASONS))
    return {"questions": len(work.examples)} | scores | {reason: reasons[reason] for reason in REASONS}


def spans_of(answers: dict, context: str, windows: Windows, window: int) -> Iterator[tuple[int, int, int, int]]:
    """(nearness, window, first column, last column) of each answer; nearness is an index of REASONS, or 3 if right."""
    first, tokens, column = windows.first[window], windows.tokens[window], windows.column[window]
    spans = windows.spans[first : first + tokens]
    for text, start in zip(answers["text"], answers["answer_start"], strict=True):
        begin, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
        inside = np.flatnonzero((spans[:, 1] > begin) & (spans[:, 0] < end))
        if not len(inside):
            continue
        covered = context[spans[inside[0], 0] : spans[inside[-1], 1]]
        if spans[inside[0], 0] > begin or spans[inside[-1], 1] < end:
            nearness = 0
        elif len(inside) > LONGEST:
            nearness = 1
        else:
            nearness = 3 if normalize_answer(covered) == normalize_answer(text) else 2
        yield nearness, window, column + inside[0], column + inside[-1]


def main(argv: list[str] | None = None) -> dict[str, object]:
    parser = argparse.ArgumentParser("python -m benchmarks.squad", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"{', '.join(ROWS)}; all of them when none is named")
    parser.add_argument("--data_dir", help="folder with dev-v1.1.json; default: a sample made of the demo's reviews")
    parser.add_argument("--tokenizer_name", default="demo/vocab.txt", help="a vocab.txt, or a tokenizer's folder")
    parser.add_argument("--questions", type=int, help="use only the first questions, this many")
    parser.add_argument("--pairs", type=int, default=3, help="how many times the sides take turns")
    parser.add_argument("--json", type=results_file, metavar="FILE", help="also write the results to this file")
    args = parser.parse_args(argv)
    if unknown := [row for row in args.rows if row not in ROWS]:
        parser.error(f"no row is called {', '.join(unknown)}; there are {', '.join(ROWS)}")
    if args.pairs < 1 or (args.questions is not None and args.questions < 1):
        parser.error("--pairs and --questions must be positive")
    datasets.disable_progress_bars()
    tokenizer = load_tokenizer(ModelSource(args.tokenizer_name))
    work = Work(load_examples(args.data_dir, args.questions), tokenizer)
    machine = describe_machine() | {"tokenizer threads": tokenizer_threads()}
    print_machine(machine)
    print_head(HEADER)
    results = []
    for row in args.rows or ROWS:
        results.append(measure(row, work, args.pairs))
        print(markdown(table_line(results[-1])), flush=True)
    scores = oracle(work)
    cells = [f"{value:.2f}" if isinstance(value, float) else f"{value:,}" for value in scores.values()]
    print_head(["oracle", *scores])
    print(markdown(["", *cells]))
    document = {"machine": machine, "results": results, "oracle": scores}
    write_json(args.json, document)
    return document


def tokenizer_threads() -> int:
    """The number of threads of the `tokenizers` package, by its two environment variables."""
    if os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() in ("false", "off", "no", "n", "f", "0", ""):
        return 1
    return int(os.environ.get("RAYON_NUM_THREADS", 0)) or os.cpu_count() or 1


if __name__ == "__main__":
    run_command(main)
