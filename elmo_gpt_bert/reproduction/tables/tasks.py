"""The tasks of the small tables: which script runs them, on which data, and which score is shown."""

from dataclasses import dataclass, field

from ..rows import Flag, data


@dataclass(frozen=True)
class SmallTask:
    """A task with recipes configs/FAMILY/NAME_small.yaml.

    title: of the column or line, with the name of the score; all scores are on dev
    flags: where its data are
    texts: the data of its training, from which ELMo's networks learn words
    min_count: how often a word must occur there
    """

    name: str
    title: str
    script: str
    metric: str
    texts: str
    flags: dict[str, Flag] = field(default_factory=dict)
    min_count: int = 2


CODAH_FILES = {"train_file": "train", "validation_file": "dev", "test_file": "test"}

SST2 = SmallTask(
    "sst2", "SST-2 accuracy", "run_glue", "eval_accuracy", "glue/SST-2/train.tsv", {"data_dir": data("glue")}
)
COLA = SmallTask(
    "cola",
    "CoLA Matthews",
    "run_glue",
    "eval_matthews_correlation",
    "glue/CoLA/train.tsv",
    {"data_dir": data("glue")},
)
RTE = SmallTask("rte", "RTE accuracy", "run_glue", "eval_accuracy", "glue/RTE/train.tsv", {"data_dir": data("glue")})
WNUT17 = SmallTask(
    "wnut17", "WNUT-17 F1", "run_ner", "eval_f1", "ner/wnut17/train.conll", {"data_dir": data("ner/wnut17")}
)
SQUAD = SmallTask(
    "squad", "SQuAD F1", "run_squad", "eval_f1", "squad/train-v1.1.json", {"data_dir": data("squad")}, min_count=5
)
CODAH = SmallTask(
    "codah",
    "CODAH accuracy",
    "run_swag",
    "eval_accuracy",
    "swag/codah_train.csv",
    {flag: data(f"swag/codah_{split}.csv") for flag, split in CODAH_FILES.items()},
)
SMALL_TASKS = (SST2, COLA, RTE, WNUT17, SQUAD, CODAH)
