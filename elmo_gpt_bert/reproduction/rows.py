"""What a table is: rows that are runs of the scripts, cells that show their scores, and published figures."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


Budget = Literal["small", "paper"]

# What a user can name on the command line: the models of each budget, with their folders or names on the Hub.
MODELS: dict[Budget, dict[str, str]] = {
    "small": {family: f"checkpoints/{family}-books" for family in ("bert", "gpt", "elmo")}
    # Of the second size, what the recipes configs/*/pretraining_small.yaml write.
    | {f"{family}-small": f"runs/{family}/pretraining_small" for family in ("bert", "gpt", "elmo")},
    "paper": {
        "bert-base": "google-bert/bert-base-uncased",
        "bert-base-cased": "google-bert/bert-base-cased",
        "bert-large": "google-bert/bert-large-uncased",
        "bert-large-cased": "google-bert/bert-large-cased",
        "gpt": "openai-community/openai-gpt",
        "elmo": "runs/elmo/original",  # converted from the release, as configs/elmo/conll2003.yaml says
    },
}


@dataclass(frozen=True)
class Place:
    """A file or folder that a flag names, wherever it is on this machine.

    kind: data below --data_root; a model of `MODELS`, a folder or by default on the Hub; or the output folder of
        another row, which then runs first
    unless_hub: of data, a file in the folder. If it is missing, the flag is left out, and the script reads the Hub's
    """

    kind: Literal["data", "model", "hub model", "row"]
    name: str
    file: str = ""
    unless_hub: str = ""


def data(name: str) -> Place:
    """A file or folder below --data_root, which has the layout of docs/reproduce.md."""
    return Place("data", name)


def data_or_hub(name: str, file: str) -> Place:
    """A folder below --data_root, if it has this file; otherwise the data come from the Hub."""
    return Place("data", name, unless_hub=file)


def model(name: str, file: str = "") -> Place:
    """A pre-trained model, or a file in its folder."""
    return Place("model", name, file)


def hub_model(name: str) -> Place:
    """A pre-trained model, by default on the Hub."""
    return Place("hub model", name)


def output(row: str, file: str = "") -> Place:
    """The output folder of another row, or a file in it."""
    return Place("row", row, file)


Flag = str | int | float | bool | Place | tuple[Place, ...]
Line = tuple[str, ...]  # the texts at the beginning of a line of the table


@dataclass(frozen=True)
class Cell:
    """Where the table shows a score.

    metric: the entry of metrics.json
    """

    line: Line
    column: str
    metric: str


@dataclass(frozen=True)
class Row:
    """A run of a script, or one for each seed.

    name: the folder of its results, below the table's
    script: a script at the root, or what makes the input of others, a module as `python -m` takes it
    recipe: of the script; "" for none
    flags: those that differ from the recipe
    overrides: fields of the configuration, in addition to the recipe's --config_overrides
    task, family: for --only and --model
    cells: where its scores stand; none for a row that others only begin with
    seeded: whether it runs with each seed, or once
    keeps_model: whether the trained model stays, for analyses; the models that other rows begin with always do
    """

    name: str
    script: str
    recipe: str = ""
    flags: Mapping[str, Flag] = field(default_factory=dict)
    overrides: str = ""
    task: str = ""
    family: str = ""
    cells: tuple[Cell, ...] = ()
    seeded: bool = True
    keeps_model: bool = False

    @property
    def needs(self) -> set[str]:
        """The names of the rows whose results its flags name."""
        return {place.name for value in self.flags.values() for place in places(value) if place.kind == "row"}

    @property
    def is_run(self) -> bool:
        """Whether a script of the root trains or scores a model, and not a module that makes its input anew."""
        return self.script.startswith("run_")

    @property
    def output_flag(self) -> str:
        """The flag that names its folder."""
        return "output" if self.script.startswith("elmo_gpt_bert.convert.") else "output_dir"


def places(flag: Flag) -> tuple[Place, ...]:
    """The files and folders that the flag names."""
    values = flag if isinstance(flag, tuple) else (flag,)
    return tuple(value for value in values if isinstance(value, Place))


@dataclass(frozen=True)
class Published:
    """A figure that somebody else has published.

    column: names the publication, unless the line does
    """

    line: Line
    column: str
    value: float


def published_in_columns(
    figures: Mapping[Line, Sequence[float | None]], columns: Sequence[str]
) -> tuple[Published, ...]:
    """line -> its figures, one for each of the columns; None: not published."""
    return tuple(
        Published(line, column, value)
        for line, values in figures.items()
        for column, value in zip(columns, values, strict=True)
        if value is not None
    )


def published_in_lines(
    figures: Mapping[str, Sequence[float]], titles: Sequence[str], column: str
) -> tuple[Published, ...]:
    """The first text of several lines -> their figures, one for each title, which is the second text; one column."""
    return tuple(
        Published((first, title), column, value)
        for first, values in figures.items()
        for title, value in zip(titles, values, strict=True)
    )


@dataclass(frozen=True)
class Gap:
    """A cell that stays empty, and why."""

    line: Line
    column: str
    reason: str


@dataclass(frozen=True)
class Comparison:
    """A column of ours and one of published figures, which are of the same score on the same data.

    The table says of each line whether they differ by more than seeds do.
    """

    ours: str
    published: str


@dataclass(frozen=True)
class Table:
    """A table of a paper, or one that this project adds, for one budget.

    budget: two tables of the same name, of different budgets, ask the same question
    title: a sentence that says what the numbers are
    heads: the titles of the columns at the beginning of a line
    columns: the titles of the columns of our scores
    notes: what a reader must know to compare the numbers
    """

    name: str
    title: str
    heads: Line
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    published: tuple[Published, ...] = ()
    gaps: tuple[Gap, ...] = ()
    notes: tuple[str, ...] = ()
    budget: Budget = "small"
    comparisons: tuple[Comparison, ...] = ()

    def __post_init__(self) -> None:
        names = [row.name for row in self.rows]
        if len({*names}) < len(names):
            raise ValueError(f"{self.name}: two rows have the same name")
        for number, row in enumerate(self.rows):
            if not re.fullmatch(r"[a-z0-9_]+(/[a-z0-9_]+)*", row.name):
                raise ValueError(f"{self.name}: {row.name} is no name of a folder")
            earlier = {other.name for other in self.rows[:number] if not other.seeded}
            if not row.needs <= earlier:
                raise ValueError(f"{row.name} needs {row.needs - earlier}: rows before it, without seeds")
            for cell in row.cells:
                if len(cell.line) != len(self.heads) or cell.column not in self.columns:
                    raise ValueError(f"{row.name}: the table has no cell {cell.line}, {cell.column}")
        for comparison in self.comparisons:
            if comparison.ours not in self.columns or comparison.published not in self.published_columns:
                raise ValueError(f"{self.name}: no columns {comparison.ours} and {comparison.published}")

    @property
    def folder(self) -> str:
        """Of the results, below the folder of all tables."""
        return self.name if self.budget == "small" else f"{self.budget}/{self.name}"

    @property
    def runs_folder(self) -> str:
        """Of the runs, below the folder of all tables. The tables of the papers share theirs."""
        return self.name if self.budget == "small" else f"{self.budget}/runs"

    @property
    def lines(self) -> list[Line]:
        """The lines in the order in which they are named first, those with the same first text together."""
        ours = [cell.line for row in self.rows for cell in row.cells]
        others = [figure.line for figure in self.published]
        lines = list(dict.fromkeys([*ours, *(gap.line for gap in self.gaps), *others]))
        firsts = [line[0] for line in lines]
        return sorted(lines, key=lambda line: firsts.index(line[0]))

    @property
    def published_columns(self) -> list[str]:
        """The columns of other people's figures, which come after ours, first those that ours are compared with."""
        named = {figure.column: None for figure in self.published if figure.column not in self.columns}
        compared = [each.published for each in self.comparisons if each.published in named]
        return list(dict.fromkeys([*compared, *named]))


def percent(script: str) -> int:
    """The factor from the scores of a script to percent. SQuAD's scorer gives percent; perplexities are none."""
    return 1 if script in ("run_squad", "run_pretraining") else 100
