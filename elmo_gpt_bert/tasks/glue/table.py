"""The tasks of GLUE (Wang et al. 2018, arXiv 1804.07461) and similar ones: their texts, labels, files and metrics.

The data of a task come from the Hub or from its published files. For GLUE those are the folders that
download_glue_data.py of github.com/nyu-mll/GLUE-baselines makes, called "the zip" here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Split:
    """Where a split of a task is found."""

    hub: str | None  # its name on the Hub; None: not there
    files: tuple[str, ...]  # its possible file names in the zip
    text: tuple[str, ...] | None = None  # the columns of the texts, if the task's other files name them differently
    labelled: bool = True


# "_mm" is MNLI's mismatched half.
SPLITS = {
    "train": Split("train", ("train.tsv",)),
    "validation": Split("validation", ("dev.tsv",)),
    "test": Split("test", ("test.tsv", "msr_paraphrase_test.txt"), labelled=False),
}
MNLI_SPLITS = {
    "train": SPLITS["train"],
    "validation": Split("validation_matched", ("dev_matched.tsv",)),
    "validation_mm": Split("validation_mismatched", ("dev_mismatched.tsv",)),
    "test": Split("test_matched", ("test_matched.tsv",), labelled=False),
    "test_mm": Split("test_mismatched", ("test_mismatched.tsv",), labelled=False),
}


@dataclass(frozen=True)
class LeaderboardFile:
    """One of the eleven files that the zip for the GLUE leaderboard (gluebenchmark.com/submit) holds.

    The names are in jiant's benchmarks.py (github.com/nyu-mll/jiant). A file has one line for each example of the
    published test file. The data set card of nyu-mll/glue has the numbers of examples.
    """

    name: str
    examples: int


def _leaderboard(name: str, examples: int) -> dict[str, LeaderboardFile]:
    """The file for the predictions of a task with one test set."""
    return {"test": LeaderboardFile(name, examples)}


def _labelled_splits(*names: str) -> dict[str, Split]:
    """Three splits with labels. In the possible `names` of their files, {} stands for train, dev or test."""
    words = {"train": "train", "validation": "dev", "test": "test"}
    return {split: Split(split, tuple(name.format(word) for name in names)) for split, word in words.items()}


@dataclass(frozen=True)
class GlueTask:
    """One row of the table."""

    folder: str  # the task's folder in the zip, and its name
    text: tuple[str, ...]  # one or two columns on the Hub
    labels: tuple[str, ...]  # in the Hub's order; empty: a regression
    metric: tuple[str, ...]  # the arguments of metrics.load
    numbered: bool = False  # the zip and the leaderboard have the numbers of labels, not their names
    tsv_text: tuple[str, ...] | None = None  # the columns of the texts in the zip, if they have other names there
    tsv_label: str = "label"
    train_header: tuple[str, ...] | None = None  # the columns of the files with labels, if they have no header line
    skip_broken_lines: bool = False  # the published train and dev files have some
    no_label: str | None = None  # in files, the label of an example whose annotators did not agree; the Hub has -1
    splits: Mapping[str, Split] = field(default_factory=lambda: SPLITS)
    hub: str = "nyu-mll/glue"
    hub_configuration: str | None = None  # None: the task's name
    hub_label: str = "label"
    hub_revision: str | None = None  # None: the newest; another has no configurations
    answers: Mapping[str, str] = field(default_factory=dict)  # class of the model -> label, if they differ
    metric_columns: Mapping[str, str] = field(default_factory=dict)  # further arguments of the metric -> their columns
    leaderboard: Mapping[str, LeaderboardFile] = field(default_factory=dict)  # split -> the file for its predictions

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes that a model of this task predicts."""
        return tuple(self.answers) or self.labels

    def label_of(self, name: str) -> str:
        """The label that the model's class `name` stands for."""
        return self.answers.get(name, name)

    def for_leaderboard(self, prediction: str) -> str:
        """A line's prediction as the server reads it: the name or the number of a class, or a similarity from 0 to 5.

        Source: write_glue_preds in src/evaluate.py of jiant's first releases.
        """
        if not self.labels:
            return f"{min(max(float(prediction), 0.0), HIGHEST_SIMILARITY):.4f}"
        return str(self.labels.index(prediction)) if self.numbered else prediction


