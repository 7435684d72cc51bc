"""The order of examples, the training loop and prediction, on models of a few hundred parameters."""

import contextlib
import dataclasses
import fcntl
import itertools
import math
import os
import pickle
import pty
import random
import re
import shutil
import struct
import sys
import termios
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from datasets import Dataset, Features, List, Value, concatenate_datasets, load_from_disk
from datasets.table import InMemoryTable

from elmo_gpt_bert.tasks import choices
from elmo_gpt_bert.tasks.ner import features as ner
from elmo_gpt_bert.tasks.squad import features as squad
from elmo_gpt_bert.training import batches, checkpoints, launching, loop, optimization
from elmo_gpt_bert.training.batches import load_batches
from elmo_gpt_bert.training.identity import digest, run_identity
from elmo_gpt_bert.training.task import predict
from modeling import ElmoTokenizer, ZooGPTTokenizer
from tests.support.glue_sample import VOCABULARY, write_model
from tests.support.gpt_sample import write_gpt_tokenizer
from tests.support.processes import fork, wait
from tests.support.tiny_run import computation, fit, load_model, load_tokenizer, prepare, tiny_task, weights


# The order of examples


LENGTHS = np.random.default_rng(1).integers(3, 60, 1003).tolist()


def flat(updates: list[list[list[int]]]) -> list[int]:
    return [index for update in updates for batch in update for index in batch]


@pytest.mark.parametrize("group", [False, True])
def test_an_epoch_takes_every_example_once_in_an_order_of_its_own(run, group):
    args = run(group_by_length=group, gradient_accumulation_steps=3)
    first, second = (batches.epoch_updates(LENGTHS, args, epoch, 1) for epoch in (0, 1))
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(len(LENGTHS)))
    assert first != second and first == batches.epoch_updates(LENGTHS, args, 0, 1)
    assert first != batches.epoch_updates(LENGTHS, run(group_by_length=group, seed=43), 0, 1)
    assert {len(update) for update in first[:-1]} == {3} and {len(batch) for batch in first[0]} == {4}


def test_grouping_by_length_leaves_little_padding(run):
    def padding(group: bool) -> float:
        updates = batches.epoch_updates(LENGTHS, run(group_by_length=group), 0, 1)
        padded = sum(max(LENGTHS[i] for i in batch) * len(batch) for update in updates for batch in update)
        return padded / sum(LENGTHS)

    assert padding(True) < 1.06 < 1.3 < padding(False)


def test_grouping_by_length_sorts_the_examples_of_fifty_updates_at_a_time(run):
    updates = batches.epoch_updates(LENGTHS, run(group_by_length=True), 0, 1)
    order = np.random.default_rng((run().seed, 0)).permutation(len(LENGTHS)).tolist()
    for block in (order[first : first + 50 * 4] for first in range(0, len(order), 50 * 4)):
        assert sum({*flat([update])} <= {*block} for update in updates) == math.ceil(len(block) / 4)


def test_an_example_is_as_long_as_its_longest_choice():
    def length(**columns: list) -> list[int]:
        return batches.count_tokens(Dataset.from_dict(columns))

    assert length(input_ids=[[1], [1, 2, 3]]) == [1, 3]
    choices = [[[1], [1, 2, 3]], [[1, 2], [1]]]
    assert length(input_ids=choices, attention_mask=choices) == [3, 2]
    characters = [[[7, 8]], [[7, 8], [9, 9], [7, 7]]]  # two a word
    assert length(input_ids=characters, attention_mask=[[1], [1, 1, 1]]) == [1, 3]
    assert length(input_ids=[characters, characters[::-1]], attention_mask=choices) == [3, 2]
    assert length(input_ids=[[], [1]], attention_mask=[[], [1]]) == [0, 1]


