"""SWAG, RACE and Story Cloze in miniature, in their published layouts, and files of one's own."""

import csv
import json
from pathlib import Path

from elmo_gpt_bert.tasks.choices import STORIES, TASKS
from tests.support.glue_sample import text


SIZES = {"train": 9, "validation": 5, "test": 4}  # of RACE questions, two a file; Story Cloze divides train's itself
SWAG_HEADER = ["", "video-id", "fold-ind", "startphrase", "sent1", "sent2", "gold-source"]
SWAG_HEADER += [*(f"ending{number}" for number in range(4)), "label"]
STORY_HEADER = ["InputStoryid", *(f"InputSentence{number}" for number in range(1, 5))]
STORY_HEADER += ["RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2", "AnswerRightEnding"]


def context(row: int) -> str:
    return text(row, 0)


def choices(row: int, number: int) -> list[str]:
    """The right one says good, and no other one does."""
    return [f"{'good' if choice == right(row, number) else 'dull'} {row} , {choice}" for choice in range(number)]


def right(row: int, number: int) -> int:
    return row * 7 % 5 % number


def write_csv(path: Path, header: list[str], rows: list[list]) -> str:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def write_json(path: Path, rows: list[dict]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write_own(path: Path, rows: range, number: int = 3, label: bool = True) -> str:
    """A csv file of one's own with `number` choices an example; gives its name."""
    header = ["context", *(f"choice{choice}" for choice in range(number)), *(["label"] if label else [])]
    lines = [[context(row), *choices(row, number), *([right(row, number)] if label else [])] for row in rows]
    return write_csv(path, header, lines)


def write_task(root: Path, task_name: str) -> Path:
    """Writes one of `TASKS` as it is published, as many examples as `SIZES` says; gives its --data_dir."""
    folder = root / task_name
    {"swag": _write_swag, "race": _write_race, "storycloze": _write_stories}[task_name](folder)
    return folder


def _write_swag(folder: Path) -> None:
    """The test file has no labels."""
    folder.mkdir()
    for split, size in SIZES.items():
        rows = [
            [row, "lsmdc", row, f"{context(row)} she", context(row), "she", "gold", *choices(row, 4), right(row, 4)]
            for row in range(size)
        ]
        cut = -1 if split == "test" else None
        write_csv(folder / TASKS["swag"].files[split], SWAG_HEADER[:cut], [row[:cut] for row in rows])


def _write_race(folder: Path) -> None:
    """The archive's folder RACE, with two questions on each passage, by turns of middle and high schools."""
    for split, size in SIZES.items():
        for number in range(0, size, 2):
            part = ("middle", "high")[number // 2 % 2]
            rows = range(number, min(number + 2, size))
            passage = {
                "article": context(number),
                "questions": [f"is it {row} ?" for row in rows],
                "options": [choices(row, 4) for row in rows],
                "answers": ["ABCD"[right(row, 4)] for row in rows],
                "id": f"{part}{number}.txt",
            }
            path = folder / "RACE" / TASKS["race"].files[split] / part / f"{number}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(passage), encoding="utf-8")


def _write_stories(folder: Path) -> None:
    folder.mkdir()
    stories = SIZES["train"] + SIZES["validation"]
    for name, size in ((STORIES, stories), (TASKS["storycloze"].files["test"], SIZES["test"])):
        rows = [
            [f"id{row}", *(text(row, column) for column in range(4)), *choices(row, 2), 1 + right(row, 2)]
            for row in range(size)
        ]
        write_csv(folder / name, STORY_HEADER, rows)
