"""The results of a run, which are the flat entries of metrics.json, and the clock that counts its seconds.

train_loss, train_updates           the mean over the examples, or labelled tokens, trained on
best_update                         after which the best model was saved, with --load_best_model_at_end
eval_f1, eval_loss, test_f1         scores of the validation and the test set
eval_accuracy_mm                    a score of MNLI's mismatched part
eval_f1_PER, eval_number_PER        a score of one type of entities, or phenomenon of minimal pairs, and how many
                                    there are
eval_runtime                        seconds spent on a step
eval_samples, eval_samples_total    how many examples the run uses, and how many there are
"""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import read_json_object
from elmo_gpt_bert.training.output_folder import METRICS


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict


# Losses and other measures of errors, also those of --metric_name; not the F1 of a type that is called error.
LOWER_IS_BETTER = re.compile(
    r"(?!(precision|recall|f1|accuracy)_)(.*_)?"
    r"(loss|perplexity|bits_per_byte|error|error_rate|r?mse|mae|s?mape|mase|wer|cer|brier_score)",
    re.IGNORECASE,
)
PREDICTED_CLASSES = "predicted_classes"  # how many classes the model predicts; with 1 it has collapsed
# Values of metrics that are not scores, such as SQuAD's numbers of questions, and the thresholds of its best scores.
NOT_SCORES = {"total", "HasAns_total", "NoAns_total", "best_exact_thresh", "best_f1_thresh", PREDICTED_CLASSES}
MISMATCHED = "_mm"  # suffix of the names for MNLI's mismatched part
NUMBER = "number"  # of entities of a type, or of pairs of a phenomenon, in the data
TYPE_SCORES = ("precision", "recall", "f1", "accuracy", "forward_accuracy", "backward_accuracy")
STATISTICS = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "std": lambda values: statistics.stdev(values) if len(values) > 1 else 0.0,  # of a sample
    "min": min,
    "max": max,
}
# split -> its entries: how many examples the run uses, and how many there are
SAMPLES = {
    "train": ("train_samples", "train_samples_total"),
    "validation": ("eval_samples", "eval_samples_total"),
    "test": ("predict_samples", "predict_samples_total"),
    "validation_mm": ("eval_samples_mm", "eval_samples_total_mm"),
    "test_mm": ("predict_samples_mm", "predict_samples_total_mm"),
}
SAMPLE_NAMES = [name for names in SAMPLES.values() for name in names]
RUNTIME = re.compile(r"([a-z]+)_runtime")
# The entries of metrics.json that are not results.
RUN_KEYS = ("seed", "args", "identity", "versions", "hardware", "runs", "replaced_runs")


# Scores


def scores_of(results: Mapping[str, float], prefix: str = "eval") -> dict[str, float]:
    """The scores of a split by their names without its prefix. The first is the main score."""
    others = {f"{prefix}_runtime", *SAMPLE_NAMES}
    return {
        name.removeprefix(f"{prefix}_"): value
        for name, value in results.items()
        if name.startswith(f"{prefix}_") and name not in others
    }


def types_of(scores: Mapping[str, float]) -> list[str]:
    """The types of entities, or the phenomena, that have scores."""
    return [name.removeprefix(f"{NUMBER}_") for name in scores if name.startswith(f"{NUMBER}_")]


def without_types(scores: Mapping[str, float], types: Iterable[str] | None = None) -> dict[str, float]:
    """The scores without those of single types: of these or, by default, of any."""
    types = types_of(scores) if types is None else types
    of_types = {f"{score}_{kind}" for kind in types for score in (*TYPE_SCORES, NUMBER)}
    return {name: value for name, value in scores.items() if name not in of_types}


def main_scores(scores: Mapping[str, float]) -> dict[str, float]:
    """The scores that a model card shows: not the loss, nor counts, thresholds and the scores of single types."""
    others = {*NOT_SCORES, "loss"}
    return {name: v for name, v in without_types(scores).items() if name.removesuffix(MISMATCHED) not in others}


