"""Recipes and flags."""

import dataclasses
import re
import sys
import tracemalloc

import pytest

import run_glue
import run_ner
import run_pretraining
import run_squad
import run_swag
from elmo_gpt_bert.training.arguments import RunArguments, public_arguments
from elmo_gpt_bert.training.flags import NAMES, PRECISIONS, parse_arguments, parse_fields
from elmo_gpt_bert.training.identity import FREE
from tests.support.tiny_run import Arguments, recipe


def error_of(argv: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as exit_info:
        parse_arguments(Arguments, argv)
    assert exit_info.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


SCRIPTS = {
    "glue": run_glue.GlueArguments,
    "ner": run_ner.NerArguments,
    "squad": run_squad.SquadArguments,
    "swag": run_swag.SwagArguments,
}
CLASSES = [*SCRIPTS.values()]
SCRIPTS["pretraining"] = run_pretraining.PretrainingArguments

REQUIRED = ["--model_name_or_path", "m", "--output_dir", "o", "--do_train"]


def test_flags_win_over_the_recipe_and_the_recipe_over_defaults(tmp_path):
    path = recipe(tmp_path, "learning_rate: 2e-5\nseed: 7\ndo_eval: true\nweight_decay: 0.01\n")
    args = parse_arguments(Arguments, [path, *REQUIRED, "--seed", "8", "--do_eval", "False"])
    assert (args.learning_rate, args.seed, args.do_eval, args.weight_decay) == (2e-5, 8, False, 0.01)
    assert args.adam_epsilon == RunArguments.adam_epsilon and args.task_name is None


def test_a_value_of_a_recipe_is_read_as_the_same_text_after_a_flag(tmp_path):
    values = {
        "output_dir": "2026_11_23",
        "hub_model_id": "1.10",
        "mixed_precision": "no",
        "seed": "1_0",
        "do_eval": "yes",
    }
    values |= {"eval_strategy": "no", "save_strategy": "no", "adam_epsilon": "1e-6"}
    path = recipe(tmp_path, "".join(f"{name}: {value}\n" for name, value in values.items()))
    flags = [f"--{name}={value}" for name, value in values.items()]
    required = [*REQUIRED[:2], "--do_train"]
    args = parse_arguments(Arguments, [path, *required])
    assert args == parse_arguments(Arguments, [*required, *flags]) and args.output_dir == "2026_11_23"


def test_null_in_a_recipe_is_the_default_of_none_and_in_quotes_it_is_text_as_on_the_command_line(tmp_path):
    def parse(*argv: str) -> RunArguments:
        return parse_arguments(Arguments, [*argv, *REQUIRED])

    assert parse(recipe(tmp_path, "do_train: true\ntokenizer_name: null\neval_steps: ~\nhub_model_id:")) == parse()
    quoted = parse(recipe(tmp_path, "do_train: true\ntokenizer_name: 'null'"))
    assert quoted.tokenizer_name == "null" and quoted == parse("--tokenizer_name", "null")


def test_arguments_are_read_only(run):
    with pytest.raises(dataclasses.FrozenInstanceError):
        run().seed = 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning_rat: 1", "recipe.yaml: unknown key learning_rat; did you mean learning_rate?"),
        ("zzz: 1", "recipe.yaml: unknown key zzz; --help lists all flags"),
        ("learning_rate: fast", "recipe.yaml: key learning_rate: invalid float value: 'fast'"),
        ("mixed_precision: fp8", "recipe.yaml: key mixed_precision: invalid choice: 'fp8'"),
        ("seed: 1.5", "invalid int value: '1.5'"),
        ("seed: [1, 2]", "recipe.yaml: seed needs one value, not a list"),
        ("seed:", "recipe.yaml: seed has no value: leave it out"),
        ("seed: null", "recipe.yaml: seed has no value: leave it out"),
        ("report_to: [curves, null]", "recipe.yaml: report_to has no value: leave it out"),
        ("seed: null\nseed: 2", "seed has no value"),
        ("tokenizer_name: null\ntokenizer_name: a", "tokenizer_name occurs twice"),
        ("tokenizer: null", "recipe.yaml: tokenizer has no value: leave it out"),
        ('tokenizer_name: ""', "recipe.yaml: --tokenizer_name is empty"),
        ('max_steps: "null"', "recipe.yaml: key max_steps: invalid int value: 'null'"),
        ('"a\\nb": 1', "recipe.yaml: unknown key a\\nb"),
        ("x" * 300 + ": 1", "recipe.yaml: unknown key " + "x" * 60 + "; --help lists"),
        ("- seed", "a recipe is a YAML mapping"),
        ("seed: [", "cannot read the recipe"),
        ("seed: 1\nlearning_rate: 1\nseed: 2", "seed occurs twice"),
        ("learning_rate: 1\nlearning-rate: 2", "learning_rate occurs twice"),
        ("seed: {a: 1}", "recipe.yaml: seed needs one value, not a list or mapping"),
        ("a=b: 1", "recipe.yaml: unknown key a=b"),
        ("deepspeed: x", "recipe.yaml: unknown key deepspeed; --help lists all flags"),
        ("max_steps: 0", "recipe.yaml: --max_steps must be positive"),
        ("max_steps: 5\nnum_train_epochs: 2", "recipe.yaml: --num_train_epochs 2.0 has no effect with --max_steps 5"),
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
        (["--num_train_epochs", "1e308"], "--num_train_epochs must be at most 1e9, not 1e+308"),
        (["--num_train_epochs", "nan"], "--num_train_epochs must be a finite number, not nan"),
        (["--learning_rate", "inf"], "--learning_rate must be a finite number, not inf"),
        (["--max_grad_norm", "-1"], "--max_grad_norm must be 0 or more, not -1.0"),
        (["--seed", "-1"], "--seed must be between 0 and 2147483648, not -1"),
        (["--implementation", "transformers", "--trust_remote_code"], "give one of them"),
        (["--warmup_ratio", "2"], "--warmup_ratio must be between 0 and 1, not 2.0"),
        (["--adam_beta2", "1"], "--adam_beta2 must be at least 0 and below 1, not 1.0"),
        (["--do_eval", "--eval_steps", "0"], "--eval_steps must be positive, not 0"),
        (["--do_train", "False"], "nothing to do"),
        (["--model_name_or_path", "bert.json"], "give --tokenizer_name"),
        (["--seed", "1", "late"], "late stands where a flag must be"),
        (["--seed", "1", "late.yaml"], "late.yaml stands where a flag must be, as in --seed 1; a recipe comes first"),
        (["--do_eval", "late.yaml"], "argument --do_eval: Truthy value expected: got late.yaml"),
        (["--" + "x" * 300], "unknown argument --xxx"),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_it(capsys, flags, message):
    assert message in error_of([*REQUIRED, *flags], capsys)


def test_a_word_before_the_first_flag_is_one_line_that_names_it(tmp_path, capsys):
    assert "-1 stands where a flag must be" in error_of(["-1", *REQUIRED], capsys)
    assert "more stands where a flag must be" in error_of([recipe(tmp_path, "seed: 1"), "more", *REQUIRED], capsys)


def test_a_flag_that_overrides_the_recipe_is_not_blamed_on_it(tmp_path, capsys):
    line = error_of([recipe(tmp_path, "seed: 1"), *REQUIRED, "--seed", "one"], capsys)
    assert "recipe.yaml" not in line


def test_a_recipe_that_does_not_exist_is_an_error(capsys):
    assert "cannot read the recipe nowhere.yaml" in error_of(["nowhere.yaml", *REQUIRED], capsys)


def test_a_recipe_that_is_a_device_is_not_read_without_end(capsys):
    assert "cannot read the recipe /dev/zero: " in error_of(["/dev/zero", *REQUIRED], capsys)


@pytest.mark.slow
def test_a_recipe_of_aliases_is_refused_before_it_grows(tmp_path, capsys):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    path = recipe(tmp_path, "\n".join(lines))
    tracemalloc.start()
    line = error_of([path, *REQUIRED], capsys)
    assert "a0 needs one value, not a list" in line and len(line) < 300 and tracemalloc.get_traced_memory()[1] < 2e6
    tracemalloc.stop()
    assert "cannot read the recipe" in error_of([recipe(tmp_path, "a: " + "[" * 1100), *REQUIRED], capsys)


# Flags of transformers' scripts


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--fp16", "--mixed_precision fp16"),
        ("--bf16 true", "--mixed_precision bf16"),
        ("--bf16 --mixed_precision bf16", "--mixed_precision bf16"),
        ("--bf16 False", "--mixed_precision no"),
        ("--fp16 False", "--mixed_precision no"),
        ("--per_gpu_train_batch_size 3", "--per_device_train_batch_size 3"),
        ("--per-device-train-batch-size 3", "--per_device_train_batch_size=3"),
        ("--max_train_steps 7", "--max_steps 7"),
        ("--num_warmup_steps 7", "--warmup_steps 7"),
        ("--warmup_steps 0.1", "--warmup_ratio 0.1"),
        ("--optim adamw_torch", "--optim adamw"),
        ("--evaluation_strategy epoch --do_eval", "--eval_strategy epoch --do_eval"),
        ("--report_to tensorboard wandb", "--report_to tensorboard,wandb"),
        ("--tokenizer x", "--tokenizer_name x"),
        ("--no_do_lower_case", "--do_lower_case false"),
        ("--fp16 False --bf16 --torch_compile False", "--mixed_precision bf16"),
    ],
)
def test_their_flags_are_ours_under_other_names_and_leave_no_trace(tmp_path, theirs, ours):
    asked, meant = (parse_arguments(Arguments, [*REQUIRED, *flags.split()]) for flags in (theirs, ours))
    assert asked == meant
    keys = [flag.replace("-", "_").replace("=", " ").split() for flag in re.split("(?:^| )--", theirs)[1:]]
    if not any(key[0].startswith("no_") for key in keys):
        lines = [f"{name}: {values[0] if len(values) == 1 else values or True}" for name, *values in keys]
        text = "\n".join(["do_train: true", *lines]).replace("'", "")
        assert parse_arguments(Arguments, [recipe(tmp_path, text), *REQUIRED]) == meant


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--fp16 --bf16", "argument --bf16 contradicts --fp16: both set --mixed_precision, give only one of them"),
        ("--fp16 --mixed_precision bf16", "--mixed_precision contradicts --fp16"),
        ("--warmup_steps 5 --warmup_ratio 0.1", "--warmup_ratio 0.1 has no effect with --warmup_steps 5"),
        (
            "--warmup_steps 5 --lr_scheduler_type constant",
            "--warmup_steps 5 has no effect with --lr_scheduler_type constant",
        ),
        ("--decay_ratio 0.2", "has no effect with --lr_scheduler_type linear: leave it out, or change --lr_sched"),
        (
            "--lr_scheduler_type warmup_stable_decay --warmup_ratio 0.8 --decay_ratio 0.3",
            "--warmup_ratio 0.8 and --decay_ratio 0.3 are more than the whole run",
        ),
        ("--save_strategy no --save_total_limit 5", "--save_total_limit 5 has no effect with --save_strategy no"),
        (
            "--do_eval --metric_for_best_model loss",
            "--metric_for_best_model loss has no effect with --load_best_model_at_end False: leave it out, or change",
        ),
        ("--save_strategy no --save_steps 5", "--save_steps 5 has no effect with --save_strategy no: leave out one"),
        ("--hub_private_repo", "--hub_private_repo True has no effect with --push_to_hub False"),
        ("--optim adagrad --adam_beta2 0.98", "--adam_beta2 0.98 has no effect with --optim adagrad: leave it out"),
        ("--report_to curves curves", "trackio, curves, not curves,curves"),
        ("--warmup_steps -1", "--warmup_steps must be 0 or more, not -1"),
        ("--eval_strategy steps --do_eval", "--eval_strategy steps needs --eval_steps"),
        ("--eval_strategy epoch", "--eval_strategy epoch has no effect with --do_eval False"),
        (
            "--eval_strategy no --do_eval --load_best_model_at_end",
            "load_best_model_at_end True has no effect",
        ),
        (
            "--report_to mlflow",
            "--report_to must be none, all or some of tensorboard, wandb, trackio, curves, not mlflow",
        ),
        (
            "--report_to all wandb",
            "--report_to must be none, all or some of tensorboard, wandb, trackio, curves, not all,wandb",
        ),
        ("--optim adamw_torch_4bit", "invalid choice: 'adamw_torch_4bit'"),
        ("--warmup_steps ten", "argument --warmup_steps: ten is neither a number of updates nor a share, as 0.1 is"),
        ("--eval_steps 0.1", "argument --eval_steps: invalid int value: '0.1'"),
        ("--fp16 2", "argument --fp16: invalid choice: '2' (choose from "),
        (
            "--bf16 false --mixed_precision auto",
            "--mixed_precision auto has no effect with --bf16 false: leave out one",
        ),
        ("--overwrite_output_di", "unknown argument --overwrite_output_di; did you mean --overwrite_output_dir?"),
        ("--max_train_step 5", "unknown argument --max_train_step; did you mean --max_train_steps?"),
        ("--torch_compile_mode reduce-overhead", "reduce-overhead has no effect with --torch_compile False"),
        ("--hub_token hf_secret", "unknown argument --hub_token; --help lists all flags"),
        ("--use_cpu", "unknown argument --use_cpu; --help lists all flags"),
        ("--resume_form_the_last_one", "unknown argument --resume_form_the_last_one; --help lists all flags"),
    ],
)
def test_what_has_no_place_here_says_what_to_use_instead(capsys, flags, message):
    line = error_of([*REQUIRED, *flags.split()], capsys)
    assert message in line and "secret" not in line


