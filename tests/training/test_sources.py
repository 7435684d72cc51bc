"""The flags that name a run's data, of which a run has one."""

import pytest

import run_glue
import run_ner
import run_squad
import run_swag
from elmo_gpt_bert.training.flags import parse_arguments


@pytest.mark.parametrize(
    ("kind", "sources"),
    [
        (run_glue.GlueArguments, {"task_name": "rte", "train_file": "a.csv"}),
        (run_ner.NerArguments, {"data_dir": "a", "dataset_name": "a/b"}),
        (run_ner.NerArguments, {"data_dir": "a", "train_file": "a.conll"}),
        (run_squad.SquadArguments, {"data_dir": "a", "dataset_name": "a/b"}),
        (run_swag.SwagArguments, {"task_name": "swag", "test_file": "a.csv"}),
    ],
)
def test_a_caller_who_names_two_sources_of_data_is_refused_as_the_command_line_is(kind, sources):
    one, other = sources
    with pytest.raises(ValueError, match=r"^--\w+ and --\w+ both name the data: give one of them$") as error:
        kind(model_name_or_path="m", output_dir="o", do_train=True, **sources)
    assert f"--{one}" in str(error.value) and f"--{other}" in str(error.value)


def test_a_flag_for_own_files_does_not_switch_off_the_task_of_a_recipe(tmp_path, capsys):
    (tmp_path / "r.yaml").write_text("model_name_or_path: m\noutput_dir: o\ntask_name: rte\ndo_train: true\n")
    with pytest.raises(SystemExit):
        parse_arguments(run_glue.GlueArguments, [str(tmp_path / "r.yaml"), "--label_names", "a,b"])
    assert "--label_names a,b has no effect with --task_name rte" in capsys.readouterr().err
