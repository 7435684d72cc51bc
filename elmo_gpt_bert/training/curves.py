"""Draws the numbers that a run has logged as curves over its updates."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elmo_gpt_bert.training.files import new_file


# A panel shows all curves whose names contain its word. Each other name has a panel of its own.
PANELS = ("loss", "perplexity", "bits_per_byte", "learning_rate", "grad_norm", "tokens_per_second", "peak_share")
LOGARITHMIC = {"perplexity", "grad_norm"}
FROM_ZERO = {"learning_rate", "tokens_per_second", "peak_share"}

Curve = tuple[list[int], list[float]]  # updates and values


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