@pytest.mark.parametrize("group", [False, True])
def test_accumulation_and_processes_do_not_change_an_updates_examples(run, group):
    whole = batches.epoch_updates(LENGTHS, run(group_by_length=group, per_device_train_batch_size=12), 0, 1)
    split = batches.epoch_updates(
        LENGTHS, run(group_by_length=group, per_device_train_batch_size=2, gradient_accumulation_steps=3), 0, 2
    )
    assert [flat([update]) for update in whole] == [flat([update]) for update in split]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, (18, 6)),
        ({"num_train_epochs": 0.5}, (3, 6)),
        ({"num_train_epochs": 1e-9}, (1, 6)),  # not a run without an update
        ({"max_steps": 7}, (7, 6)),
    ],
)
def test_updates_follow_from_epochs_or_max_steps(run, changes, expected):
    assert optimization.count_updates(21, run(**changes), 1) == expected


def test_an_error_of_rounding_is_no_further_update(run):
    assert 1.1 * 50 > 55
    assert optimization.count_updates(200, run(num_train_epochs=1.1), 1) == (55, 50)


# What tells data apart


KINDS = Features(
    ids=List(Value("int32")),
    mask=List(Value("int8")),
    characters=List(List(Value("int32"))),
    text=Value("string"),
    answers={"text": List(Value("string")), "answer_start": List(Value("int32"))},
    label=Value("int64"),
    number=Value("float64"),
    flags=List(Value("bool")),
)


def rows(first: int, end: int) -> list[dict]:
    """Of every kind of column; every fifth label and text is missing."""
    return [
        {
            "ids": list(range(row, row + row % 4)),
            "mask": [1] * (row % 4),
            "characters": [[row, 7], [row]] * (row % 3),
            "text": None if row % 5 == 0 else f"é{row}" * (row % 7),
            "answers": {"text": [f"{row}"] * (row % 2), "answer_start": [row] * (row % 2)},
            "label": None if row % 5 == 1 else row % 3,
            "number": row / 7,
            "flags": [row % 3 == 0, row % 2 == 0],
        }
        for row in range(first, end)
    ]


def test_the_same_data_have_one_digest_in_whatever_pieces_they_are_kept(tmp_path):
    part = rows(7, 1213)
    plain, more = Dataset.from_list(part, KINDS), Dataset.from_list(rows(0, 1301), KINDS)
    plain.save_to_disk(tmp_path / "whole")
    plain.save_to_disk(tmp_path / "parts", num_shards=7)
    shuffled = np.random.default_rng(0).permutation(len(plain))
    columns = [pa.concat_arrays([column.chunk(0), pa.nulls(1, column.type)])[:-1] for column in plain.data.columns]
    known = [
        load_from_disk(tmp_path / "whole"),
        load_from_disk(tmp_path / "whole", keep_in_memory=True),
        load_from_disk(tmp_path / "parts"),
        more.select(range(7, 1213)),
        plain.select(shuffled).select(np.argsort(shuffled)),
        concatenate_datasets([plain.select(range(13)), plain.select(range(13, 1206))]),
        plain.map(lambda batch: batch, batched=True, batch_size=101, keep_in_memory=True),
        Dataset(InMemoryTable(pa.table(columns, plain.column_names))),  # says of every value that it is there
        plain.with_format("torch"),
    ]
    assert {digest(data_set) for data_set in known} == {digest(plain)}


