"""`import modeling` offers every class and registers every model; --help of a script waits for none of them."""

import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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


def test_every_name_is_offered():
    names = {}
    exec("from modeling import *", names)
    assert set(modeling.__all__) == names.keys() - {"__builtins__"}
    public = {name: value for name, value in vars(modeling).items() if isinstance(value, type) and name[0] != "_"}
    classes = {name for name, value in public.items() if value.__module__.startswith("modeling.")}
    assert classes <= set(modeling.__all__)


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


# Whose import takes from half a second to several, so that --help, and a mistake in the flags, would wait for them.
SLOW = {"datasets", "evaluate", "gensim", "matplotlib", "pandas", "pyarrow", "scipy", "sklearn", "torch._dynamo"}
SLOW |= {"torch.distributed.tensor", "transformers.modeling_utils", "transformers.trainer"}
# All in one process, which costs seconds to start: each needs what the script before it does, and more.
HELP = """
import contextlib, importlib, io, json, os, sys
for script in sys.argv[2:]:
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as shown:
        importlib.import_module(script).main(["--help"])
    with open(os.path.join(sys.argv[1], script), "w") as file:
        json.dump([shown.getvalue(), *sys.modules], file)
"""
NEEDED = {
    "run_glue": set(),
    "run_pretraining": {"pyarrow"},  # which reads parquet
    "run_swag": {"datasets", "pandas", "pyarrow"},
}


@pytest.fixture(scope="module")
def helped(tmp_path_factory) -> Path:
    """The folder with a JSON file for each script: the text of its --help, and the modules that it has imported."""
    folder = tmp_path_factory.mktemp("helped")
    command = [sys.executable, "-c", HELP, folder, *NEEDED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")  # importing says nothing
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("script", NEEDED)
def test_a_script_shows_its_help_without_the_imports_of_a_run(script, helped):
    shown, *imported = json.loads((helped / script).read_text(encoding="utf-8"))
    assert "--learning_rate" in shown and SLOW & {*imported} == NEEDED[script]
