"""What a table is, and the tables of tables.yaml: rows that are runs of the scripts, and published figures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from string import Template
from typing import Any, Literal

import yaml

from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import read_text
from elmo_gpt_bert.training.reporting import LOADER, PAPERS


Budget = Literal["small", "paper"]
FILE = Path(__file__).with_name("tables.yaml")


@dataclass(frozen=True)
class Place:
    """A file or folder that a flag names, wherever it is on this machine.

    kind: data below --data_root; a model of `MODELS`, a folder or by default on the Hub; or the output folder of
        another row, which then runs first
    file: in the folder
    unless_hub: of data, a file in the folder. If it is missing, the flag is left out, and the script reads the Hub's
    """

    kind: Literal["data", "model", "hub model", "row"]
    name: str
    file: str = ""
    unless_hub: str = ""


Flag = str | int | float | bool | Place | tuple[Place, ...]
Line = tuple[str, ...]  # the texts at the beginning of a line of the table
Cell = tuple[Line, str]  # a place in the table: its line, and the title of its column


@dataclass(frozen=True)
class Row:
    """A run of a script, or one for each seed. tables.yaml describes the fields.

    scores: where they stand -> the entry of metrics.json; none for a row that others only begin with
    """

    name: str
    script: str
    recipe: str = ""
    flags: Mapping[str, Flag] = field(default_factory=dict)
    overrides: str = ""
    task: str = ""
    family: str = ""
    scores: Mapping[Cell, str] = field(default_factory=dict)
    seeded: bool = True
    keeps_model: bool = False

    @property
    def places(self) -> list[Place]:
        """The files and folders that its flags name."""
        return [place for value in self.flags.values() for place in places(value)]

    @property
    def needs(self) -> set[str]:
        """The names of the rows whose results its flags name."""
        return {place.name for place in self.places if place.kind == "row"}

    @property
    def is_run(self) -> bool:
        """Whether a script of the root trains or scores a model, and not a module that makes its input anew."""
        return self.script.startswith("run_")


def places(flag: Flag) -> tuple[Place, ...]:
    """The files and folders that the flag names."""
    values = flag if isinstance(flag, tuple) else (flag,)
    return tuple(value for value in values if isinstance(value, Place))


@dataclass(frozen=True)
class Table:
    """A table of a paper, or one that this project adds, for one budget.

    budget: two tables of the same name, of different budgets, ask the same question
    title: a sentence that says what the numbers are
    heads: the titles of the columns at the beginning of a line
    columns: the titles of the columns of our scores
    published: figures of others. The column names the publication, unless the line does
    gaps: cells that stay empty, and why
    notes: what a reader must know to compare the numbers
    comparisons: column of ours -> column of published figures of the same score on the same data. Of each line, the
        table says whether they differ by more than seeds do
    """

    name: str
    title: str
    heads: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Row]
    published: Mapping[Cell, float] = field(default_factory=dict)
    gaps: Mapping[Cell, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    budget: Budget = "small"
    comparisons: Mapping[str, str] = field(default_factory=dict)

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
        cells = [*(cell for row in self.rows for cell in row.scores), *self.gaps, *self.published]
        lines = list(dict.fromkeys(line for line, _ in cells))
        firsts = [line[0] for line in lines]
        return sorted(lines, key=lambda line: firsts.index(line[0]))

    @property
    def published_columns(self) -> list[str]:
        """The columns of other people's figures, which come after ours, first those that ours are compared with."""
        columns = [column for _, column in self.published if column not in self.columns]
        compared = [column for column in self.comparisons.values() if column in columns]
        return list(dict.fromkeys([*compared, *columns]))


# tables.yaml

Entry = dict[str, Any]
OF_PAPERS = {"system": "$system", "score": "$score"}  # names that `read_figures` fills in later


def read_tables(path: Path) -> tuple[dict[Budget, dict[str, str]], dict[str, dict[Budget, Table]]]:
    """The models that a user can replace, and the tables by name and budget."""
    content = yaml.load(read_text(path), LOADER)
    tables: dict[str, dict[Budget, Table]] = {}
    runs = read_rows(content["runs"], {})
    for name, budgets in content["tables"].items():
        tables[name] = {budget: read_table(name, budget, entry, runs) for budget, entry in budgets.items()}
    return content["models"], tables


