"""The lines of a run's log as a file, and their curves: --report_to curves.

OUTPUT_DIR/log.jsonl     one JSON object for each line: update, train_loss, learning_rate, eval_loss, ...
OUTPUT_DIR/curves.png    drawn at the end, if matplotlib is installed
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker, on_main_process

from elmo_gpt_bert.training.errors import FileError
from elmo_gpt_bert.training.files import new_file, parse_json, read_text, write_text, writing
from elmo_gpt_bert.training.output_folder import CURVES, LOG


# A panel shows all curves whose names contain its word. Each other name has a panel of its own.
PANELS = ("loss", "perplexity", "bits_per_byte", "learning_rate", "grad_norm", "tokens_per_second", "peak_share")
LOGARITHMIC = {"perplexity", "grad_norm"}
FROM_ZERO = {"learning_rate", "tokens_per_second", "peak_share"}

Curve = tuple[list[int], list[float]]  # updates and values


class History(GeneralTracker):
    """A tracker of Accelerate."""

    name = "curves"
    requires_logging_directory = False

    def __init__(self, output: Path, resumes: bool) -> None:
        """`resumes`: whether the run may go on from a checkpoint, so that earlier lines are a part of it.

        Raises OSError if it may and these are damaged.
        """
        super().__init__()
        self.output, self.earlier = output, read_log(output) if resumes else []
        self.records: list[dict[str, Any]] | None = None  # None: nothing has been logged in this process
        self.is_complete = False  # whether the file has all records
        self.has_warned = False

    @property
    def tracker(self) -> "History":
        return self

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        pass  # metrics.json holds the arguments

    @on_main_process
    def log(self, values: dict[str, float], step: int, **_: Any) -> None:
        """Appends a line. The first one in this process replaces lines of later updates, which are made again.

        A line that cannot be written, as on a full disk, ends no run: a later call writes it.
        """
        record = {"update": step, **values}
        if self.records is None:
            self.records = [line for line in self.earlier if line["update"] < step]
        self.records.append(record)
        try:
            self._write(record)
            self.is_complete = True
        except FileError as error:
            self.is_complete = False
            if not self.has_warned:
                print(f"{error}. The run goes on, and writes the missing lines as soon as it can", file=sys.stderr)
            self.has_warned = True

    def _write(self, record: dict[str, Any]) -> None:
        path = self.output / LOG
        if not self.is_complete:
            write_text(path, "".join(json.dumps(line) + "\n" for line in self.records))
            return
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    @on_main_process
    def finish(self) -> None:
        records = self.earlier if self.records is None else self.records
        if records and not draw_curves(records, self.output / CURVES):
            print(f"no {CURVES}, which needs matplotlib: pip install matplotlib")


def read_log(output: Path) -> list[dict[str, Any]]:
    """The lines in the folder of a run, none without a log. A last line that is incomplete is left out.

    Raises OSError if the log is damaged.
    """
    path = output / LOG
    if not path.is_file():
        return []
    try:
        records = [parse_json(line) for line in read_text(path).split("\n")[:-1]]
        sorted(record["update"] for record in records)  # fails unless all lines have a number
    except (ValueError, TypeError, KeyError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise FileError(f"{path} is damaged ({problem}): remove it, or restore it from a copy") from error
    return records


def draw_curves(records: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Writes a PNG with all curves of `records`; False if there are none, or if matplotlib is not installed.

    Args:
        records: what was logged, each with the `update` after which it was. A record may lack any other name. Values
            that are no numbers are left out.

    The same records make the same bytes with the same version of matplotlib. Raises OSError if the file cannot be
    written.
    """
    try:
        from matplotlib.figure import Figure  # without pyplot, which needs a display
    except ImportError:
        return False
    panels = group_curves(records)
    if not panels:
        return False
    rows, columns = (len(panels) + 1) // 2, min(len(panels), 2)
    figure = Figure(figsize=(5.5 * columns, 3 * rows), layout="constrained")
    for place, (panel, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, place)
        for name, (updates, values) in curves.items():
            axes.plot(updates, values, marker="." if len(updates) < 50 else None, label=name)
        axes.set(xlabel="update", title=panel.replace("_", " "))
        axes.set_yscale("log" if panel in LOGARITHMIC else "linear")
        if panel in FROM_ZERO:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    with new_file(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})
    return True


def group_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Curve]]:
    """panel -> name -> curve. The panels of `PANELS` come first, in their order."""
    curves: dict[str, Curve] = {}
    for record in records:
        for name, value in record.items():
            if name != "update" and isinstance(value, int | float):
                updates, values = curves.setdefault(name, ([], []))
                updates.append(record["update"])
                values.append(value)
    panels: dict[str, dict[str, Curve]] = {panel: {} for panel in PANELS}
    for name, curve in curves.items():
        panel = next((panel for panel in PANELS if panel in name), name)
        panels.setdefault(panel, {})[name] = curve
    return {panel: names for panel, names in panels.items() if names}
