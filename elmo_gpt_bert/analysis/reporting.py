"""Numbers and pictures as files, and scores of layers as a table and a picture."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from elmo_gpt_bert.training.files import make_folder, write_bytes, write_text


LayerScores = Mapping[str, Mapping[str, float]]  # model -> layer -> score

RANDOM = ", random weights"  # ends the name of a model with random weights


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is its header."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, f"|{'---|' * len(rows[0])}")
    return "\n".join(lines)


def layer_table(scores: LayerScores, references: Mapping[str, float]) -> str:
    """A row for each model with its scores in percent, the best in bold, and one for each reference."""
    width = max(map(len, scores.values()))
    rows = [["", "layer 0", *map(str, range(1, width))]]
    for name, layers in scores.items():
        best = max(layers.values())
        cells = [f"**{score:.1%}**" if score == best else f"{score:.1%}" for score in layers.values()]
        rows.append([name, *cells, *[""] * (width - len(cells))])
    rows += [[name, f"{score:.1%}", *[""] * (width - 1)] for name, score in references.items()]
    return markdown(rows)


def write_numbers(output: Path, name: str, numbers: object) -> None:
    """Writes name.json."""
    make_folder(output)
    write_text(output / f"{name}.json", json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")


def write_picture(output: Path, name: str, draw: Callable[[], bytes]) -> None:
    """Writes name.png with what `draw` returns, or says that it needs matplotlib."""
    try:
        write_bytes(output / f"{name}.png", draw())
    except ImportError as error:
        print(f"no {name}.png: {error}; pip install matplotlib")


def draw_layers(scores: LayerScores, references: Mapping[str, float], title: str, measure: str) -> bytes:
    """A PNG with a line for each model over the relative depth of its layers, and a thin one for each reference.

    A model of one layer is a row of dots, which leaves a reference below it visible. A model with random weights has
    its model's colour. Raises ImportError without matplotlib.
    """
    from matplotlib.figure import Figure  # not pyplot, which would choose a window system

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.add_subplot(title=title, ylabel=measure)
    axes.set_xticks([0, 0.5, 1], ["embeddings", "middle", "last layer"])
    axes.yaxis.set_major_formatter("{x:.0%}")
    colors: dict[str, str] = {}
    for name, layers in scores.items():
        color = colors.setdefault(name.removesuffix(RANDOM), f"C{len(colors)}")
        values = list(layers.values())
        if len(values) == 1:
            axes.axhline(values[0], label=name, color=color, linestyle="dotted", linewidth=3)
            continue
        depths = [number / (len(values) - 1) for number in range(len(values))]
        style = {"linestyle": "--", "alpha": 0.6} if name.endswith(RANDOM) else {}
        axes.plot(depths, values, marker="o", label=name, color=color, **style)
    for number, (name, score) in enumerate(references.items()):
        color, style = (("black", "dashed"), ("gray", "solid"))[number % 2]
        axes.axhline(score, label=name, color=color, linestyle=style, linewidth=0.8, zorder=0)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center")
    return png(figure)


def png(figure: Any) -> bytes:
    """The content of a PNG file of a figure of matplotlib."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=150, metadata={"Software": None})
    return content.getvalue()
