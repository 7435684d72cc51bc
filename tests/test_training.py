"""Arguments, loading, the training loop, prediction and results, on models of a few hundred parameters."""

import dataclasses
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from datasets import Dataset
from huggingface_hub import ModelCard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding

import reporting
import training
from arguments import RunArguments, hub_model_id, parse_arguments
from tests.glue_sample import VOCABULARY, WORDS, write_model, write_vocabulary


@dataclass(frozen=True, kw_only=True)
class Arguments(RunArguments):
    task_name: str | None = None


@pytest.fixture
def run(tmp_path):
    """Arguments of a run on a tiny model; keyword arguments change them."""
    flags = {
        "model_name_or_path": str(write_model(tmp_path)),
        "tokenizer_name": str(write_vocabulary(tmp_path)),
        "output_dir": str(tmp_path / "out"),
        "do_train": True,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
    }
    return lambda **changes: Arguments(**(flags | changes))


@pytest.fixture
def data_set() -> Dataset:
    """21 examples of 3 to 14 tokens, labelled by whether "good" occurs."""
    rng = np.random.default_rng(0)
    low = len(VOCABULARY) - len(WORDS)
    rows = [[2, *rng.integers(low, len(VOCABULARY), size).tolist(), 3] for size in rng.integers(1, 13, 21)]
    good = VOCABULARY.index("good")
    return Dataset.from_dict({"input_ids": rows, "labels": [int(good in row) for row in rows]})


def prepare(args: RunArguments):
    """(accelerator, tokenizer, model, collate) of a run, the same weights each time."""
    accelerator = training.start(args)
    tokenizer = training.load_tokenizer(args)
    model = training.load_model(AutoModelForSequenceClassification, args, tokenizer)
    return accelerator, tokenizer, model, DataCollatorWithPadding(tokenizer)


def fit(args: RunArguments, data_set: Dataset, eval_sets: dict | None = None, metrics=None):
    """(results, trained model)"""
    accelerator, _, model, collate = prepare(args)
    return training.train(model, data_set, eval_sets or {}, collate, metrics, args, accelerator), model


def weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def recipe(tmp_path: Path, text: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def error_of(argv: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parse_arguments(Arguments, argv)
    assert exit_info.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


REQUIRED = ["--model_name_or_path", "m", "--output_dir", "o", "--do_train"]


# Arguments


def test_flags_win_over_the_recipe_and_the_recipe_over_defaults(tmp_path):
    path = recipe(tmp_path, "learning_rate: 2e-5\nseed: 7\ndo_eval: true\nweight_decay: 0.01\n")
    args = parse_arguments(Arguments, [path, *REQUIRED, "--seed", "8", "--do_eval", "False"])
    assert (args.learning_rate, args.seed, args.do_eval, args.weight_decay) == (2e-5, 8, False, 0.01)
    assert args.adam_epsilon == RunArguments.adam_epsilon and args.task_name is None


def test_arguments_are_read_only(run):
    with pytest.raises(dataclasses.FrozenInstanceError):
        run().seed = 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 1", "recipe.yaml: key learning_rat; did you mean learning_rate?"),
        ("zzz: 1", "recipe.yaml: key zzz; --help lists what exists"),
        ("learning_rate: fast", "recipe.yaml: argument --learning_rate/--learning-rate: invalid float value: 'fast'"),
        ("mixed_precision: fp8", "recipe.yaml: argument --mixed_precision/--mixed-precision: invalid choice: 'fp8'"),
        ("seed: 1.5", "invalid int value: '1.5'"),
        ("seed: [1, 2]", "recipe.yaml: seed needs one value, not [1, 2]"),
        ("seed:", "recipe.yaml: seed needs one value, not None"),
        ("- seed", "a recipe is a YAML mapping"),
        ("seed: [", "cannot read the recipe"),
    ],
)
def test_a_mistake_in_a_recipe_is_one_line_that_names_it(tmp_path, capsys, text, message):
    assert message in error_of([recipe(tmp_path, text), *REQUIRED], capsys)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--learning_rat", "1"], "unknown argument --learning_rat; did you mean --learning_rate?"),
        (["--learning", "1"], "unknown argument --learning"),
        (["--seed", "one"], "error: argument --seed: invalid int value: 'one'"),
        (["--per_device_train_batch_size", "0"], "--per_device_train_batch_size must be positive, not 0"),
        (["--max_steps", "0"], "--max_steps must be positive, or -1 to count epochs, not 0"),
        (["--num_train_epochs", "-1"], "--num_train_epochs must be positive, not -1.0"),
        (["--num_train_epochs", "nan"], "--num_train_epochs must be a finite number, not nan"),
        (["--learning_rate", "inf"], "--learning_rate must be a finite number, not inf"),
        (["--max_grad_norm", "-1"], "--max_grad_norm must not be negative, not -1.0"),
        (["--seed", "-1"], "--seed must be between 0 and 4294967295, not -1"),
        (["--implementation", "transformers", "--trust_remote_code"], "give one of them"),
        (["--warmup_ratio", "2"], "--warmup_ratio must be between 0 and 1, not 2.0"),
        (["--do_train", "False"], "nothing to do"),
        (["--model_name_or_path", "bert.json"], "give --tokenizer_name"),
        (["--seed", "1", "late.yaml"], "unknown argument late.yaml"),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_it(capsys, flags, message):
    assert message in error_of([*REQUIRED, *flags], capsys)


