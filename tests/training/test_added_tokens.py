"""Tokens added to a tokenizer, by its task or by the user: rows in the embeddings, there to be trained."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel, set_seed

from tests.support.glue_sample import VOCABULARY
from tests.support.gpt_sample import vocabulary, write_gpt_config, write_gpt_model
from tests.support.tiny_run import Arguments, load_model, load_tokenizer


WIDTH = 96  # rows long enough for their standard deviation to be known within a few per cent
TASK_TOKENS = "_start_, _delimiter_, _classify_"


def load(args: Arguments, auto_class: type = AutoModelForSequenceClassification) -> PreTrainedModel:
    set_seed(7)
    return load_model(args, auto_class)


def rows(model: PreTrainedModel) -> torch.Tensor:
    return model.get_input_embeddings().weight.detach()


def is_fresh(new: torch.Tensor) -> bool:
    """Whether these are draws from N(0, 0.02)."""
    return abs(new.mean()) < 0.004 and abs(new.std() - 0.02) < 0.004 and len(new.unique(dim=0)) == len(new)


@pytest.fixture
def gpt(tmp_path) -> Path:
    """A language model whose words lie far from zero, and its tokenizer."""
    folder = write_gpt_model(tmp_path, n_embd=WIDTH)
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.nn.init.normal_(model.transformer.tokens_embed.weight, mean=0.5, std=1.0)
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def gpt_run(run, gpt):
    """Arguments of a run that trains `gpt`; keyword arguments change them."""
    return lambda **changes: run(**({"model_name_or_path": str(gpt), "tokenizer_name": None} | changes))


@pytest.fixture
def with_task_tokens(gpt_run, tmp_path) -> dict[str, str]:
    """The tokenizer of `gpt` saved with its tokens, which transformers' own classes keep."""
    load_tokenizer(gpt_run()).save_pretrained(tmp_path / "named")
    return {"tokenizer_name": str(tmp_path / "named")}


@pytest.fixture
def bert_with_tokens(run, tmp_path) -> dict[str, str]:
    """A classifier with two rows to spare, and its tokenizer with four tokens of the user's."""
    args = run()
    load(args).save_pretrained(tmp_path / "bert")
    tokenizer = load_tokenizer(args)
    tokenizer.add_tokens(["<name>", "<place>", "<thing>", "<time>"])
    tokenizer.save_pretrained(tmp_path / "more")
    return {"model_name_or_path": str(tmp_path / "bert"), "tokenizer_name": str(tmp_path / "more")}


@pytest.mark.parametrize("auto_class", [AutoModelForSequenceClassification, AutoModelForCausalLM])
def test_the_tokens_of_a_task_get_fresh_rows_and_the_words_keep_theirs(gpt, gpt_run, capsys, auto_class):
    words = rows(AutoModelForCausalLM.from_pretrained(gpt))
    model = load(gpt_run(), auto_class)
    size = len(vocabulary())
    assert torch.equal(rows(model)[:size], words) and rows(model).shape == (size + 3, WIDTH)
    assert is_fresh(rows(model)[size:])
    assert (model.config.vocab_size, model.config.pad_token_id, model.config.sep_token_id) == (size + 3, 0, size + 1)
    assert f"new rows in the embeddings: {TASK_TOKENS}\n" in capsys.readouterr().out
    if auto_class is AutoModelForCausalLM:
        assert model.lm_head.weight is model.transformer.tokens_embed.weight and model.lm_head.out_features == size + 3


def test_both_implementations_start_from_the_same_rows(gpt_run, with_task_tokens):
    ours, theirs = (load(gpt_run(implementation=name, **with_task_tokens)) for name in ("zoo", "transformers"))
    assert type(theirs).__name__ == "OpenAIGPTForSequenceClassification"
    assert is_fresh(rows(theirs)[len(vocabulary()) :])
    assert all(torch.equal(weight, theirs.state_dict()[name]) for name, weight in ours.state_dict().items())


