"""DataCollatorWithPacking: a batch carries its packing, so that nothing is read from a device; no result changes."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader
from transformers import DataCollatorWithFlattening, DefaultDataCollator, Trainer, TrainingArguments

import modeling
import run_glue
import run_pretraining
from benchmarks.overhead import as_on_a_gpu
from elmo_gpt_bert.training import batches
from modeling.shared import modeling_packing
from modeling.shared.packing_collator import find_packing
from tests.support import bert_cases, gpt_cases
from tests.support.families import each
from tests.support.glue_sample import write_model, write_task, write_vocabulary
from tests.support.kernels import Kernels
from tests.support.model_cases import on_the_left
from tests.support.pretraining_sample import flags as pretraining_flags


add_packing = modeling.DataCollatorWithPacking(lambda batch: dict(batch))


def results(model, inputs, labels) -> SimpleNamespace:
    """The outputs, and the gradients of all weights."""
    model.zero_grad()
    outputs = model(**inputs, **labels)
    (outputs.loss if labels else outputs.last_hidden_state.square().mean()).backward()
    named = model.named_parameters()
    return SimpleNamespace(
        outputs=outputs, gradients={name: weight.grad for name, weight in named if weight.grad is not None}
    )


def assert_same_with_packing(model, inputs, labels) -> None:
    batch = add_packing(inputs | labels)
    assert batch["packing"].shape[-1] == inputs["input_ids"].shape[-1]
    expected = results(model, inputs, labels)
    inputs = {name: value for name, value in batch.items() if name not in labels}
    actual = results(model, inputs, labels)
    for name, value in expected.outputs.items():
        torch.testing.assert_close(actual.outputs[name], value, atol=0, rtol=0)
    torch.testing.assert_close(actual.gradients, expected.gradients, atol=0, rtol=0)


@pytest.mark.parametrize("unpad", [None, False])
@each("head", ["Model", *bert_cases.HEADS], ["Model", *gpt_cases.STOCK_HEADS, *gpt_cases.OWN_HEADS])
def test_outputs_and_gradients_are_the_same_bits(cases, head, unpad):
    this = cases.case(head, holes=True)
    assert_same_with_packing(cases.zoo(head), this.inputs | {"unpad": unpad}, this.labels)


@pytest.mark.parametrize("labels_padding", [False, True])
def test_the_loss_without_logits_is_the_same(labels_padding, tmp_path):
    _, model = bert_cases.pair("ForMaskedLM", tmp_path)
    this = bert_cases.case("ForMaskedLM")
    if labels_padding:
        this.labels["labels"][~this.real] = 1
    assert find_packing(this.inputs | this.labels).labels_padding == labels_padding
    assert_same_with_packing(model, this.inputs | {"skip_logits": True}, this.labels)


def packed_rows() -> tuple[dict, dict]:
    """Rows of several texts, as pre-training has them."""
    ids = torch.randint(1, 90, (3, 16))
    numbers = torch.tensor([[0] * 5 + [1] * 11, [0] * 16, [0, 1, 2, 3] * 1 + [4] * 12], dtype=torch.int32)
    follows = torch.nn.functional.pad(numbers[:, 1:] == numbers[:, :-1], (0, 1))
    shifted = torch.where(follows, ids.roll(-1, 1), -100)
    return {"input_ids": ids, "seq_idx": numbers, "shift_labels": shifted}, {"labels": shifted}


@pytest.mark.parametrize("skip_logits", [False, True])
def test_rows_of_several_texts_give_the_same_bits(skip_logits):
    inputs, labels = packed_rows()
    assert_same_with_packing(gpt_cases.zoo("LMHeadModel"), inputs | {"skip_logits": skip_logits}, labels)


def flat_row() -> dict:
    """One row of several sentences, as transformers' collator makes it."""
    examples = [{"input_ids": list(range(1, n)), "labels": [n % 4] * (n - 1)} for n in (5, 9, 2)]
    return dict(DataCollatorWithFlattening(return_flash_attn_kwargs=True)(examples))


def test_one_row_of_transformers_collator_gives_the_same_bits(tmp_path):
    _, model = bert_cases.pair("ForTokenClassification", tmp_path)
    inputs = flat_row()
    labels = {"labels": inputs.pop("labels")}
    assert len(find_packing(inputs).starts) == 3
    assert_same_with_packing(model, inputs, labels)
    positions = {name: inputs[name] for name in ("input_ids", "position_ids")}
    assert len(find_packing(positions).starts) == 3
    assert_same_with_packing(model, positions, labels)


def test_padding_on_the_left_has_no_packing():
    mask = torch.tensor([[0, 1, 1], [1, 1, 1]])
    assert "packing" not in add_packing({"input_ids": mask, "attention_mask": mask})
    assert "packing" not in add_packing({"inputs_embeds": torch.zeros(1, 2, 3)})


