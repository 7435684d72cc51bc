"""What a training step starts on a GPU and keeps in its memory, against transformers' models: counted, not timed.

A GPU that gets small batches waits for the calls of its kernels, so ours may not be more than transformers'.
"""

import pytest
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks import gpu, serving
from benchmarks.bert import add_packing
from benchmarks.measure import Build
from benchmarks.overhead import as_on_a_gpu
from tests.support import bert_cases, gpt_cases
from tests.support.kernels import Kernels


def loss_of(model, batch: dict, autocast: bool = False) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return model(**batch).loss


def cost(model, batch: dict, autocast: bool = False) -> tuple[int, int]:
    """The kernels of a forward and a backward pass after the first one, and the bytes that the former keeps.

    Those are of the activations that the backward pass needs, without the weights.
    """
    kept = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    kept |= {each.untyped_storage().data_ptr() for each in batch.values() if torch.is_tensor(each)}
    total = 0

    def pack(tensor):
        nonlocal total
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in kept:
            kept.add(storage.data_ptr())
            total += storage.nbytes()
        return tensor

    loss_of(model, batch, autocast).backward()
    model.zero_grad()
    with Kernels() as kernels:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = loss_of(model, batch, autocast)
        loss.backward()
    model.zero_grad()
    return kernels.counts.total(), total


LAYERS = 4
BERT = ["ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice", "ForMaskedLM", "ForPreTraining"]


@pytest.mark.parametrize("head", [*BERT, "ForQuestionAnswering"])
def test_a_step_of_bert_starts_no_more_kernels_and_keeps_no_more_memory(head, tmp_path):
    stock, ours = (model.train() for model in bert_cases.pair(head, tmp_path, num_hidden_layers=LAYERS))
    this = bert_cases.case(head)
    batch = this.inputs | this.labels
    options = {"skip_logits": True} if head in ("ForMaskedLM", "ForPreTraining") else {}
    kernels, memory = cost(stock, batch)
    in_parts = 10 if options else 0  # a loss without the logits of all words is computed in parts
    real = this.inputs["attention_mask"].float().mean()
    for packed in (False, True):
        with as_on_a_gpu(packed):
            started, saved = cost(ours, add_packing(batch) | options)
        assert started <= kernels + in_parts
        packs = packed and head != "ForQuestionAnswering"  # whose loss reads the scores of padding
        assert saved <= memory * (min(1, 1.1 * real) if packs else 1)


@pytest.mark.parametrize("head", ["LMHeadModel", "ForSequenceClassification"])
def test_a_step_of_gpt_starts_fewer_kernels_and_keeps_less_memory(head, tmp_path):
    stock, ours = (model.train() for model in gpt_cases.pair(head, tmp_path, n_layer=LAYERS))
    this = gpt_cases.case(head)
    batch = this.inputs | this.labels
    kernels, memory = cost(stock, batch)
    if head == "LMHeadModel":
        batch["shift_labels"] = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[:, 1:]
        batch["skip_logits"] = True
    for packed in (False, True):
        with as_on_a_gpu(packed):
            started, saved = cost(ours, add_packing(batch))
        assert started <= 0.6 * kernels
        assert saved <= 0.6 * memory


def test_under_autocast_queries_keys_and_values_are_one_product(tmp_path):
    stock, ours = (model.train() for model in bert_cases.pair(BERT[0], tmp_path, num_hidden_layers=12))
    this = bert_cases.case(BERT[0])
    batch = this.inputs | this.labels
    kernels, memory = cost(stock, batch, autocast=True)
    for packed in (False, True):
        with as_on_a_gpu(packed):
            started, saved = cost(ours, add_packing(batch) if packed else batch, autocast=True)
        assert started <= (0.75 if packed else 0.95) * kernels
        assert saved <= 0.9 * memory


# Compiled graphs, and cuDNN's loop in one call, are not counted; BERT-large is as BERT-base where both are tiny.
ROWS = [row for row in gpu.ROWS if not (row.endswith(("-compiled", "-cudnn")) or row.startswith("gpu-large"))]


@pytest.mark.usefixtures("_little_work")
@pytest.mark.parametrize("row", ROWS)
def test_no_row_of_a_gpus_benchmark_starts_more_kernels_than_its_baseline(row):
    assert_no_more_kernels(gpu.ROWS[row][1], packed=not row.endswith("-plain"))


# One sentence starts seven more: a mask without a look for padding, zeros at padding, and one token in the last layer.
@pytest.mark.parametrize(("row", "allowed"), [("serving-1", 7), ("serving-32", 0)])
def test_a_server_starts_few_kernels_more_for_one_sentence_and_none_for_several(row, allowed):
    assert_no_more_kernels(serving.ROWS[row][1], packed=False, allowed=allowed)


