"""TRL's trainers on GPT: losses and weights are those of transformers' class."""

import copy
import math

import pytest
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from tests.clients.tiny_models import SENTENCES, assert_trained_alike, gpt_pair, training_arguments, training_losses


# Defaults of TRL's that transformers' GPT or a CPU does not have.
WITHOUT = {"gradient_checkpointing": False, "bf16": False}
TEXTS = {"text": SENTENCES}
ANSWERS = {"prompt": SENTENCES, "completion": [f" {text}" for text in SENTENCES[::-1]]}
PREFERENCES = {"prompt": SENTENCES, "chosen": [" good film ."] * 6, "rejected": [" not a dull plot ."] * 6}


@pytest.mark.parametrize("padding_free", [False, True])
@pytest.mark.parametrize("rows", [TEXTS, ANSWERS], ids=["texts", "answers"])
def test_supervised_fine_tuning_is_that_of_the_stock_model(rows, padding_free, tmp_path):
    """Ours takes rows end to end as well; the stock model pads them, since its rows would leak into each other."""
    stock, ours, tokenizer = gpt_pair("LMHeadModel", tmp_path)
    stock.loss_type = "ForCausalLM"  # without it Trainer divides by the first tokens too, which nothing predicts
    before = copy.deepcopy(stock.state_dict())
    options = training_arguments(tmp_path, max_length=None, **WITHOUT)
    losses = [
        training_losses(
            SFTTrainer(
                model,
                SFTConfig(**options, padding_free=padding_free and model is ours),
                train_dataset=Dataset.from_dict(rows),
                processing_class=tokenizer,
            )
        )
        for model in (stock, ours)
    ]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert_trained_alike(ours, stock, before)


def test_preferences_are_learned_against_a_reference_without_dropout(tmp_path):
    dropout = {"attn_pdrop": 0.3, "resid_pdrop": 0.2, "embd_pdrop": 0.1}
    stock, ours, tokenizer = gpt_pair("LMHeadModel", tmp_path, **dropout)
    before = copy.deepcopy(stock.state_dict())
    losses = [
        training_losses(
            DPOTrainer(
                model,
                copy.deepcopy(model),
                DPOConfig(**training_arguments(tmp_path, **WITHOUT)),
                train_dataset=Dataset.from_dict(PREFERENCES),
                processing_class=tokenizer,
            )
        )
        for model in (stock, ours)
    ]
    assert losses[1][0] == pytest.approx(math.log(2), abs=1e-4)  # the model is its reference still
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert_trained_alike(ours, stock, before)
