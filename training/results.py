"""What a run reports: the scores of each set of examples, its training loss, seconds, and numbers of examples.

metrics.json and progress.json hold results flat: eval_f1, eval_loss, eval_accuracy_mm, test_f1, train_runtime, ...
`flat` writes these names and `read` reads them; all other code knows the fields alone.
"""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from training.errors import InputError, Parameter
from training.files import parse_json, read_text
from training.samples import Samples, flatten_samples, read_samples


LOWER_IS_BETTER = ("loss", "perplexity")
# What metrics give beside scores: SQuAD's numbers of questions, and the thresholds of its best scores.
NO_SCORES = {"total", "HasAns_total", "NoAns_total", "best_exact_thresh", "best_f1_thresh"}
MISMATCHED = "_mm"  # in the end of the names of MNLI's mismatched part
NUMBER = "number"  # of the entities of a type in the data
RUN = ("seed", "args", "identity", "versions", "hardware", "runs", "replaced_runs")  # in metrics.json beside results


@dataclass(frozen=True)
class Scores:
    """What was measured on one set of examples.

    values: by name, in the order of the task's metric; the first is the main one, which says which model is best
    types: of single types of entities, type -> precision, recall, f1 and the number of entities in the data
    predicted_classes: how many the model predicts; 1: it has collapsed
    loss: the mean over the examples, or over their labelled tokens
    """

    values: dict[str, float]
    types: dict[str, dict[str, float]] = field(default_factory=dict)
    predicted_classes: int | None = None
    loss: float | None = None

    @property
    def scores(self) -> dict[str, float]:
        """The values that say how good the model is."""
        return {name: value for name, value in self.values.items() if name not in NO_SCORES}

    @property
    def whole(self) -> dict[str, float]:
        """All but the scores of single types, flat."""
        rest = {"predicted_classes": self.predicted_classes, "loss": self.loss}
        return self.values | {name: value for name, value in rest.items() if value is not None}

    def flat(self) -> dict[str, float]:
        of_types = {f"{name}_{kind}": value for kind, values in self.types.items() for name, value in values.items()}
        return {**self.values, **of_types, **self.whole}

    @classmethod
    def read(cls, flat: Mapping[str, float]) -> "Scores":
        """What `flat` has made of them."""
        values = dict(flat)
        rest = {name: values.pop(name, None) for name in ("predicted_classes", "loss")}
        types = {}
        for kind in [name.removeprefix(f"{NUMBER}_") for name in flat if name.startswith(f"{NUMBER}_")]:
            names = [name for name in flat if name.endswith(f"_{kind}")]
            names = [name for name in names if name.removesuffix(f"_{kind}") in ("precision", "recall", "f1", NUMBER)]
            types[kind] = {name.removesuffix(f"_{kind}"): values.pop(name) for name in names}
        return cls(values, types, **rest)


ScoresBySet = dict[str, Scores]  # suffix -> scores of that set: "" or, of MNLI's mismatched part, "_mm"


def by_name(evaluation: ScoresBySet) -> dict[str, float]:
    """All scores, under their names with the suffix of their set: `f1`, `accuracy_mm`, `f1_PER`."""
    return {f"{name}{suffix}": value for suffix, scores in evaluation.items() for name, value in scores.flat().items()}


def flatten(split: str, evaluation: ScoresBySet) -> dict[str, float]:
    """The entries of metrics.json: `eval_f1`, `eval_accuracy_mm`, `test_f1_PER`."""
    return {f"{split}_{name}": value for name, value in by_name(evaluation).items()}


def read_evaluation(split: str, flat: Mapping[str, Any]) -> ScoresBySet:
    """What `flatten` has made of it, among other entries."""
    names = {name: name.removeprefix(f"{split}_") for name in flat if name.startswith(f"{split}_")}
    other = {f"{split}_runtime", *flatten_samples(read_samples(flat))}
    kinds = {name.removeprefix(f"{NUMBER}_") for name in names.values() if name.startswith(f"{NUMBER}_")}
    sets: dict[str, dict[str, float]] = {}
    for name, short in names.items():
        if name in other:
            continue
        mismatched = short.endswith(MISMATCHED) and short.removesuffix(MISMATCHED) in names.values()
        suffix = MISMATCHED if mismatched and short.partition("_")[2] not in kinds else ""
        sets.setdefault(suffix, {})[short.removesuffix(suffix)] = flat[name]
    return {suffix: Scores.read(values) for suffix, values in sets.items()}