def test_a_flag_wins_over_a_key_of_the_recipe_that_has_another_name(tmp_path):
    def parse(text: str, *flags: str) -> RunArguments:
        return parse_arguments(Arguments, [recipe(tmp_path, text), *REQUIRED, *flags])

    assert parse("fp16: true", "--mixed_precision", "no").mixed_precision == "no"
    assert parse("mixed_precision: bf16", "--fp16").mixed_precision == "fp16"
    assert parse("mixed_precision: bf16", "--bf16", "false").mixed_precision == "no"
    assert parse("mixed_precision: auto", "--bf16", "false").mixed_precision == "no"
    assert parse("bf16: false", "--mixed_precision", "auto").mixed_precision == "auto"
    assert parse("bf16: true", "--bf16", "False").mixed_precision == "no"
    assert parse("mixed_precision: fp16", "--bf16", "false").mixed_precision == "fp16"
    assert parse("mixed_precision: bf16", "--bf16", "false", "--fp16").mixed_precision == "fp16"
    steps = parse("warmup_ratio: 0.1", "--warmup_steps", "5")
    assert (steps.warmup_ratio, steps.warmup_steps) == (0.0, 5)
    assert parse("max_steps: 3", "--num_train_epochs", "2").max_steps == -1


def test_a_run_that_only_trains_or_only_evaluates_leaves_out_when_the_recipe_evaluates(tmp_path):
    text = "do_train: true\ndo_eval: true\neval_strategy: steps\neval_steps: 5"

    def parse(*flags: str) -> tuple:
        args = parse_arguments(Arguments, [recipe(tmp_path, text), *REQUIRED, *flags])
        return args.eval_strategy, args.eval_steps

    assert parse() == ("steps", 5)
    assert parse("--do_train", "false") == parse("--do_eval=False") == (None, None)
    with pytest.raises(SystemExit):
        parse("--do_train", "false", "--eval_steps", "5")