def test_a_flag_that_overrides_the_recipe_is_not_blamed_on_it(tmp_path, capsys):
    line = error_of([recipe(tmp_path, "seed: 1"), *REQUIRED, "--seed", "one"], capsys)
    assert "recipe.yaml" not in line


def test_a_recipe_that_does_not_exist_is_an_error(capsys):
    assert "cannot read the recipe nowhere.yaml" in error_of(["nowhere.yaml", *REQUIRED], capsys)


# Loading


def test_a_config_json_gives_random_weights_of_the_chosen_implementation(run):
    for implementation, name in (
        ("zoo", "ZooBertForSequenceClassification"),
        ("transformers", "BertForSequenceClass"),
    ):
        _, _, model, _ = prepare(run(implementation=implementation, output_dir=f"{run().output_dir}-{implementation}"))
        assert type(model).__name__.startswith(name) and model.config.hidden_size == 12


def test_the_attention_implementation_is_passed_on(run):
    assert prepare(run(attn_implementation="eager"))[2].config._attn_implementation == "eager"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model_type": "bert", "hiden_size": 12}, "bert has no hiden_size"),
        ({"hidden_size": 12}, "does not name its family"),
        ([1], "odd.json must hold one JSON object"),
        (None, "odd.json is not JSON"),
    ],
)
def test_a_config_json_that_is_not_understood_is_an_error(run, tmp_path, content, message):
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(content) if content else "{", encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        training.load_config(run(model_name_or_path=str(path)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_name_or_path": "./absent.json"}, "absent.json: no such file"),
        ({"model_name_or_path": "./absent"}, "absent: no such folder"),
        ({"tokenizer_name": "./absent.txt"}, "absent.txt: no such file"),
        ({"tokenizer_name": "../a/b"}, "no such folder"),
        ({"model_name_or_path": "nobody/nothing"}, "HF_HUB_OFFLINE=1"),
    ],
)
def test_what_is_not_there_is_one_error_with_its_remedy(run, monkeypatch, changes, message):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    args = run(**changes)
    with pytest.raises(OSError, match=message):
        training.load_config(args) and training.load_tokenizer(args)


