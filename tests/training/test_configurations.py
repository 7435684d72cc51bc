"""Configurations: fields that are wrong or from former times, files that are not there, a Hub that refuses."""

import json
from types import SimpleNamespace

import pytest
import transformers
from huggingface_hub.errors import GatedRepoError

from elmo_gpt_bert.training import loading
from tests.support.glue_sample import write_model
from tests.support.tiny_run import load_config, load_tokenizer


UNREADABLE = [
    ({"hidden_size": 12}, "must be a JSON object that names its model"),
    ({"model_type": "gert"}, "does not know the \"model_type\" 'gert'"),
    ({"model_type": ["bert"]}, "must be a JSON object that names its model"),
    ({"model_type": "bert", "hidden_size": "12"}, "hidden_size.* expected int, got str"),
    ({"model_type": "bert", "hidden_size": 10, "num_attention_heads": 3}, "not a multiple"),
    ([1], "must be a JSON object that names its model"),
    ("{", "is not JSON"),
    ("[" * 100_000, "is not JSON"),
    ("", "is not JSON"),
    ("\xff", "is not JSON"),
]


@pytest.mark.parametrize(("content", "message"), UNREADABLE)
@pytest.mark.parametrize("where", ["odd.json", "folder"])
def test_a_configuration_that_is_not_understood_is_an_error(run, tmp_path, content, message, where):
    path = tmp_path / where if where == "odd.json" else tmp_path / where / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="latin-1")
    with pytest.raises(ValueError, match=message) as info:
        load_config(run(model_name_or_path=str(tmp_path / where)))
    assert str(tmp_path / where) in str(info.value) and "Correct it, or copy it again." in str(info.value)


def test_a_model_of_relative_positions_has_no_longest_input():
    config = transformers.XLNetConfig(vocab_size=37, d_model=16, n_layer=1, n_head=2, d_inner=24)
    assert loading.positions(transformers.XLNetModel(config)) is None


# Fields of the published files that no release of transformers reads any more, and one that it never had.
FORMER = {
    "bert": {"gradient_checkpointing": False, "pooler_fc_size": 768, "directionality": "bidi"},
    "openai-gpt": {"n_ctx": 512, "n_special": 0, "predict_special_tokens": True, "task_specific_params": {}},
}


@pytest.mark.parametrize("written_by", [{"architectures": ["BertForMaskedLM"]}, {"transformers_version": "4.6.0"}, {}])
@pytest.mark.parametrize("family", FORMER)
def test_former_fields_of_a_file_that_transformers_has_written_are_kept(family, written_by, run, tmp_path, capsys):
    path = tmp_path / "published.json"
    path.write_text(json.dumps({"model_type": family, "hidden_size": 768, **FORMER[family], **written_by}))
    args = run(model_name_or_path=str(path))
    if not written_by:  # a person did
        with pytest.raises(ValueError, match=f"{family} has no {', '.join(sorted(FORMER[family]))}"):
            load_config(args)
        return
    config = load_config(args)
    assert config.hidden_size == 768 and FORMER[family].items() <= config.to_dict().items()
    (said,) = capsys.readouterr().out.splitlines()
    assert said == f"{path}: {family} has no fields {', '.join(sorted(FORMER[family]))}; they are kept as they are"
    name = next(iter(FORMER[family]))
    with pytest.raises(ValueError, match=f"{family} has no {name}"):  # which a user has asked for
        load_config(run(model_name_or_path=str(path), config_overrides=f"{name}=1"))
    config.save_pretrained(tmp_path / "saved")
    assert FORMER[family].items() <= load_config(run(model_name_or_path=str(tmp_path / "saved"))).to_dict().items()
    path.write_text(path.read_text().replace("hidden_size", "hiden_size"))
    with pytest.raises(ValueError, match=f"{family} has no hiden_size"):
        load_config(args)


def test_a_config_json_with_a_key_that_its_family_lacks_is_an_error(run, tmp_path):
    with pytest.raises(ValueError, match="config.json: bert has no hiden_size"):
        load_config(run(model_name_or_path=str(write_model(tmp_path, hiden_size=12))))


def test_a_folder_without_configuration_is_an_error_whatever_its_name_suggests(run, tmp_path):
    (tmp_path / "bert").mkdir()
    with pytest.raises(ValueError, match="it has no config.json"):
        load_config(run(model_name_or_path=str(tmp_path / "bert")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_name_or_path": "./absent.json"}, "absent.json: no such file"),
        ({"model_name_or_path": "./absent"}, "absent: no such folder"),
        ({"tokenizer_name": "./absent.txt"}, "absent.txt: no such file"),
        ({"tokenizer_name": "../a/b"}, "no such folder"),
        ({"model_name_or_path": "nobody/nothing"}, "HF_HUB_OFFLINE is set, and .* not in the cache: unset it"),
    ],
)
def test_what_is_not_there_is_one_error_with_its_remedy(run, monkeypatch, changes, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    args = run(**changes)
    with pytest.raises(OSError, match=message):
        load_config(args) and load_tokenizer(args)


def test_a_model_out_of_reach_is_looked_for_in_the_cache_if_told_so(run, monkeypatch):
    def unreachable(*_, **__):
        raise OSError("no connection")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", unreachable)
    with pytest.raises(OSError, match="no connection. Without network, set HF_HUB_OFFLINE=1"):
        load_config(run(model_name_or_path="nobody/nothing"))


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_model_that_the_hub_refuses_needs_a_token(run, monkeypatch, status):
    """transformers tells a refusal as an OSError, which the answer of the Hub has caused."""

    def refused(*_, **__):
        answer = SimpleNamespace(status_code=status, headers={}, request=None)
        raise OSError("a gated repo") from GatedRepoError("restricted", response=answer)

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", refused)
    message = "^cannot load me/gated: a gated repo. Check its name; .* gated, .* or set HF_TOKEN, or give a local"
    with pytest.raises(OSError, match=message) as info:
        load_config(run(model_name_or_path="me/gated"))
    assert "network" not in str(info.value)
