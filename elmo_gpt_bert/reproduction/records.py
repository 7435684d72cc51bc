"""What the finished runs of a table have measured, as one JSON file without paths of this machine.

    {"table": ..., "budget": ..., "environments": [...], "rows": [{"name": ..., "runs": {"42": {...}}}, ...]}

A run has the numbers of its metrics.json, the commit it was started from, a digest of what its results depend on, and
the number of its environment: the versions and the hardware, which most runs share.

A record also brings the results of another machine to this one, whose runs are then not made again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elmo_gpt_bert.training.errors import InputError, UserError
from elmo_gpt_bert.training.files import read_json
from elmo_gpt_bert.training.output_folder import METRICS
from elmo_gpt_bert.training.results import RUN_KEYS, read_record, read_results

from .steps import Step, content_digests, is_finished
from .tables import MODELS, Flag, Place, Table, places


Runs = dict[tuple[str, str], dict[str, Any]]  # (row, seed) -> a run, with its environment in place of the number


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