def test_a_folder_without_a_tokenizer_is_told_from_a_missing_network(run, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(OSError, match="--tokenizer_name may name a vocab.txt"):
        training.load_tokenizer(run(tokenizer_name=str(tmp_path / "empty")))


def test_a_broken_tokenizer_is_an_error_that_names_its_folder(run, tmp_path):
    training.load_tokenizer(run()).save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").write_text("[1]", encoding="utf-8")
    with pytest.raises(OSError, match="cannot load a tokenizer from .*saved"):
        training.load_tokenizer(run(tokenizer_name=str(tmp_path / "saved")))


def test_a_vocabulary_larger_than_the_models_is_an_error(run, tmp_path):
    args = run(model_name_or_path=str(write_model(tmp_path, vocab_size=20)))
    with pytest.raises(ValueError, match=f"has {len(VOCABULARY)} entries, the model .* only 20"):
        training.load_model(AutoModelForSequenceClassification, args, training.load_tokenizer(args))


def test_a_vocab_file_is_read_in_the_casing_asked_for(run):
    lower = training.load_tokenizer(run())
    cased = training.load_tokenizer(run(do_lower_case=False))
    assert lower.tokenize("The NA plot") == ["the", "na", "plot"]
    assert cased.tokenize("The NA plot") == ["[UNK]", "NA", "plot"]


def test_a_new_head_is_announced_and_the_rest_is_the_checkpoints(run, tmp_path, capsys):
    _, tokenizer, model, _ = prepare(run())
    model.save_pretrained(tmp_path / "saved")
    args = run(model_name_or_path=str(tmp_path / "saved"))
    wider = training.load_model(AutoModelForSequenceClassification, args, tokenizer, num_labels=3)
    assert "newly initialised" in (line := capsys.readouterr().out) and "classifier.weight" in line
    assert wider.classifier.weight.shape[0] == 3
    assert torch.equal(weights(wider.base_model), weights(model.base_model))


def test_weights_that_contradict_the_configuration_are_an_error(run, tmp_path):
    _, tokenizer, model, _ = prepare(run())
    model.save_pretrained(tmp_path / "saved")
    args = run(model_name_or_path=str(tmp_path / "saved"))
    with pytest.raises(ValueError, match="disagree on the size of bert.embeddings.position"):
        training.load_model(AutoModelForSequenceClassification, args, tokenizer, max_position_embeddings=41)


def test_weights_cut_short_are_an_error_that_names_the_folder(run, tmp_path):
    _, tokenizer, model, _ = prepare(run())
    model.save_pretrained(tmp_path / "saved")
    weights_file = tmp_path / "saved" / "model.safetensors"
    weights_file.write_bytes(weights_file.read_bytes()[:-50])
    args = run(model_name_or_path=str(tmp_path / "saved"))
    with pytest.raises(OSError, match=r"cannot load .*saved: a .safetensors file is broken or cut short"):
        training.load_model(AutoModelForSequenceClassification, args, tokenizer)


def test_an_unknown_attention_is_not_blamed_on_the_folder(run, tmp_path):
    _, tokenizer, model, _ = prepare(run())
    model.save_pretrained(tmp_path / "saved")
    args = run(model_name_or_path=str(tmp_path / "saved"), attn_implementation="foo")
    with pytest.raises(ValueError, match="foo") as info:
        training.load_model(AutoModelForSequenceClassification, args, tokenizer)
    assert "folder" not in str(info.value)


def test_the_transformers_implementation_is_stock_also_for_a_folder_with_the_zoos_code(run, tmp_path):
    _, tokenizer, model, _ = prepare(run())
    model.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "modeling_bert.py").exists()
    args = run(model_name_or_path=str(tmp_path / "saved"), implementation="transformers")
    loaded = training.load_model(AutoModelForSequenceClassification, args, tokenizer)
    assert type(loaded) is transformers.BertForSequenceClassification


def test_a_checkpoints_own_code_runs_only_when_trusted(run, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    _, tokenizer, model, _ = prepare(run(implementation="transformers"))
    folder = tmp_path / "strange"
    model.save_pretrained(folder)
    (folder / "strange.py").write_text(
        "from transformers import BertConfig, BertForSequenceClassification\n"
        "class StrangeConfig(BertConfig):\n    model_type = 'strange'\n"
        "class Strange(BertForSequenceClassification):\n    config_class = StrangeConfig\n",
        encoding="utf-8",
    )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    auto_map = {"AutoConfig": "strange.StrangeConfig", "AutoModelForSequenceClassification": "strange.Strange"}
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "strange", "auto_map": auto_map}), "utf-8")
    with pytest.raises(ValueError, match="trust_remote_code"):
        training.load_model(AutoModelForSequenceClassification, run(model_name_or_path=str(folder)), tokenizer)
    args = run(model_name_or_path=str(folder), trust_remote_code=True)
    loaded = training.load_model(AutoModelForSequenceClassification, args, tokenizer)
    assert type(loaded).__name__ == "Strange" and torch.equal(weights(loaded), weights(model))


# Start


def test_an_earlier_runs_results_go_and_all_else_stays(run, tmp_path):
    stay = ["README.md", "model.safetensors", "notes.txt"]
    (tmp_path / "out").mkdir()
    for name in ["metrics.json", "predictions.tsv", "predictions_mm.tsv", *stay]:
        (tmp_path / "out" / name).touch()
    args = run(overwrite_output_dir=True)
    accelerator = training.start(args)
    assert (tmp_path / "out" / "metrics.json").exists()  # the run may still fail to load its data
    reporting.remove_earlier_results(args, accelerator)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == stay


