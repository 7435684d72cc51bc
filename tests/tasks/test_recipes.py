"""Every recipe under configs/ says where it comes from, fits its script, and runs."""

import itertools
import json
import re
import shlex
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from datasets import Dataset, DatasetDict
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForPreTraining

import run_glue
import run_ner
import run_squad
import run_swag
from elmo_gpt_bert.reproduction.tables import TABLES
from elmo_gpt_bert.training.flags import parse_arguments
from modeling import ElmoConfig, ElmoForTokenClassification, ElmoTokenizer
from modeling.feature_tagger.configuration_features import LAYERS
from tests.conftest import ROOT
from tests.support.chinese_sample import make_cmrc, make_drcd, write_entities, write_json
from tests.support.choices_sample import write_task as write_choices
from tests.support.glue_sample import FOLDERS, WORDS, text, write_model, write_task, write_vocabulary
from tests.support.gpt_sample import write_gpt_model
from tests.support.ner_sample import write_folder
from tests.support.squad_sample import make_articles, rows_of, write_squad
from tests.support.squad_sample import write_folder as write_squad_folder
from tests.support.tiny_run import load_config


FAMILIES = ("bert", "elmo", "gpt")
RECIPES = sorted(path for family in FAMILIES for path in ROOT.glob(f"configs/{family}/*.yaml"))
RECIPES = [path for path in RECIPES if not path.stem.startswith("pretraining")]  # in test_pretraining_recipes.py
TRAIN_FILES = {"cmrc2018": "cmrc2018/cmrc2018_train.json", "drcd": "drcd/DRCD_training.json"}
ARCHITECTURES = sorted(path for family in FAMILIES for path in ROOT.glob(f"configs/{family}/*.json"))
# Millions of parameters with both pre-training heads, as Turc et al. 2019 (arXiv 1908.08962) count them.
MILLIONS = {"tiny": 4.4, "mini": 11.3, "small": 29.1, "medium": 41.7, "base": 110.1}