def defined(results: Mapping[str, float]) -> dict[str, float]:
    """The results without those that are no number, as JSON has none: their metrics are undefined for the outputs."""
    return {name: value for name, value in results.items() if math.isfinite(value)}


def check_metric(results: Mapping[str, float], metric: str) -> None:
    """Raises ValueError unless `metric` may choose the best model. `results` have undefined metrics, too.

    A count, a threshold, and a score of a type that the model alone sees may not: it may see none later.
    """
    scores = scores_of(results)
    absent = [kind for kind in types_of(scores) if not scores[f"{NUMBER}_{kind}"]]
    scores = {
        name: value
        for name, value in without_types(scores, absent).items()
        if name.removesuffix(MISMATCHED) not in NOT_SCORES and not name.startswith(f"{NUMBER}_")
    }
    if metric.removeprefix("eval_") not in scores:
        raise InputError(f"--metric_for_best_model {metric} is none of {', '.join(scores)}")


def goodness(results: Mapping[str, float], metric: str | None) -> float:
    """A number that is greater for a better model: its score in `metric`, by default the main score.

    For metrics that are better when lower, like the loss, it is the negative value. A model for which a named `metric`
    is undefined is better than no other.
    """
    scores = scores_of(results)
    name = next(iter(scores), None) if metric is None else metric.removeprefix("eval_")
    if name not in scores:
        return -math.inf
    return -scores[name] if LOWER_IS_BETTER.fullmatch(name.removesuffix(MISMATCHED)) else scores[name]


