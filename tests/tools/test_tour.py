"""The notebook examples/tour.ipynb shows what its cells print."""

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from tests import notebook
from tests.notebook import PICTURE, code_cells, outputs, read, run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_cells_of_the_tour_print_what_the_notebook_shows():
    mpl.use("Agg")
    cells = code_cells(read())
    for cell, (printed, picture) in zip(cells, run(cells), strict=True):
        kinds = [output["output_type"] for output in cell["outputs"]]
        assert kinds == [output["output_type"] for output in outputs(printed, picture)]
        shown = [line for output in cell["outputs"] for line in output.get("text", ())]
        assert printed == "".join(shown)


def test_the_tour_has_short_cells_that_ran_in_their_order():
    cells = code_cells(read())
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert max(len(cell["source"]) for cell in cells) <= 20
    shown = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert shown.count("stream") >= 5 and shown[-1] == "display_data"


def test_cells_share_their_names_and_a_picture_in_the_last_line_is_shown(monkeypatch, tmp_path):
    monkeypatch.setattr(notebook, "ROOT", tmp_path)
    cells = [{"source": ["number = 2\n", "print(number)"]}]
    cells += [{"source": ["from matplotlib.figure import Figure\n", f"{PICTURE} = Figure()\n", PICTURE]}]
    (printed, nothing), (empty, picture) = run(cells)
    assert (printed, nothing, empty) == ("2\n", None, "") and isinstance(picture, Figure)
    (shown,) = outputs(printed, None)
    assert shown == {"name": "stdout", "output_type": "stream", "text": ["2\n"]}
    assert outputs("", picture)[0]["data"]["image/png"].startswith("iVBOR")