def test_another_schedule_on_the_command_line_leaves_out_what_the_recipe_says_of_its_own(tmp_path):
    recipe_text = "lr_scheduler_type: warmup_stable_decay\nwarmup_steps: 5\ndecay_ratio: 0.2"

    def parse(*flags: str) -> tuple:
        args = parse_arguments(Arguments, [recipe(tmp_path, recipe_text), *REQUIRED, *flags])
        return args.lr_scheduler_type, args.warmup_steps, args.decay_ratio

    assert parse() == parse("--lr_scheduler_type", "warmup_stable_decay") == ("warmup_stable_decay", 5, 0.2)
    for name in ("linear", "cosine", "constant_with_warmup"):
        assert parse("--lr_scheduler_type", name) == (name, 5, None)
    assert parse("--lr_scheduler_type=constant") == ("constant", 0, None)
    with pytest.raises(SystemExit):
        parse("--lr_scheduler_type", "linear", "--decay_ratio", "0.3")


def test_a_run_that_compares_no_evaluations_leaves_out_that_the_recipe_chooses_the_best(tmp_path):
    text = "do_eval: true\nload_best_model_at_end: true\nearly_stopping_patience: 3"

    def parse(text: str, *flags: str) -> tuple:
        args = parse_arguments(Arguments, [recipe(tmp_path, text), *REQUIRED, *flags])
        return args.load_best_model_at_end, args.early_stopping_patience

    assert parse(text) == (True, 3)
    assert parse(text, "--eval_strategy", "no") == parse(text, "--do_eval", "false") == (False, None)
    assert parse(text, "--do_train", "false") == (False, None)
    assert parse("do_eval: true\neval_strategy: 'no'", "--load_best_model_at_end") == (True, None)
    for flags in (["--do_eval", "false", "--load_best_model_at_end"], ["--do_eval", "false", "--seeds", "2"]):
        with pytest.raises(SystemExit):
            parse(text, *flags)
    with pytest.raises(SystemExit):  # a recipe that lacks do_eval is not half of one
        parse("do_train: true\nload_best_model_at_end: true")


