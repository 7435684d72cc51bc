"""What the finished runs of a table have measured: a record of it, and a table in markdown and CSV.

A record is one JSON file without paths of this machine:

    {"table": ..., "budget": ..., "environments": [...], "rows": [{"name": ..., "runs": {"42": {...}}}, ...]}

A run has the numbers of its metrics.json, the commit it was started from, a digest of what its results depend on, and
the number of its environment: the versions and the hardware, which most runs share. A record also brings the results
of another machine to this one, whose runs are then not made again.

In the table, what was not run is a dash, and figures that are not ours stand in columns or lines that say whose they
are. A verdict says whether a published figure, of a run that we have not seen, could be one more run of ours. Let n
seeds have the mean m and the standard deviation s. With a probability of 95 %, a further run lies within
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

from elmo_gpt_bert.training.errors import InputError, UserError
from elmo_gpt_bert.training.files import read_json, write_text
from elmo_gpt_bert.training.output_folder import METRICS
from elmo_gpt_bert.training.results import RUN_KEYS, read_record, read_results

from .runner import Step, content_digests, is_finished
from .tables import MODELS, Flag, Line, Place, Table, places


DASH = "–"
VERDICT = "verdict"
CONFIDENCE = 0.95
ROUNDING = 0.05  # publications round to one decimal
PERCENT_ALREADY = ("run_squad", "run_pretraining")  # SQuAD's scorer gives percent, and perplexities are none

Runs = dict[tuple[str, str], dict[str, Any]]  # (row, seed) -> a run, with its environment in place of the number
Values = dict[tuple[Line, str], list[float]]  # (line, column) -> one score for each run


# The record


def collect(table: Table, steps: Sequence[Step], earlier: Runs | None = None) -> dict[str, Any]:
    """The record of the `earlier` runs, and of those steps that have finished.

    Rows without any are in it, too, without runs.
    """
    found = (earlier or {}) | finished_runs(steps)
    environments: list[dict[str, Any]] = []
    rows = []
    for row in table.rows:
        runs = {}
        for seed in sorted((seed for name, seed in found if name == row.name), key=int):
            run = found[row.name, seed]
            if run["environment"] not in environments:
                environments.append(run["environment"])
            runs[seed] = run | {"environment": environments.index(run["environment"])}
        flags = {name: _shown(value, MODELS[table.budget]) for name, value in row.flags.items()}
        command = {"script": row.script, "recipe": row.recipe, "flags": flags, "config_overrides": row.overrides}
        rows.append({"name": row.name, **command, "runs": runs})
    return {"table": table.name, "budget": table.budget, "environments": environments, "rows": rows}


def finished_runs(steps: Sequence[Step]) -> Runs:
    """What those steps have measured that have finished."""
    digests, runs = content_digests(steps), {}
    for step in (step for step in steps if step.row.is_run and _counts(step)):
        record = read_record(step.output / METRICS)
        numbers = {name: value for name, value in record.items() if name not in RUN_KEYS}
        runs[step.row.name, str(record["seed"])] = {
            "metrics": numbers,
            "seconds": sum(read_results(record)[1].values()),
            "commit": read_json(step.mark)["commit"] if step.mark.is_file() else None,
            "digest": digests[step.row.name],
            "environment": {name: record[name] for name in ("versions", "hardware")},
        }
    return runs


def read_runs(path: Path, table: Table, steps: Sequence[Step]) -> Runs:
    """The runs of a record that was written before, here or on another machine.

    Raises ValueError for a record of another table, and for a run that the table would make with other flags, another
    recipe, or other data or models. Where these are not on this machine, the run counts as it is.
    """
    if not path.is_file():
        raise InputError(f"--record {path} is a folder")
    record = read_json(path)
    try:
        if (record["table"], record["budget"]) != (table.name, table.budget):
            raise InputError(f"{path} is the record of {record['table']}, --budget {record['budget']}")
        environments = record["environments"]
        runs = {
            (row["name"], seed): run | {"environment": environments[run["environment"]]}
            for row in record["rows"]
            for seed, run in row["runs"].items()
        }
        digests = content_digests(steps)
        for (name, seed), run in runs.items():
            if not seed.isdigit() or not isinstance(run["metrics"], dict):
                raise TypeError(f"seed {seed} of {name}")
            if name not in digests or digests[name] not in (None, run["digest"]):
                raise InputError(
                    f"{path} has a run of {name}, seed {seed}, with other flags, recipe, data or model than here: "
                    "remove it from there, or choose another --record"
                )
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path} is no record of a table: {error!r}") from error
    return runs


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


def write_report(table: Table, record: Mapping[str, Any], folder: Path) -> str:
    """Writes table.md and table.csv; returns the markdown."""
    values = scores(table, record)
    text = markdown(table, record, values)
    write_text(folder / "table.md", text)
    write_text(folder / "table.csv", comma_separated(table, values))
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