def spread_of_seeds(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The `STATISTICS` of each score that all of several seeds have, without single types: eval_f1_mean, ...

    Seeds that finished before --do_predict was added, or with it, have other scores of the test set.
    """
    return {
        f"{prefix}_{name}_{statistic}": compute([run[f"{prefix}_{name}"] for run in runs])
        for prefix in ("eval", "test")
        for name in without_types(scores_of(runs[0], prefix))
        if name.removesuffix(MISMATCHED) != PREDICTED_CLASSES and all(f"{prefix}_{name}" in run for run in runs)
        for statistic, compute in STATISTICS.items()
    }


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, without a line break at its end."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def describe_results(results: Mapping[str, float]) -> str:
    """For the console: the values, then a table of the types (of entities, of phenomena), then one of the seeds."""
    values, tables = dict(results), []
    for prefix in ("eval", "test"):
        kinds = types_of(scores_of(results, prefix))
        columns = [
            score for score in (*TYPE_SCORES, NUMBER) if any(f"{prefix}_{score}_{kind}" in results for kind in kinds)
        ]
        rows = [[kind, *(values.pop(f"{prefix}_{score}_{kind}", None) for score in columns)] for kind in kinds]
        if rows:
            overall = ["overall", *(results.get(f"{prefix}_{score}") for score in columns)]
            tables.append([[prefix, *columns], *rows, overall])
    spreads = {name: [f"{name}_{statistic}" for statistic in STATISTICS] for name in results}
    spreads = {name: entries for name, entries in spreads.items() if values.keys() >= {*entries}}
    rows = [[name, *map(values.pop, entries)] for name, entries in spreads.items()]
    if rows:
        tables.append([["seeds", *STATISTICS], *rows])
    return "\n\n".join(_aligned(table) for table in [[*values.items()], *tables] if table)


def _aligned(rows: Sequence[Sequence[str | float | None]]) -> str:
    """The lines of a table, whose first column holds names. None is an empty cell."""
    names, *columns = zip(*([_cell(value) for value in row] for row in rows), strict=True)
    padded = [[name.ljust(max(map(len, names))) for name in names]]
    padded += [[cell.rjust(max(map(len, column))) for cell in column] for column in columns]
    return "\n".join(f"  {'  '.join(cells)}".rstrip() for cells in zip(*padded, strict=True))


def _cell(value: str | float | None) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:,d}" if isinstance(value, int) else f"{value:.4f}"


# Numbers of examples


def count_samples(data: Mapping[str, Dataset], limits: Mapping[str, int | None]) -> dict[str, int]:
    """The entries for the numbers of examples in `data`, as it was read, and of those that the run uses.

    The keys of `limits` are the splits without _mm, as in `first_examples`.
    """
    entries = {}
    for split, examples in data.items():
        taken, total = SAMPLES[split]
        entries |= {taken: _limited(split, examples, limits), total: len(examples)}
    return entries


def first_examples(data: DatasetDict, limits: Mapping[str, int | None]) -> DatasetDict:
    """The splits cut to their `limits`, whose keys are the splits without _mm: both parts of MNLI have one limit."""
    return type(data)(
        {split: examples.select(range(_limited(split, examples, limits))) for split, examples in data.items()}
    )


def _limited(split: str, examples: Dataset, limits: Mapping[str, int | None]) -> int:
    limit = limits[split.removesuffix("_mm")]
    return len(examples) if limit is None else min(limit, len(examples))


def describe_samples(samples: Mapping[str, float]) -> str:
    """For the console, as in "train 1,000 of 8,551, validation 1,043"."""
    splits = {taken: split for split, (taken, _) in SAMPLES.items()}
    return ", ".join(f"{splits[name]} {describe_number(samples, splits[name])}" for name in samples if name in splits)


def describe_number(samples: Mapping[str, float], split: str) -> str:
    """How many examples of a split a run uses, as in "1,000 of 8,551", or "8,551"."""
    taken, total = map(samples.get, SAMPLES[split])
    return f"{taken:,}" if taken == total else f"{taken:,} of {total:,}"


def part_used(samples: Mapping[str, float], split: str) -> str | None:
    """As in "the first 1,000 of 8,551 examples"; None if the run uses all examples, or did not count them."""
    taken, total = map(samples.get, SAMPLES[split])
    return None if total in (None, taken) else f"the first {taken:,} of {total:,} examples"


# Seconds


class Clock:
    """Seconds by the name of the step that they were spent on."""

    startup_seconds = 0.0  # from the script's first import to its first clock, which counts them

    def __init__(self, seconds: dict[str, float] | None = None) -> None:
        """Adds to `seconds`, in place, if it is given."""
        self.seconds = {} if seconds is None else seconds
        self.last = time.perf_counter() - Clock.startup_seconds
        Clock.startup_seconds = 0.0

    def lap(self, name: str) -> None:
        """Counts the time since the last lap as spent on `name`."""
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self.last
        self.last = now

    def include(self, seconds: dict[str, float]) -> None:
        """Adds the seconds that another clock has counted since this clock's last lap."""
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value
        self.last = time.perf_counter()

    @property
    def total(self) -> float:
        """All seconds counted, with those since the last lap."""
        return sum(self.seconds.values()) + time.perf_counter() - self.last


# metrics.json


def read_results(record: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """The entries of a metrics.json for (training and its scores, seconds, numbers of examples)."""
    scores = {name: value for name, value in record.items() if name not in RUN_KEYS}
    seconds = {name: scores.pop(name) for name in record if RUNTIME.fullmatch(name)}
    samples = {name: scores.pop(name) for name in SAMPLE_NAMES if name in record}
    return scores, seconds, samples


def read_record(folder: Path) -> dict[str, Any]:
    """The metrics.json of the run that has finished in a folder; empty if none has.

    Raises ValueError if it is damaged, or its seed or one of its parts has the wrong type.
    """
    path = folder / METRICS
    if not path.is_file():
        return {}
    try:
        record = read_json_object(path)
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): copy it again, or repeat its run") from error
    parts = ("args", "identity", "runs", "replaced_runs")
    if type(record.get("seed")) is not int or not all(isinstance(record.get(name, {}), dict) for name in parts):
        raise InputError(f"{path} is not what a run writes: copy it again, or repeat its run")
    return record