@pytest.fixture(autouse=True)
def repository_root(monkeypatch):
    """Recipes name their files from the repository's root."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """SQuAD as the Hub has it, in miniature, under its names."""

    def load(name: str, *_, **options) -> DatasetDict:
        version = {"rajpurkar/squad": "1.1", "rajpurkar/squad_v2": "2.0"}[name]
        rows = Dataset.from_list(rows_of(make_articles(version)))
        return DatasetDict(train=rows, validation=rows)

    monkeypatch.setattr("datasets.load_dataset", load)


def names(paths: list[Path]) -> list[str]:
    return [f"{path.parent.name}/{path.stem}" for path in paths]


def header_of(recipe: Path) -> str:
    return "".join(line for line in recipe.read_text(encoding="utf-8").splitlines(True) if line.startswith("#"))


@cache
def read(recipe: Path) -> dict[str, Any]:
    return yaml.safe_load(recipe.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Use:
    """A recipe, with one of the values of the flag that its header has a list of."""

    recipe: Path
    flags: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return "/".join([self.recipe.parent.name, self.recipe.stem, *self.flags.values()])

    @property
    def words(self) -> list[str]:
        return [str(self.recipe.relative_to(ROOT)), *(word for item in self.flags.items() for word in item)]

    @property
    def content(self) -> dict[str, Any]:
        flags = {name.removeprefix("--"): value for name, value in self.flags.items()}
        return read(self.recipe) | flags

    @property
    def script(self):
        """run_squad for windows, run_swag for its tasks and CODAH, run_ner for tagged words, or run_glue."""
        content = self.content
        if "doc_stride" in content:
            return run_squad
        if content.get("task_name") in run_swag.TASKS or self.recipe.stem.startswith("codah"):
            return run_swag
        return run_ner if "data_dir" in content and "task_name" not in content else run_glue


def uses(recipe: Path) -> list[Use]:
    """The uses that a header names by "--task_name a, b" or, one a line, by "--features a"; one if it names none."""
    header = header_of(recipe)
    tasks = re.search(r"--task_name ((\w+,\s(# )?)*\w+)", header)
    if tasks is not None and "task_name" not in Use(recipe).content:
        return [Use(recipe, {"--task_name": name}) for name in re.findall(r"\w+", tasks[1])]
    layers = re.findall(r"^#   --features (\w+)", header, flags=re.MULTILINE)
    chosen = Use(recipe).content.get("features")
    layers = [] if chosen is None else [chosen, *layers]
    return [Use(recipe, {"--features": name}) for name in layers] or [Use(recipe)]


USES = [use for recipe in RECIPES for use in uses(recipe)]


def test_there_is_a_recipe_for_every_task():
    assert set(FOLDERS) == set(run_glue.TASKS)
    tasks = {use.content.get("task_name") for use in USES}
    assert {*run_glue.TASKS, *run_swag.TASKS} <= tasks and {"squad", "squad_v2"} <= {path.stem for path in RECIPES}


def test_there_is_a_recipe_for_every_row_of_bert_as_features():
    assert {use.content.get("features") for use in USES if use.recipe.stem == "conll2003_features"} == set(LAYERS)


def test_no_two_recipes_differ_in_one_key():
    contents = {path: set(read(path).items()) for path in RECIPES}
    tasks = {path: {use.content.get("task_name") for use in uses(path)} for path in RECIPES}
    for path, other in itertools.combinations(RECIPES, 2):
        differing = {name for name, _ in contents[path] ^ contents[other]}
        are_of_other_tasks = None not in tasks[path] and tasks[path].isdisjoint(tasks[other])
        assert len(differing) > 1 or are_of_other_tasks, (path, other, differing)


def test_gpt_reads_the_similarity_tasks_in_both_orders():
    of_gpt = [use for use in USES if use.recipe.parent.name == "gpt" and use.script is not run_squad]
    in_both = {use.content["task_name"] for use in of_gpt if "both_orders=true" in use.content["config_overrides"]}
    assert in_both == {"mrpc", "qqp", "stsb"}
    for use in of_gpt:  # The small ones train the classifier alone, which costs a third less.
        weight = 0 if use.recipe.stem.endswith("_small") else 0.5
        assert f"lm_loss_weight={weight}" in use.content["config_overrides"], use


@pytest.mark.parametrize("recipe", RECIPES, ids=names(RECIPES))
def test_a_recipe_says_its_source_and_what_to_expect(recipe):
    header = header_of(recipe)
    assert re.search(r"^# Source: .*(section|this project)", header, flags=re.MULTILINE)
    expected = re.search(r"^# Expected(.*)", header, flags=re.MULTILINE | re.DOTALL).group(1)
    if "docs/reproduce.md" in expected:
        assert re.search(rf"the table ({'|'.join(TABLES)}) ", expected)
        return
    assert re.search(r"\d\d\.\d", expected) and "00.0" not in expected and ("dev" in expected or "test" in expected)


@pytest.mark.parametrize("use", USES, ids=str)
def test_a_recipe_fits_its_script(use):
    recipe, script = use.recipe, use.script
    classes = {
        run_glue: run_glue.GlueArguments,
        run_ner: run_ner.NerArguments,
        run_squad: run_squad.SquadArguments,
        run_swag: run_swag.SwagArguments,
    }
    published = ["--data_dir", "storycloze"] if use.content.get("task_name") == "storycloze" else []  # not on the Hub
    args = parse_arguments(classes[script], [*use.words, *published])
    assert args.do_train and args.do_eval and args.output_dir == f"runs/{use}"
    if script is run_ner:
        assert recipe.stem.split("_")[0] == args.data_dir
        assert recipe.stem.endswith("_features") == (args.features is not None)
    elif script is run_squad:
        assert args.version_2_with_negative == ("_v2" in recipe.stem)
        is_local = recipe.stem.endswith(("_scratch", "_small"))
        squad = "rajpurkar/squad_v2" if args.version_2_with_negative else "rajpurkar/squad"
        expected = TRAIN_FILES.get(recipe.stem, "squad" if is_local else squad)
        assert args.metric == ("cmrc2018" if recipe.stem in ("cmrc2018", "drcd") else "squad")
        assert (args.dataset_name or args.data_dir or args.train_file) == expected
    elif recipe.stem.split("_")[0] not in ("glue", "choices"):
        assert recipe.stem.split("_")[0] == (args.task_name or Path(args.train_file).parent.name)
    assert ("large" in args.model_name_or_path) == ("large" in recipe.stem)
    if args.model_name_or_path.endswith(".json"):
        assert load_config(args).max_position_embeddings >= args.max_seq_length


@pytest.mark.parametrize(
    ("text", "flags", "expected"),
    [
        ("", "", (True, True, "runs/mine/tasks/a")),  # of the user's own a.csv
        ("", "--task_name SST-2", (True, True, "runs/mine/tasks/sst2")),
        ("task_name: cola", "--task_name STS-B --output_dir o", (True, True, "o")),
        ("task_name: cola", "--do_train false", (False, True, "runs/mine/tasks")),
        ("task_name: cola\ndo_train: true", "", (True, False, "runs/mine/tasks")),
        ("task_name: cola\ndo_eval: true", "", (False, True, "runs/mine/tasks")),
        ("task_name: cola\ndo_predict: true", "", (False, False, "runs/mine/tasks")),
    ],
)
def test_a_recipe_trains_evaluates_and_names_its_folder_unless_words_say_otherwise(tmp_path, text, flags, expected):
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / "tasks.yml"
    path.write_text(f"model_name_or_path: m\n{text or 'seed: 1'}\n", encoding="utf-8")
    words = flags.split() if "task_name" in text + flags else ["--train_file", "a.csv", "--validation_file", "b.csv"]
    args = parse_arguments(run_glue.GlueArguments, [str(path), *words])
    assert (args.do_train, args.do_eval, args.output_dir) == expected


# Chinese tasks: of entities the layout, of questions the content of a file.
CHINESE = {"msra": "msra", "ontonotes4": "bmes", "cmrc2018": make_cmrc(), "drcd": make_drcd()}


def write_data(folder: Path, use: Use) -> dict[str, Path | str]:
    """The recipe's task in its published layout, or files of the user's own; returns the flags that name them."""
    content, recipe, script = use.content, use.recipe, use.script
    if script is run_ner and recipe.stem in CHINESE:
        return {"data_dir": write_entities(folder / "data", CHINESE[recipe.stem])}
    if script is run_ner:
        return {"data_dir": write_folder(folder / "data")}
    if recipe.stem in CHINESE:
        flags = {"train_file", "validation_file"} & content.keys()
        return {flag: write_json(folder / f"{flag}.json", CHINESE[recipe.stem]) for flag in flags}
    if "dataset_name" in content:
        return {}  # the Hub's
    if script is run_squad:
        return {"data_dir": write_squad_folder(folder / "squad")}
    if script is run_swag:
        data = write_choices(folder, content.get("task_name", "swag"))
        if "task_name" in content:
            return {"data_dir": data}
        files = run_swag.TASKS["swag"].files  # CODAH's have the same columns
        return {f"{split}_file": data / name for split, name in files.items() if f"{split}_file" in content}
    if "task_name" in content:
        write_task(folder, FOLDERS[content["task_name"]])
        return {"data_dir": folder}
    files = {flag: folder / Path(content[flag]).name for flag in ("train_file", "validation_file")}
    for path in files.values():
        rows = [f"{row % 2},{text(row, 0)}" for row in range(8)]
        path.write_text("\n".join(["label,text", *rows]), encoding="utf-8")
    return files


def write_checkpoint(folder: Path, recipe: Path) -> dict[str, Path]:
    """A tiny model of the recipe's family; returns the flags that name it."""
    if recipe.parent.name == "gpt":
        model = write_gpt_model(folder, n_positions=512)
        random = Use(recipe).content["model_name_or_path"].endswith(".json")
        return {"model_name_or_path": folder / "gpt.json" if random else model, "tokenizer_name": model}
    if recipe.parent.name == "bert":
        model = write_model(folder, max_position_embeddings=512, num_hidden_layers=4)
        return {"model_name_or_path": model, "tokenizer_name": write_vocabulary(folder)}
    sizes = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "hidden_size": 6, "cell_size": 7}
    without = "small" not in recipe.stem and any(
        name in recipe.stem for name in ("baseline", "codah", "wnut17", "squad_scratch", "ontonotes4")
    )
    sizes |= {"use_elmo": not without, "rnn_size": 5}
    config = ElmoConfig(**sizes, num_word_vectors=len(WORDS) + 2, word_vector_size=3)
    ElmoForTokenClassification(config).save_pretrained(folder / "elmo")
    (folder / "words.txt").write_text("\n".join(WORDS), encoding="utf-8")
    ElmoTokenizer(words_file=str(folder / "words.txt")).save_pretrained(folder / "elmo")
    return {"model_name_or_path": folder / "elmo"}