HIGHEST_SIMILARITY = 5.0  # of STS-B
PAIR = ("sentence1", "sentence2")
INFERENCE = ("entailment", "neutral", "contradiction")
ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    "cola": GlueTask(
        "CoLA",
        ("sentence",),
        ("unacceptable", "acceptable"),
        ("glue", "cola"),
        numbered=True,
        train_header=("source", "label", "judgement", "sentence"),
        leaderboard=_leaderboard("CoLA.tsv", 1063),
    ),
    "sst2": GlueTask(
        "SST-2",
        ("sentence",),
        ("negative", "positive"),
        ("glue", "sst2"),
        numbered=True,
        leaderboard=_leaderboard("SST-2.tsv", 1821),
    ),
    "mrpc": GlueTask(
        "MRPC",
        PAIR,
        ("not_equivalent", "equivalent"),
        ("glue", "mrpc"),
        numbered=True,
        tsv_text=("#1 String", "#2 String"),
        tsv_label="Quality",
        leaderboard=_leaderboard("MRPC.tsv", 1725),
    ),
    "stsb": GlueTask(
        "STS-B", PAIR, (), ("glue", "stsb"), tsv_label="score", leaderboard=_leaderboard("STS-B.tsv", 1379)
    ),
    "qqp": GlueTask(
        "QQP",
        ("question1", "question2"),
        ("not_duplicate", "duplicate"),
        ("glue", "qqp"),
        numbered=True,
        tsv_label="is_duplicate",
        skip_broken_lines=True,
        leaderboard=_leaderboard("QQP.tsv", 390965),
    ),
    "mnli": GlueTask(
        "MNLI",
        ("premise", "hypothesis"),
        INFERENCE,
        ("glue", "mnli"),
        tsv_text=PAIR,
        tsv_label="gold_label",
        splits=MNLI_SPLITS,
        leaderboard={"test": LeaderboardFile("MNLI-m.tsv", 9796), "test_mm": LeaderboardFile("MNLI-mm.tsv", 9847)},
    ),
    "qnli": GlueTask(
        "QNLI",
        ("question", "sentence"),
        ENTAILMENT,
        ("glue", "qnli"),
        leaderboard=_leaderboard("QNLI.tsv", 5463),
    ),
    "rte": GlueTask("RTE", PAIR, ENTAILMENT, ("glue", "rte"), leaderboard=_leaderboard("RTE.tsv", 3000)),
    "wnli": GlueTask(
        "WNLI",
        PAIR,
        ("not_entailment", "entailment"),
        ("glue", "wnli"),
        numbered=True,
        leaderboard=_leaderboard("WNLI.tsv", 146),
    ),
    # Bowman et al. 2015, arXiv 1508.05326: the files of snli_1.0.zip.
    "snli": GlueTask(
        "SNLI",
        ("premise", "hypothesis"),
        INFERENCE,
        ("glue", "mnli"),
        tsv_text=PAIR,
        tsv_label="gold_label",
        no_label="-",
        splits=_labelled_splits("snli_1.0_{}.jsonl", "snli_1.0_{}.txt"),
        hub="stanfordnlp/snli",
        hub_configuration="plain_text",
    ),
    # Khot, Sabharwal and Clark 2018: the tsv_format of SciTailV1.1.zip, where quotes are part of the text. The Hub's
    # tsv_format was read as csv, which lost 499 of the 23,596 training pairs. Its snli_format is complete, and its
    # label for entails is entailment.
    "scitail": GlueTask(
        "SciTail",
        PAIR,
        ("entails", "neutral"),
        ("glue", "rte"),
        tsv_label="gold_label",
        train_header=(*PAIR, "gold_label"),
        splits=_labelled_splits("scitail_1.0_{}.tsv"),
        hub="allenai/scitail",
        hub_configuration="snli_format",
        hub_label="gold_label",
        answers={"entailment": "entails", "neutral": "neutral"},
    ),
}

# The tasks that test a model trained on MNLI.
DIAGNOSTICS = {
    # Wang et al. 2018, section 4. The leaderboard's file has no labels. diagnostic-full.tsv, published with the
    # analysis, has the same examples in the same order, with labels.
    "ax": GlueTask(
        "diagnostic",
        ("premise", "hypothesis"),
        INFERENCE,
        ("glue", "ax"),
        tsv_text=PAIR,
        tsv_label="Label",
        splits={
            "validation": Split(None, ("diagnostic-full.tsv",), text=("Premise", "Hypothesis")),
            "test": Split("test", ("diagnostic.tsv",), labelled=False),
        },
        leaderboard=_leaderboard("AX.tsv", 1104),
    ),
    # HANS: McCoy, Pavlick and Linzen 2019, arXiv 1902.01007; the file of github.com/tommccoy1/hans. As its README
    # says, the predicted classes neutral and contradiction count as non-entailment; probabilities are not added up.
    "hans": GlueTask(
        "hans",
        ("premise", "hypothesis"),
        ("entailment", "non-entailment"),
        ("accuracy", "hans"),
        tsv_text=PAIR,
        tsv_label="gold_label",
        splits={"validation": Split("validation", ("heuristics_evaluation_set.txt",))},
        hub="jhu-cogsci/hans",
        hub_revision="refs/convert/parquet",  # the newest is a script, which datasets no longer runs
        answers={"entailment": "entailment", "neutral": "non-entailment", "contradiction": "non-entailment"},
        metric_columns={"parts": "heuristic"},
    ),
}
EVERY_TASK = TASKS | DIAGNOSTICS