def test_text_bytes_and_decimals_have_one_digest():
    def digest_of(values: list, kind: str) -> str:
        return digest(Dataset(InMemoryTable(pa.table({"text": pa.array(values, kind)}))))

    text = ("large_string", ["a", None, "bc"], ["a", None, "bd"])
    decimals = (pa.decimal128(3, 1), [Decimal("1.5")], [Decimal("2.5")])
    for kind, values, others in (text, ("binary", [b"a"], [b"b"]), decimals):
        assert len({digest_of(list(values), kind) for _ in range(3)}) == 1
        assert digest_of(values, kind) != digest_of(others, kind)
    assert digest_of([], "string") != digest(Dataset(InMemoryTable(pa.table({"other": pa.array([], "string")}))))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("ids", value) for value in ([23, 24, 26], [23, 24], [], None)),
        *(("mask", value) for value in ([1, 1, 0], [1, 1, 1, 1])),
        *(("characters", value) for value in ([[23, 7, 23], [], [23, 7], [23]], [[23, 7, 23, 23, 7, 23]], [])),
        *(("text", value) for value in ("é23é24", "é23é23\0", "", None)),
        *(("answers", {"text": text, "answer_start": [23]}) for text in ([], ["24"], [None])),
        *(("label", value) for value in (0, None)),
        *(("number", value) for value in (-23 / 7, 0.0)),
        ("flags", [False, True]),
    ],
)
def test_other_data_have_another_digest(column, value):
    first, changed = rows(0, 25), rows(0, 25)
    changed[23][column] = value
    assert digest(Dataset.from_list(changed, KINDS)) != digest(Dataset.from_list(first, KINDS))


def test_the_order_of_rows_the_names_and_types_of_columns_and_where_values_end_or_lack_count_in_a_digest():
    plain = Dataset.from_dict({"a": [1, 2], "b": [1, 2]})
    others = [plain.select([1, 0]), plain.rename_column("a", "c"), plain.select_columns(["b", "a"])]
    others += [plain.cast_column("a", Value("int32")), plain.remove_columns("b"), plain.select([0, 1, 1])]
    others += [plain.cast_column("a", Value(kind)) for kind in ("int8", "uint8")]  # the same bytes
    columns = (["ab", "c"], ["a", "bc"], ["abc", ""], [1, None], [None, 1])
    others += [Dataset.from_dict({"a": column}) for column in columns]
    assert len({digest(data_set) for data_set in [plain, *others]}) == 1 + len(others)


# Training


