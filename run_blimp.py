# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert==0.1.0"]
# ///
"""Scores a language model on minimal pairs: BLiMP (Warstadt et al. 2020), or pairs of your own.

    python run_blimp.py --model_name_or_path CHECKPOINT --data_dir blimp/data --output_dir runs/blimp
    python run_blimp.py --model_name_or_path CHECKPOINT --data_file pairs.jsonl --output_dir runs/pairs
    python run_blimp.py --model_name_or_path google-bert/bert-base-uncased --data_file pairs.jsonl.xz \\
        --pll within_word_l2r --output_dir runs/bert/pairs

A pair is right if the model gives sentence_good a higher log-probability than sentence_bad. A tie counts half. The
log-probability of a sentence is the sum over its tokens: given the tokens before it with a causal model; given all
other tokens with a masked model, the pseudo-log-likelihood; in both directions with a biLM, whose forward and backward
accuracies are reported along with that of the sum.
The folder --data_dir holds BLiMP's 67 files as they are published. A file of your own holds JSON lines, csv or
tab-separated columns, compressed or not. Its columns are sentence_good and sentence_bad, and optionally field,
linguistics_term and UID, by which accuracies are reported too, and pairID.
OUTPUT_DIR receives metrics.json, predictions.jsonl (the scores of both sentences of each pair, in the order of the
data), and README.md, a card with the scores.
"""

from __future__ import annotations

import elmo_gpt_bert.starting  # noqa: F401 - says so before the imports below, which take seconds


# isort: split

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from datasets import DatasetDict
from transformers import AutoModelForMaskedLM

from elmo_gpt_bert.tasks.features import choose_head
from elmo_gpt_bert.tasks.minimal_pairs import (
    REMEDY,
    Scorer,
    find_files,
    is_blimp,
    make_features,
    make_scorer,
    phenomena,
    read_file,
    read_folder,
)
from elmo_gpt_bert.training.arguments import PositiveInt, RunArguments, flag
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer, positions
from elmo_gpt_bert.training.results import NUMBER, count_samples, first_examples
from elmo_gpt_bert.training.runs import command, repeat, run_task
from elmo_gpt_bert.training.task import Description, Outputs, Task


@dataclass(frozen=True, kw_only=True)
class BlimpArguments(RunArguments):
    """The arguments of this script, in addition to those of every run that evaluates."""

    only_evaluates: ClassVar[bool] = True

    attn_implementation: str | None = flag("eager", "eager, the fastest for short sentences, sdpa, ...")
    do_eval: bool = flag(True, "score the pairs, which is all that this script does")
    data_dir: str | None = flag(None, "folder of BLiMP's files")
    data_file: str | None = flag(None, "your own file of pairs")
    max_eval_samples: PositiveInt | None = flag(None, "score only this many pairs, the first")
    pll: Literal["original", "within_word_l2r"] = flag(
        "original", "what is masked with a token that a masked model predicts: nothing, or what follows in its word"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data_dir is None) == (self.data_file is None):
            raise InputError("give the pairs by one of --data_dir, --data_file")
        model, output = Path(self.model_name_or_path), Path(self.output_dir)
        if model.is_dir() and output.resolve() == model.resolve():
            raise InputError(f"--output_dir {output} is the model's folder, whose card would be lost: choose another")

    def data_sources(self) -> dict[str, list[Path] | str]:
        return {"validation": [Path(self.data_file)] if self.data_dir is None else find_files(Path(self.data_dir))}