# Flags of which a run uses one


MODEL = ["--model_name_or_path", "m", "--output_dir", "o"]
DATA = ["train_file", "validation_file", "test_file", "data_dir", "dataset_name", "dataset_config_name", "task_name"]


def data_of(args: RunArguments) -> dict[str, str]:
    """The flags that say what a run reads."""
    return {name: value for name in DATA if (value := getattr(args, name, None)) is not None}


@pytest.mark.parametrize(
    ("arguments", "text", "flags", "read"),
    [
        # The file of a split leaves the other splits to the recipe's source.
        ("squad", "dataset_name: a/b", "--train_file x", "train_file=x dataset_name=a/b"),
        ("squad", "dataset_name: a/b", "--train_file x --validation_file y", "train_file=x validation_file=y"),
        ("squad", "dataset_name: a/b", "--validation_file y --do_train false", "validation_file=y"),
        ("squad", "train_file: x\nvalidation_file: y", "--data_dir d", "data_dir=d"),
        ("squad", "train_file: x\nvalidation_file: y", "--data_dir d --train_file z", "data_dir=d train_file=z"),
        ("squad", "data_dir: d", "--dataset_name a/b", "dataset_name=a/b"),
        ("squad", "train_file: x\nvalidation_file: y\ntest_file: z", "--data_dir d", "data_dir=d test_file=z"),
        ("squad", "dataset_name: a/b\nvalidation_file: y", "--data_dir d", "data_dir=d validation_file=y"),
        ("squad", "dataset_name: a/b\nvalidation_file: y", "--train_file x", "train_file=x validation_file=y"),
        ("pretraining", "dataset_name: a/b\ndataset_config_name: c", "--train_file x", "train_file=x"),
        ("pretraining", "dataset_name: a/b", "--validation_file y", "dataset_name=a/b validation_file=y"),
        (
            "pretraining",
            "train_file: x\nvalidation_file: y",
            "--dataset_name a/b",
            "dataset_name=a/b validation_file=y",
        ),
        ("ner", "dataset_name: a/b\ndataset_config_name: c", "--data_dir d", "data_dir=d"),
        ("ner", "data_dir: d", "--train_file x --validation_file y", "train_file=x validation_file=y"),
        ("ner", "train_file: x\nvalidation_file: y", "--dataset_name a/b", "dataset_name=a/b"),
        (
            "glue",
            "task_name: rte\ndata_dir: d",
            "--train_file x --validation_file y",
            "train_file=x validation_file=y",
        ),
        ("glue", "train_file: x\nvalidation_file: y", "--task_name rte", "task_name=rte"),
        ("swag", "train_file: x\nvalidation_file: y", "--task_name swag --data_dir d", "task_name=swag data_dir=d"),
    ],
)
def test_data_on_the_command_line_replace_those_of_the_recipe_split_by_split(tmp_path, arguments, text, flags, read):
    path = recipe(tmp_path, f"do_train: true\ndo_eval: true\n{text}")
    args = parse_arguments(SCRIPTS[arguments], [path, *MODEL, *flags.split()])
    assert data_of(args) == dict(pair.split("=") for pair in read.split())


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ("squad", "--data_dir d --dataset_name a/b"),
        ("squad", "--train_file x --dataset_name a/b"),
        ("pretraining", "--train_file x --dataset_name a/b"),
        ("ner", "--data_dir d --train_file x"),
        ("glue", "--task_name rte --train_file x"),
        ("swag", "--task_name swag --train_file x"),
    ],
)
def test_a_flag_that_leaves_another_without_effect_is_refused_with_it(flags, arguments, tmp_path, capsys):
    text = "".join(f"{word.strip().replace(' ', ': ')}\n" for word in ["do_train true", *flags.split("--")[1:]])
    for argv in ([*REQUIRED, *flags.split()], [recipe(tmp_path, text), *MODEL]):
        with pytest.raises(SystemExit):
            parse_arguments(SCRIPTS[arguments], argv)
        (line,) = capsys.readouterr().err.splitlines()
        assert re.search(r"--\w+ \S+ has no effect with --\w+ \S+: leave ", line)
        assert ("recipe.yaml: " in line) == argv[0].endswith(".yaml")


