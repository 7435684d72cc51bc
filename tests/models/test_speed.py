"""The work of a step, as torch counts it."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import modeling
from tests.support import bert_cases, gpt_cases
from tests.support.elmo_reference import small_config


CPU = torch.device("cpu")
ROWS, COLUMNS = 4, 8  # oneDNN's products have no rows to fill up
TOKENS = ROWS * COLUMNS
LENGTHS = (8, 6, 8, 8)


BERT_SIZES = bert_cases.SIZES | {"vocab_size": 96}  # words that the loss does not have to fill up for oneDNN


def bert_step() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    sizes = BERT_SIZES | {"hidden_dropout_prob": 0.1}
    model = modeling.ZooBertForPreTraining(modeling.ZooBertConfig(**sizes))
    ids = torch.randint(1, sizes["vocab_size"], (ROWS, COLUMNS))
    mask = (torch.arange(COLUMNS) < torch.tensor(LENGTHS)[:, None]).long()
    labels = torch.where(mask * torch.arange(COLUMNS) % 3 == 1, ids, -100)
    return model, {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": labels,
        "next_sentence_label": torch.tensor([0, 1, 1, 0]),
        "skip_logits": True,  # as the scripts train
    }


def gpt_step() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    model = modeling.ZooGPTLMHeadModel(modeling.ZooGPTConfig(**gpt_cases.SIZES | {"resid_pdrop": 0.1}))
    ids = torch.randint(1, gpt_cases.SIZES["vocab_size"], (ROWS, COLUMNS))
    return model, {"input_ids": ids, "labels": ids}


def elmo_step() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    model = modeling.ElmoForPreTraining(small_config(state="carry", hidden_dropout_prob=0.1))
    config = model.config
    words = torch.randint(1, config.vocab_size, (2, ROWS, COLUMNS, config.max_characters_per_token))
    words[1, 0, :2] = words[0, 0, :2]  # distinct words, with <S> and </S>, are then 2 * TOKENS
    labels = torch.randint(3, config.lm_vocab_size, (2, ROWS, COLUMNS))
    streams = {"input_ids": words[0], "reverse_input_ids": words[1]}
    return model, streams | {"labels": labels[0], "reverse_labels": labels[1]}


MODELS = {"bert": bert_step, "gpt": gpt_step, "elmo": elmo_step}


@pytest.mark.parametrize("name", MODELS)
def test_torchs_counter_finds_the_same_products_whichever_library_computes_them(name):
    model, inputs = MODELS[name]()
    counts = []
    for uses_onednn in (True, False):
        with torch.backends.mkldnn.flags(enabled=uses_onednn), FlopCounterMode(display=False) as counter:
            copy.deepcopy(model).train()(**inputs).loss.backward()  # ELMo keeps its last states
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
