"""A picture of the scores by phenomenon."""

import io
from collections.abc import Mapping


CHANCE = 0.5
COLUMN_COLORS = {"field": "tab:green", "linguistics_term": "tab:orange", "UID": "tab:blue"}


def draw(scores: Mapping[str, float], columns: Mapping[str, list[str]]) -> bytes:
    """A PNG with a bar for the accuracy of each phenomenon, grouped by column, under the one of all pairs.

    columns: a column of the data -> the phenomena in it. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure  # not pyplot, which would choose a window system
    from matplotlib.patches import Patch

    bars = [("all pairs", scores["accuracy"], "tab:gray")]
    bars += [
        (name, scores[f"accuracy_{name}"], COLUMN_COLORS[column])
        for column, names in columns.items()
        for name in sorted(names)
    ]
    figure = Figure(figsize=(8, 1 + 0.18 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    labels, accuracies, colors = zip(*bars, strict=True)
    axes.barh(range(len(bars)), accuracies, color=colors)
    axes.set_yticks(range(len(bars)), labels, fontsize=7)
    axes.set_ylim(len(bars) - 0.5, -0.5)  # from top to bottom
    axes.set_xlim(0, 1)
    axes.axvline(CHANCE, color="black", linewidth=0.8, linestyle="dashed")
    axes.set_xlabel("accuracy; dashed: chance")
    if columns:
        axes.legend(handles=[Patch(color=COLUMN_COLORS[column], label=column) for column in columns], fontsize=7)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150)
    return content.getvalue()
