"""Runs the cells of examples/tour.ipynb as Jupyter does, without it.

    python -m tests.notebook

writes what the cells print and draw into the notebook, after the code or a model has changed.
"""

import base64
import io
import json
import os
from contextlib import chdir, redirect_stdout
from pathlib import Path

from matplotlib.figure import Figure


ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "tour.ipynb"
PICTURE = "picture"  # the variable that a cell shows in its last line


def read() -> dict:
    return json.loads(NOTEBOOK.read_text(encoding="utf-8"))


def code_cells(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(cells: list[dict]) -> list[tuple[str, Figure | None]]:
    """What each cell prints, and the picture that it ends with. All cells share their names."""
    names: dict = {}
    results = []
    with chdir(ROOT):
        for cell in cells:
            source, printed = "".join(cell["source"]), io.StringIO()
            with redirect_stdout(printed):
                exec(source, names)
            shows_picture = source.splitlines()[-1] == PICTURE
            results.append((printed.getvalue(), names[PICTURE] if shows_picture else None))
    return results


def outputs(printed: str, picture: Figure | None) -> list[dict]:
    """A cell's outputs, in the notebook's format."""
    shown = []
    if printed:
        shown.append({"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)})
    if picture is not None:
        content = io.BytesIO()
        picture.savefig(content, format="png", dpi=70, metadata={"Software": None})
        data = {"image/png": base64.b64encode(content.getvalue()).decode()}
        shown.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return shown


def main() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    notebook = read()
    cells = code_cells(notebook)
    for number, (cell, result) in enumerate(zip(cells, run(cells), strict=True), start=1):
        cell["execution_count"], cell["outputs"] = number, outputs(*result)
    NOTEBOOK.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
