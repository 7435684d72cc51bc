"""The tasks with choices: their columns, their published files and their names on the Hub."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """Where a row has what."""

    context: tuple[str, ...]  # joined by a space
    choices: tuple[str, ...] | str  # one column each, or one with the list of them
    label: str = "label"
    first: str = "0"  # what the label calls the first choice; the others follow, as 1, 2 or B, C
    beginning: str | None = None  # what all choices begin with
    gaps: bool = False  # some texts are empty, in the published files too


# SWAG: BERT's and GPT's users let the model read sent1, and sent2 with each ending.
SWAG = Columns(("sent1",), ("ending0", "ending1", "ending2", "ending3"), beginning="sent2", gaps=True)
RACE = Columns(("article", "question"), "options", "answer", first="A", gaps=True)
STORY_CLOZE = Columns(
    tuple(f"InputSentence{number}" for number in range(1, 5)),
    ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"),
    "AnswerRightEnding",
    first="1",
)


@dataclass(frozen=True)
class Task:
    """One row of the table."""

    name: str
    columns: Columns
    files: Mapping[str, str]  # split -> its file, of RACE its folder, in the published folder
    folder: str = "."  # what the published archive calls that
    hub: tuple[str, str] | None = None  # data set and configuration; None: not there


STORIES = "cloze_test_val__spring2016 - cloze_test_ALL_val.csv"
TASKS = {
    # Zellers et al. 2018, arXiv 1808.05326
    "swag": Task(
        "SWAG",
        SWAG,
        {"train": "train.csv", "validation": "val.csv", "test": "test.csv"},
        hub=("allenai/swag", "regular"),
    ),
    # Lai et al. 2017, arXiv 1704.04683
    "race": Task("RACE", RACE, {"train": "train", "validation": "dev", "test": "test"}, "RACE", ("ehovy/race", "all")),
    # Mostafazadeh et al. 2016, arXiv 1604.01696. The stories for training have no wrong endings, so GPT learns from
    # those for validation.
    "storycloze": Task(
        "Story Cloze",
        STORY_CLOZE,
        {"train": STORIES, "validation": STORIES, "test": "cloze_test_test__spring2016 - cloze_test_ALL_test.csv"},
    ),
}