def assert_no_more_kernels(build: Build, packed: bool, allowed: int = 0) -> None:
    contest = build("bf16", "bf16", True, torch.device("cpu"))
    counts = []
    for side in (contest.side, contest.baseline):
        side.run(0)  # makes the state of an optimizer
        with as_on_a_gpu(packed), Kernels() as kernels:
            side.run(1)
        counts.append(kernels.counts.total())
    assert counts[0] <= counts[1] + allowed


def test_one_product_gives_the_states_and_gradients_of_three(tmp_path):
    _, model = bert_cases.pair("ForSequenceClassification", tmp_path)
    this = bert_cases.case("ForSequenceClassification")

    def gradients() -> dict[str, torch.Tensor]:
        model.train().zero_grad()
        loss_of(model, this.inputs | this.labels, autocast=True).backward()
        return {name: weight.grad for name, weight in model.named_parameters() if "key.bias" not in name}  # of zeros

    with as_on_a_gpu(packed=False), pytest.MonkeyPatch.context() as three:
        three.setattr("modeling.shared.modeling_attention.TOGETHER_DEVICES", ())
        expected = gradients()
    with as_on_a_gpu(packed=False):
        computed = gradients()
    assert any(not torch.equal(computed[name], value) for name, value in expected.items())  # rounded differently
    for name, value in expected.items():
        assert (computed[name] - value).norm() <= 3e-2 * value.norm(), name


def test_a_layer_with_a_hook_without_a_bias_or_of_another_class_is_called_by_itself(tmp_path):
    _, model = bert_cases.pair("ForSequenceClassification", tmp_path)
    this = bert_cases.case("ForSequenceClassification")
    attention = model.bert.encoder.layer[0].attention.self
    calls = []
    attention.query.register_forward_hook(lambda *_: calls.append("hook"))
    with as_on_a_gpu(packed=False), torch.autocast("cpu", torch.bfloat16):
        model(**this.inputs)
        assert calls == ["hook"]
        model.bert.encoder.layer[2].attention.self.value.bias = None  # as a layer without one
        assert model(**this.inputs).logits.isfinite().all()
        model.bert.encoder.layer[1].attention.self.key = Scaled(model.bert.encoder.layer[1].attention.self.key)
        scaled = model(**this.inputs).logits
        model.bert.encoder.layer[1].attention.self.key.factor = 1
        assert not torch.equal(model(**this.inputs).logits, scaled)


def test_a_weight_of_autocasts_type_is_not_copied(tmp_path):
    _, model = bert_cases.pair("ForSequenceClassification", tmp_path)
    model.to(torch.bfloat16).train()
    batch = bert_cases.case("ForSequenceClassification").inputs
    batch = batch | bert_cases.case("ForSequenceClassification").labels
    with as_on_a_gpu(packed=False), pytest.MonkeyPatch.context() as three:
        _, together = cost(model, batch, autocast=True)
        three.setattr("modeling.shared.modeling_attention.TOGETHER_DEVICES", ())
        assert together == cost(model, batch, autocast=True)[1]


def test_an_attention_function_of_the_user_may_change_its_queries(tmp_path, monkeypatch):
    _, model = bert_cases.pair("ForSequenceClassification", tmp_path)
    this = bert_cases.case("ForSequenceClassification")

    def scaled(module, query, *rest, **kwargs):
        return sdpa_attention_forward(module, query.mul_(2), *rest, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "scaled", scaled)
    model.set_attn_implementation("scaled")
    with as_on_a_gpu(packed=False):
        loss_of(model, this.inputs | this.labels, autocast=True).backward()
    assert model.bert.encoder.layer[0].attention.self.query.weight.grad.isfinite().all()


class Scaled(torch.nn.Module):
    """Another layer in the place of a linear one, as peft has it."""

    factor = 3

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, states):
        return self.factor * self.layer(states)


def test_a_grid_starts_few_kernels_more_than_padding(tmp_path, monkeypatch):
    stock, ours = (model.train() for model in bert_cases.pair(BERT[0], tmp_path, num_hidden_layers=LAYERS))
    this = bert_cases.case(BERT[0])
    batch = this.inputs | this.labels
    with as_on_a_gpu(packed=True), monkeypatch.context() as grid:  # undone before the stand-in
        grid.setattr("modeling.shared.modeling_packing.FLASH_DEVICES", ())
        started, _ = cost(ours, add_packing(batch))
    assert started <= cost(stock, batch)[0] + 14 * LAYERS


def test_a_step_that_starts_a_kernel_more_is_found(tmp_path):
    stock, ours = (model.train() for model in bert_cases.pair(BERT[0], tmp_path, num_hidden_layers=LAYERS))
    this = bert_cases.case(BERT[0])
    batch = this.inputs | this.labels
    before = cost(ours, batch)
    norm = ours.bert.encoder.layer[0].output.LayerNorm
    norm.forward = lambda states, forward=norm.forward: forward(states.sin())
    after = cost(ours, batch | {"unpad": True})
    assert after[0] > before[0] and after[1] > before[1]
