"""The code that a saved folder carries: found by following imports, flat, and enough where this package is not."""

import ast
from pathlib import Path

import pytest
import torch
import transformers

import modeling
from modeling.hub_code import copy_code
from tests.conftest import ROOT
from tests.support.strangers import code_followed, code_in, load_and_save_again


SIZES = {
    "bert": {
        "vocab_size": 11,
        "hidden_size": 12,
        "num_hidden_layers": 4,
        "num_attention_heads": 3,
        "intermediate_size": 17,
        "max_position_embeddings": 19,
        "initializer_range": 0.5,
    },
    "gpt": {"vocab_size": 11, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 19, "initializer_range": 0.5},
}
CONFIGS = {
    "bert": lambda: modeling.ZooBertConfig(**SIZES["bert"]),
    "gpt": lambda: modeling.ZooGPTConfig(**SIZES["gpt"]),
    "elmo": lambda: modeling.ElmoConfig(),
    "feature_tagger": lambda: modeling.FeatureTaggerConfig(encoder={"model_type": "bert", **SIZES["bert"]}),
}
STOCK = {
    "bert": lambda **changes: transformers.BertConfig(**SIZES["bert"], **changes),
    "gpt": lambda **changes: transformers.OpenAIGPTConfig(**SIZES["gpt"], **changes),
}
EACH_FAMILY = pytest.mark.parametrize("family", CONFIGS)


@pytest.mark.slow
def test_every_head_loads_and_is_saved_again_where_this_package_is_not_installed(tmp_path):
    """ELMo's, which have inputs and a tokenizer of their own, are in test_elmo_ecosystem.py."""
    cases = {}
    for family in ("bert", "gpt", "feature_tagger"):
        config = CONFIGS[family]()
        config.save_pretrained(tmp_path / family)
        heads = [auto for auto in config.auto_map if auto.startswith("AutoModel")]
        for auto in heads:
            config = CONFIGS[family]()
            config.is_decoder = auto == "AutoModelForCausalLM"
            model = getattr(transformers, auto).from_config(config).eval()
            shape = (2, 3, 7) if auto == "AutoModelForMultipleChoice" else (2, 7)
            cases[f"{family} {auto}"] = (model, {"input_ids": torch.randint(1, 11, shape)})
    assert len(cases) == 10 + 7 + 1
    load_and_save_again(tmp_path, cases)


def test_a_class_that_is_registered_for_an_auto_class_is_saved_as_it_is_without(tmp_path):
    plain = modeling.ZooBertModel(CONFIGS["bert"]())
    plain.save_pretrained(tmp_path / "plain")
    modeling.ZooBertConfig.register_for_auto_class()
    modeling.ZooBertModel.register_for_auto_class("AutoModel")
    plain.save_pretrained(tmp_path / "registered")
    plain, registered = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("plain", "registered")
    )
    assert plain == registered


def test_a_subclass_that_is_registered_for_an_auto_class_is_saved_with_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(OtherBert, "_auto_class", None)
    OtherBert.register_for_auto_class(transformers.AutoModel)
    OtherBert(CONFIGS["bert"]()).save_pretrained(tmp_path)
    assert code_in(tmp_path) == code_followed(tmp_path) | {Path(__file__).name}


class OtherBert(modeling.ZooBertModel):
    """What a user derives from a class of the zoo."""


def heads_of(family: str) -> list[type]:
    prefix = {"bert": "ZooBert", "gpt": "ZooGPT"}[family]
    others = ("Config", "Tokenizer", "PreTrainedModel")
    names = [name for name in modeling.__all__ if name.startswith(prefix) and not name.endswith(others)]
    return [getattr(modeling, name) for name in names]


@pytest.mark.parametrize("head", heads_of("bert") + heads_of("gpt"))
def test_a_model_of_a_stock_configuration_is_the_one_that_its_saved_configuration_gives(head, tmp_path):
    family = "bert" if head.__name__.startswith("ZooBert") else "gpt"
    stock = STOCK[family](
        num_labels=5, is_decoder=head is modeling.ZooBertLMHeadModel, attn_implementation="eager", name_or_path="a/b"
    )
    before = stock.to_dict()
    stock.save_pretrained(tmp_path / "stock")
    loaded = head(head.config_class.from_pretrained(tmp_path / "stock")).eval()
    model = head(stock).eval()
    assert type(model.config) is head.config_class and model.config is model.base_model.config
    assert all(getattr(module, "config", model.config) is model.config for module in model.modules())
    assert model.config._attn_implementation == "eager" and model.config.name_or_path == "a/b"
    assert model.config.to_dict() == loaded.config.to_dict() | {"_name_or_path": "a/b"}
    assert type(stock) is not head.config_class and stock.to_dict() == before
    loaded.load_state_dict(model.state_dict())
    ids = torch.randint(1, 11, (2, 3, 7) if head.__name__.endswith("Choice") else (2, 7))
    for one, other in zip(model(ids).to_tuple(), loaded(ids).to_tuple(), strict=True):
        assert not torch.is_tensor(one) or torch.allclose(one, other, atol=1e-5)
    model.save_pretrained(tmp_path / "ours")
    assert code_in(tmp_path / "ours") == code_followed(tmp_path / "ours") != set()
    again = head.from_pretrained(tmp_path / "ours", config=stock)
    assert type(again.config) is head.config_class and again.config.num_labels == 5


@pytest.mark.parametrize(
    ("family", "changes"), [("bert", {"add_cross_attention": True}), ("gpt", {"summary_type": "mean"})]
)
def test_a_stock_configuration_that_the_zoo_cannot_compute_is_refused(family, changes):
    with pytest.raises(Exception, match=f"{next(iter(changes))}="):
        heads_of(family)[0](STOCK[family](**changes))