def test_an_output_folder_with_content_is_kept_unless_told_otherwise(run, tmp_path):
    with pytest.raises(FileExistsError, match="--overwrite_output_dir"):
        training.start(run(output_dir=str(tmp_path)))
    training.start(run(output_dir=str(tmp_path), overwrite_output_dir=True))


def test_half_precision_that_the_processor_does_not_have_is_an_error(run):
    with pytest.raises(ValueError, match="fp16 needs a GPU: on CPU use bf16 or no"):
        training.start(run(mixed_precision="fp16"))


def test_processes_that_do_not_know_of_each_other_are_an_error(run, monkeypatch):
    training.start(run())  # counts itself alone ...
    monkeypatch.setenv("WORLD_SIZE", "2")  # ... although two were launched
    with pytest.raises(RuntimeError, match="2 processes were started.*torchrun"):
        training.start(run())


def test_matmul_precision_changes_only_when_asked(run):
    training.start(run())
    assert torch.get_float32_matmul_precision() == "highest"
    training.start(run(matmul_precision="medium"))
    assert torch.get_float32_matmul_precision() == "medium"


# The order of examples


LENGTHS = np.random.default_rng(1).integers(3, 60, 1003).tolist()


def flat(updates: list[list[list[int]]]) -> list[int]:
    return [index for update in updates for batch in update for index in batch]


@pytest.mark.parametrize("group", [False, True])
def test_an_epoch_takes_every_example_once_in_an_order_of_its_own(run, group):
    args = run(group_by_length=group, gradient_accumulation_steps=3)
    first, second = (training.epoch_updates(LENGTHS, args, epoch, 1) for epoch in (0, 1))
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(len(LENGTHS)))
    assert first != second and first == training.epoch_updates(LENGTHS, args, 0, 1)
    assert first != training.epoch_updates(LENGTHS, run(group_by_length=group, seed=43), 0, 1)
    assert {len(update) for update in first[:-1]} == {3} and {len(batch) for batch in first[0]} == {4}


def test_grouping_by_length_leaves_little_padding(run):
    def padding(group: bool) -> float:
        updates = training.epoch_updates(LENGTHS, run(group_by_length=group), 0, 1)
        padded = sum(max(LENGTHS[i] for i in batch) * len(batch) for update in updates for batch in update)
        return padded / sum(LENGTHS)

    assert padding(True) < 1.06 < 1.3 < padding(False)


@pytest.mark.parametrize("group", [False, True])
def test_accumulation_and_processes_do_not_change_an_updates_examples(run, group):
    whole = training.epoch_updates(LENGTHS, run(group_by_length=group, per_device_train_batch_size=12), 0, 1)
    split = training.epoch_updates(
        LENGTHS, run(group_by_length=group, per_device_train_batch_size=2, gradient_accumulation_steps=3), 0, 2
    )
    assert [flat([update]) for update in whole] == [flat([update]) for update in split]


@pytest.mark.parametrize(
    ("changes", "expected"), [({}, (18, 3)), ({"num_train_epochs": 0.5}, (3, 1)), ({"max_steps": 7}, (7, 2))]
)
def test_updates_follow_from_epochs_or_max_steps(run, changes, expected):
    assert training.count_updates(21, run(**changes), 1) == expected


# Training