def read_table(name: str, budget: Budget, entry: Entry, runs: Mapping[str, Row]) -> Table:
    rows = list(read_rows(entry["rows"], runs).values())
    published, gaps = expand(entry.get("published", []), OF_PAPERS), expand(entry.get("gaps", []))
    figures = {cell: value for part in published for cell, value in read_figures(part)}
    reasons = {(tuple(gap["line"]), column): gap["reason"] for gap in gaps for column in gap["columns"]}
    return Table(name, budget=budget, **entry | {"rows": rows, "published": figures, "gaps": reasons})


def read_rows(entries: Iterable[Entry], runs: Mapping[str, Row]) -> dict[str, Row]:
    """The rows by name. They may begin with one of the `runs` or with a row above, all of which they have."""
    rows: dict[str, Row] = {}
    for entry in expand(entries):
        row = read_row(entry, {**runs, **rows})
        earlier = rows.get(row.name, replace(row, scores={}))
        if replace(earlier, scores={}) != replace(row, scores={}):
            raise InputError(f"{FILE}: two rows have the name {row.name}, and do not run the same")
        rows[row.name] = replace(row, scores={**earlier.scores, **row.scores})
    return rows


def read_row(entry: Entry, known: Mapping[str, Row]) -> Row:
    """A row, which may begin with one of the `known` ones."""
    base = known[entry["run"]] if "run" in entry else Row("", "")
    flags, more = dict(base.flags), entry.get("flags", {})
    for part in more if isinstance(more, list) else [more]:
        flags |= {name: read_flag(value) for name, value in part.items()}
    scores = {(tuple(entry["line"]), column): metric for column, metric in entry.get("scores", {}).items()}
    changes = {key: value for key, value in entry.items() if key not in ("run", "line")}
    return replace(base, **changes | {"flags": flags, "scores": scores})


def read_flag(value: Any) -> Flag:
    """A number, a text, a place such as {data: glue}, or a list of places."""
    if isinstance(value, list):
        return tuple(map(read_flag, value))
    if not isinstance(value, dict):
        return value
    (kind, name), *rest = value.items()
    return Place(kind, name, **dict(rest))


def read_figures(part: Entry) -> Iterator[tuple[Cell, float]]:
    """Figures of an entry of papers.yaml, and where they stand in the table."""
    for system, scores in renamed(PAPERS[part["from"]], part.get("systems")):
        for score, value in renamed(scores, part.get("scores")):
            if value is not None:
                line, column = fill([part["line"], part["column"]], {"system": system, "score": score})
                yield (tuple(line), column), value


def renamed(values: Mapping[str, Any], names: Iterable[str] | Mapping[str, str] | None) -> list[tuple[str, Any]]:
    """The values of these names, by default of all, each with its name or with that which a mapping gives it."""
    names = list(values) if names is None else names
    return [(names[name] if isinstance(names, dict) else name, values[name]) for name in names]


def expand(entries: Iterable[Entry], names: Entry | None = None) -> Iterator[Entry]:
    """Each entry with all that its $names stand for: once for each record of its `each`, or all of its `rows`."""
    for entry in entries:
        part = {key: value for key, value in entry.items() if key != "each"}
        each = entry.get("each", [{}])
        if isinstance(each, dict):
            each = [dict(zip(each, values, strict=True)) for values in product(*each.values())]
        for record in each:
            known = (names or {}) | record
            yield from expand(part["rows"], known) if "rows" in part else [fill(part, known)]


def fill(value: Any, names: Entry) -> Any:
    """The value with all that its $names stand for."""
    if isinstance(value, dict):
        return {fill(key, names): fill(part, names) for key, part in value.items()}
    if isinstance(value, list):
        return [fill(part, names) for part in value]
    if not isinstance(value, str):
        return value
    if value.startswith("$") and value[1:] in names:
        return names[value[1:]]
    return Template(value).substitute(names)


MODELS, TABLES = read_tables(FILE)
