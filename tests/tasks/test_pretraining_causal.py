"""Packed rows for left-to-right language models."""

import pickle
import time

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import (
    BertConfig,
    BertLMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    PreTrainedModel,
)

from elmo_gpt_bert.tasks.pretraining.causal import CausalLM, keeps_apart
from elmo_gpt_bert.tasks.pretraining.objective import HeldOut, compute_losses
from modeling import ZooGPTConfig, ZooGPTLMHeadModel
from tests.support.corpus_sample import random_documents, write_corpus
from tests.support.fake_corpus import FakeCorpus


VOCABULARY = 83
SIZES = {"vocab_size": VOCABULARY, "n_positions": 24, "n_embd": 12, "n_layer": 2, "n_head": 3}
NO_DROPOUT = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}


def flat(documents) -> list[list[int]]:
    return [[token for sentence in document for token in sentence] for document in documents]


@pytest.fixture(scope="module")
def documents():
    """Short ones, one of a single token, and one that is longer than three rows."""
    return [
        [[5]],
        *random_documents(31, VOCABULARY),
        [np.arange(60).tolist()],
        *random_documents(6, VOCABULARY, seed=1),
    ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, documents):
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents, VOCABULARY)


@pytest.fixture(scope="module")
def gpt():
    torch.manual_seed(0)
    return ZooGPTLMHeadModel(ZooGPTConfig(**SIZES, **NO_DROPOUT, initializer_range=0.4))


