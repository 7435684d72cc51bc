"""Values of options.json that make no model are one short error, which names the file and the value."""

import json
from pathlib import Path

import pytest

from elmo_gpt_bert.convert.elmo import convert
from tests.convert.test_convert_elmo import OPTIONS


LONG = 2000  # characters, more than an error has


def refused(folder: Path, **changes: object) -> str:
    """The error that converting a release with these options ends in, for values of the LSTM or of the characters."""
    options = json.loads(json.dumps(OPTIONS))
    for name, value in changes.items():
        section = next((part for part in ("lstm", "char_cnn") if name in options[part]), None)
        (options[section] if section else options)[name] = value
    (folder / "options.json").write_text(json.dumps(options), encoding="utf-8")
    with pytest.raises(ValueError, match=r"options\.json") as raised:
        convert(weights=str(folder / "weights.hdf5"), options=str(folder / "options.json"), output=str(folder / "out"))
    return str(raised.value)


@pytest.mark.parametrize("filters", [[[1.5, 3]], [[1, "3"]], [[True, 3]], [[1]], [1], [None]])
def test_filters_are_pairs_of_whole_numbers(filters, tmp_path):
    error = refused(tmp_path, filters=filters)
    assert f"filters={filters}: each must be (width, count), whole numbers" in error


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cell_clip", "3" * LONG, "cell_clip"),
        ("dim", "7" * LONG, "dim must be a positive integer, not '777"),
        ("n_characters", [LONG] * LONG, "n_characters must be 261 or 262, not [2000, 2000"),
        ("x" * LONG, 1, "has the unknown 'xxx"),
    ],
)
def test_a_value_of_any_length_is_a_short_error(name, value, message, tmp_path):
    error = refused(tmp_path, **{name: value})
    assert message in error and len(error) < LONG and "\n" not in error
