"""What the finished runs of a table have measured, as one JSON file without paths of this machine.

    {"table": ..., "budget": ..., "environments": [...], "rows": [{"name": ..., "runs": {"42": {...}}}, ...]}

A run has the numbers of its metrics.json, the commit it was started from, and the number of its environment: the
versions and the hardware, which most runs share.
"""

from collections.abc import Sequence
from typing import Any

from elmo_gpt_bert.training.errors import UserError
from elmo_gpt_bert.training.files import read_json
from elmo_gpt_bert.training.output_folder import METRICS
from elmo_gpt_bert.training.results import RUN_KEYS, read_record

from .rows import Place, Table
from .steps import Step, is_finished


def collect(table: Table, budget: str, steps: Sequence[Step]) -> dict[str, Any]:
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
        flags = {name: str(value) if isinstance(value, Place) else value for name, value in row.flags.items()}
        command = {"script": row.script, "recipe": row.recipe, "flags": flags, "config_overrides": row.overrides}
        rows.append({"name": row.name, **command, "runs": runs})
    return {"table": table.name, "budget": budget, "environments": environments, "rows": rows}


def _counts(step: Step) -> bool:
    """Whether the results of the step belong into the record: they are there, and of this step."""
    try:
        return is_finished(step)
    except UserError:
        return False