HUB_COLUMNS = "dataset_name: a/b\ndataset_config_name: c\ntext_column_name: words\nlabel_column_name: tags"
HUB_NAMES = ["dataset_config_name", "text_column_name", "label_column_name"]


@pytest.mark.parametrize(
    ("arguments", "text", "flags", "kept"),
    [
        ("ner", HUB_COLUMNS, "--train_file x", []),
        ("ner", HUB_COLUMNS, "--train_file x --text_column_name 1", ["text_column_name"]),
        ("ner", f"{HUB_COLUMNS}\ndata_scheme: iob1", "--data_dir d", []),
        ("ner", HUB_COLUMNS, "--dataset_name x/y", HUB_NAMES[1:]),
        ("ner", HUB_COLUMNS, "--dataset_name a/b", HUB_NAMES),
        ("ner", "train_file: x\ntext_column_name: 1", "--train_file y", ["text_column_name"]),
        ("glue", "train_file: x\ntext_column_names: a,b\nproblem_type: regression", "--task_name rte", []),
        ("glue", "train_file: x\ntext_column_name: a", "--train_file y", ["text_column_names"]),
        ("pretraining", "dataset_name: a/b\ndataset_config_name: c\ntext_column: t", "--train_file x", []),
    ],
)
def test_what_a_recipe_says_of_its_data_is_left_out_with_them(tmp_path, arguments, text, flags, kept):
    words = [recipe(tmp_path, f"{text}\ndo_train: true\ndo_eval: false"), *MODEL, *flags.split()]
    args = parse_arguments(SCRIPTS[arguments], words)
    names = ("dataset_config_name", "text_column_name", "text_column_names", "label_column_name", "data_scheme")
    assert [name for name in names if getattr(args, name, None) is not None] == kept
    assert getattr(args, "problem_type", None) is None and getattr(args, "text_column", "text") == "text"


