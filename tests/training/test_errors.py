"""A user's mistake: one exception of one line, which names the command's flags."""

import builtins
import copy
import json
import pickle
from pathlib import Path

import pytest
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

import run_glue
import run_ner
import run_squad
import run_swag
from elmo_gpt_bert.tasks.squad.answering import QuestionAnswerer
from elmo_gpt_bert.training import errors, runs
from elmo_gpt_bert.training.errors import (
    DivergedError,
    FileError,
    InputError,
    MissingFileError,
    UserError,
    as_user_errors,
)
from modeling import ElmoConfig, ElmoForSequenceClassification, ElmoTokenizer
from tests.support.choices_sample import write_task as write_choices
from tests.support.glue_sample import write_model, write_task, write_vocabulary
from tests.support.gpt_sample import write_gpt_config, write_gpt_tokenizer
from tests.support.ner_sample import write_elmo
from tests.support.ner_sample import write_folder as write_conll
from tests.support.squad_sample import write_folder as write_squad


# The type


def test_each_mistake_is_the_builtin_exception_that_callers_expect():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, UserError)]
    for kind in kinds:
        builtin = [base for base in kind.__mro__ if vars(builtins).get(base.__name__) is base]
        assert kind is UserError or builtin[0] is not Exception
        assert str(kind("a mistake")) == "a mistake"
    assert len(kinds) > 5


def test_a_mistake_that_comes_from_another_process_says_the_same():
    error, diverged = MissingFileError("--data_dir x: no such file"), DivergedError("the loss is nan", ": lower it")
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert isinstance(other, FileNotFoundError) and str(other) == "--data_dir x: no such file"
    for other in (pickle.loads(pickle.dumps(diverged)), copy.copy(diverged)):
        assert (str(other), other.problem) == ("the loss is nan: lower it", "the loss is nan")


@pytest.mark.parametrize(("raised", "kind"), [(ValueError("of\n two"), InputError), (OSError("of\n two"), FileError)])
def test_what_a_library_refuses_is_one_line_of_ours(raised, kind):
    with pytest.raises(kind, match="^a.json: of two$") as error, as_user_errors("a.json: "):
        raise raised
    assert error.value.__cause__ is raised


def test_a_mistake_keeps_its_words_among_refusals():
    with pytest.raises(FileError, match="^of ours$"), as_user_errors("a.json: "):
        raise FileError("of ours")
    with pytest.raises(KeyError), as_user_errors():
        raise KeyError("a bug")


# Flags


@pytest.fixture
def bert(tmp_path) -> list[str]:
    return ["--model_name_or_path", str(write_model(tmp_path)), "--tokenizer_name", str(write_vocabulary(tmp_path))]


def line_of(main, argv: list[str], capsys) -> str:
    """The one line that a command ends with, after its name."""
    with pytest.raises(SystemExit, match="1"):
        runs.command(lambda: main(argv))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
    return line.partition(": error: ")[2]


def test_answering_names_the_flags_of_the_script_on_the_command_line_and_in_python(tmp_path, bert, capsys):
    data = ["--data_dir", str(write_squad(tmp_path / "squad")), "--output_dir", str(tmp_path / "out"), "--do_train"]
    line = line_of(run_squad.main, [*bert, *data, "--max_seq_length", "20", "--doc_stride", "19"], capsys)
    assert "leaves no more than --doc_stride 19 tokens of --max_seq_length" in line
    assert line.endswith("give a lower --doc_stride or --max_query_length, or a higher --max_seq_length")
    run_squad.main([*bert, *data, "--max_seq_length", "32", "--doc_stride", "5", "--max_steps", "1"])
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "out")
    answer = QuestionAnswerer(model, AutoTokenizer.from_pretrained(tmp_path / "out"), 20, 19)
    with pytest.raises(ValueError, match="leaves no more than --doc_stride 19 tokens of --max_seq_length"):
        answer("is it good ?", "the film is good .")


# What a user gave and a library or a model refuses


def elmo_with_words(folder: Path, words: int) -> str:
    """A classifier of ELMo that reads word vectors, and its tokenizer; gives the folder's name."""
    sizes = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "hidden_size": 6, "cell_size": 7, "rnn_size": 9}
    sizes |= {"num_highway_layers": 1, "num_word_vectors": words + 2, "word_vector_size": 4}
    ElmoForSequenceClassification(ElmoConfig(**sizes)).save_pretrained(folder)
    (folder / "list.txt").write_text("".join(f"word{number}\n" for number in range(words)), encoding="utf-8")
    ElmoTokenizer(words_file=str(folder / "list.txt")).save_pretrained(folder)
    return str(folder)


def glue(tmp_path: Path, *more: str) -> list[str]:
    return ["--output_dir", str(tmp_path / "out"), "--max_seq_length", "16", "--do_train", "--max_steps", "1", *more]


