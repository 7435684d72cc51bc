"""A record -> a table in markdown and CSV, and a plot.

What was not run is a dash, and figures that are not ours stand in columns or lines that say whose they are.

A verdict says whether a published figure, of a run that we have not seen, could be one more run of ours. Let n seeds
have the mean m and the standard deviation s. With a probability of 95 %, a further run lies within
m +- t s sqrt(1 + 1/n), where t is the 97.5th percentile of Student's distribution with n - 1 degrees of freedom: the
prediction interval of a normal distribution. It reaches 5.0 s from the mean for three seeds, 3.0 s for five, and 2.4 s
for ten.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t

from elmo_gpt_bert.analysis.frame import png
from elmo_gpt_bert.training.files import write_bytes, write_text

from .tables import Line, Published, Table


DASH = "–"
VERDICT = "verdict"
CONFIDENCE = 0.95
ROUNDING = 0.05  # publications round to one decimal
PERCENT_ALREADY = ("run_squad", "run_pretraining")  # SQuAD's scorer gives percent, and perplexities are none

Values = dict[tuple[Line, str], list[float]]  # (line, column) -> one score for each run


def scores(table: Table, record: Mapping[str, Any]) -> Values:
    """The scores of the cells whose rows have run, in the order of the seeds; shares in percent.

    A run has no score for a phenomenon that its data lack.
    """
    runs = {row["name"]: row["runs"].values() for row in record["rows"]}
    values = {}
    for row in table.rows:
        factor = 1 if row.script in PERCENT_ALREADY else 100
        for cell in row.cells:
            measured = [run["metrics"].get(cell.metric) for run in runs[row.name]]
            if of_cell := [factor * score for score in measured if score is not None]:
                values[cell.line, cell.column] = of_cell
    return values


def write_report(table: Table, record: Mapping[str, Any], folder: Path) -> str:
    """Writes table.md, table.csv and, with matplotlib, table.png; returns the markdown."""
    values = scores(table, record)
    text = markdown(table, record, values)
    write_text(folder / "table.md", text)
    write_text(folder / "table.csv", comma_separated(table, values))
    if values:
        draw(table, values, folder / "table.png")
    return text


def markdown(table: Table, record: Mapping[str, Any], values: Values) -> str:
    """The table, with its title above it and its notes and the reasons of empty cells below."""
    reasons = list(dict.fromkeys(gap.reason for gap in table.gaps))
    texts = {(gap.line, gap.column): f"{DASH} ({'abcdefgh'[reasons.index(gap.reason)]})" for gap in table.gaps}
    texts |= not_run(table, record)
    texts |= {(figure.line, figure.column): figure_text(figure.value) for figure in table.published}
    texts |= {cell: cell_text(scores) for cell, scores in values.items()}
    texts |= verdicts(table, values)
    head = [*table.heads, *table.columns]
    for column in table.published_columns:
        head += [column, *(f"{VERDICT}: {ours}" for ours, theirs in table.comparisons.items() if theirs == column)]
    rows = [head, ["---"] * len(head)]
    for line in table.lines:
        rows.append([*line, *(texts.get((line, column), DASH) for column in head[len(line) :])])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    notes = [f"({'abcdefgh'[number]}) {reason}" for number, reason in enumerate(reasons)]
    text = " ".join([*legend(table, record), *table.notes, *notes])
    return "\n".join([f"**{table.title}**", "", *lines, "", text]) + "\n"


def legend(table: Table, record: Mapping[str, Any]) -> list[str]:
    """The sentences that explain what all tables have."""
    sentences = [f"Mean ± standard deviation of a sample (number of seeds). {DASH} was not run or not published."]
    if not_run(table, record):
        sentences.append(f"A name after {DASH} is that of the run, which --dry_run prints.")
    if table.comparisons:
        sentences.append("Within the spread: the published figure could be one more seed of ours.")
    return sentences


def not_run(table: Table, record: Mapping[str, Any]) -> dict[tuple[Line, str], str]:
    """The texts of the cells whose rows have not run: a dash and the name of the run."""
    waiting = {row["name"] for row in record["rows"] if not row["runs"]}
    rows = [row for row in table.rows if row.name in waiting]
    return {(cell.line, cell.column): f"{DASH} `{row.name}`" for row in rows for cell in row.cells}


def compared(table: Table, values: Values) -> list[tuple[Published, str]]:
    """The figures that a score of ours is compared with, and the columns of these scores."""
    return [
        (figure, ours)
        for ours, theirs in table.comparisons.items()
        for figure in table.published
        if figure.column == theirs and (figure.line, ours) in values
    ]


def verdicts(table: Table, values: Values) -> dict[tuple[Line, str], str]:
    """(line, title of a column of verdicts) -> the verdict, where we have a score and they have a figure."""
    return {
        (figure.line, f"{VERDICT}: {ours}"): verdict(values[figure.line, ours], figure.value)
        for figure, ours in compared(table, values)
    }


def verdict(scores: Sequence[float], figure: float) -> str:
    """What the table says of these scores, one for each seed, and a published figure."""
    if len(scores) < 2:
        return "one run: no verdict"
    difference = fmean(scores) - figure
    if abs(difference) <= reach(scores) + ROUNDING:
        return "within the spread"
    return f"{'above' if difference > 0 else 'below'} by {abs(difference):.1f}"


def reach(scores: Sequence[float]) -> float:
    """How far from the mean of at least two scores a further one may lie."""
    percentile = float(t.ppf((1 + CONFIDENCE) / 2, len(scores) - 1))
    return percentile * stdev(scores) * math.sqrt(1 + 1 / len(scores))


def figure_text(value: float) -> str:
    """As it is published: with one decimal, or with two where there are two."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"