SIZE = re.compile("(rnn_size|classifier_size|task_char_filters)=[0-9]+")


def run(use: Use, **changes: object) -> dict:
    """An update of the recipe with other values of some flags; returns metrics.json."""
    changes = {"max_train_samples": 4, "max_steps": 1, **changes}
    overrides = SIZE.sub(r"\1=7", use.content.get("config_overrides", ""))
    if "--features" in use.flags and not overrides:
        overrides = "rnn_size=7"
    if overrides:
        changes["config_overrides"] = overrides
    if "state_cache" in use.content:
        changes["state_cache"] = Path(changes["output_dir"]).with_name("cache")
    flags = (word for name, value in changes.items() for word in (f"--{name}", str(value)))
    use.script.main([*use.words, *flags])
    return json.loads((Path(changes["output_dir"]) / "metrics.json").read_text(encoding="utf-8"))


NUMBER = re.compile(r"(?<![\w.])[\d.]+(e-?\d+)?(?!\w)")
# What names files, or gives any number: its value is the same to the code.
ANY_VALUE = {"model_name_or_path", "tokenizer_name", "state_cache", "max_train_samples", "max_eval_samples"}
ANY_VALUE |= {"train_file", "validation_file", "test_file"}
OF_MODELS = {"mixed_precision", "state_cache", "document_context"}  # each family has its own code for these