@pytest.mark.parametrize("part", ["--do_train", "--do_eval"])
def test_a_tokenizer_of_another_elmo_is_one_line(tmp_path, capsys, part):
    ElmoTokenizer().save_pretrained(tmp_path / "plain")
    argv = ["--model_name_or_path", elmo_with_words(tmp_path / "elmo", 5), "--tokenizer_name", str(tmp_path / "plain")]
    argv += ["--task_name", "rte", "--data_dir", str(write_task(tmp_path, "RTE")), part]
    line = line_of(run_glue.main, [*argv, "--output_dir", str(tmp_path / "out"), "--max_steps", "1"], capsys)
    assert line.startswith("num_word_vectors=7, but no vector_ids are given")


def test_single_texts_for_a_gpt_that_reads_pairs_in_both_orders_are_one_line(tmp_path, capsys):
    config = write_gpt_config(tmp_path, both_orders=True)
    argv = ["--model_name_or_path", str(config), "--tokenizer_name", str(write_gpt_tokenizer(tmp_path / "gpt"))]
    argv += ["--task_name", "cola", "--data_dir", str(write_task(tmp_path, "CoLA"))]
    line = line_of(run_glue.main, glue(tmp_path, *argv), capsys)
    assert line.startswith("row 0 has no delimiter")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"hidden_size": 13}, "not a multiple of num_attention_heads"),
        ({"hidden_act": "loud"}, "loud"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
        ({"model_type": "bort"}, 'does not know the "model_type"'),
    ],
)
def test_a_configuration_that_cannot_be_is_one_line(tmp_path, bert, capsys, changes, line):
    path = Path(bert[1])
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    argv = glue(tmp_path, *bert, "--task_name", "rte", "--data_dir", str(write_task(tmp_path, "RTE")))
    assert line in line_of(run_glue.main, argv, capsys)


def ner(tmp_path: Path) -> list[str]:
    return ["--data_dir", str(write_conll(tmp_path / "conll"))]


def squad(tmp_path: Path) -> list[str]:
    return ["--data_dir", str(write_squad(tmp_path / "squad"))]


def swag(tmp_path: Path) -> list[str]:
    return ["--task_name", "swag", "--data_dir", str(write_choices(tmp_path, "swag"))]


def rte(tmp_path: Path) -> list[str]:
    return ["--task_name", "rte", "--data_dir", str(write_task(tmp_path, "RTE"))]


LUCK = ["--metric_for_best_model", "luck"]
MISTAKES = [
    (run_ner, ner, ["--features", "concat_last_four"], "--features concat_last_four: "),
    (run_ner, ner, ["--text_column_name", "5"], "--text_column_name 5 is none of the 3 columns"),
    (run_ner, ner, ["--label_column_name", "2"], "let --label_column_name name the column"),
    (run_ner, ner, ["--state_cache", "cache"], "--state_cache keeps the states of a frozen base model"),
    (run_squad, squad, ["--version_2_with_negative"], "to read SQuAD 1.1, leave --version_2_with_negative out"),
    (run_squad, squad, ["--max_seq_length", "99"], "--max_seq_length 99 is more than the model's 40 positions"),
    (run_swag, swag, ["--data_dir", "nowhere"], "--data_dir nowhere: no such folder"),
    (run_swag, swag, ["--config_overrides", "size=3"], "bert has no size. Correct it or --config_overrides"),
    (run_glue, rte, ["--reinit_layers", "9"], "--reinit_layers 9: ZooBertForSequenceClassification has 2 layers"),
    (run_glue, rte, ["--do_eval", "--load_best_model_at_end", *LUCK], "--metric_for_best_model luck is none of"),
    (run_glue, rte, ["--do_eval", "--do_train", "false", "--ensemble", "a,b"], "--ensemble a,b: there is no folder"),
    (run_glue, rte, ["--tokenizer_name", "absent.txt"], "absent.txt: no such file"),
    (run_glue, rte, ["--attn_implementation", "loud"], "Correct it or this run's arguments"),
]


@pytest.mark.parametrize(("script", "data", "more", "line"), MISTAKES)
def test_what_a_library_function_refuses_is_one_line_with_flags(tmp_path, bert, capsys, script, data, more, line):
    argv = [*bert, *data(tmp_path), "--output_dir", str(tmp_path / "out"), "--do_train", "--max_seq_length", "32"]
    assert line in line_of(script.main, [*argv, "--max_steps", "1", *more], capsys)


def test_an_elmo_without_words_is_one_line(tmp_path, capsys):
    argv = ["--model_name_or_path", write_elmo(tmp_path / "elmo"), *ner(tmp_path)]
    argv += ["--config_overrides", "use_elmo=false,task_char_filters=0"]
    line = line_of(run_ner.main, glue(tmp_path, *argv), capsys)
    assert "The network has no words to read" in line
