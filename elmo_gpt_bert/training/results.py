"""The results of a run: scores of each data set, training loss, seconds, and numbers of examples.

metrics.json and progress.json hold results as flat entries: eval_f1, eval_loss, eval_accuracy_mm, test_f1,
train_runtime, ... The methods `flat` and `read` convert to and from these entries; all other code uses the fields.
"""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from elmo_gpt_bert.training.errors import InputError, Parameter
from elmo_gpt_bert.training.files import parse_json, read_text
from elmo_gpt_bert.training.samples import Samples, flatten_samples, read_samples


LOWER_IS_BETTER = ("loss", "perplexity", "bits_per_byte")
# Values of metrics that are not scores: SQuAD's numbers of questions, and the thresholds of its best scores.
NOT_SCORES = {"total", "HasAns_total", "NoAns_total", "best_exact_thresh", "best_f1_thresh"}
MISMATCHED = "_mm"  # suffix of the names for MNLI's mismatched part
NUMBER = "number"  # of entities of a type, or of pairs of a phenomenon, in the data
TYPE_SCORES = ("precision", "recall", "f1", "accuracy", "forward_accuracy", "backward_accuracy")
# The entries of metrics.json that are not results.
RUN_KEYS = ("seed", "args", "identity", "versions", "hardware", "runs", "replaced_runs")


@dataclass(frozen=True)
class Scores:
    """The scores of a model on one data set.

    values: name -> value, in the order of the task's metric; the first is the main score, which chooses the best model
    types: type of entity, or phenomenon of minimal pairs -> its scores, some of `TYPE_SCORES`, and the number of such
        entities or pairs in the data
    predicted_classes: how many classes the model predicts; with 1 it has collapsed
    loss: the mean over the examples, or over their labelled tokens
    """

    values: dict[str, float]
    types: dict[str, dict[str, float]] = field(default_factory=dict)
    predicted_classes: int | None = None
    loss: float | None = None

    @property
    def scores(self) -> dict[str, float]:
        """The values that say how good the model is, without counts and thresholds."""
        return {name: value for name, value in self.values.items() if name not in NOT_SCORES}

    @property
    def overall(self) -> dict[str, float]:
        """The flat entries without those of single types."""
        rest = {"predicted_classes": self.predicted_classes, "loss": self.loss}
        return self.values | {name: value for name, value in rest.items() if value is not None}

    def flat(self) -> dict[str, float]:
        """The entries of metrics.json, without prefix and suffix."""
        of_types = {f"{name}_{kind}": value for kind, values in self.types.items() for name, value in values.items()}
        return {**self.values, **of_types, **self.overall}

    @classmethod
    def read(cls, flat: Mapping[str, float]) -> "Scores":
        """The inverse of `flat`."""
        values = dict(flat)
        rest = {name: values.pop(name, None) for name in ("predicted_classes", "loss")}
        types = {}
        for kind in [name.removeprefix(f"{NUMBER}_") for name in flat if name.startswith(f"{NUMBER}_")]:
            scores = [score for score in (*TYPE_SCORES, NUMBER) if f"{score}_{kind}" in flat]
            types[kind] = {score: values.pop(f"{score}_{kind}") for score in scores}
        return cls(values, types, **rest)


ScoresBySet = dict[str, Scores]  # suffix -> scores; the suffix is "", or "_mm" for MNLI's mismatched part


def by_name(scores_by_set: ScoresBySet) -> dict[str, float]:
    """All values by their names with the suffix of their data set: `f1`, `accuracy_mm`, `f1_PER`."""
    return {
        f"{name}{suffix}": value for suffix, scores in scores_by_set.items() for name, value in scores.flat().items()
    }


def flatten_scores(split: str, scores_by_set: ScoresBySet) -> dict[str, float]:
    """The entries of metrics.json: `eval_f1`, `eval_accuracy_mm`, `test_f1_PER`."""
    return {f"{split}_{name}": value for name, value in by_name(scores_by_set).items()}


def read_scores(split: str, flat: Mapping[str, Any]) -> ScoresBySet:
    """The inverse of `flatten_scores`; `flat` may have other entries."""
    names = {name: name.removeprefix(f"{split}_") for name in flat if name.startswith(f"{split}_")}
    other = {f"{split}_runtime", *flatten_samples(read_samples(flat))}
    kinds = [name.removeprefix(f"{NUMBER}_") for name in names.values() if name.startswith(f"{NUMBER}_")]
    of_types = {f"{score}_{kind}" for kind in kinds for score in (*TYPE_SCORES, NUMBER)}
    sets: dict[str, dict[str, float]] = {}
    for name, short in names.items():
        if name in other:
            continue
        mismatched = short.endswith(MISMATCHED) and short.removesuffix(MISMATCHED) in names.values()
        suffix = MISMATCHED if mismatched and short not in of_types else ""
        sets.setdefault(suffix, {})[short.removesuffix(suffix)] = flat[name]
    return {suffix: Scores.read(values) for suffix, values in sets.items()}