def test_a_mask_that_is_made_or_left_out_later_makes_the_packing_useless(monkeypatch):
    monkeypatch.setattr(modeling_packing, "READ_DEVICES", ())  # as on a GPU, where nothing is compared
    model, batch = gpt_cases.zoo("ForSequenceClassification"), gpt_cases.batch([5, 9, 2])
    packing = find_packing({"input_ids": batch["input_ids"]})
    torch.testing.assert_close(
        model(batch["input_ids"], packing=packing).logits, model(batch["input_ids"]).logits, atol=0, rtol=0
    )
    model, packing = gpt_cases.zoo("Model"), find_packing(batch)
    for options in ({}, {"unpad": False}, {"output_attentions": True}):
        expected = model(batch["input_ids"], **options).last_hidden_state
        actual = model(batch["input_ids"], packing=packing, **options).last_hidden_state
        torch.testing.assert_close(actual, expected, atol=0, rtol=0)


def test_positions_count_from_the_real_tokens_of_a_mask_that_came_later():
    model, batch = gpt_cases.zoo("ForTokenClassification"), on_the_left(gpt_cases.batch([5, 9, 2]))
    packing = find_packing({"input_ids": batch["input_ids"]})
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(model(**batch, packing=packing).logits[real], model(**batch).logits[real])


@pytest.mark.parametrize("unpad", [True, False])
def test_positions_count_from_the_padding_with_which_a_sequence_begins(unpad):
    inputs = {"input_ids": torch.randint(1, 90, (2, 6)), "seq_idx": torch.tensor([[0, 0, 0, 1, 1, 1], [0] * 6])}
    inputs["attention_mask"] = torch.tensor([[1, 1, 1, 0, 1, 1], [1] * 6])
    assert_same_with_packing(gpt_cases.zoo("Model"), inputs | {"unpad": unpad}, {})


@pytest.mark.parametrize("unpad", [None, False])
def test_padding_that_is_numbered_as_a_sequence_keeps_the_places_where_sequences_begin(unpad):
    longest = gpt_cases.zoo("Model").config.max_position_embeddings
    columns = torch.arange(longest + 4)[None]
    inputs = {"input_ids": torch.randint(1, 90, columns.shape), "seq_idx": (columns >= longest - 2).long()}
    inputs["attention_mask"] = 1 - inputs["seq_idx"]
    assert_same_with_packing(gpt_cases.zoo("Model"), inputs | {"unpad": unpad}, {})


def test_labels_that_are_shifted_later_are_looked_for_again():
    model, ids = gpt_cases.zoo("LMHeadModel"), torch.randint(1, 90, (2, 7))
    batch = add_packing({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()})
    batch |= {"shift_labels": torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:], "skip_logits": True}
    loss = model(**batch).loss
    del batch["packing"]
    assert loss == model(**batch).loss


def test_a_head_that_passes_no_packing_on_gets_none():
    class Head(torch.nn.Module):
        base_model = gpt_cases.zoo("Model")

        def forward(self, input_ids):
            return self.base_model(input_ids)

    assert batches.with_packing(print, Head(), torch.device("meta")) is print
    collate = batches.with_packing(print, gpt_cases.zoo("LMHeadModel"), torch.device("meta"))
    assert type(collate) is modeling.DataCollatorWithPacking


def test_a_packing_of_another_batch_is_refused(tmp_path):
    _, model = bert_cases.pair("Model", tmp_path)
    batch = add_packing(bert_cases.batch(lengths=[3, 5, 2]))
    with pytest.raises(ValueError, match=r"packing is of a batch of shape \(3, 5\) with 10 real .* is \(2, 5\)"):
        model(**{name: value if name == "packing" else value[:2] for name, value in batch.items()})
    batch["attention_mask"] = torch.ones_like(batch["attention_mask"])
    with pytest.raises(ValueError, match="but this one is .3, 5. and has 15: make it of this batch, or leave it out"):
        model(**batch)


def test_a_packing_moves_with_its_batch_and_through_data_workers():
    examples = [{"input_ids": torch.arange(1, n), "labels": torch.ones(n - 1).long()} for n in (4, 2, 6)]

    def pad(examples):
        padded = {
            name: torch.nn.utils.rnn.pad_sequence([each[name] for each in examples], batch_first=True)
            for name in ("input_ids", "labels")
        }
        return padded | {"attention_mask": (padded["input_ids"] > 0).long()}

    loader = DataLoader(examples, 3, collate_fn=modeling.DataCollatorWithPacking(pad), num_workers=1)
    (batch,) = loader
    packing = batch["packing"]
    assert packing.groups == [(1, 1), (1, 3), (1, 5)]
    there = packing.to("meta", non_blocking=True)
    assert {there.tokens.device.type, there.rows.device.type, there.labelled.device.type} == {"meta"}
    assert {there.boundaries.device.type, there.grid.tokens.device.type, there.mask.device.type} == {"meta"}
    assert (there.shape, there.groups, there.labels_padding) == (packing.shape, packing.groups, True)