def traits(use: Use) -> set[tuple[str, ...]]:
    """What another recipe can have as well: a task, a setting in a script, and one of its family, whatever number."""
    family, script = use.recipe.parent.name, use.script.__name__
    found = {(family, script), ("task", use.content.get("task_name"))}
    found |= {("Chinese", use.recipe.stem)} if use.recipe.stem in CHINESE else set()
    for name, value in use.content.items():
        text = name if name in ANY_VALUE else NUMBER.sub("#", f"{name}: {value}")
        if name == "config_overrides":
            found |= {(family, NUMBER.sub("#", each.strip())) for each in value.split(",")}
        elif name not in ("task_name", "data_dir", "output_dir"):
            found |= {(script, text)} | ({(family, text)} if name in OF_MODELS else set())
    return found


def runs() -> list[Use]:
    """As few uses as have every trait: again and again the one with the most that no other has had."""
    left, chosen = set().union(*map(traits, USES)), []
    while left:
        chosen.append(max(USES, key=lambda use: len(traits(use) & left)))
        left -= traits(chosen[-1])
    return sorted(chosen, key=str)


def test_every_task_is_among_the_recipes_that_run():
    assert {use.content.get("task_name") for use in runs()} == {use.content.get("task_name") for use in USES}


@pytest.mark.slow
@pytest.mark.parametrize("use", runs(), ids=str)
def test_a_recipe_runs(use, tmp_path):
    model, data = write_checkpoint(tmp_path, use.recipe), write_data(tmp_path, use)
    record = run(use, **model, **data, output_dir=tmp_path / "out")
    if use.script is run_squad:
        assert 0 <= record["eval_exact_match"] <= record["eval_f1"] <= 100
        assert ("eval_best_f1" in record) == ("_v2" in use.recipe.stem)
    else:
        assert any(name.startswith("eval_") and 0 <= abs(record[name]) <= 1 for name in record)
    assert {"README.md", "config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "out").iterdir()}


def commands_of_squad_large(folder: Path) -> list[list[str]]:
    """What follows the recipe in the commands of its header, with the folder for runs/bert."""
    recipe = ROOT / "configs" / "bert" / "squad_large.yaml"
    text = recipe.read_text(encoding="utf-8").replace("\\\n#", "").replace("runs/bert", str(folder))
    commands = re.findall(r"^# +python run_squad.py (.*)", text, flags=re.MULTILINE)
    return [shlex.split(command)[1:] for command in commands]


@pytest.mark.slow
def test_squad_goes_on_with_the_model_that_triviaqa_has_trained(tmp_path):
    recipe = ROOT / "configs" / "bert" / "squad_large.yaml"
    _, _, first, second = commands_of_squad_large(tmp_path)
    files = {"triviaqa-train.json": "train.json", "squad/dev-v1.1.json": "dev.json"}
    first = [str(write_squad(tmp_path / files[word])) if word in files else word for word in first]
    model = [word for name, path in write_checkpoint(tmp_path, recipe).items() for word in (f"--{name}", str(path))]
    run_squad.main([str(recipe), *first, *model, "--max_steps", "2"])
    run_squad.main([str(recipe), *second, "--max_steps", "2", "--learning_rate", "0"])
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("triviaqa_large", "squad_triviaqa_large")]
    torch.testing.assert_close(*weights, rtol=0, atol=0)  # with the head of the first