def goodness(scores_by_set: ScoresBySet, metric: str | None) -> float:
    """A number that is greater for a better model: its score in `metric`, by default the main score.

    For metrics that are better when lower, like the loss, it is the negative value. Raises ValueError if there is no
    such metric, and for a count or a threshold.
    """
    others = {f"{name}{suffix}" for name in (*NOT_SCORES, "predicted_classes") for suffix in scores_by_set}
    scores = {
        name: value
        for name, value in by_name(scores_by_set).items()
        if name not in others and not name.startswith(f"{NUMBER}_")
    }
    name = next(iter(scores)) if metric is None else metric.removeprefix("eval_")
    if name not in scores:
        raise InputError(Parameter("metric", "metric_for_best_model"), f" {metric} is none of {', '.join(scores)}")
    lower_is_better = {f"{lower}{suffix}" for lower in LOWER_IS_BETTER for suffix in scores_by_set}
    return -scores[name] if name in lower_is_better else scores[name]


@dataclass
class Results:
    """The results of a run. Fields that do not apply to the run are None or empty."""

    train_loss: float | None = None  # mean over the examples, or the labelled tokens, trained on
    train_updates: int | None = None
    best_update: int | None = None  # after which the best model was saved, with --load_best_model_at_end
    validation: ScoresBySet = field(default_factory=dict)
    test: ScoresBySet = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)  # by step, as in `Clock`
    samples: dict[str, Samples] = field(default_factory=dict)  # by split

    def flat(self) -> dict[str, float]:
        """The entries of metrics.json."""
        training = {name: getattr(self, name) for name in ("train_loss", "train_updates", "best_update")}
        return {
            **{name: value for name, value in training.items() if value is not None},
            **flatten_scores("eval", self.validation),
            **flatten_scores("test", self.test),
            **{f"{name}_runtime": seconds for name, seconds in self.seconds.items()},
            **flatten_samples(self.samples),
        }

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> "Results":
        """The inverse of `flat`, for a metrics.json read by `read_record`."""
        flat = {name: value for name, value in record.items() if name not in RUN_KEYS}
        return cls(
            **{name: flat.get(name) for name in ("train_loss", "train_updates", "best_update")},
            validation=read_scores("eval", flat),
            test=read_scores("test", flat),
            seconds={n.removesuffix("_runtime"): value for n, value in flat.items() if n.endswith("_runtime")},
            samples=read_samples(flat),
        )

    @property
    def collapsed(self) -> bool:
        """Whether all predictions for the validation set are of one class."""
        return "" in self.validation and self.validation[""].predicted_classes == 1


@dataclass(frozen=True)
class Spread:
    """Mean, median, standard deviation, minimum and maximum of one score over several seeds."""

    mean: float
    median: float
    std: float  # of a sample; 0 for one seed
    min: float
    max: float

    @classmethod
    def of(cls, values: list[float]) -> "Spread":
        std = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.fmean(values), statistics.median(values), std, min(values), max(values))


@dataclass(frozen=True)
class SeedSpread:
    """The spread of each score of the validation and the test set, without the scores of single types."""

    validation: dict[str, Spread]  # name with suffix -> spread
    test: dict[str, Spread]
    ranked: list[str]  # the keys of `validation` that are scores, without counts, thresholds and loss

    @classmethod
    def of(cls, runs: list[Results]) -> "SeedSpread":
        validation, test = [run.validation for run in runs], [run.test for run in runs]
        ranked = [f"{name}{suffix}" for suffix, scores in validation[0].items() for name in scores.scores]
        return cls(_spread(validation), _spread(test), ranked)

    def flat(self) -> dict[str, float]:
        """The entries of metrics.json: eval_f1_mean, eval_f1_median, ..."""
        return {
            f"{split}_{name}_{statistic}": value
            for split, spreads in (("eval", self.validation), ("test", self.test))
            for name, spread in spreads.items()
            for statistic, value in asdict(spread).items()
        }


def _spread(runs: list[ScoresBySet]) -> dict[str, Spread]:
    spreads = {}
    for suffix, scores in runs[0].items():
        for name in [name for name in scores.overall if name != "predicted_classes"]:
            spreads[f"{name}{suffix}"] = Spread.of([run[suffix].overall[name] for run in runs])
    return spreads


def read_record(path: Path) -> dict[str, Any]:
    """Reads a metrics.json. Raises ValueError if it is damaged, or its seed or one of its parts has the wrong type."""
    try:
        record = parse_json(read_text(path))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): copy it again, or repeat its run") from error
    has_seed = isinstance(record, dict) and type(record.get("seed")) is int
    parts = ("args", "identity", "runs", "replaced_runs")
    if not (has_seed and all(isinstance(record.get(name, {}), dict) for name in parts)):
        raise InputError(f"{path} is not what a run writes: copy it again, or repeat its run")
    return record