SCHEDULES = {  # (share of the warm-up, share of the rest) -> share of the peak
    "linear": lambda warm, rest: warm * (1 - rest),
    "cosine": lambda warm, rest: warm * (1 + math.cos(math.pi * rest)) / 2,
    "constant": lambda warm, rest: 1.0,
    "constant_with_warmup": lambda warm, rest: warm,
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_training_is_adamw_with_clipping_and_a_schedule(run, data_set, schedule):
    args = run(
        weight_decay=0.1,
        warmup_ratio=0.3,
        max_grad_norm=0.5,
        num_train_epochs=2,
        adam_beta1=0.8,
        adam_beta2=0.9,
        lr_scheduler_type=schedule,
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
    updates = [update for epoch in (0, 1) for update in training.epoch_updates([1] * 21, args, epoch, 1)]
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


@pytest.mark.parametrize("changes", [{"gradient_checkpointing": True}, {"logging_steps": 1}])
def test_what_should_not_change_the_result_does_not(run, data_set, changes):
    _, plain = fit(run(), data_set)
    _, changed = fit(run(output_dir=run().output_dir + "2", **changes), data_set)
    torch.testing.assert_close(weights(changed), weights(plain), rtol=0, atol=1e-6)


@pytest.mark.parametrize("group", [False, True])
def test_accumulated_micro_batches_equal_the_large_batch(run, data_set, group):
    _, large = fit(run(per_device_train_batch_size=6, group_by_length=group), data_set)
    accumulating = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3, "group_by_length": group}
    results, small = fit(run(output_dir=run().output_dir + "2", **accumulating), data_set)
    torch.testing.assert_close(weights(small), weights(large), rtol=0, atol=1e-5)
    assert results["train_updates"] == 12  # 21 examples: three updates of 6, one of 3, three epochs


def test_bfloat16_is_used_and_the_weights_stay_in_float32(run, data_set):
    results, model = fit(run(mixed_precision="bf16"), data_set)
    assert weights(model).dtype == torch.float32 and math.isfinite(results["train_loss"])
    AcceleratorState._reset_state(True)
    exact, _ = fit(run(output_dir=run().output_dir + "2"), data_set)
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
        run(num_train_epochs=8, learning_rate=0.02), data_set, {"": data_set, "_mm": data_set.select([0])}, metrics
    )
    assert len(seen) == 16 and results["eval_accuracy"] == seen[-2] and results["eval_accuracy_mm"] == seen[-1]
    assert capsys.readouterr().out.count("eval_accuracy_mm") == 8


def test_evaluation_changes_nothing_about_training(run, data_set, tmp_path):
    dropout = {"model_name_or_path": str(write_model(tmp_path, hidden_dropout_prob=0.3))}
    _, alone = fit(run(**dropout), data_set)
    scored = fit(run(output_dir=run().output_dir + "2", **dropout), data_set, {"": data_set}, lambda *_: {"a": 0.0})
    assert torch.equal(weights(scored[1]), weights(alone))


def test_tensorboard_receives_losses_and_learning_rates(run, data_set, tmp_path):
    fit(run(report_to="tensorboard", logging_steps=2, max_steps=6, warmup_ratio=0.5), data_set)
    (events,) = (tmp_path / "out" / "runs").glob("events*")
    curves = EventAccumulator(str(events)).Reload()
    rates = [(event.step, pytest.approx(event.value)) for event in curves.Scalars("learning_rate")]
    assert rates == [(2, 0.01 * 2 / 3), (4, 0.01 * 2 / 3), (6, 0.0)]
    assert [event.step for event in curves.Scalars("train_loss")] == [2, 4, 6]


# Prediction


def test_predictions_come_in_the_data_sets_order_whatever_the_batches(run, data_set):
    accelerator, _, model, collate = prepare(run())
    outputs = training.predict(model, data_set, collate, run(per_device_eval_batch_size=5), accelerator)
    model.eval()
    for ids, logits in zip(data_set["input_ids"], outputs["logits"], strict=True):
        expected = model(torch.tensor([ids])).logits[0].detach().numpy()
        np.testing.assert_allclose(logits, expected, atol=1e-6)


def test_outputs_for_each_token_keep_their_batchs_length(run, data_set):
    accelerator, tokenizer, _, collate = prepare(run())
    tagger = training.load_model(transformers.AutoModelForTokenClassification, run(), tokenizer)
    data_set = data_set.remove_columns("labels")
    outputs = training.predict(tagger, data_set, collate, run(per_device_eval_batch_size=1), accelerator)
    assert [len(rows) for rows in outputs["logits"]] == [len(ids) for ids in data_set["input_ids"]]


def test_a_model_that_gives_no_numbers_is_an_error_that_names_the_example(run, data_set):
    accelerator, _, model, collate = prepare(run())
    good = VOCABULARY.index("good")
    with torch.no_grad():
        model.get_input_embeddings().weight[good] = float("nan")
    first = next(i for i, ids in enumerate(data_set["input_ids"]) if good in ids)
    with pytest.raises(FloatingPointError, match=f"logits for example {first} are not finite"):
        training.predict(model, data_set, collate, run(), accelerator)