@pytest.mark.parametrize(
    ("arguments", "text", "flags", "needs"),
    [
        ("glue", "task_name: sst2", "--validation_file mine.csv", "do_train needs --train_file: give it, or"),
        ("glue", "task_name: sst2", "--train_file mine.csv", "do_eval needs --validation_file: give it, or"),
        ("swag", "task_name: swag", "--validation_file mine.csv", "do_train needs --train_file: give it, or"),
        ("ner", "dataset_name: a/b", "--validation_file mine.csv", "do_train needs --train_file: give it, or"),
        ("squad", "", "--train_file mine.csv", "do_eval needs --validation_file: give it, or"),
    ],
)
def test_a_file_that_replaces_the_recipes_data_needs_files_for_its_other_splits(
    tmp_path, capsys, arguments, text, flags, needs
):
    path = recipe(tmp_path, f"do_train: true\ndo_eval: true\n{text}")
    with pytest.raises(SystemExit):
        parse_arguments(SCRIPTS[arguments], [path, *MODEL, *flags.split()])
    (line,) = capsys.readouterr().err.splitlines()
    source = "task_name" if arguments in ("glue", "swag") else "dataset_name"
    assert f"error: {flags} is read without a recipe's --{source}, so --{needs}" in line


def test_what_says_how_to_train_is_refused_without_training_and_left_out_of_a_recipe(tmp_path, capsys):
    argv = [*MODEL, "--data_dir", "d", "--do_eval", "--tag_scheme", "bioes"]
    with pytest.raises(SystemExit):
        parse_arguments(run_ner.NerArguments, argv)
    assert "--tag_scheme bioes has no effect with --do_train False" in capsys.readouterr().err
    text = "data_dir: d\ntag_scheme: bioes"
    for purposes in ("", "do_train: true\ndo_eval: true\n"):
        argv = [recipe(tmp_path, purposes + text), *MODEL, "--do_train", "false", "--do_eval"]
        assert parse_arguments(run_ner.NerArguments, argv).tag_scheme == "iob2"