def test_trainer_trains_and_evaluates_as_without(tmp_path):
    losses = []
    for collator in (DefaultDataCollator(), modeling.DataCollatorWithPacking(DefaultDataCollator())):
        torch.manual_seed(0)
        _, model = bert_cases.pair("ForTokenClassification", tmp_path)
        this = bert_cases.case("ForTokenClassification")
        rows = zip(*(this.inputs | this.labels).values(), strict=True)
        examples = [dict(zip(this.inputs | this.labels, row, strict=True)) for row in rows]
        arguments = TrainingArguments(
            tmp_path / "out", max_steps=2, report_to="none", use_cpu=True, save_strategy="no"
        )
        trainer = Trainer(model, arguments, collator, examples, examples)
        losses.append((trainer.train().training_loss, trainer.evaluate()["eval_loss"]))
    assert losses[0] == losses[1]


def test_a_packing_is_pinned_with_its_batch(monkeypatch):
    packing = find_packing(bert_cases.batch())
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor + 0)  # which needs a GPU
    pinned = torch.utils.data._utils.pin_memory.pin_memory({"packing": packing})["packing"]
    assert pinned is not packing and pinned.tokens is not packing.tokens
    torch.testing.assert_close(pinned.tokens, packing.tokens)


READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "bincount", "unique_consecutive", "_unique2"}


class NothingIsRead(TorchDispatchMode):
    """Raises an error for operations after which a program on a GPU waits for it."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation._overloadpacket.__name__
        masks = (
            [index for index in args[1] if index is not None] if name in ("index", "index_put", "index_put_") else []
        )
        if name in READS or any(index.dtype in (torch.bool, torch.uint8) for index in masks):
            raise AssertionError(f"{operation} waits for the device")
        return operation(*args, **kwargs or {})


def test_positions_on_a_device_are_not_compared(monkeypatch):
    class NoMaximum(TorchDispatchMode):
        def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
            assert operation._overloadpacket.__name__ != "max"
            return operation(*args, **kwargs or {})

    ids, positions = torch.ones(2, 3, dtype=torch.long), torch.tensor([[0, 1, 2], [0, 1, 9]])
    with pytest.raises(ValueError, match="reaches position 10 and the model has 9"):
        modeling_packing.find_positions(ids, positions, None, None, 9)
    monkeypatch.setattr(modeling_packing, "READ_DEVICES", ())
    with NoMaximum():
        assert modeling_packing.find_positions(ids, positions, None, None, 9) is positions


def bert(head: str, folder, lengths: list[int] | None = None, **options) -> tuple:
    inputs, labels = bert_cases.case(head).inputs, bert_cases.case(head).labels
    if lengths:
        inputs = bert_cases.batch(lengths)
        chosen = (inputs["input_ids"] % 3 == 0) & (inputs["attention_mask"] == 1)
        labels = {"labels": (inputs["input_ids"] % 5).masked_fill(~chosen, -100)}
    return two_layers(head, folder), inputs | labels | options


def two_layers(head: str, folder) -> torch.nn.Module:
    """Of which one is the last."""
    return bert_cases.pair(head, folder, num_hidden_layers=2)[1]


def in_training(model: torch.nn.Module) -> torch.nn.Module:
    """With dropout, of which the cases of other tests have none."""
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.1
    return model.train()


STEPS = {
    "classes of BERT": lambda folder: bert("ForSequenceClassification", folder),
    "choices of BERT": lambda folder: bert("ForMultipleChoice", folder),
    "answers of BERT": lambda folder: bert("ForQuestionAnswering", folder),
    "tags of BERT": lambda folder: bert("ForTokenClassification", folder, [5, 9, 2]),
    "tags of one row": lambda folder: (two_layers("ForTokenClassification", folder), flat_row()),
    "masked words": lambda folder: bert("ForMaskedLM", folder, [5, 9, 2], skip_logits=True),
    "masked words of full rows": lambda folder: bert("ForMaskedLM", folder, [9, 9, 9], skip_logits=True),
    "classes of GPT": lambda folder: (
        gpt_cases.zoo("ForSequenceClassification", n_layer=2),
        gpt_cases.batch([5, 9, 2]) | {"labels": torch.tensor([0, 1, 2])},
    ),
    "texts in the rows of GPT": lambda folder: (
        gpt_cases.zoo("LMHeadModel", n_layer=2),
        packed_rows()[0] | packed_rows()[1] | {"skip_logits": True},
    ),
}


@pytest.mark.parametrize("how", ["flash", "grid", "padded"])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_reads_nothing_from_the_device(step, how, tmp_path, monkeypatch):
    """With dropout under autocast, as a run on a GPU."""
    model, batch = STEPS[step](tmp_path)
    model, batch = in_training(model), add_packing(batch)
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: pytest.fail("a tensor is copied to the host"))
    reads = pytest.raises((AssertionError, pytest.fail.Exception), match="waits for the device|copied to the host")
    on_gpu = as_on_a_gpu(packed=how != "padded")
    with on_gpu, torch.autocast("cpu", torch.bfloat16), monkeypatch.context() as grid:  # undone before the stand-in
        if how == "grid":
            grid.setattr(modeling_packing, "FLASH_DEVICES", ())
        with NothingIsRead():
            model(**batch).loss.backward()
        del batch["packing"]
        # Of few tokens, a mask is made without a look at it; the other steps look for labels, or for padding in front.
        is_dense = how == "padded" and step in ("classes of BERT", "choices of BERT", "answers of BERT")
        with nullcontext() if is_dense else reads, NothingIsRead():
            model(**batch).loss.backward()


DECIDING = ("bert.modeling_bert", "gpt.modeling_gpt", "gpt.modeling_gpt_tasks")
DECIDING += ("shared.modeling_attention", "shared.modeling_heads", "shared.modeling_packing")


class NothingIsCopied(TorchDispatchMode):
    """Raises an error for operations with tensors of several devices, such as copies from one to another."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        outputs = operation(*args, **kwargs or {})
        given = [each for each in tree_leaves([args, kwargs, outputs]) if torch.is_tensor(each) and each.dim()]
        assert len({each.device for each in given}) <= 1, f"{operation} has tensors of several devices"
        return outputs


