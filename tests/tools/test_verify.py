"""zoo-reproduce verify: what weights compute is compared with other code before anything is trained."""

import math

import pytest
import torch
from transformers import BertConfig, BertForPreTraining, BertTokenizer, OpenAIGPTLMHeadModel

from elmo_gpt_bert.reproduction import __main__ as reproduce
from elmo_gpt_bert.reproduction import verify
from elmo_gpt_bert.reproduction.verify import RELEASE, check
from elmo_gpt_bert.training.errors import LaunchError, UserError
from tests.support.glue_sample import VOCABULARY, write_vocabulary
from tests.support.gpt_sample import write_gpt_model


SIZES = {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}


@pytest.fixture
def models(tmp_path) -> dict[str, str]:
    """Both, saved as they are published: BERT with its pre-training heads, by transformers' class."""
    torch.manual_seed(0)
    BertForPreTraining(BertConfig(vocab_size=len(VOCABULARY), **SIZES)).save_pretrained(tmp_path / "bert")
    BertTokenizer(str(write_vocabulary(tmp_path))).save_pretrained(tmp_path / "bert")
    gpt = write_gpt_model(tmp_path, n_positions=200)
    OpenAIGPTLMHeadModel.from_pretrained(gpt).save_pretrained(gpt)
    return {"bert-base": str(tmp_path / "bert"), "gpt": str(gpt)}


def test_equal_weights_are_told_with_their_difference(models, tmp_path, capsys):
    check(models, tmp_path)
    bert, gpt, elmo = capsys.readouterr().out.splitlines()
    assert bert.startswith(f"{models['bert-base']} and transformers differ by ") and bert.endswith(": equal")
    assert gpt.startswith(f"{models['gpt']} and transformers differ by ") and gpt.endswith(": equal")
    assert elmo.endswith(f"so no ELMo is compared: git clone https://github.com/allenai/bilm-tf {tmp_path}/bilm-tf")


@pytest.mark.parametrize("name", ["bert-base", "gpt"])
def test_weights_that_compute_something_else_end_the_command(name, models, tmp_path, monkeypatch, capsys):
    ours, theirs = verify.CLASSES[name]

    class Other(theirs):
        @classmethod
        def from_pretrained(cls, *args, **options):
            model = theirs.from_pretrained(*args, **options)
            with torch.no_grad():
                model.get_input_embeddings().weight.mul_(1.01)
            return model

    monkeypatch.setitem(verify.CLASSES, name, (ours, Other))
    with pytest.raises(LaunchError, match=f"^{models[name]}: the weights compute something else here, so nothing is"):
        check(models, tmp_path)
    assert ": NOT EQUAL" in capsys.readouterr().out


@pytest.mark.parametrize("difference", [math.nan, math.inf, 1.1e-5])
def test_no_number_is_no_equality(difference, tmp_path, monkeypatch):
    monkeypatch.setattr(verify, "compare", lambda *_: [("a", "b", difference)])
    with pytest.raises(LaunchError, match="^a: the weights compute something else here"):
        check({}, tmp_path)


def test_the_released_elmo_has_its_authors_vectors(models, data, tmp_path, capsys):
    (tmp_path / RELEASE.parent).mkdir(parents=True)
    (tmp_path / RELEASE).symlink_to(data / "elmo_tiny")
    check(models, tmp_path)
    shown = capsys.readouterr().out.splitlines()[-1]
    assert "and its authors' vectors differ by" in shown and shown.endswith(": equal")


def test_weights_that_are_not_there_are_one_line(models, tmp_path):
    with pytest.raises(UserError, match=f"^cannot load {tmp_path}/nowhere: ") as error:
        check(models | {"bert-base": f"{tmp_path}/nowhere"}, tmp_path)
    assert "\n" not in str(error.value)


def test_nothing_is_trained_before_the_weights_were_compared(models, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(reproduce, "run_steps", lambda steps, jobs: called.append("train") or {})
    monkeypatch.setattr(reproduce, "check", lambda names, data: called.append((names["gpt"], data)))
    words = ["verify", "--data_root", str(tmp_path), "--output_dir", str(tmp_path / "out")]
    reproduce.main([*words, "--models", f"gpt={models['gpt']}"])
    assert called == [(models["gpt"], tmp_path), "train"]


def test_a_dry_run_prints_the_runs_of_all_three_models(tmp_path, capsys):
    reproduce.main(["verify", "--seeds", "1", "--dry_run", "--output_dir", str(tmp_path)])
    commands = capsys.readouterr().out.splitlines()
    assert [command.split()[2] for command in commands if command.startswith("python run_")] == [
        "configs/bert/glue.yaml",
        "configs/bert/glue.yaml",
        "configs/gpt/glue.yaml",
        "configs/bert/conll2003.yaml",
        "configs/elmo/conll2003.yaml",
    ]
