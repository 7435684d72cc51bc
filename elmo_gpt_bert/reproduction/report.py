"""What the finished runs of a table have measured: a record of it, and a table in markdown and CSV.

A record is one JSON file without paths of this machine:

    {"table": ..., "budget": ..., "environments": [...], "rows": [{"name": ..., "runs": {"42": {...}}}, ...]}

A run has the numbers of its metrics.json, a digest of what its results depend on, and the number of its environment:
the versions and the hardware, which most runs share. A record also brings the results of another machine to this one,
whose runs are then not made again.

In the table, what was not run is a dash, and figures that are not ours stand in columns or lines that say whose they
are. A verdict says whether a published figure, of a run that we have not seen, could be one more run of ours. Let n
seeds have the mean m and the standard deviation s. With a probability of 95 %, a further run lies within
m +- t s sqrt(1 + 1/n), where t is the 97.5th percentile of Student's distribution with n - 1 degrees of freedom: the
prediction interval of a normal distribution. It reaches 5.0 s from the mean for three seeds, 3.0 s for five, and 2.4 s
for ten.
"""

import contextlib
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
from elmo_gpt_bert.training.results import RUN_KEYS, read_results

from .runner import Folders, Step, digest, results_of
from .tables import MODELS, Cell, Flag, Table, places


DASH = "–"
VERDICT = "verdict"
CONFIDENCE = 0.95
ROUNDING = 0.05  # publications round to one decimal
PERCENT_ALREADY = ("run_squad", "run_pretraining")  # SQuAD's scorer gives percent, and perplexities are none

Runs = dict[tuple[str, str], dict[str, Any]]  # (row, seed) -> a run, with its environment in place of the number
Values = dict[Cell, list[float]]  # one score for each run


# The record


def collect(table: Table, steps: Sequence[Step], earlier: Runs) -> dict[str, Any]:
    """The record of the `earlier` runs, and of those steps that have finished.

    Rows without any are in it, too, without runs.
    """
    runs = earlier | finished_runs(steps)
    environments: list[dict[str, Any]] = []
    rows = []
    for row in table.rows:
        of_row = {}
        for seed in sorted((seed for name, seed in runs if name == row.name), key=int):
            run = runs[row.name, seed]
            if run["environment"] not in environments:
                environments.append(run["environment"])
            of_row[seed] = run | {"environment": environments.index(run["environment"])}
        flags = {name: _shown(value, MODELS[table.budget]) for name, value in row.flags.items()}
        command = {"script": row.script, "recipe": row.recipe, "flags": flags, "config_overrides": row.overrides}
        rows.append({"name": row.name, **command, "runs": of_row})
    return {"table": table.name, "budget": table.budget, "environments": environments, "rows": rows}


def _shown(flag: Flag, models: Mapping[str, str]) -> Any:
    """The flag without paths of this machine: models by their default names."""
    folders = Folders(Path("data"), models, Path("runs"))
    paths = [folders.find(place) + (", or the Hub" if place.unless_hub else "") for place in places(flag)]
    return " ".join(paths) if paths else flag


def finished_runs(steps: Sequence[Step]) -> Runs:
    """What those steps have measured that have finished. Results of other flags, data or models do not count."""
    runs = {}
    for step in (step for step in steps if (step.output / METRICS).is_file()):
        with contextlib.suppress(UserError):
            record = results_of(step)
            runs[step.row.name, str(record["seed"])] = {
                "metrics": {name: value for name, value in record.items() if name not in RUN_KEYS},
                "seconds": sum(read_results(record)[1].values()),
                "digest": digest(step),
                "environment": {name: record[name] for name in ("versions", "hardware")},
            }
    return runs


def read_runs(path: Path | None, table: Table, steps: Sequence[Step]) -> Runs:
    """The runs of a record that was written before, here or on another machine; none if there is no such file.

    Raises ValueError for a record of another table, and for a run that the table would make with other flags, another
    recipe, or other data or models. Where these are not on this machine, the run counts as it is.
    """
    if path is None or not path.exists():
        return {}
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
        digests = {name: digest(step) for name, step in {step.row.name: step for step in steps}.items()}
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


# The table


def scores(table: Table, record: Mapping[str, Any]) -> Values:
    """The scores of the cells whose rows have run, in the order of the seeds; shares in percent.

    A run has no score for a phenomenon that its data lack.
    """
    runs = {row["name"]: row["runs"].values() for row in record["rows"]}
    values: Values = {}
    for row in table.rows:
        factor = 1 if row.script in PERCENT_ALREADY else 100
        for cell, metric in row.scores.items():
            measured = [run["metrics"].get(metric) for run in runs[row.name]]
            if of_cell := [factor * score for score in measured if score is not None]:
                values[cell] = of_cell
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
    letters = dict(zip(dict.fromkeys(table.gaps.values()), "abcdefgh", strict=False))
    have_run = {row["name"] for row in record["rows"] if row["runs"]}
    waiting = {cell: row.name for row in table.rows if row.name not in have_run for cell in row.scores}
    texts = {cell: f"{DASH} ({letters[reason]})" for cell, reason in table.gaps.items()}
    texts |= {cell: f"{DASH} `{name}`" for cell, name in waiting.items()}
    texts |= {cell: figure_text(value) for cell, value in table.published.items()}
    texts |= {cell: cell_text(of_cell) for cell, of_cell in values.items()}
    texts |= verdicts(table, values)
    head = [*table.heads, *table.columns]
    for column in table.published_columns:
        head += [column, *(f"{VERDICT}: {ours}" for ours, theirs in table.comparisons.items() if theirs == column)]
    rows = [[*line, *(texts.get((line, column), DASH) for column in head[len(line) :])] for line in table.lines]
    notes = [f"Mean ± standard deviation of a sample (number of seeds). {DASH} was not run or not published."]
    notes += [f"A name after {DASH} is that of the run, which --dry_run prints."] if waiting else []
    if table.comparisons:
        notes.append("Within the spread: the published figure could be one more seed of ours.")
    notes += [*table.notes, *(f"({letter}) {reason}" for reason, letter in letters.items())]
    lines = [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join([f"**{table.title}**", "", *lines, "", " ".join(notes)]) + "\n"


def verdicts(table: Table, values: Values) -> dict[Cell, str]:
    """(line, title of a column of verdicts) -> the verdict, where we have a score and they have a figure."""
    return {
        (line, f"{VERDICT}: {ours}"): verdict(values[line, ours], table.published[line, theirs])
        for ours, theirs in table.comparisons.items()
        for line in table.lines
        if (line, ours) in values and (line, theirs) in table.published
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
        for (of_figure, column), value in table.published.items():
            if of_figure == line:
                writer.writerow([*line, column, value, "", "published", ""])
    return content.getvalue()