def test_one_of_two_numbers_of_updates_wins_over_the_other_in_a_recipe(tmp_path, capsys):
    def parse(text: str, *flags: str) -> RunArguments:
        return parse_arguments(Arguments, [recipe(tmp_path, text), *REQUIRED, "--do_eval", *flags])

    assert parse("num_train_epochs: 9", "--max_steps", "5").num_train_epochs == RunArguments.num_train_epochs
    assert parse("num_train_epochs: 9", "--max_steps", "-1").num_train_epochs == 9
    assert parse("warmup_ratio: 0.1", "--warmup_steps", "0").warmup_ratio == 0
    assert parse("warmup_ratio: 0.1", "--warmup_ratio", "0", "--warmup_steps", "4").warmup_steps == 4
    assert parse("save_strategy: epoch", "--save_steps", "7").save_strategy is None
    assert parse("save_strategy: steps\nsave_steps: 7", "--save_strategy", "epoch").save_steps is None
    assert parse("save_strategy: epoch\nsave_steps: 7", "--save_strategy", "steps").save_steps == 7
    assert parse("eval_steps: 7", "--eval_strategy", "epoch").eval_steps is None
    assert parse("eval_strategy: 'no'", "--eval_steps", "7").eval_strategy is None
    assert parse("eval_strategy: steps\neval_steps: 7", "--eval_steps", "8").eval_strategy == "steps"
    for flags in ("--max_steps 5 --num_train_epochs 2", "--eval_strategy epoch --eval_steps 5"):
        assert "has no effect with" in error_of([*REQUIRED, "--do_eval", *flags.split()], capsys)
    assert "has no effect with" in error_of([*REQUIRED, "--bf16", "false", "--mixed_precision", "bf16"], capsys)


# Words


def test_the_home_folder_stands_for_a_tilde_in_flags_and_recipes(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    path = recipe(tmp_path, "output_dir: ~/out\ndata_dir: ~/data\ntokenizer_name: ~\n".replace(": ~\n", ": a~/b\n"))
    args = parse_arguments(run_ner.NerArguments, [path, "--model_name_or_path=~/model", "--do_eval"])
    assert (args.output_dir, args.data_dir) == ("/home/me/out", "/home/me/data")
    assert (args.model_name_or_path, args.tokenizer_name) == ("/home/me/model", "a~/b")
    averaged = parse_arguments(Arguments, [*MODEL, "--do_eval", "--ensemble", "~/a,~/seed-*"])
    assert averaged.ensemble == "/home/me/a,/home/me/seed-*"


def test_a_negative_number_is_no_flag():
    argv = [*REQUIRED, "--data_dir", "x", "--version_2_with_negative", "--null_score_diff_threshold"]
    for words, value in ((["-3"], -3), (["-.5"], -0.5), (["-1e-5"], -1e-5), (["--seed", "1"], None)):
        if value is None:
            with pytest.raises(SystemExit):
                parse_arguments(run_squad.SquadArguments, [*argv, *words])
        else:
            assert parse_arguments(run_squad.SquadArguments, [*argv, *words]).null_score_diff_threshold == value


@dataclasses.dataclass
class Fields:
    text: str
    layers: list[str] = dataclasses.field(default_factory=list)


def test_a_command_without_recipes_reads_its_words_alone_and_ends_with_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "script.py")])
    (tmp_path / "script.args").write_text("--text from_the_file", encoding="utf-8")
    fields = parse_fields(Fields, ["--text", "a", "--layers", "-2", "-1"])
    assert (fields.text, fields.layers) == ("a", ["-2", "-1"])
    for argv in ([], ["--text"], ["--tex", "a"], ["--text", "a", "late"]):
        with pytest.raises(SystemExit) as exit_info:
            parse_fields(Fields, argv)
        assert exit_info.value.code == 2 and len(capsys.readouterr().err.splitlines()) == 1