# Results


@pytest.fixture
def finished(run, data_set, tmp_path):
    """Trains a little and writes the results; gives the output folder."""

    def finish(**changes) -> Path:
        args = run(max_steps=2, task_name="sst2", **changes)
        accelerator, tokenizer, model, collate = prepare(args)
        score = lambda outputs, examples: {"accuracy": 0.75}  # noqa: E731
        results = training.train(model, data_set, {"": data_set}, collate, score, args, accelerator)
        data = {"task_type": "text-classification", "dataset_type": "nyu-mll/glue", "dataset_name": "GLUE SST-2"}
        reporting.finish(model, tokenizer, results, data, args, accelerator)
        return tmp_path / "out"

    return finish


def test_metrics_json_holds_results_recipe_versions_and_hardware(finished):
    record = json.loads((finished() / "metrics.json").read_text(encoding="utf-8"))
    assert record["eval_accuracy"] == 0.75 and record["train_updates"] == 2 and record["seed"] == 42
    assert {"train_loss", "train_runtime", "eval_runtime"} <= record.keys()
    assert record["args"].keys() == {field.name for field in dataclasses.fields(Arguments)}
    assert record["versions"]["torch"] == torch.__version__
    assert record["hardware"]["threads"] == torch.get_num_threads() and record["hardware"]["processes"] == 1


def test_metrics_json_never_holds_what_json_has_no_word_for(run):
    args = run()
    accelerator, tokenizer, model, _ = prepare(args)
    data = {"task_type": "text-classification", "dataset_type": "text", "dataset_name": "files of our own"}
    with pytest.raises(ValueError, match="not JSON compliant"):
        reporting.finish(model, tokenizer, {"eval_loss": float("nan")}, data, args, accelerator)
    assert not (Path(args.output_dir) / "metrics.json").exists()


def test_the_checkpoint_loads_with_stock_transformers(finished):
    folder = finished()
    model = transformers.BertForSequenceClassification.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert model(**tokenizer("a good film", return_tensors="pt")).logits.shape == (1, 2)


def test_the_model_card_has_the_score_and_a_recipe_that_repeats_the_run(finished, run, tmp_path):
    card = ModelCard.load(finished() / "README.md")
    (result,) = card.data.eval_results
    assert (result.dataset_type, result.metric_type, result.metric_value) == ("nyu-mll/glue", "accuracy", 0.75)
    text = card.text.split("```yaml\n")[1].split("```")[0]
    assert parse_arguments(Arguments, [recipe(tmp_path, text)]) == run(max_steps=2, task_name="sst2")


def test_the_card_of_a_run_without_evaluation_says_so(run, tmp_path):
    args = run(task_name="own")
    _, _, model, _ = prepare(args)
    data = {"task_type": "text-classification", "dataset_type": "text", "dataset_name": "files of our own"}
    card = reporting.model_card(model, {"train_loss": 0.5}, data, args, processes=2)
    assert "It was not evaluated." in card.text and card.data.eval_results is None and card.data.datasets is None
    assert "on 2 processes, so with batches of 8 examples" in card.text


def test_a_reader_never_finds_half_a_file(tmp_path, monkeypatch):
    path = tmp_path / "metrics.json"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr("os.replace", lambda *_: pytest.fail("stopped here"))
    with pytest.raises(pytest.fail.Exception, match="stopped here"):
        reporting.write_atomically(path, "new")
    assert path.read_text(encoding="utf-8") == "old"


def test_the_folder_is_pushed_to_a_repository_made_before_the_work(finished, monkeypatch):
    calls = []

    class Api:
        def create_repo(self, repo_id, exist_ok):
            calls.append(("create", repo_id, exist_ok))
            return SimpleNamespace(repo_id=f"me/{repo_id}")

        def upload_folder(self, repo_id, folder_path):
            calls.append(("upload", repo_id, (folder_path / "model.safetensors").exists()))

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    finished(push_to_hub=True, hub_model_id="mine")
    assert calls[0] == calls[1] == ("create", "mine", True)  # before the work, and after it for the owner's name
    assert calls[2:] == [("upload", "me/mine", True)]


def test_the_repository_is_named_after_the_output_folder_by_default(run):
    assert hub_model_id(run(output_dir="runs/sst2/")) == "sst2"