def test_a_users_own_configuration_stays_what_it_is():
    class OwnConfig(transformers.BertConfig):
        model_type = "own"

    config = OwnConfig(**SIZES["bert"])
    assert modeling.ZooBertModel(config).config is config


@EACH_FAMILY
def test_a_folder_carries_what_its_classes_import_and_nothing_else(family, tmp_path):
    CONFIGS[family]().save_pretrained(tmp_path)
    pipelines = {"pipeline_elmo.py"} if family == "elmo" else set()
    assert code_in(tmp_path) == code_followed(tmp_path) | pipelines
    shared = code_in(ROOT / "modeling" / "shared") | {"hub_code.py"}
    by_itself = {"__init__.py", "tokenization_gpt.py"}  # GPT's tokenizer brings its code when it is saved
    by_itself.add("released_elmo.py")  # it imports h5py, without which a folder must load
    assert code_in(tmp_path) - shared == code_in(ROOT / "modeling" / family) - by_itself


@EACH_FAMILY
def test_copies_differ_from_the_package_in_where_they_import_from_only(family, tmp_path):
    CONFIGS[family]().save_pretrained(tmp_path)
    for path in tmp_path.glob("*.py"):
        (source,) = (ROOT / "modeling").rglob(path.name)
        lines = zip(source.read_text().splitlines(), path.read_text().splitlines(), strict=True)
        assert all(copy == line or (line.startswith("from ..") and copy.startswith("from .")) for line, copy in lines)
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        assert {node.level for node in imports} <= {0, 1}


def package(folder: Path, **files: str) -> Path:
    """A package whose files, a__b for a/b.py, have these texts."""
    for name, text in files.items():
        path = folder.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder


def test_imports_are_followed_wherever_they_stand_and_copying_the_copy_changes_nothing(tmp_path):
    inner = "def f():\n    from ..shared.b import (\n        B,\n        C,\n    )\n    return B\n"
    zoo = package(
        tmp_path / "zoo",
        x__configuration_x='"""from ..shared.no import thing"""\nfrom ..code import D\n',
        x__modeling_x=f"from typing import Any\r\nfrom .a import A as B\r\n{inner}",
        x__a="A = 'å'\n",
        x__unused="",
        shared__b="from .c import B, C\n",
        shared__c="B = C = 1\n",
        code="D = 1\n",
    )
    auto_map = {"AutoConfig": "configuration_x.X", "AutoModel": "modeling_x.X", "AutoModelForMaskedLM": "modeling_y.Y"}
    flat = tmp_path / "flat"
    announced = {"AutoConfig": "configuration_x.X", "AutoModel": "modeling_x.X"}
    assert copy_code(str(zoo / "x" / "configuration_x.py"), auto_map, flat) == announced
    texts = {path.name: path.read_bytes().decode() for path in flat.iterdir()}
    assert texts == {
        "configuration_x.py": '"""from ..shared.no import thing"""\nfrom .code import D\n',
        "modeling_x.py": f"from typing import Any\r\nfrom .a import A as B\r\n{inner.replace('..shared.b', '.b')}",
        "a.py": "A = 'å'\n",
        "b.py": "from .c import B, C\n",
        "c.py": "B = C = 1\n",
        "code.py": "D = 1\n",
    }
    for folder in (tmp_path / "again", flat):
        assert copy_code(str(flat / "configuration_x.py"), auto_map, folder) == announced
        assert {path.name: path.read_bytes().decode() for path in folder.iterdir()} == texts


def test_a_process_that_has_some_of_a_folder_s_code_copies_that(tmp_path):
    zoo = package(tmp_path / "zoo", configuration_x="", modeling_x="")
    auto_map = {"AutoConfig": "configuration_x.X", "AutoModel": "modeling_x.X", "AutoModelForMaskedLM": "modeling_y.Y"}
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "modeling_y.py").touch()  # brought by the model itself
    assert copy_code(str(zoo / "configuration_x.py"), auto_map, tmp_path / "folder") == auto_map
    assert code_in(tmp_path / "folder") == {"configuration_x.py", "modeling_x.py", "modeling_y.py"}


def test_two_files_of_one_name_are_refused(tmp_path):
    zoo = package(tmp_path, x__modeling_x="from .losses import A\nfrom ..shared.losses import B", x__losses="")
    package(zoo, shared__losses="")
    with pytest.raises(ValueError, match=r"losses\.py and .*losses\.py cannot both be in a saved folder: rename one"):
        copy_code(str(zoo / "x" / "configuration_x.py"), {"AutoModel": "modeling_x.X"}, tmp_path / "folder")
    assert code_in(tmp_path / "folder") == set()


@pytest.mark.parametrize("line", ["from . import losses", "from ..shared import losses", "from .absent import A"])
def test_an_import_that_names_no_file_is_refused(line, tmp_path):
    zoo = package(tmp_path, x__modeling_x=f"import os\n{line}\n", x__losses="", shared__losses="")
    with pytest.raises(ValueError, match=rf"modeling_x\.py: '{line}' must name a file"):
        copy_code(str(zoo / "x" / "configuration_x.py"), {"AutoModel": "modeling_x.X"}, tmp_path / "folder")


def test_no_family_imports_another():
    families = {path.parent.name for path in (ROOT / "modeling").glob("*/configuration_*.py")}
    assert families == CONFIGS.keys()
    for path in (ROOT / "modeling").glob("*/*.py"):
        relative = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        above = {node.module.split(".")[0] for node in relative if node.level == 2}
        assert above <= {"shared", "hub_code", "released"} and not any(node.level > 2 for node in relative), path
        assert path.parent.name != "shared" or not above, path