@pytest.fixture(scope="module")
def stock() -> dict[str, PreTrainedModel]:
    """Models of transformers."""
    sizes = {"hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 3}
    sizes |= {"vocab_size": VOCABULARY, "initializer_range": 0.4}
    return {
        "llama": LlamaForCausalLM(LlamaConfig(**sizes)).eval(),
        "gpt": OpenAIGPTLMHeadModel(OpenAIGPTConfig(**SIZES, initializer_range=0.4)).eval(),
        "bert": BertLMHeadModel(BertConfig(**sizes, is_decoder=True)).eval(),
    }


def predictions(batch: dict[str, torch.Tensor]) -> list[tuple[int, int]]:
    """(token, the token after it) of each prediction of the batch."""
    labelled = batch["shift_labels"] != -100
    return list(zip(batch["input_ids"][labelled].tolist(), batch["shift_labels"][labelled].tolist(), strict=True))


def whole_epoch(objective: CausalLM, epoch: int = 0) -> dict[str, torch.Tensor]:
    return objective.batch(range(epoch * objective.size, (epoch + 1) * objective.size))


@pytest.mark.parametrize("length", [2, 7, 16, 1000])
def test_each_token_is_read_once_and_each_but_a_documents_first_is_predicted_once(corpus, documents, length):
    pairs = [pair for document in flat(documents) for pair in zip(document, document[1:], strict=False)]
    objective = CausalLM(corpus, length, seed=3)
    for epoch in range(2):
        batch = whole_epoch(objective, epoch)
        assert sorted(predictions(batch)) == sorted(pairs)
        assert objective.count(batch) == [len(pairs)]
    rows = CausalLM(corpus, length, shuffle=False).batch(range(objective.size))["input_ids"]
    assert rows.flatten()[: corpus.num_tokens].tolist() == [
        token for document in flat(documents) for token in document
    ]


def test_positions_restart_at_documents_rows_and_padding(corpus, documents):
    objective = CausalLM(corpus, 16, shuffle=False)
    batch = whole_epoch(objective)
    begins = {0}
    for document in flat(documents):
        begins.add(max(begins) + len(document))
    position, expected = 0, []
    for offset in range(objective.size * 16):
        position = 0 if offset in begins or offset % 16 == 0 else position + 1
        expected.append(position)
    assert batch["position_ids"].flatten().tolist() == expected


def test_processes_and_accumulated_batches_share_the_same_rows(corpus):
    objective = CausalLM(corpus, 9, seed=1)
    whole = objective.batch(range(5, 29))
    for processes in (1, 2, 4):
        pieces = [range(5, 29)[step : step + 8][rank::processes] for step in (0, 8, 16) for rank in range(processes)]
        for piece in pieces:
            batch = objective.batch(piece)
            assert all(torch.equal(batch[name], whole[name][[number - 5 for number in piece]]) for name in whole)


def test_a_pickled_objective_makes_the_same_batches(corpus):
    objective = CausalLM(corpus, 9, seed=1)
    before = objective.batch([4, 70])
    pickled = pickle.dumps(objective)
    after = pickle.loads(pickled).batch([4, 70])
    assert len(pickled) < 10_000 and all(torch.equal(before[name], after[name]) for name in before)


def test_seed_and_epoch_change_the_order_and_held_out_text_has_none(corpus):
    orders = [
        whole_epoch(CausalLM(corpus, 9, seed=seed), epoch)["input_ids"] for seed, epoch in ((0, 0), (0, 1), (1, 0))
    ]
    assert not any(torch.equal(*pair) for pair in zip(orders, orders[1:] + orders[:1], strict=True))
    objective = CausalLM(corpus, 9, shuffle=False)
    assert torch.equal(whole_epoch(objective)["input_ids"], whole_epoch(objective, 2)["input_ids"])


def test_documents_of_one_token_have_nothing_to_predict(tmp_path):
    corpus = write_corpus(tmp_path, [[[3]], [[4]]], VOCABULARY, split="validation")
    with pytest.raises(ValueError, match="the held-out text in .* has only documents of one token"):
        CausalLM(corpus, 9)


def test_a_billion_samples_start_at_once_and_resume_anywhere():
    begin = time.process_time()
    objective = CausalLM(FakeCorpus(10**9 * 128), 128)
    batch = objective.batch([7 * 10**9 + 123_456_789, 0, 10**9 - 1])
    assert time.process_time() - begin < 0.5 and objective.size == 10**9
    assert batch["input_ids"].shape == (3, 128)


@pytest.mark.parametrize("name", ["zoo", "llama"])
def test_the_loss_is_that_of_each_document_alone(corpus, documents, gpt, stock, name):
    model = stock.get(name, gpt.eval())
    objective = CausalLM(corpus, 24, shuffle=False)
    total, count = 0.0, 0
    for row in range(objective.size):
        batch = objective.batch([row])
        total += objective.compute(model, batch, {}).item() * objective.count(batch)[0]
        count += objective.count(batch)[0]
    offset, expected, expected_count = 0, 0.0, 0  # documents are cut where rows end; a row's end predicts the next
    for document in flat(documents):
        start = 0
        while start < len(document):
            stop = min(len(document), start + 24 - (offset + start) % 24)
            tokens = torch.tensor([document[start : stop + 1]])
            if tokens.shape[1] > 1:
                inputs = tokens[:, :-1] if stop < len(document) else tokens
                logits = model(inputs).logits[0, : tokens.shape[1] - 1]
                expected += torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum").item()
                expected_count += tokens.shape[1] - 1
            start = stop
        offset += len(document)
    assert count == expected_count and total == pytest.approx(expected, rel=1e-5)


def test_unpadded_and_padded_computation_agree(corpus, gpt):
    batch = (objective := CausalLM(corpus, 24, shuffle=False)).batch(range(objective.size))
    losses = [objective.compute(gpt, batch, {"unpad": unpad}).item() for unpad in (False, True)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_few_samples_of_held_out_text_are_the_first(corpus, gpt):
    def losses(held_out: HeldOut) -> dict[str, list[np.ndarray]]:
        return compute_losses(held_out, gpt, Accelerator(cpu=True), 3, {})

    objective = CausalLM(corpus, 24, shuffle=False)
    held_out, batch = HeldOut(objective, objective.size), objective.batch(range(5))
    few = losses(held_out.select(range(5)))
    assert few["losses"][0] == pytest.approx(objective.compute(gpt, batch, {}).tolist(), rel=1e-5)
    assert few["counts"][0] == objective.count(batch) < losses(held_out)["counts"][0]


def test_a_batch_without_predictions_has_the_loss_zero(tmp_path, gpt):
    corpus = write_corpus(tmp_path, [[[1]], [[2]], [[3, 4]]], VOCABULARY)
    objective = CausalLM(corpus, 2, shuffle=False)
    batch = objective.batch([0])
    loss = objective.compute(gpt, batch, {})
    (gradient,) = torch.autograd.grad(loss.sum(), gpt.lm_head.weight)
    assert objective.count(batch) == [0] and loss.tolist() == [0.0] and not gradient.any()


@pytest.mark.parametrize(("name", "apart"), [("ours", True), ("llama", True), ("gpt", False), ("bert", False)])
def test_a_batch_keeps_the_documents_of_a_row_apart_where_the_model_reads_them(tmp_path, gpt, stock, name, apart):
    batch = CausalLM(write_corpus(tmp_path, [[[1]], [[2, 3]]] * 2, VOCABULARY), 3, shuffle=False).batch([0, 1])
    batch["input_ids"][1, 0] = 0  # rows that differ in their first document
    of_documents = {name: batch[name] for name in ("input_ids", "position_ids", "seq_idx")}
    with torch.no_grad():
        logits = (stock | {"ours": gpt})[name].eval()(**of_documents, use_cache=False).logits
    assert torch.allclose(logits[0, 1:], logits[1, 1:], rtol=1e-4, atol=1e-6) == apart
    assert keeps_apart((stock | {"ours": gpt})[name]) == apart


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_positions_go_on_in_a_row_that_a_model_reads_as_one_text(tmp_path, stock, name):
    corpus = write_corpus(tmp_path, [[[1]], [[2, 3]]] * 2, VOCABULARY)
    batch = CausalLM(corpus, 3, shuffle=False, apart=False).batch([0, 1])
    of_documents = {name: batch[name] for name in batch if name != "shift_labels"}
    logits = stock[name](**of_documents, use_cache=False).logits
    torch.testing.assert_close(logits, stock[name](batch["input_ids"], use_cache=False).logits)


@pytest.mark.parametrize("name", ["llama", "gpt", "bert"])
def test_models_of_transformers_take_the_batches(tmp_path, stock, name):
    documents = [[np.random.default_rng(0).integers(0, VOCABULARY, 24).tolist()] for _ in range(3)]
    objective = CausalLM(write_corpus(tmp_path, documents, VOCABULARY), 24)
    batch = objective.batch(range(3))
    expected = stock[name](batch["input_ids"], labels=batch["input_ids"]).loss
    torch.testing.assert_close(objective.compute(stock[name], batch, {}), expected.unsqueeze(0))


def test_twenty_steps_equal_a_plain_loop_with_the_gpt_of_transformers(tmp_path, gpt):
    """On rows of one document each, because transformers' OpenAI GPT does not separate documents."""
    rng = np.random.default_rng(0)
    documents = [[rng.integers(0, VOCABULARY, 24).tolist()] for _ in range(50)]
    objective = CausalLM(write_corpus(tmp_path, documents, VOCABULARY), 24, seed=5)
    ours, stock = ZooGPTLMHeadModel(gpt.config), OpenAIGPTLMHeadModel(OpenAIGPTConfig(**SIZES, **NO_DROPOUT))
    ours.load_state_dict(gpt.state_dict())
    stock.load_state_dict(gpt.state_dict())
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ours, stock)]
    for step in range(20):
        batch = objective.batch(range(step * 4, step * 4 + 4))
        losses = [
            objective.compute(ours.train(), batch, {}).sum(),
            stock.train()(batch["input_ids"], labels=batch["input_ids"]).loss,
        ]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(weight, stock.state_dict()[name], rtol=1e-4, atol=1e-5)
