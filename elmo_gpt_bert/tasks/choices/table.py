"""The multiple-choice tasks: their columns, their published files and their names on the Hub."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Columns:
    """The columns of a task's rows."""

    context: tuple[str, ...]  # their texts are joined by a space
    choices: tuple[str, ...] | str  # one column for each choice, or one column with a list of all
    label: str = "label"
    first: str = "0"  # the label of the first choice; the others count on from it, as 1, 2 or B, C
    beginning: str | None = None  # the column of the text that all choices begin with
    gaps: bool = False  # texts may be empty, as some of the published ones are


# SWAG: as usual for BERT and GPT, the context is sent1, and a choice is sent2 with an ending.
SWAG = Columns(("sent1",), ("ending0", "ending1", "ending2", "ending3"), beginning="sent2", gaps=True)
RACE = Columns(("article", "question"), "options", "answer", first="A", gaps=True)
STORY_CLOZE = Columns(
    tuple(f"InputSentence{number}" for number in range(1, 5)),
    ("RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2"),
    "AnswerRightEnding",
    first="1",
)


@dataclass(frozen=True)
class ChoiceTask:
    """One row of the table."""

    name: str
    columns: Columns
    files: Mapping[str, str]  # split -> its file (of RACE, its folder) in the published folder
    folder: str = "."  # the name of the published folder
    hub: tuple[str, str] | None = None  # data set and configuration; None: not on the Hub


STORIES = "cloze_test_val__spring2016 - cloze_test_ALL_val.csv"
TASKS = {
    # Zellers et al. 2018, arXiv 1808.05326
    "swag": ChoiceTask(
        "SWAG",
        SWAG,
        {"train": "train.csv", "validation": "val.csv", "test": "test.csv"},
        hub=("allenai/swag", "regular"),
    ),
    # Lai et al. 2017, arXiv 1704.04683
    "race": ChoiceTask(
        "RACE", RACE, {"train": "train", "validation": "dev", "test": "test"}, "RACE", ("ehovy/race", "all")
    ),
    # Mostafazadeh et al. 2016, arXiv 1604.01696. The training stories have no wrong endings, so GPT was trained on the
    # validation stories.
    "storycloze": ChoiceTask(
        "Story Cloze",
        STORY_CLOZE,
        {"train": STORIES, "validation": STORIES, "test": "cloze_test_test__spring2016 - cloze_test_ALL_test.csv"},
    ),
}