def goodness(evaluation: ScoresBySet, metric: str | None) -> float:
    """How good a model is, greater where better: its score in `metric`, by default the main one.

    Of what is better where it is lower, as a loss, it is the negative. Raises ValueError where there is no such score.
    """
    scores = by_name(evaluation)
    name = next(iter(scores)) if metric is None else metric.removeprefix("eval_")
    if name not in scores:
        raise InputError(Parameter("metric", "metric_for_best_model"), f" {metric} is none of {', '.join(scores)}")
    lower = {f"{lower}{suffix}" for lower in LOWER_IS_BETTER for suffix in evaluation}
    return -scores[name] if name in lower else scores[name]


@dataclass
class Results:
    """The results of a run; fields that do not apply to it are empty."""

    train_loss: float | None = None  # mean over the examples, or labelled tokens, seen
    train_updates: int | None = None
    best_update: int | None = None  # the one whose model was kept, with --load_best_model_at_end
    validation: ScoresBySet = field(default_factory=dict)
    test: ScoresBySet = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # by what they were spent on
    samples: dict[str, Samples] = field(default_factory=dict)  # by split

    def flat(self) -> dict[str, float]:
        """As metrics.json has them."""
        training = {name: getattr(self, name) for name in ("train_loss", "train_updates", "best_update")}
        return {
            **{name: value for name, value in training.items() if value is not None},
            **flatten("eval", self.validation),
            **flatten("test", self.test),
            **{f"{name}_runtime": seconds for name, seconds in self.seconds.items()},
            **flatten_samples(self.samples),
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "Results":
        """Those of a metrics.json, as `read_record` gives it."""
        flat = {name: value for name, value in record.items() if name not in RUN}
        return cls(
            **{name: flat.get(name) for name in ("train_loss", "train_updates", "best_update")},
            validation=read_evaluation("eval", flat),
            test=read_evaluation("test", flat),
            seconds={n.removesuffix("_runtime"): value for n, value in flat.items() if n.endswith("_runtime")},
            samples=read_samples(flat),
        )

    @property
    def collapsed(self) -> bool:
        """Whether all predictions on the validation set are of one class."""
        return "" in self.validation and self.validation[""].predicted_classes == 1


@dataclass(frozen=True)
class Spread:
    """One score over several seeds."""

    mean: float
    median: float
    std: float  # of a sample; 0 of one seed
    min: float
    max: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), statistics.median(values), std, min(values), max(values))


@dataclass(frozen=True)
class SeedSpread:
    """The spread of each score of the validation and the test set; those of single types are left to each run."""

    validation: dict[str, Spread]  # names with their suffix
    test: dict[str, Spread]
    ranked: list[str]  # of the validation set, the names that are scores

    @classmethod
    def of(cls, runs: list[Results]) -> "SeedSpread":
        validation, test = ([getattr(run, part) for run in runs] for part in ("validation", "test"))
        ranked = [f"{name}{suffix}" for suffix, scores in validation[0].items() for name in scores.scores]
        return cls(_spread(validation), _spread(test), ranked)

    def flat(self) -> dict[str, float]:
        """eval_f1_mean, eval_f1_median, ... as metrics.json has them."""
        return {
            f"{split}_{name}_{what}": value
            for split, spreads in (("eval", self.validation), ("test", self.test))
            for name, spread in spreads.items()
            for what, value in asdict(spread).items()
        }


def _spread(runs: list[ScoresBySet]) -> dict[str, Spread]:
    spreads = {}
    for suffix, scores in runs[0].items():
        for name in [name for name in scores.whole if name != "predicted_classes"]:
            spreads[f"{name}{suffix}"] = Spread.of([run[suffix].whole[name] for run in runs])
    return spreads


def read_record(path: Path) -> dict[str, Any]:
    """A metrics.json. Raises ValueError where it is damaged, or its seed or one of its parts is of another type."""
    try:
        record = parse_json(read_text(path))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): copy it again, or repeat its run") from error
    is_ours = isinstance(record, dict) and type(record.get("seed")) is int
    if not (is_ours and all(isinstance(record.get(name, {}), dict) for name in ("args", "runs", "replaced_runs"))):
        raise InputError(f"{path} is not what a run writes: copy it again, or repeat its run")
    return record
