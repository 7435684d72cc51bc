"""Times what run_squad.py does before and after the model, and prints a Markdown table.

    python -m benchmarks.squad [ROW ...] [--data_dir FOLDER] [--tokenizer_name vocab.txt] [--json FILE]

The baseline works like transformers' example run_qa.py (plain_squad.py), but without padding and datasets.map, which
would take it longer. `windows-...` makes the windows for training and evaluation. `answers` finds the best spans by a
model's scores, which are random, and high at the right answer.
"""

import argparse
import csv
import gc
import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import datasets
import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from elmo_gpt_bert.tasks.squad.answering import find_answers
from elmo_gpt_bert.tasks.squad.data import read_folder
from elmo_gpt_bert.tasks.squad.features import Windows, include_marks, make_windows
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.loading import load_tokenizer

from . import plain_squad
from .measure import Contest, Outputs, Side, assert_equal, parse_tables, take_turns
from .reporting import describe_machine, markdown, print_head, print_machine, write_json
from .scripts import ROOT


MAX_LENGTH, STRIDE, LONGEST = 384, 128, 30  # tokens, as published
BATCH = 1000  # questions in a call of datasets.map
SAMPLE, TINY = 200, 2  # questions in the sample, and of a run that only tests the command
Logits = dict[str, list[np.ndarray]]  # one array per window


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
    """The same of the example's features; a token's characters get the accents after them."""
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


def answer_numbers(predictions: dict[str, str]) -> Outputs:
    """The characters of ids and answers."""
    texts = "\0".join([*predictions, *predictions.values()])
    return {"answers": torch.tensor([ord(character) for character in texts])}


# Rows


@dataclass(frozen=True)
class Work:
    """The input of all rows: examples and a tokenizer."""

    examples: Dataset
    tokenizer: PreTrainedTokenizerBase

    def describe(self, windows: Windows) -> str:
        return f"{len(self.examples):,} questions, {len(windows.question):,} windows"

    def windows(self, train: bool) -> Windows:
        return make_windows(self.examples, self.tokenizer, MAX_LENGTH, STRIDE, train=train)

    def lists(self, train: bool) -> dict[str, list]:
        """The example's features, from a call of its function for each batch."""
        function, columns = plain_squad.train_features if train else plain_squad.validation_features, {}
        for begin in range(0, len(self.examples), BATCH):
            batch = self.examples[begin : begin + BATCH]
            for name, rows in function(batch, self.tokenizer, MAX_LENGTH, STRIDE).items():
                columns.setdefault(name, []).extend(rows)
        return columns


def windows_row(work: Work, train: bool) -> Contest:
    return Contest(
        Side("zoo", lambda _: work.windows(train), lambda: window_numbers(work.windows(train), train)),
        Side("run_qa", lambda _: work.lists(train), lambda: feature_numbers(work.lists(train), work.examples)),
        work.describe(work.windows(train)),
        tolerance=0.0,
    )


def answers_row(work: Work) -> Contest:
    windows, logits = work.windows(train=False), make_logits(work.windows(train=True))
    columns, examples = work.lists(train=False), work.examples.to_list()
    features = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def ours() -> dict[str, str]:
        return find_answers(work.examples, windows, logits, max_answer_length=LONGEST).predictions

    def theirs() -> dict[str, str]:
        return plain_squad.find_answers(examples, features, tuple(logits.values()), longest=LONGEST)

    return Contest(
        Side("zoo", lambda _: ours(), lambda: answer_numbers(ours())),
        Side("run_qa", lambda _: theirs(), lambda: answer_numbers(theirs())),
        work.describe(windows),
        tolerance=0.0,
    )


ROWS: dict[str, Callable[[Work], Contest]] = {
    "windows-train": partial(windows_row, train=True),
    "windows-validation": partial(windows_row, train=False),
    "answers": answers_row,
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


def main(argv: list[str] | None = None) -> dict[str, object]:
    parser = argparse.ArgumentParser("python -m benchmarks.squad", description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", help="folder with dev-v1.1.json; default: a sample made of the demo's reviews")
    parser.add_argument("--tokenizer_name", default="demo/vocab.txt", help="a vocab.txt, or a tokenizer's folder")
    args = parse_tables(parser, ROWS, argv)
    datasets.disable_progress_bars()
    tokenizer = load_tokenizer(ModelSource(args.tokenizer_name))
    work = Work(load_examples(args.data_dir, TINY if args.size == "tiny" else None), tokenizer)
    machine = describe_machine() | {"tokenizer threads": tokenizer_threads()}
    print_machine(machine)
    print_head(HEADER)
    results = []
    for row in args.tables or ROWS:
        results.append(measure(row, work, args.pairs))
        print(markdown(table_line(results[-1])), flush=True)
    document = {"machine": machine, "results": results}
    write_json(args.json, document)
    return document


def tokenizer_threads() -> int:
    """The number of threads of the `tokenizers` package, by its two environment variables."""
    if os.environ.get("TOKENIZERS_PARALLELISM", "true").lower() in ("false", "off", "no", "n", "f", "0", ""):
        return 1
    return int(os.environ.get("RAYON_NUM_THREADS", 0)) or os.cpu_count() or 1


if __name__ == "__main__":
    run_command(main)
