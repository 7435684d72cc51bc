"""What the finished runs of a table have measured: a record of it, and a table in markdown.

A record is one JSON file without paths of this machine:

    {"table": ..., "budget": ..., "environments": [...], "rows": [{"name": ..., "runs": {"42": {...}}}, ...]}

A run has the numbers of its metrics.json, the commit it was started from, and the number of its environment: the
versions and the hardware, which most runs share.

In the table, what was not run is a dash, and figures that are not ours stand in columns or lines that say whose they
are. A verdict says whether a published figure, of a run that we have not seen, could be one more run of ours. Let n
seeds have the mean m and the standard deviation s. With a probability of 95 %, a further run lies within
m +- t s sqrt(1 + 1/n), where t is the 97.5th percentile of Student's distribution with n - 1 degrees of freedom: the
prediction interval of a normal distribution. It reaches 5.0 s from the mean for three seeds, 3.0 s for five, and 2.4 s
for ten.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t

from elmo_gpt_bert.training.errors import UserError
from elmo_gpt_bert.training.files import read_json
from elmo_gpt_bert.training.output_folder import METRICS
from elmo_gpt_bert.training.results import RUN_KEYS, read_record, read_results

from .runner import Step, is_finished
from .tables import MODELS, Flag, Line, Place, Row, Table, places


DASH = "–"
VERDICT = "verdict"
CONFIDENCE = 0.95
ROUNDING = 0.05  # publications round to one decimal
PERCENT_ALREADY = ("run_squad", "run_pretraining")  # SQuAD's scorer gives percent, and perplexities are none

Values = dict[tuple[Line, str], list[float]]  # (line, column) -> one score for each run


# The record


def collect(table: Table, steps: Sequence[Step]) -> dict[str, Any]:
    """The record of those steps that have finished. Rows without any are in it, too, without runs."""
    environments: list[dict[str, Any]] = []
    rows = []
    for row in table.rows:
        runs = dict(finished_run(step) for step in steps if step.row.name == row.name and row.is_run and _counts(step))
        for run in runs.values():
            if run["environment"] not in environments:
                environments.append(run["environment"])
            run["environment"] = environments.index(run["environment"])
        rows.append({"name": row.name, **describe(row, table), "runs": runs})
    return {"table": table.name, "budget": table.budget, "environments": environments, "rows": rows}


def describe(row: Row, table: Table) -> dict[str, Any]:
    """What the row runs, without paths of this machine."""
    flags = {name: _shown(value, MODELS[table.budget]) for name, value in row.flags.items()}
    return {"script": row.script, "recipe": row.recipe, "flags": flags, "config_overrides": row.overrides}


def finished_run(step: Step) -> tuple[str, dict[str, Any]]:
    """The seed of a step that has finished, and what it has measured."""
    record = read_record(step.output / METRICS)
    return str(record["seed"]), {
        "metrics": {name: value for name, value in record.items() if name not in RUN_KEYS},
        "seconds": sum(read_results(record)[1].values()),
        "commit": read_json(step.mark)["commit"] if step.mark.is_file() else None,
        "environment": {name: record[name] for name in ("versions", "hardware")},
    }


def _shown(flag: Flag, models: Mapping[str, str]) -> Any:
    """The flag without paths of this machine: models by their default names."""
    if not places(flag):
        return flag
    return " ".join(_shown_place(place, models) for place in places(flag))


def _shown_place(place: Place, models: Mapping[str, str]) -> str:
    name = {"data": f"data/{place.name}", "row": f"runs/{place.name}"}.get(place.kind) or models[place.name]
    return f"{name}/{place.file}" if place.file else f"{name}, or the Hub" if place.unless_hub else name


def _counts(step: Step) -> bool:
    """Whether the results of the step belong into the record: they are there, and of this step."""
    try:
        return is_finished(step)
    except UserError:
        return False


# The table


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


def verdicts(table: Table, values: Values) -> dict[tuple[Line, str], str]:
    """(line, title of a column of verdicts) -> the verdict, where we have a score and they have a figure."""
    return {
        (figure.line, f"{VERDICT}: {ours}"): verdict(values[figure.line, ours], figure.value)
        for ours, theirs in table.comparisons.items()
        for figure in table.published
        if figure.column == theirs and (figure.line, ours) in values
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
