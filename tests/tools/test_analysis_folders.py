"""The folders that the commands of the analysis write to."""

import pytest

from elmo_gpt_bert.analysis import layer_weights, probe, senses, zero_shot


@pytest.mark.parametrize(
    ("module", "flags"),
    [
        (layer_weights, ["run"]),
        (probe, ["model", "--train_file", "train.tsv", "--validation_file", "dev.tsv"]),
        (senses, ["model"]),
        (zero_shot, ["model", "--sst2", "data"]),
    ],
    ids=lambda value: getattr(value, "__name__", "").rpartition(".")[2] or None,
)
def test_a_folder_that_cannot_be_made_is_an_error_before_the_work(module, flags, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="cannot write .*file"):
        module.main([*flags, "--output_dir", str(tmp_path / "file")])
