"""What the finished runs of a table have measured, as one JSON file without paths of this machine.

    {"table": ..., "budget": ..., "environments": [...], "rows": [{"name": ..., "runs": {"42": {...}}}, ...]}

A run has the numbers of its metrics.json, the commit it was started from, and the number of its environment: the
versions and the hardware, which most runs share.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from elmo_gpt_bert.training.errors import UserError
from elmo_gpt_bert.training.files import read_json
from elmo_gpt_bert.training.output_folder import METRICS
from elmo_gpt_bert.training.results import RUN_KEYS, read_record

from .rows import MODELS, Flag, Place, Table, places
from .steps import Step, is_finished


def collect(table: Table, steps: Sequence[Step]) -> dict[str, Any]:
    """The record of those steps that have finished. Rows without any are in it, too, without runs."""
    environments: list[dict[str, Any]] = []
    rows = []
    for row in table.rows:
        runs = {}
        for step in (step for step in steps if step.row is row and row.is_run and _counts(step)):
            record = read_record(step.output / METRICS)
            environment = {name: record[name] for name in ("versions", "hardware")}
            if environment not in environments:
                environments.append(environment)
            numbers = {name: value for name, value in record.items() if name not in RUN_KEYS}
            runs[str(record["seed"])] = {
                "metrics": numbers,
                "seconds": sum(value for name, value in numbers.items() if name.endswith("_runtime")),
                "commit": read_json(step.mark)["commit"] if step.mark.is_file() else None,
                "environment": environments.index(environment),
            }
        flags = {name: _shown(value, MODELS[table.budget]) for name, value in row.flags.items()}
        command = {"script": row.script, "recipe": row.recipe, "flags": flags, "config_overrides": row.overrides}
        rows.append({"name": row.name, **command, "runs": runs})
    return {"table": table.name, "budget": table.budget, "environments": environments, "rows": rows}


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
