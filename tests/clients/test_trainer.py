"""transformers' Trainer with what it adds to a model by name or by hook: label smoothing and NEFTune."""

import copy

import pytest
import torch
from transformers import Trainer, TrainingArguments

from tests.clients.tiny_models import (
    SENTENCES,
    assert_trained_alike,
    bert_pair,
    gpt_pair,
    training_arguments,
    training_losses,
)


@pytest.mark.parametrize("addition", [{"label_smoothing_factor": 0.1}, {"neftune_noise_alpha": 5.0}])
@pytest.mark.parametrize(
    ("pair", "head"),
    [
        (bert_pair, "ForMaskedLM"),
        (bert_pair, "ForSequenceClassification"),
        (gpt_pair, "LMHeadModel"),
        (gpt_pair, "ForSequenceClassification"),
    ],
)
def test_trainer_moves_the_weights_as_it_moves_the_stock_models(pair, head, addition, tmp_path):
    stock, ours, tokenizer = pair(head, tmp_path)
    before = copy.deepcopy(stock.state_dict())
    columns = dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))
    columns["labels"] = torch.tensor([1, 0, 2, 1, 0, 3])
    if head != "ForSequenceClassification":
        columns["labels"] = torch.where(columns["attention_mask"].bool(), columns["input_ids"], -100)
        columns["labels"][:, 0] = -100  # nothing before it predicts GPT's first token
    rows = [{name: tensor[row] for name, tensor in columns.items()} for row in range(len(SENTENCES))]
    arguments = TrainingArguments(**training_arguments(tmp_path, **addition))
    losses = [training_losses(Trainer(model, arguments, train_dataset=rows)) for model in (stock, ours)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
    assert_trained_alike(ours, stock, before)
