"""What the guides show works: their commands parse, their examples run, their links lead somewhere."""

import argparse
import ast
import dataclasses
import importlib
import io
import json
import re
import shlex
import shutil
from contextlib import chdir, redirect_stdout
from functools import cache
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
from transformers import BertTokenizer

import modeling
from benchmarks import gpu, serving
from elmo_gpt_bert.convert.elmo import convert
from elmo_gpt_bert.scripts import COMMAND
from elmo_gpt_bert.tasks.squad import scoring
from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.flags import NAMES, parse_arguments
from modeling import (
    ZooBertConfig,
    ZooBertForPreTraining,
    ZooBertForQuestionAnswering,
    ZooBertForSequenceClassification,
)
from tests import line_links
from tests.conftest import ROOT
from tests.convert.test_convert_elmo import OPTIONS, released_tensors, write_hdf5
from tests.line_links import LINK, renumber
from tests.project.test_house import DOCS, GUIDES, blocks, commands, make_targets, read
from tests.result_tables import BLOCK, RECORDS, csv_table, renew
from tests.support.glue_sample import write_model, write_vocabulary
from tests.support.gpt_sample import write_gpt_model
from tests.support.manylangs_reference import write_release
from tests.support.ner_sample import write_elmo


OTHERS = {
    "accelerate",
    "cat",
    "curl",
    "export",
    "git",
    "hf",
    "make",
    "pip",
    "ruff",
    "source",
    "transformers",
    "uv",
    "zip",
}  # programs whose flags are theirs
# Of hf and of programs that start processes; "flag" stands in the usage of the scripts.
FLAGS_OF_OTHERS = {"config_file", "exclude", "flag", "num_processes", "nproc_per_node"}
MODULES = {
    "zoo-app": "elmo_gpt_bert.explorer.__main__",
    "zoo-extract": "elmo_gpt_bert.analysis.extraction",
    "zoo-reproduce": "elmo_gpt_bert.reproduction.__main__",
}  # the others are scripts at the root
OTHERS_MODULES = {"pip", "pytest", "venv"}


def names(guides: list[str]) -> list[str]:
    return [guide.removesuffix(".md") for guide in guides]


EXAMPLES = [guide for guide in GUIDES if blocks(guide, "python")]


@pytest.fixture(autouse=True)
def repository_root(monkeypatch):
    """Commands name recipes from the repository's root."""
    monkeypatch.chdir(ROOT)


# Commands


class Parsing(Exception):
    """Raised in place of parsing, and of the work after it."""


def parser_of(module: ModuleType) -> argparse.ArgumentParser:
    """The parser that the module's `main` makes."""
    parsers = []

    def stop(parser: argparse.ArgumentParser, *_, **__) -> None:
        parsers.append(parser)
        raise Parsing

    with patch.object(argparse.ArgumentParser, "parse_known_args", stop), pytest.raises(Parsing):
        module.main([])
    return parsers[0]


def arguments_of(module: ModuleType) -> type[RunArguments] | None:
    """The class of the arguments of a script that trains; None for other modules."""
    classes = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, RunArguments)]
    return next((each for each in classes if each.__module__ == module.__name__), None)


def run_by(words: list[str]) -> tuple[ModuleType, list[str]] | None:
    """This project's module that a command runs, and the words for it; None where the program is none of ours."""
    words = [word for word in words if not re.match("[A-Z_]+=", word)]
    scripts = [place for place, word in enumerate(words) if re.fullmatch(r"(examples/)?\w+\.py", word)]
    if scripts and "--predictions_file" in words:  # run_squad.py then loads no model, and has other flags
        return scoring, words[scripts[0] + 1 :]
    if scripts:
        name = words[scripts[0]].removesuffix(".py").replace("/", ".")
        return importlib.import_module(name), words[scripts[0] + 1 :]
    program = Path(words[0]).name
    if program.startswith(COMMAND):
        return importlib.import_module(MODULES.get(program, program.removeprefix(COMMAND).replace("-", "_"))), words[
            1:
        ]
    if not program.startswith("python"):
        assert program in OTHERS, f"{program} is no program that these tests know"
        return None
    name, rest = words[words.index("-m") + 1], words[words.index("-m") + 2 :]
    if name in OTHERS_MODULES:
        return None
    is_package = (ROOT / name.replace(".", "/")).is_dir()
    return importlib.import_module(f"{name}.__main__" if is_package else name), rest


def check_words(module: ModuleType, words: list[str]) -> None:
    """Raises SystemExit, having printed why, where the module does not take the words."""
    arguments = arguments_of(module)
    if arguments is not None and words != ["--help"]:
        parse_arguments(arguments, words)
    elif arguments is None and module.__name__ != "demo.__main__":  # which takes a folder and has no flag
        parser_of(module).parse_args(words)


