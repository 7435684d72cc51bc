"""`import modeling` offers every class and registers every model, and imports a model when it is first used."""

import ast
import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable

import pytest
import transformers
from transformers import PreTrainedModel

import modeling
from tests.conftest import ROOT


EACH_MODEL = pytest.mark.parametrize(
    ("config", "auto", "reference"),
    [
        (config, auto, reference)
        for config, auto_map, _ in modeling.MODELS
        for auto, reference in auto_map.items()
        if auto.startswith("AutoModel")
    ],
)
# Each program has a process of its own, forked from one that has imported what all of them import first.
PROGRAMS = """
import json, os, sys
import torch, transformers
for name, program in json.load(sys.stdin).items():
    child = os.fork()
    if child == 0:
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT), 1)
        exec(program)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""
STEPS = """
import json, sys
import modeling

at_first = [*sys.modules]

def models():
    return [name for name in sys.modules if name.startswith("modeling.") and ".modeling_" in name]

imported = [*models(), *({"transformers.modeling_utils", "transformers.pipelines"} & set(sys.modules))]
modeling.ElmoConfig, modeling.ZooGPTTokenizer, dir(modeling)
configured = models()
from modeling import ZooBertModel
of_bert = models()
from transformers import AutoModelForCausalLM
gpt = AutoModelForCausalLM.from_config(modeling.ZooGPTConfig(n_layer=1, n_embd=4, n_head=1, vocab_size=5))
after_gpt = models()
modeling.register()
from transformers import BertForMaskedLM, OpenAIGPTLMHeadModel
print(json.dumps([at_first, imported, configured, of_bert, type(gpt).__name__, after_gpt]))
"""


# Whose import takes from half a second to several, so that --help, and a mistake in the flags, would wait for them.
SLOW = {"datasets", "evaluate", "gensim", "matplotlib", "pandas", "pyarrow", "scipy", "sklearn", "torch._dynamo"}
SLOW |= {"torch.distributed.tensor", "transformers.modeling_utils", "transformers.trainer"}
HELP = """
import contextlib, importlib, io, json, sys
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
    importlib.import_module("SCRIPT").main(["--help"])
print(json.dumps([shown.getvalue(), *sys.modules]))
"""
NEEDED = {
    "run_glue": set(),
    "run_pretraining": {"pyarrow"},  # which reads parquet
    "run_swag": {"datasets", "pandas", "pyarrow"},
}


@pytest.fixture(scope="module")
def printed(tmp_path_factory) -> dict[str, list]:
    """What each program prints in a fresh process: one line of JSON."""
    folder = tmp_path_factory.mktemp("printed")
    programs = {"steps": STEPS} | {script: HELP.replace("SCRIPT", script) for script in NEEDED}
    sent = json.dumps({str(folder / name): program for name, program in programs.items()})
    command = [sys.executable, "-c", PROGRAMS]
    done = subprocess.run(command, cwd=ROOT, input=sent, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return {name: json.loads((folder / name).read_text(encoding="utf-8")) for name in programs}


@pytest.fixture
def steps(printed) -> list:
    """What a fresh process has imported after each of its steps, in which it prints not a word."""
    return printed["steps"]


@pytest.mark.slow
def test_a_model_is_imported_when_it_is_first_used(steps):
    _, imported, configured, of_bert, gpt, after_gpt = steps
    assert imported == configured == []
    bert = {"modeling.bert.modeling_bert", "modeling.shared.modeling_packing", "modeling.shared.modeling_heads"}
    assert bert <= set(of_bert) and not any(name.startswith(("modeling.gpt", "modeling.elmo")) for name in of_bert)
    assert gpt == "ZooGPTLMHeadModel"
    assert not any(name.startswith(("modeling.elmo", "modeling.feature_tagger")) for name in after_gpt)


@EACH_MODEL
def test_each_auto_class_finds_the_zoos_model_of_a_zoo_configuration(config, auto, reference):
    module, name = reference.split(".")
    models = getattr(transformers, auto)._model_mapping
    assert config in models
    model = models[config]
    assert model is models.get(config, None) is dict(models._extra_content)[config] is getattr(modeling, name)
    assert issubclass(model, PreTrainedModel) and model.config_class is config
    assert model.__module__ == f"{config.__module__.rpartition('.')[0]}.{module}"
    assert model in models._extra_content.values()  # where pipelines look


def copied(auto: type) -> object:
    return pickle.loads(pickle.dumps(auto._model_mapping))


@pytest.mark.parametrize("copy", [lambda auto: auto._model_mapping, copied], ids=["the registry", "its pickle"])
def test_what_a_user_registers_instead_is_found_instead(copy: Callable, monkeypatch):
    auto = transformers.AutoModelForMaskedLM
    assert copy(auto)[modeling.ZooBertConfig] is modeling.ZooBertForMaskedLM
    monkeypatch.setitem(auto._model_mapping._extra_content, modeling.ZooBertConfig, modeling.ZooBertForMaskedLM)
    auto.register(modeling.ZooBertConfig, OtherBert, exist_ok=True)
    assert copy(auto)[modeling.ZooBertConfig] is OtherBert


class OtherBert(modeling.ZooBertForMaskedLM):
    """What a user derives from a class of the zoo."""


def test_every_name_is_offered_to_programs_people_and_type_checkers():
    names = {}
    exec("from modeling import *", names)
    assert set(modeling.__all__) == names.keys() - {"__builtins__"} <= set(dir(modeling))
    assert modeling.MODULES.keys() <= names.keys()
    tree = ast.parse((ROOT / "modeling" / "__init__.py").read_text())
    imports, lookup = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {alias.name: f"modeling.{node.module}" for node in imports.body for alias in node.names}
    assert ast.unparse(imports.test) == "TYPE_CHECKING" and shown == modeling.MODULES
    # Type checkers accept any name of a module whose `__getattr__` they see.
    assert ast.unparse(lookup.test) == "not TYPE_CHECKING" and lookup.body[0].name == "__getattr__"


def test_a_class_is_the_same_object_each_time_and_survives_pickling():
    assert modeling.ElmoModel is modeling.ElmoModel is pickle.loads(pickle.dumps(modeling.ElmoModel))


def test_a_reload_keeps_the_classes_and_where_they_are_registered():
    """As `%autoreload 2` of IPython reloads a package whose file has changed."""
    classes = {name: getattr(modeling, name) for name in modeling.__all__ if name not in ("register", "unregister")}
    importlib.reload(modeling)
    assert {name: getattr(modeling, name) for name in classes} == classes
    for config, auto_map, _ in modeling.MODELS:
        for auto, reference in auto_map.items():
            if auto.startswith("AutoModel"):
                assert getattr(transformers, auto)._model_mapping[config] is classes[reference.split(".")[1]]


def test_a_name_that_the_zoo_does_not_have_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'modeling' has no attribute 'ElmoForEverything'"):
        modeling.ElmoForEverything  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'ElmoForEverything'"):
        from modeling import ElmoForEverything  # noqa: F401


@pytest.mark.slow
@pytest.mark.parametrize("script", NEEDED)
def test_a_script_shows_its_help_without_the_imports_of_a_run(script, printed):
    shown, *imported = printed[script]
    assert "--learning_rate" in shown and SLOW & set(imported) == NEEDED[script]


@pytest.mark.slow
def test_the_zoo_is_imported_without_what_its_models_need(steps):
    at_first, *_ = steps
    assert SLOW & set(at_first) == set()