SCHEDULES = {  # (share of the warm-up, share of the rest) -> share of the peak
    "linear": lambda warm, rest: warm * (1 - rest),
    "cosine": lambda warm, rest: warm * (1 + math.cos(math.pi * rest)) / 2,
    "constant": lambda warm, rest: 1.0,
    "constant_with_warmup": lambda warm, rest: warm,
    "warmup_stable_decay": lambda warm, rest: warm * min(1, 2 * (1 - rest)),  # it falls in half of the rest
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_training_is_adamw_with_clipping_and_a_schedule(run, data_set, schedule):
    args = run(
        weight_decay=0.1,
        warmup_ratio=0.0 if schedule == "constant" else 0.3,
        max_grad_norm=0.5,
        num_train_epochs=2,
        adam_beta1=0.8,
        adam_beta2=0.9,
        lr_scheduler_type=schedule,
        decay_ratio=1 / 3 if schedule == "warmup_stable_decay" else None,
    )
    results, trained = fit(args, data_set)
    AcceleratorState._reset_state(True)
    _, _, model, collate = prepare(dataclasses.replace(args, output_dir=args.output_dir + "2"))
    model.train()
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
        ],
        betas=(0.8, 0.9),
    )
    total, warmup, losses = 12, math.ceil(0.3 * 12), []
    updates = [update for epoch in (0, 1) for update in batches.epoch_updates([1] * 21, args, epoch, 1)]
    for step, (batch,) in enumerate(updates):
        rate = 0.01 * SCHEDULES[schedule](min(1, step / warmup), max(0, (step - warmup) / (total - warmup)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = model(**collate([data_set[i] for i in batch])).loss
        losses += [loss.item()] * len(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(weights(trained), weights(model), rtol=0, atol=1e-5)
    assert results["train_loss"] == pytest.approx(np.mean(losses), abs=1e-5)
    assert results["train_updates"] == total


def test_a_norm_of_zero_clips_no_gradient(run, data_set):
    _, free = fit(run(max_grad_norm=0.0, max_steps=3), data_set)
    _, wide = fit(run(output_dir=run().output_dir + "2", max_grad_norm=1e6, max_steps=3), data_set)
    assert torch.equal(weights(free), weights(wide))


def test_warm_up_in_updates_is_its_share_of_them(run, data_set):
    shared, _ = fit(run(warmup_ratio=0.25, max_steps=8), data_set)
    counted, _ = fit(run(output_dir=run().output_dir + "2", warmup_steps=2, max_steps=8), data_set)
    other, _ = fit(run(output_dir=run().output_dir + "3", warmup_steps=3, max_steps=8), data_set)
    assert shared["train_loss"] == counted["train_loss"] != other["train_loss"]


def test_layers_that_start_anew_do_so_when_training_begins(run, data_set):
    standing_still = {"learning_rate": 0.0, "max_steps": 1}
    _, trained = fit(run(reinit_layers=1, **standing_still), data_set)
    _, _, model, _ = prepare(run(output_dir=run().output_dir + "2"))
    before = model.state_dict()
    changed = {name for name, weight in trained.state_dict().items() if not torch.equal(weight, before[name])}
    matrices = {name for name in before if "layer.1." in name or "pooler" in name if before[name].dim() > 1}
    assert changed == matrices  # biases and LayerNorms are new as well, and new ones are all alike


def test_what_should_not_change_the_result_does_not(run, data_set):
    _, plain = fit(run(max_steps=8), data_set)
    for number, changes in enumerate(({"gradient_checkpointing": True}, {"logging_steps": 1})):
        _, changed = fit(run(output_dir=f"{run().output_dir}{number}", max_steps=8, **changes), data_set)
        torch.testing.assert_close(weights(changed), weights(plain), rtol=0, atol=1e-6)


@pytest.mark.parametrize("group", [False, True])
def test_accumulated_micro_batches_equal_the_large_batch(run, data_set, group):
    _, large = fit(run(per_device_train_batch_size=6, group_by_length=group, num_train_epochs=2), data_set)
    accumulating = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "group_by_length": group}
    accumulating["num_train_epochs"] = 2
    results, small = fit(run(output_dir=run().output_dir + "2", **accumulating), data_set)
    torch.testing.assert_close(weights(small), weights(large), rtol=0, atol=1e-5)
    assert results["train_updates"] == 8  # 21 examples: three updates of 6, one of 3, two epochs


def tagged(data_set: Dataset) -> Dataset:
    """Labels of tokens: whether each is "good", none for the first of each example, none at all for three examples."""
    good = VOCABULARY.index("good")
    labels = [[-100] + [int(token == good) for token in row[1:]] for row in data_set["input_ids"]]
    labels[:3] = [[-100] * len(row) for row in labels[:3]]
    return data_set.remove_columns("labels").add_column("labels", labels)


def fit_tags(args, data_set: Dataset):
    accelerator, tokenizer, _, _ = prepare(args)
    torch.manual_seed(3)
    model = load_model(args, transformers.AutoModelForTokenClassification, tokenizer)
    collate = transformers.DataCollatorForTokenClassification(tokenizer)
    task = tiny_task(tagged(data_set), None, collate, model=model, tokenizer=tokenizer)
    compute = computation(model, collate, args, accelerator)
    return loop.train(task, compute, args, accelerator, run_identity(args)).results, model


def test_labelled_tokens_weigh_equally_however_an_update_is_divided(run, data_set):
    results, large = fit_tags(run(per_device_train_batch_size=6, num_train_epochs=2), data_set)
    for size in (1, 2):
        changes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 6 // size}
        out = f"{run().output_dir}{size}"
        divided, small = fit_tags(run(output_dir=out, num_train_epochs=2, **changes), data_set)
        torch.testing.assert_close(weights(small), weights(large), rtol=0, atol=1e-5)
        assert divided["train_loss"] == pytest.approx(results["train_loss"], abs=1e-5)


def test_bfloat16_is_used_and_the_weights_stay_in_float32(run, data_set):
    results, model = fit(run(mixed_precision="bf16", num_train_epochs=1), data_set)
    assert weights(model).dtype == torch.float32 and math.isfinite(results["train_loss"])
    AcceleratorState._reset_state(True)
    exact, _ = fit(run(output_dir=run().output_dir + "2", num_train_epochs=1), data_set)
    assert 0 < abs(results["train_loss"] - exact["train_loss"]) < 0.05


def test_a_loss_that_is_not_a_number_stops_the_run(run, data_set):
    args = run(learning_rate=1e30, max_grad_norm=0.0, logging_steps=2)
    with pytest.raises(
        FloatingPointError, match=r"the training loss is nan at update \d+ of 18: lower --learning_rate"
    ):
        fit(args, data_set)


def test_evaluation_follows_each_epoch(run, data_set, capsys):
    seen = []

    def metrics(outputs, examples):
        seen.append(np.mean(np.argmax(outputs["logits"], -1) == examples["labels"]))
        return {"accuracy": seen[-1]}

    results, _ = fit(
        run(num_train_epochs=3, learning_rate=0.02), data_set, {"": data_set, "_mm": data_set.select([0])}, metrics
    )
    assert len(seen) == 6 and results["eval_accuracy"] == seen[-2] and results["eval_accuracy_mm"] == seen[-1]
    assert capsys.readouterr().out.count("eval_accuracy_mm") == 3


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({"eval_strategy": "no"}, 1),
        ({"eval_strategy": "epoch", "eval_steps": 2}, 2),
        ({"eval_strategy": "steps", "eval_steps": 5}, 3),  # of 12 updates: 5, 10, 12
        ({"eval_steps": 5}, 3),
    ],
)
def test_the_strategy_says_when_training_stops_to_evaluate(run, data_set, changes, times):
    seen = []
    args = run(do_eval=True, num_train_epochs=2, **changes)
    results, _ = fit(args, data_set, {"": data_set}, lambda *_: {"a": seen.append(1) or len(seen)})
    assert len(seen) == results["eval_a"] == times