def cell_text(values: list[float]) -> str:
    """As in "79.8 ± 0.5 (3)"; of one run, as in "79.8 (1)"."""
    deviation = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{deviation} ({len(values)})"


def comma_separated(table: Table, values: Values) -> str:
    """A line for each cell that has a value, ours or published."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow([*table.heads, "column", "mean", "std", "seeds", VERDICT])
    said = verdicts(table, values)
    for line in table.lines:
        for column in table.columns:
            if of_cell := values.get((line, column)):
                of_line = said.get((line, f"{VERDICT}: {column}"), "")
                deviation = stdev(of_cell) if len(of_cell) > 1 else ""
                writer.writerow([*line, column, fmean(of_cell), deviation, len(of_cell), of_line])
        for figure in table.published:
            if figure.line == line:
                writer.writerow([*line, figure.column, figure.value, "", "published", ""])
    return content.getvalue()


def draw(table: Table, values: Values, path: Path) -> bool:
    """Writes a PNG with a bar for each cell that has run, its standard deviation, and the figure it is compared with.

    False without matplotlib.
    """
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure  # not pyplot, which would choose a window system
    except ImportError:
        return False
    lines = [line for line in table.lines if any((line, column) in values for column in table.columns)]
    columns = [column for column in table.columns if any((line, column) in values for line in lines)]
    height = 0.8 / len(columns)
    figure = Figure(figsize=(8, 1 + 0.2 * len(lines) * (len(columns) + 1)), layout="constrained")
    axes = figure.add_subplot(title=table.title)
    axes.set_prop_cycle(color=colormaps["tab10" if len(columns) <= 10 else "tab20"].colors)
    for number, column in enumerate(columns):
        cells = {place: values[line, column] for place, line in enumerate(lines) if values.get((line, column))}
        places = [place + (number + 0.5) * height - 0.4 for place in cells]
        means = [fmean(cell) for cell in cells.values()]
        deviations = [stdev(cell) if len(cell) > 1 else math.nan for cell in cells.values()]
        axes.barh(places, means, height, xerr=deviations, capsize=2, label=column)
    published = [
        (figure.value, lines.index(figure.line) + (columns.index(ours) + 0.5) * height - 0.4)
        for figure, ours in compared(table, values)
    ]
    if published:
        axes.plot(*zip(*published, strict=True), "kD", markersize=4, label="published")
    axes.set_yticks(range(len(lines)), [", ".join(line) for line in lines], fontsize=8)
    axes.set_ylim(len(lines) - 0.5, -0.5)  # from top to bottom
    axes.grid(axis="x", alpha=0.3)
    figure.legend(fontsize=8, ncols=3, loc="outside lower center")
    write_bytes(path, png(figure))
    return True