@pytest.mark.slow
def test_the_ensemble_runs_with_the_commands_of_its_recipe(tmp_path):
    recipe = ROOT / "configs" / "bert" / "squad_large.yaml"
    seven, together, *_ = commands_of_squad_large(tmp_path)
    flags = ["--output_dir", str(tmp_path / "squad_large"), "--seeds", "2", "--max_steps", "2"]
    flags += [word for name, path in write_checkpoint(tmp_path, recipe).items() for word in (f"--{name}", str(path))]
    assert "7" in seven
    run_squad.main([str(recipe), *seven, *flags])
    scores = run_squad.main([str(recipe), *together])
    assert 0 <= scores["eval_f1"] <= 100 and (tmp_path / "squad_large_ensemble" / "metrics.json").is_file()


@pytest.mark.parametrize("path", ARCHITECTURES, ids=names(ARCHITECTURES))
def test_an_architecture_holds_only_what_its_family_has(path):
    values = json.loads(path.read_text(encoding="utf-8"))
    config = AutoConfig.for_model(values["model_type"])
    assert values.keys() <= config.to_dict().keys()
    if values["model_type"] == "bert":
        assert values["hidden_size"] == 64 * values["num_attention_heads"] == values["intermediate_size"] // 4
    if values["model_type"] == "openai-gpt":
        assert values["n_embd"] == 64 * values["n_head"]


@pytest.mark.parametrize("name", MILLIONS)
def test_the_published_sizes_have_their_number_of_parameters(name):
    values = json.loads((ROOT / "configs" / "bert" / f"{name}.json").read_text(encoding="utf-8"))
    with torch.device("meta"):
        model = AutoModelForPreTraining.from_config(AutoConfig.for_model(**values))
    assert model.num_parameters() / 1e6 == pytest.approx(MILLIONS[name], abs=0.06)