def test_another_seed_draws_other_rows(gpt_run):
    args = gpt_run()
    tokenizer = load_tokenizer(args)
    first, second = (rows(load_model(args, AutoModelForCausalLM, tokenizer))[-3:] for _ in range(2))
    assert not torch.equal(first, second)


def test_a_saved_model_has_its_rows(gpt_run, tmp_path, capsys):
    args = gpt_run()
    model = load(args)
    model.save_pretrained(tmp_path / "saved")
    load_tokenizer(args).save_pretrained(tmp_path / "saved")
    capsys.readouterr()
    again = load(gpt_run(model_name_or_path=str(tmp_path / "saved"), do_train=False, do_eval=True))
    assert torch.equal(rows(again), rows(model)) and again.config.vocab_size == len(vocabulary()) + 3
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kind", ["folder", "JSON"])
def test_rows_that_nothing_trains_are_one_error_with_its_remedy(gpt, gpt_run, tmp_path, kind):
    model = gpt if kind == "folder" else write_gpt_config(tmp_path)
    args = gpt_run(model_name_or_path=str(model), tokenizer_name=str(gpt), do_train=False, do_eval=True)
    sizes = f"gpt has {len(vocabulary()) + 3} entries, the model .* only {len(vocabulary())}"
    remedy = "train first, with --do_train"
    with pytest.raises(
        ValueError, match=f"{sizes}: {TASK_TOKENS} were added to it and are new to the model: {remedy}"
    ):
        load(args)


def test_a_configuration_gets_as_many_rows_as_the_tokenizer_has_entries(gpt, gpt_run, tmp_path, capsys):
    path = write_gpt_config(tmp_path, n_embd=WIDTH)
    model = load(gpt_run(model_name_or_path=str(path), tokenizer_name=str(gpt)))
    assert rows(model).shape == (len(vocabulary()) + 3, WIDTH) and is_fresh(rows(model)[-3:])
    assert model.config.vocab_size == len(vocabulary()) + 3 and model.config.sep_token_id == len(vocabulary()) + 1
    assert json.loads(path.read_text(encoding="utf-8"))["vocab_size"] == len(vocabulary())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("implementation", ["zoo", "transformers"])
def test_tokens_of_the_users_take_spare_rows_first_and_then_get_new_ones(
    run, bert_with_tokens, capsys, implementation
):
    words = rows(load(run(model_name_or_path=bert_with_tokens["model_name_or_path"])))
    assert len(words) == len(VOCABULARY) + 2
    model = load(run(**bert_with_tokens, implementation=implementation))
    new = rows(model)[len(words) :]
    assert torch.equal(rows(model)[: len(words)], words) and len(new) == 2
    assert 0 < new.abs().max() < 0.08 and not torch.equal(*new)
    assert "new rows in the embeddings: <thing>, <time>\n" in capsys.readouterr().out
    assert model(input_ids=torch.tensor([[2, len(words) + 1, 3]])).logits.shape == (1, 2)


def test_words_beyond_the_embeddings_get_no_rows_also_beside_added_tokens(run, bert_with_tokens):
    path = Path(bert_with_tokens["tokenizer_name"], "tokenizer.json")
    tokenizer = json.loads(path.read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["film"] = len(VOCABULARY) + 9
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ValueError, match=r"more has \d+ entries, the model .* only 37: choose the tokenizer"):
        load(run(**bert_with_tokens))


def test_a_checkpoint_that_reads_both_orders_is_not_scored_with_one(gpt_run, with_task_tokens, tmp_path):
    load(gpt_run(config_overrides="both_orders=true")).save_pretrained(tmp_path / "pairs")
    changes = {"model_name_or_path": str(tmp_path / "pairs"), **with_task_tokens}
    assert load(gpt_run(**changes)).config.both_orders
    with pytest.raises(ValueError, match="pairs: it reads pairs in both orders, which --implementation trans"):
        load(gpt_run(**changes, implementation="transformers"))