@pytest.mark.parametrize(
    ("changes", "saved"),
    [
        ({}, [6, 12]),
        ({"save_strategy": "epoch"}, [6, 12]),
        ({"save_steps": 5}, [5, 10, 12]),
        ({"save_strategy": "steps", "save_steps": 5}, [5, 10, 12]),
        ({"save_strategy": "steps"}, [12]),  # every 500
        ({"save_strategy": "no"}, []),
    ],
)
def test_the_strategy_says_when_training_saves_a_checkpoint(run, data_set, monkeypatch, changes, saved):
    seen = []
    monkeypatch.setattr(checkpoints.Checkpoints, "save", lambda self, progress: seen.append(progress.update))
    fit(run(num_train_epochs=2, **changes), data_set)
    assert seen == saved


def test_the_loss_is_a_line_each_logging_steps_where_there_is_no_terminal(run, data_set, capsys):
    fit(run(logging_steps=4, max_steps=10, lr_scheduler_type="constant"), data_set)
    rest = r"learning_rate 0.01, grad_norm \S+, tokens_per_second [\d,]+, \d+:\d\d:\d\d left"
    lines = re.findall(rf"^update (\d+)/10: train_loss (\d\.\d{{4}}), {rest}$", capsys.readouterr().out, re.M)
    assert [int(update) for update, _ in lines] == [4, 8, 10]
    results, _ = fit(run(output_dir=run().output_dir + "2", max_steps=10, lr_scheduler_type="constant"), data_set)
    (once,) = re.findall(r"^update 10/10: train_loss (\S+),", capsys.readouterr().out, flags=re.M)
    assert float(once) == pytest.approx(results["train_loss"], abs=1e-4)
    # Of an epoch's 21 examples five updates have 4, the last one: the mean weighs the examples.
    weights = [16, 13, 8]  # updates 1 to 4; 5, 6, 7 and 8; 9 and 10
    assert np.average([float(loss) for _, loss in lines], weights=weights) == pytest.approx(float(once), abs=1e-4)