@pytest.mark.parametrize("guide", GUIDES, ids=names(GUIDES))
def test_each_command_of_a_guide_finds_its_files(guide):
    shown = commands(guide)
    assert shown, f"{guide} shows no command"
    for words in shown:
        if "make" in words:
            targets = [word for word in words[words.index("make") + 1 :] if "=" not in word]
            assert targets and set(targets) <= make_targets(), words
        for word in words:
            names_a_file = re.fullmatch(r"(configs|demo|examples|tests|metrics)/\S+|run_\w+\.py", word)
            assert not names_a_file or (ROOT / word).exists() or word.startswith("demo/output"), words


@pytest.mark.parametrize("guide", GUIDES, ids=names(GUIDES))
def test_each_command_of_a_guide_is_accepted(guide):
    for words in commands(guide):
        if (called := run_by(words)) is not None:
            check_words(*called)


def test_each_command_in_the_tables_of_weights_and_data_is_accepted():
    shown = re.findall(r"`(python .+?)`", read("docs/weights_and_data.md"))
    assert shown
    for command in shown:
        check_words(*run_by(shlex.split(command)))


def test_a_command_with_a_flag_that_does_not_exist_is_noticed():
    for command in (
        "python run_glue.py configs/bert/glue.yaml --sedes 5",
        "zoo-extract --dat a",
        "zoo-run-ner --dat a",
    ):
        with pytest.raises(SystemExit):
            check_words(*run_by(command.split()))


@pytest.mark.parametrize(
    "name",
    [
        "elmo_gpt_bert.analysis.extraction",
        "examples.word2vec",
        "elmo_gpt_bert.convert.elmo",
        "elmo_gpt_bert.convert.vectors",
    ],
)
def test_help_states_each_default_once_and_none_where_a_flag_is_needed(name):
    text = " ".join(parser_of(importlib.import_module(name)).format_help().split())
    assert re.search(r"\(default: [^)]*\)", text)
    assert "(default: None)" not in text and not re.search(r"\(default: [^)]*\) \(default", text)


@cache
def flags() -> set[str]:
    """Every flag of every command that a guide shows."""
    names_of_flags = {*NAMES}
    for module in {called[0] for guide in GUIDES for words in commands(guide) if (called := run_by(words))}:
        if (arguments := arguments_of(module)) is not None:
            names_of_flags |= {field.name for field in dataclasses.fields(arguments)}
        elif module.__name__ != "demo.__main__":
            names_of_flags |= {*re.findall(r"--([a-z]\w+)", parser_of(module).format_help())}
    return names_of_flags