@dataclass
class MinimalPairs(Task):
    """Pairs of a good and a bad sentence.

    scorer: gives the log-probabilities of sentences
    columns: a column of the data -> the phenomena in it
    rows: (pairs, 2) the numbers of the features of each pair's sentences
    """

    scorer: Scorer
    columns: Mapping[str, list[str]]
    rows: np.ndarray | None = None

    writes_validation: ClassVar[bool] = True
    unit: ClassVar[str] = "pairs"

    def featurize(self, args: BlimpArguments) -> None:
        features, self.rows = make_features(self.data["validation"], self.scorer, positions(self.model))
        self.features = {"validation": features}

    @property
    def output_module(self) -> Scorer:
        return self.scorer

    def decode(self, split: str, outputs: Outputs) -> dict[str, np.ndarray]:
        """The scores of each pair's sentences, (pairs, 2): "" -> the sum of the directions; of two, each of them."""
        directions = {
            name.removesuffix("log_likelihoods"): np.array(values, dtype=np.float64)[self.rows]
            for name, values in outputs.items()
        }
        return {"": sum(directions.values())} | directions

    def score(self, split: str, outputs: Outputs, predictions: dict[str, np.ndarray]) -> dict[str, float]:
        """The accuracy, overall and for each phenomenon; of a biLM, also that of each direction."""
        right = {
            f"{direction}accuracy": (np.sign(scores[:, 0] - scores[:, 1]) + 1) / 2  # a tie counts half
            for direction, scores in predictions.items()
        }
        scores = _means(right, np.full(len(self.rows), True))
        for column, names in self.columns.items():
            column_of_pairs = np.array(self.data[split][column][:])
            for name in names:
                chosen = column_of_pairs == name
                of_phenomenon = _means(right, chosen) | {NUMBER: int(chosen.sum())}
                scores |= {f"{score}_{name}": value for score, value in of_phenomenon.items()}
        return scores

    def write(self, split: str, predictions: dict[str, np.ndarray]) -> dict[str, str]:
        """One line of JSON a pair."""
        names = [name for name in ("UID", "pairID") if any(self.data[split][name])]
        lines = []
        for number, pair in enumerate(self.data[split].select_columns(names) if names else [{}] * len(self.rows)):
            for direction, scores in predictions.items():
                pair |= {f"{direction}{side}": scores[number, i] for i, side in enumerate(("good", "bad"))}
            lines.append(json.dumps(pair))
        return {"predictions.jsonl": "\n".join(lines) + "\n"}


def _means(right: Mapping[str, np.ndarray], chosen: np.ndarray) -> dict[str, float]:
    return {name: float(values[chosen].mean()) for name, values in right.items()}


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Carries out what `argv`, by default the command line, asks for; returns metrics.json's numbers."""
    return repeat(partial(run_task, load), parse_arguments(BlimpArguments, argv))


def load(args: BlimpArguments) -> MinimalPairs:
    """The task, and a model with the head that scores sentences."""
    config, tokenizer = load_config(args.source), load_tokenizer(args.source, for_task=False)
    pairs = read_file(Path(args.data_file)) if args.data_dir is None else read_folder(Path(args.data_dir))
    data = DatasetDict(validation=pairs)
    limits = {"validation": args.max_eval_samples}
    samples = count_samples(data, limits)
    of_blimp, data = is_blimp(data["validation"]), first_examples(data, limits)
    columns = phenomena(data["validation"])
    head = choose_head(config, tokenizer, args.source)
    if args.pll != BlimpArguments.pll and head is not AutoModelForMaskedLM:
        raise InputError(f"--pll {args.pll} is for masked models, not {type(config).__name__}: leave it out")
    model = load_model(head, args.source, config, tokenizer, train=False, remedy=REMEDY)
    scorer = make_scorer(head, model, tokenizer, args.pll)
    description, parts = describe_data(of_blimp, scorer), {"model": model, "tokenizer": tokenizer}
    return MinimalPairs(data, samples, description, scorer, columns, **parts, collate=scorer.collate)


def describe_data(of_blimp: bool, scorer: Scorer) -> Description:
    """What the card says the scores were measured on."""
    if not of_blimp:
        return Description(scorer.task_type)
    name = "nyu-mll/blimp"
    return Description(scorer.task_type, name, dataset_name="BLiMP", dataset_split="train", language="en")


if __name__ == "__main__":
    command(main)