# Flags of ours that had another name


def test_the_former_name_of_a_flag_is_read_on_the_command_line_and_in_a_recipe(tmp_path, capsys):
    arguments, name, data = run_ner.NerArguments, "state_cache", ["--data_dir", "d"]
    meant = parse_arguments(arguments, [*REQUIRED, *data, f"--{name}", "kept"])
    assert getattr(meant, name) == "kept" and "feature_cache" not in public_arguments(meant)
    old = recipe(tmp_path, "do_train: true\nfeature_cache: kept")
    for argv in (
        ["--feature_cache", "kept"],
        ["--feature-cache=kept"],
        [f"--{name}", "kept", "--feature_cache", "kept"],
    ):
        assert parse_arguments(arguments, [*REQUIRED, *data, *argv]) == meant
    assert parse_arguments(arguments, [old, *REQUIRED, *data]) == meant
    assert getattr(parse_arguments(arguments, [old, *REQUIRED, *data, f"--{name}", "new"]), name) == "new"
    for argv, message in (
        ([f"--{name}", "a", "--feature_cache", "b"], f"--feature_cache contradicts --{name}"),
        (["--feature_cach", "a"], "unknown argument --feature_cach; did you mean --feature_cache?"),
    ):
        with pytest.raises(SystemExit):
            parse_arguments(arguments, [*REQUIRED, *data, *argv])
        assert message in capsys.readouterr().err


def test_what_may_change_when_a_run_is_resumed_is_a_flag_by_its_present_name():
    flags = {
        field.name for each in (*CLASSES, run_pretraining.PretrainingArguments) for field in dataclasses.fields(each)
    }
    assert {"state_cache"} <= FREE <= flags


def test_a_flag_that_is_translated_is_none_of_ours_and_sets_some_of_ours():
    ours = {field.name for field in dataclasses.fields(RunArguments)}
    of_scripts = {field.name for each in CLASSES for field in dataclasses.fields(each)}
    assert not ours & {*NAMES, *PRECISIONS} and {*NAMES.values()} <= of_scripts


# --help


@pytest.mark.parametrize("arguments", CLASSES)
def test_help_lists_each_flag_once_in_groups_that_fit_a_terminal(arguments, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments, ["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0 and max(map(len, text.splitlines())) <= 80
    flags = re.findall("^  (?:-h, )?--([a-z0-9_-]+)", text, flags=re.MULTILINE)
    assert sorted(flags) == sorted(["help", *(field.name for field in dataclasses.fields(arguments))])
    groups = dict(re.findall("^([a-z ]+):\n(.*?)(?:\n\n|\\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert [*groups][1:] == [
        *("model", "run", "training", "evaluation", "checkpoints", "repetition", "computation", "reports"),
        "data and task",
    ]
    assert "--learning_rate" in groups["training"] and "--train_file" in groups["data and task"]
    described = re.findall(
        "^  --[a-z0-9_]+(?: \\[?[A-Z]+\\]?)?(?: \\[TEXT \\.\\.\\.\\])?(?:\n {24}|  +)[^ ]", text, flags=re.MULTILINE
    )
    assert len(described) == len(flags) - 1
