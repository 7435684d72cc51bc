"""Recipes and flags."""

import dataclasses

import pytest

from tests.tiny_run import Arguments, recipe
from training.arguments import RunArguments, parse_arguments


def error_of(argv: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parse_arguments(Arguments, argv)
    assert exit_info.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


REQUIRED = ["--model_name_or_path", "m", "--output_dir", "o", "--do_train"]


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
        (["--seed", "-1"], "--seed must be between 0 and 2147483648, not -1"),
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