@pytest.mark.parametrize("guide", GUIDES, ids=names(GUIDES))
def test_each_flag_in_the_text_of_a_guide_exists(guide):
    text = re.sub("^```.*?^```", "", read(guide), flags=re.DOTALL | re.MULTILINE)
    named = {flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--([a-z][\w-]*\w)(?!\*)", text)}
    assert named - flags() - {"help", "install"} == set()  # the latter is xcode-select's


@pytest.mark.parametrize("folder", ["elmo_gpt_bert", "examples", "modeling", "."])
def test_each_flag_in_a_message_exists(folder):
    """Of all texts in the code except docstrings. modeling/ names no flag: its users may have none of the commands."""
    known = set() if folder == "modeling" else flags() | FLAGS_OF_OTHERS
    for path in (ROOT / folder).glob("*.py" if folder == "." else "**/*.py"):
        parts = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = {part.value for part in parts if isinstance(part, ast.Expr)}
        texts = [part.value for part in parts if isinstance(part, ast.Constant) and part not in docstrings]
        texts = [text for text in texts if isinstance(text, str)]
        named = {flag for text in texts for flag in re.findall(r"(?<![\w-])--([a-z]\w+)(?![\w*-])", text)}
        assert named <= known, path


# Examples


@pytest.fixture(scope="module")
def folder_of_models(tmp_path_factory) -> Path:
    """The shipped models, and tiny random ones under the other names that the guides use."""
    folder = tmp_path_factory.mktemp("models")
    with chdir(folder):
        write_models(folder)
    return folder


@pytest.fixture
def checkpoints(folder_of_models, tmp_path, monkeypatch) -> None:
    """A directory with the models, which an example may change."""
    shutil.copytree(folder_of_models, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


def write_models(folder: Path) -> None:
    Path("checkpoints").symlink_to(ROOT / "checkpoints")
    config = ZooBertConfig.from_json_file(write_model(folder))
    tokenizer = BertTokenizer(str(write_vocabulary(folder)))
    for model_class, name in [
        (ZooBertForPreTraining, "google-bert/bert-base-uncased"),
        (ZooBertForPreTraining, "google-bert/bert-base-chinese"),
        (ZooBertForPreTraining, "runs/bert/pretraining_books"),
        (ZooBertForQuestionAnswering, "runs/bert/squad"),
        (ZooBertForSequenceClassification, "runs/bert/glue/mrpc"),
    ]:
        model_class(config).save_pretrained(name)
        tokenizer.save_pretrained(name)
    gpt = write_gpt_model(folder, n_positions=64)
    Path("openai-community").mkdir()
    shutil.copytree(gpt, "runs/gpt/pretraining_small")
    gpt.rename("openai-community/openai-gpt")
    for name in ("elmo", "runs/elmo/conll2003"):
        write_elmo(Path(name))
    convert(None, str(write_release(folder / "zh.model")), "elmo-zh")
    write_hdf5(Path("weights.hdf5"), released_tensors(OPTIONS))
    Path("options.json").write_text(json.dumps(OPTIONS), encoding="utf-8")


def promised(example: str) -> list[str]:
    """What the comments behind the calls of print say that they print."""
    return re.findall(r"^print\(.*\)  # (.*)$", example, flags=re.MULTILINE)


@pytest.mark.parametrize("guide", EXAMPLES, ids=names(EXAMPLES))
def test_each_example_of_a_guide_runs(guide, checkpoints):
    """Of the Chinese README, those that are not the English one's, but for their comments."""
    before = [] if guide == "README.md" else blocks("README.md", "python")
    known = [(ast.dump(ast.parse(example)), promised(example)) for example in before]
    for example in blocks(guide, "python"):
        if (ast.dump(ast.parse(example)), promised(example)) in known:
            continue
        shown = io.StringIO()
        with redirect_stdout(shown):
            exec(example, {})
        assert shown.getvalue().splitlines() == promised(example)
        modeling.unregister()


def test_the_guides_of_the_models_and_the_readme_show_examples():
    guides = {"README.md", "docs/bert.md", "docs/elmo.md", "docs/gpt.md", "docs/migrate.md", "docs/squad.md"}
    assert guides <= {*EXAMPLES}


@pytest.mark.parametrize("guide", ["README.md", *DOCS], ids=names(["README.md", *DOCS]))
def test_each_class_that_a_guide_names_exists(guide):
    text = LINK.sub("", read(guide))  # a link to a line may lead to a class that is not public
    named = {*re.findall(r"\b(?:ZooBert|ZooGPT|Elmo)[A-Z]\w*", text)}
    assert [name for name in sorted(named) if not hasattr(modeling, name)] == []


# Links and numbers


def anchors(guide: Path) -> set[str]:
    """What GitHub calls the headings of a guide in links."""
    titles = re.findall(r"^#+ (.*)$", guide.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("guide", [*GUIDES, "CHANGELOG.md"])
def test_each_link_of_a_guide_leads_somewhere(guide):
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)", read(guide)):
        name, _, anchor = link.partition("#")
        target = (ROOT / guide).parent / name if name else ROOT / guide
        assert target.exists(), link
        assert not anchor or target.suffix == ".py" or anchor in anchors(target), link


def test_a_link_to_a_line_of_code_leads_to_what_it_names():
    for guide in GUIDES:
        assert renumber(ROOT / guide) == read(guide), f"{guide}: run python -m tests.line_links"


def test_an_old_number_of_a_line_is_reported_and_then_mended(tmp_path, monkeypatch):
    (tmp_path / "docs").mkdir()
    (tmp_path / "code.py").write_text("import ast\n\n\nclass Model:\n    pass\n", encoding="utf-8")
    (tmp_path / "README.md").write_text("No link.\n", encoding="utf-8")
    guide = tmp_path / "docs/guide.md"
    guide.write_text("[`Model`](../code.py#L3)\n", encoding="utf-8")
    monkeypatch.setattr(line_links, "ROOT", tmp_path)
    assert line_links.main(["--check"]).endswith("run python -m tests.line_links: docs/guide.md")
    assert line_links.main([]) is None
    assert guide.read_text(encoding="utf-8") == "[`Model`](../code.py#L4)\n"
    assert line_links.main(["--check"]) is None


def test_the_tables_of_results_are_made_of_the_committed_records():
    for guide in DOCS:
        assert renew(ROOT / guide) == read(guide), f"{guide}: run python -m tests.result_tables"
    assert BLOCK.search(read("docs/results.md"))
    for record in RECORDS:
        table = record.with_suffix(".csv")
        assert table.read_text(encoding="utf-8") == csv_table(record), f"{table}: run python -m tests.result_tables"
        assert f"](records/{table.name}" in read("docs/results.md")


def test_the_map_leads_to_every_guide_and_so_does_the_sites_side_bar():
    assert "](docs/README.md)" in read("README.md")
    guides = {name.removeprefix("docs/") for name in DOCS} - {"README.md"}
    assert guides <= {*re.findall(r"\]\(([^)#]+)", read("docs/README.md"))}
    assert guides <= {*read("docs/site/contents.txt").splitlines()}


def recorded() -> list[dict]:
    """The rows of benchmarks/records, of all tables that compare a row in several settings."""
    records = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(ROOT.glob("benchmarks/records/*.json"))]
    return [row for record in records for row in record.get("results", [])]


def ratios(model: str, setting: str, training: bool) -> list[float]:
    """Of the records that compare the model with another implementation in that setting."""
    values = []
    for row in recorded():
        sides = (row["side"], row["baseline"])
        if row["setting"] != setting or sides not in (("zoo", "transformers"), ("zoo", "plain")):
            continue
        if row["row"].startswith("overhead-"):  # of calls, in a model without a size
            continue
        family = row["row"].split("-")[0] if row["row"].startswith(("elmo-", "gpt-")) else "bert"
        if family == model and ("step" in row["title"]) == training:
            values.append(row["cpu_ratio"])
    return values


def test_the_ratios_in_the_page_of_the_benchmarks_are_those_of_the_records():
    measured = {(row["row"], f"{row.get(f'{clock}_ratio'):.2f}") for row in recorded() for clock in ("cpu", "wall")}
    rows = re.findall(r"^\| `([\w-]+)` \|(.*\*\*.*)\|$", read("benchmarks/README.md"), flags=re.MULTILINE)
    shown = {(row, ratio) for row, cells in rows for ratio in re.findall(r"\*\*([\d.]+)\*\*", cells)}
    assert len(shown) > 50 and shown <= measured


def test_the_page_of_the_benchmarks_names_the_rows_of_a_gpu_without_a_record():
    measured = {row["row"] for row in recorded() if row["device"] == "cuda"}
    served = [row for row in serving.ROWS if row not in serving.CONVERTED]
    (named,) = re.findall(r"a GPU has no record of ([^.]*)\.$", read("benchmarks/README.md"), flags=re.MULTILINE)
    assert re.findall(r"`([\w-]+)`", named) == [row for row in [*gpu.ORDER, *served] if row not in measured]


def test_the_figures_of_the_xeon_are_those_of_its_record():
    """Ratios in fp32 and in bf16 beside the EPYC's; time, rate and memory of a server, of GPT and of a step."""
    record = json.loads((ROOT / "benchmarks/records/2026-11-29_xeon_amx.json").read_text(encoding="utf-8"))
    rows = {(row["row"], row["setting"]): row for row in record["results"]}
    page, ratio = read("benchmarks/README.md"), r"\*\*([\d.]+)\*\*"
    five = r" \| ".join([ratio] * 5)
    beside = re.findall(rf"^\| `([\w-]+)` .* {five} \|$", page, re.MULTILINE)
    assert len(beside) == 13
    for row, *_, fp32, bf16 in beside:
        assert (fp32, bf16) == tuple(f"{rows[row, setting]['cpu_ratio']:.2f}" for setting in ("fp32", "bf16")), row
    served = re.findall(rf"^\| `([\w-]+)` \| ([^|]*) \| ([\d,]+) \| ([\d,]+) \| {ratio} \|$", page, re.MULTILINE)
    assert len(served) == 12
    for row, work, *figures in served:
        found = rows[row, "bf16" if work == "bf16" else "fp32"]
        values = found["cpu_ms"], found["items_per_second"]
        assert figures == [*(f"{value:,.0f}" for value in values), f"{found['cpu_ratio']:.2f}"], row
        memory = f": {found['peak_mb']:.0f} MB, theirs {found['baseline_peak_mb']:.0f}" if found["peak_mb"] else ""
        assert work.endswith(memory) and (memory or "MB" not in work), row


@pytest.mark.parametrize("model", ["BERT", "ELMo", "GPT"])
def test_the_ranges_of_speed_are_those_of_the_benchmarks_tables(model):
    cases = [(setting, training) for setting in ("fp32", "portable") for training in (False, True)]
    measured = [ratios(model.lower(), setting, training) for setting, training in cases]
    ranges = [f"{min(each):.1f} to {max(each):.1f}" for each in measured]
    (row,) = re.findall(rf"^\| {model} \|[^|]*\|(.*)\|$", read("benchmarks/README.md"), flags=re.MULTILINE)
    assert [cell.strip() for cell in row.split("|")] == ranges


@pytest.mark.parametrize("model", ["bert", "elmo", "gpt"])
def test_the_speed_in_a_models_guide_is_that_of_the_benchmarks(model):
    measured = ratios(model, "fp32", training=False) + ratios(model, "fp32", training=True)
    shown = re.findall(r"\*\*([\d.]+)\*\*", read(f"docs/{model}.md"))
    assert shown
    for ratio in shown:
        rounding = 0.5 / 10 ** len(ratio.partition(".")[2])
        assert any(abs(value - float(ratio)) <= rounding + 1e-9 for value in measured), ratio