def test_a_warm_up_beyond_the_run_is_told(run, data_set, capsys):
    for steps, is_told in ((10, True), (9, False)):
        fit(run(max_steps=10, warmup_steps=steps, output_dir=f"{run().output_dir}_{steps}"), data_set)
        line = "--warmup_steps 10, but there are 10 updates: the learning rate ends before its peak"
        assert (line in capsys.readouterr().out) is is_told


def test_an_epochs_line_has_the_mean_loss_of_that_epoch_alone(run, data_set, capsys, monkeypatch):
    update = loop._Training.update
    monkeypatch.setattr(
        loop._Training,
        "update",
        lambda self, losses, items: update(self, torch.full_like(losses, 1.0 + self.progress.update // 6), items),
    )
    results, _ = fit(run(), data_set)
    lines = re.findall(r"^epoch (\d)/3: train_loss (\S+)$", capsys.readouterr().out, re.M)
    assert lines == [("1", "1.0000"), ("2", "2.0000"), ("3", "3.0000")] and results["train_loss"] == 2.0


def screen(output: bytes) -> list[str]:
    """What a terminal shows: a carriage return goes back to the beginning of the line, to be written over."""
    lines = []
    for line in output.decode().replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(re.sub(r"\x1b\[A", "", shown).rstrip())
    return lines


def test_on_a_terminal_the_loss_is_a_line_of_its_own_above_the_bar(run, data_set):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def on_a_terminal() -> None:
        os.dup2(theirs, 1), os.dup2(theirs, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        fit(run(logging_steps=2, max_steps=6, num_train_epochs=1), data_set)

    (started,) = fork(on_a_terminal)
    os.close(theirs)
    output = b""
    with contextlib.suppress(OSError):  # the end of a terminal
        while content := os.read(ours, 4096):
            output += content
    assert wait([started]) == [0] and b"train:" in output and b"/6 [" in output  # the bar was there
    losses = [line for line in screen(output) if "train_loss" in line and "update" in line]
    assert len(losses) == 3
    assert all(re.match(r"update [246]/6: train_loss \d\.\d{4}, learning_rate \S+", line) for line in losses)


def test_workers_are_processes_of_their_own_and_batches_keep_their_order(data_set):
    batches = [[3, 1], [0], [2, 4], [5]]
    plain, helped = (
        list(load_batches(data_set, batches, lambda rows: (os.getpid(), rows), workers)) for workers in (0, 2)
    )
    assert [rows for _, rows in helped] == [rows for _, rows in plain]
    assert {process for process, _ in plain} == {os.getpid()}
    assert len({process for process, _ in helped}) == 2 and os.getpid() not in {process for process, _ in helped}


@pytest.mark.parametrize("collate", [ner.collate, squad.collate, choices.collate])
def test_what_collates_in_a_script_can_be_sent_to_workers(run, tmp_path, collate):
    tokenizers = [load_tokenizer(run()), ElmoTokenizer()]
    tokenizers += [ZooGPTTokenizer.from_pretrained(write_gpt_tokenizer(tmp_path / "gpt"))]
    for tokenizer in tokenizers:
        rows = [dict(tokenizer([text], is_split_into_words=True)) for text in ("good", "bad film")]
        rows = [{name: [row[name]] * 2 for name in row} for row in rows] if collate is choices.collate else rows
        ours = partial(collate, tokenizer=tokenizer)
        for name, values in pickle.loads(pickle.dumps(ours))(rows).items():
            assert torch.equal(values, ours(rows)[name])


def test_workers_that_make_batches_ready_change_no_bit(run, data_set, tmp_path):
    changes = {"model_name_or_path": str(write_model(tmp_path, hidden_dropout_prob=0.3)), "group_by_length": True}
    changes["num_train_epochs"] = 2
    loss = {"": data_set}, lambda outputs, _: {"sum": float(np.sum(outputs["logits"]))}
    alone, model = fit(run(**changes), data_set, *loss)
    for workers in (1, 2):
        out = f"{run().output_dir}{workers}"
        helped, same = fit(run(output_dir=out, dataloader_num_workers=workers, **changes), data_set, *loss)
        assert torch.equal(weights(same), weights(model))
        assert {k: v for k, v in helped.items() if "runtime" not in k} == {
            k: v for k, v in alone.items() if "runtime" not in k
        }


def test_evaluation_changes_nothing_about_training(run, data_set, tmp_path):
    """Whether it comes after each epoch or within them."""
    changes = {"model_name_or_path": str(write_model(tmp_path, hidden_dropout_prob=0.3)), "num_train_epochs": 2}
    _, alone = fit(run(**changes), data_set)
    for steps in (None, 4):
        args = run(output_dir=f"{run().output_dir}{steps}", do_eval=True, eval_steps=steps, **changes)
        _, scored = fit(args, data_set, {"": data_set}, lambda *_: {"a": 0.0})
        assert torch.equal(weights(scored), weights(alone))


def test_what_an_update_draws_depends_on_no_earlier_draw(run, data_set, tmp_path, monkeypatch):
    dropout = {"model_name_or_path": str(write_model(tmp_path, hidden_dropout_prob=0.3))}
    _, alone = fit(run(max_steps=8, **dropout), data_set)
    between = loop._Training.between_updates

    def draw_between(self) -> None:
        torch.rand(self.progress.update), np.random.rand(), random.random()
        between(self)

    monkeypatch.setattr(loop._Training, "between_updates", draw_between)
    _, same = fit(run(output_dir=run().output_dir + "2", max_steps=8, **dropout), data_set)
    assert torch.equal(weights(same), weights(alone))


def test_each_micro_batch_of_each_update_and_seed_draws_its_own_numbers():
    def drawn(*key: int) -> tuple:
        loop.seed_draws(torch.device("cpu"), *key)
        return torch.rand(2).tolist(), np.random.rand(), random.random()

    draws = {key: drawn(*key) for key in itertools.product((1, 2), (0, 1, 70000), (0, 1, 2))}
    for part in zip(*draws.values(), strict=True):
        assert len(set(map(str, part))) == 18
    assert all(drawn(*key) == values for key, values in draws.items())


# fp16


class Scaler(torch.amp.GradScaler):
    """On the processor in float32: gradients overflow if the scale is above `largest`."""

    def __init__(self, largest: float = 2.0**12, **settings: float) -> None:
        super().__init__("cpu", **settings)
        self.largest = largest

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        return super().scale(loss) * (1 if self.get_scale() <= self.largest else math.inf)


def fit_scaled(args, data_set: Dataset, monkeypatch, ours: Scaler):
    """(results, model)"""
    make = launching.make_accelerator

    def with_scaler(args) -> Accelerator:
        accelerator = make(args)
        accelerator.scaler = ours
        return accelerator

    with monkeypatch.context() as patch:
        patch.setattr(launching, "make_accelerator", with_scaler)
        return fit(args, data_set)


def test_an_update_whose_gradients_overflow_is_none_and_is_made_again(run, data_set, tmp_path, monkeypatch, capsys):
    dropout = {"model_name_or_path": str(write_model(tmp_path, hidden_dropout_prob=0.3)), "max_grad_norm": 0.0}
    dropout |= {"lr_scheduler_type": "linear", "warmup_steps": 3, "num_train_epochs": 2}
    expected, plain = fit(run(**dropout), data_set)
    AcceleratorState._reset_state(True)
    capsys.readouterr()
    args = run(output_dir=run().output_dir + "2", **dropout)
    results, model = fit_scaled(args, data_set, monkeypatch, Scaler(init_scale=2.0**16, growth_interval=4))
    said = re.findall(r"update (\d+)/12: fp16 gradients overflowed; again with a scale of", capsys.readouterr().out)
    assert said == ["0"] * 4 + ["4", "8"]  # at the beginning, and each time that the scale has grown
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-5)
    assert results["train_updates"] == 12 and results["train_loss"] == pytest.approx(expected["train_loss"], abs=1e-5)


def test_gradients_that_overflow_at_any_scale_end_the_run(run, data_set, monkeypatch):
    with pytest.raises(FloatingPointError, match="overflowed 20 times in a row after update 0 of 18: lower"):
        fit_scaled(run(max_grad_norm=0.0), data_set, monkeypatch, Scaler(largest=0))


def test_a_resumed_run_goes_on_with_the_scale_of_its_gradients(run, data_set, monkeypatch):
    args = run(max_grad_norm=0.0, save_strategy="steps", save_steps=4, num_train_epochs=2)
    scaler, other = Scaler(init_scale=2.0**16, growth_interval=3), Scaler(init_scale=8.0)
    _, model = fit_scaled(args, data_set, monkeypatch, scaler)
    shutil.rmtree(Path(args.output_dir) / "checkpoint-12")
    AcceleratorState._reset_state(True)
    _, again = fit_scaled(dataclasses.replace(args, resume=True), data_set, monkeypatch, other)
    assert torch.equal(weights(again), weights(model)) and other.state_dict() == scaler.state_dict()


# Prediction


def test_predictions_come_in_the_data_sets_order_whatever_the_batches(run, data_set):
    accelerator, _, model, collate = prepare(run())
    outputs = predict(model, data_set, collate, accelerator, batch_size=5)
    model.eval()
    for ids, logits in zip(data_set["input_ids"], outputs["logits"], strict=True):
        expected = model(torch.tensor([ids])).logits[0].detach().numpy()
        np.testing.assert_allclose(logits, expected, atol=1e-6)


class Echo(torch.nn.Module):
    """Tells 20 classes apart; what it gives for a token is the token's number."""

    config = SimpleNamespace(num_labels=20)

    @property
    def base_model(self) -> torch.nn.Module:
        return self

    def forward(self, input_ids, attention_mask) -> dict[str, torch.Tensor]:
        ids = input_ids.float()
        tokens = {"start_logits": ids, "token_logits": ids.unsqueeze(-1).expand(-1, -1, 20)}
        return tokens | {"class_logits": torch.zeros(len(ids), 20), "score_logits": ids[:, 0]}


@pytest.mark.parametrize("length", [19, 20])
@pytest.mark.parametrize("side", ["left", "right"])
def test_outputs_for_each_token_are_those_of_the_examples_own_tokens(run, data_set, side, length):
    accelerator, tokenizer, _, _ = prepare(run())
    tokenizer.padding_side = side
    collate = transformers.DataCollatorWithPadding(tokenizer, padding="max_length", max_length=length)
    outputs = predict(Echo(), data_set, collate, accelerator, batch_size=5)
    for index, ids in enumerate(data_set["input_ids"]):
        assert outputs["token_logits"][index].tolist() == [[token] * 20 for token in ids]
        if length != Echo.config.num_labels:  # which would make it one of classes
            assert outputs["start_logits"][index].tolist() == ids
        assert outputs["class_logits"][index].shape == (20,) and outputs["score_logits"][index].shape == ()


def test_a_model_that_gives_no_numbers_is_an_error_that_names_the_example(run, data_set):
    accelerator, _, model, collate = prepare(run())
    good = VOCABULARY.index("good")
    with torch.no_grad():
        model.get_input_embeddings().weight[good] = float("nan")
    first = next(i for i, ids in enumerate(data_set["input_ids"]) if good in ids)
    with pytest.raises(FloatingPointError, match=f"logits for example {first} are not finite"):
        predict(model, data_set, collate, accelerator, batch_size=32)


def test_the_time_left_is_what_the_updates_that_are_left_take_at_the_mean_speed_until_now():
    training = SimpleNamespace(clock=SimpleNamespace(total=30.0), total=100, progress=SimpleNamespace(update=25))
    assert loop._Training.time_left(training) == "0:01:30 left"