@pytest.mark.parametrize("how", ["flash", "grid"])
@pytest.mark.parametrize("step", STEPS)
def test_a_step_copies_nothing_to_the_device_or_from_it(step, how, tmp_path, monkeypatch):
    """In bf16 on torch's device without memory, which has the kernels of a GPU with their shapes and gradients."""
    model, batch = STEPS[step](tmp_path)
    batch = add_packing(batch)
    in_training(model).to("meta", torch.bfloat16)
    for module in DECIDING:
        monkeypatch.setattr(f"modeling.{module}.is_opaque", lambda tensor: False)
    heads = {"FLASH_HEADS": range(1000), "FLASH_DEVICES": () if how == "grid" else ("meta",)}
    for name, value in (heads | {"_has_flash": bool, "FEW_TOKENS": 0}).items():
        monkeypatch.setattr(modeling_packing, name, value)
    monkeypatch.setattr(torch, "tensor", lambda *_, **__: pytest.fail("what Python knows is copied to the device"))
    batch = {name: value.to("meta") if hasattr(value, "to") else value for name, value in batch.items()}
    with NothingIsCopied(), Kernels() as kernels:
        model(**batch).loss.backward()
    calls = {name: count for name, count in kernels.counts.items() if "_flash_attention_" in name}
    packs = how == "flash" and step not in ("answers of BERT", "masked words of full rows")
    assert calls == (dict.fromkeys(["_flash_attention_forward", "_flash_attention_backward"], 2) if packs else {})


MORE_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("masked_lm", "causal_lm")]


@pytest.mark.parametrize("kind", ["sst2", "next_sentence", *MORE_KINDS])
def test_a_run_on_a_gpu_gives_its_batches_a_packing(kind, tmp_path, monkeypatch):
    """The processor counts as one, and the numbers are the same bits."""
    if kind == "sst2":
        write_task(tmp_path, "SST-2")
        main, argv = run_glue.main, ["--model_name_or_path", str(write_model(tmp_path)), "--do_train", "--do_eval"]
        argv += ["--tokenizer_name", str(write_vocabulary(tmp_path)), "--task_name", "sst2"]
        argv += ["--data_dir", str(tmp_path), "--max_seq_length", "32", "--max_steps", "2"]
    else:
        main, argv = run_pretraining.main, [*pretraining_flags(tmp_path, kind), "--max_steps", "2"]
        argv += ["--report_to", "none"]  # drawing takes longer than the run
    argv += ["--save_strategy", "no", "--output_dir"]
    expected = main([*argv, str(tmp_path / "cpu")])
    monkeypatch.setattr(batches, "WITHOUT_PACKING", ())
    used, use = [], modeling_packing.usable_packing

    def recorded(*arguments):
        used.append(use(*arguments))
        return used[-1]

    monkeypatch.setattr(modeling_packing, "usable_packing", recorded)
    actual = main([*argv, str(tmp_path / "gpu")])
    assert sum(packing is not None for packing in used) > 2  # in training and in evaluation
    for name in ("train_loss", "eval_loss"):
        assert actual[name] == expected[name]
