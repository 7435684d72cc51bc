"""A record -> a table in markdown and CSV, and a plot.

What was not run is a dash, and figures that are not ours stand in columns or lines that say whose they are.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elmo_gpt_bert.analysis.reporting import png
from elmo_gpt_bert.training.files import write_bytes, write_text
from elmo_gpt_bert.training.results import Spread

from .rows import Line, Table, percent


DASH = "–"

Values = dict[tuple[Line, str], list[float]]  # (line, column) -> one score for each run


def scores(table: Table, record: Mapping[str, Any]) -> Values:
    """The scores of the cells whose rows have run, in the order of the seeds; shares in percent.

    A run has no score for a phenomenon that its data lack.
    """
    runs = {row["name"]: row["runs"].values() for row in record["rows"]}
    values = {}
    for row in table.rows:
        for cell in row.cells:
            measured = [run["metrics"].get(cell.metric) for run in runs[row.name]]
            if of_cell := [percent(row.script) * score for score in measured if score is not None]:
                values[cell.line, cell.column] = of_cell
    return values


def write_report(table: Table, record: Mapping[str, Any], folder: Path) -> str:
    """Writes table.md, table.csv and, with matplotlib, table.png; returns the markdown."""
    values = scores(table, record)
    text = markdown(table, values)
    write_text(folder / "table.md", text)
    write_text(folder / "table.csv", comma_separated(table, values))
    if values:
        draw(table, values, folder / "table.png")
    return text


def markdown(table: Table, values: Values) -> str:
    """The table, with its title above it and its notes and the reasons of empty cells below."""
    head = [*table.heads, *table.columns, *table.published_columns]
    reasons = list(dict.fromkeys(gap.reason for gap in table.gaps))
    marks = {(gap.line, gap.column): f" ({'abcdefgh'[reasons.index(gap.reason)]})" for gap in table.gaps}
    published = {(figure.line, figure.column): f"{figure.value:.1f}" for figure in table.published}
    rows = [head, ["---"] * len(head)]
    for line in table.lines:
        row = list(line)
        for column in head[len(line) :]:
            empty = DASH + marks.get((line, column), "")
            row.append(cell_text(values.get((line, column))) or published.get((line, column), empty))
        rows.append(row)
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes = [f"({'abcdefgh'[number]}) {reason}" for number, reason in enumerate(reasons)]
    legend = f"Mean ± standard deviation of a sample (number of seeds). {DASH} was not run or not published."
    return "\n".join([f"**{table.title}**", "", *lines, "", " ".join([legend, *table.notes, *notes])]) + "\n"


def cell_text(values: list[float] | None) -> str:
    """As in "79.8 ± 0.5 (3)"; of one run, as in "79.8 (1)"."""
    if not values:
        return ""
    spread = Spread.of(values)
    deviation = f" ± {spread.std:.1f}" if len(values) > 1 else ""
    return f"{spread.mean:.1f}{deviation} ({len(values)})"


def comma_separated(table: Table, values: Values) -> str:
    """A line for each cell that has a value, ours or published."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow([*table.heads, "column", "mean", "std", "seeds"])
    for line in table.lines:
        for column in table.columns:
            if of_cell := values.get((line, column)):
                spread = Spread.of(of_cell)
                writer.writerow([*line, column, spread.mean, spread.std, len(of_cell)])
        for figure in table.published:
            if figure.line == line:
                writer.writerow([*line, figure.column, figure.value, "", "published"])
    return content.getvalue()


def draw(table: Table, values: Values, path: Path) -> bool:
    """Writes a PNG with a bar for each cell that has run, and its standard deviation; False without matplotlib."""
    try:
        from matplotlib.figure import Figure  # not pyplot, which would choose a window system
    except ImportError:
        return False
    lines = [line for line in table.lines if any((line, column) in values for column in table.columns)]
    columns = [column for column in table.columns if any((line, column) in values for line in lines)]
    height = 0.8 / len(columns)
    figure = Figure(figsize=(8, 1 + 0.2 * len(lines) * (len(columns) + 1)), layout="constrained")
    axes = figure.add_subplot(title=table.title)
    for number, column in enumerate(columns):
        cells = [values.get((line, column)) for line in lines]
        spreads = {place: Spread.of(cell) for place, cell in enumerate(cells) if cell}
        places = [place + (number + 0.5) * height - 0.4 for place in spreads]
        means, deviations = zip(*((spread.mean, spread.std) for spread in spreads.values()), strict=True)
        axes.barh(places, means, height, xerr=deviations, capsize=2, label=column)
    axes.set_yticks(range(len(lines)), [", ".join(line) for line in lines], fontsize=8)
    axes.set_ylim(len(lines) - 0.5, -0.5)  # from top to bottom
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    write_bytes(path, png(figure))
    return True
