# Copyright 2026 the authors of this model zoo.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Lets transformers load the zoo's models from a saved folder where this package is not installed.

The folder gets a copy of the model's code, and transformers' tables get the names of the model's classes.
"""

import ast
import functools
from collections.abc import Iterable
from pathlib import Path

from transformers.configuration_utils import PreTrainedConfig
from transformers.models.auto import modeling_auto


# What `from_pretrained` sets in a configuration and `to_dict` leaves out.
UNSAVED = {"_attn_implementation_internal", "_experts_implementation_internal", "distributed_config"}


def copy_code(module: str, auto_map: dict[str, str], folder: str | Path, others: Iterable[str] = ()) -> dict[str, str]:
    """Copies the code of a family into `folder`, and returns the entries of `auto_map` whose files are there.

    `auto_map` and `others` name classes as "modeling_x.XModel", whose files are in the folder of `module`, the
    configuration's `__file__`. These files are copied, and every file that they import. A folder on the Hub is flat,
    so an import from another folder becomes one from a sibling. Code of a saved folder is copied unchanged.

    In a process that runs on the code of a saved folder, only the files of the classes that it loaded are available.
    """
    source, folder = Path(module).parent, Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = [source / f"{reference.split('.')[0]}.py" for reference in (*auto_map.values(), *others)]
    if source.resolve() != folder.resolve():
        for name, text in flatten([path for path in files if path.is_file()]).items():
            (folder / name).write_bytes(text.encode("utf-8"))
    return {
        auto: name for auto, name in auto_map.items() if (folder / name.split(".")[0]).with_suffix(".py").is_file()
    }


def flatten(paths: list[Path]) -> dict[str, str]:
    """The texts, by file name, of the files and of all files that they import from this package, for a flat folder.

    All relative imports become imports from siblings.

    Raises:
        ValueError: if two of the files have the same name, or if an import does not name a file.
    """
    places, texts, waiting = {}, {}, list(paths)
    while waiting:
        path = waiting.pop()
        if places.setdefault(path.name, path) != path:
            raise ValueError(f"{path} and {places[path.name]} cannot both be in a saved folder: rename one of them.")
        if path.name in texts:
            continue
        text = path.read_bytes().decode("utf-8")
        lines = text.split("\n")
        for node in _relative_imports(text):
            module = path.parents[node.level - 1].joinpath(*(node.module or "").split(".")).with_suffix(".py")
            line, start = lines[node.lineno - 1], node.col_offset
            if not module.is_file():
                raise ValueError(f"{path}: {line.strip()!r} must name a file, as in `from .modeling_x import XModel`.")
            lines[node.lineno - 1] = f"{line[:start]}from .{module.stem}{line[line.index(' import', start) :]}"
            waiting.append(module)
        texts[path.name] = "\n".join(lines)
    return texts


@functools.cache  # every checkpoint of a run saves the same code
def _relative_imports(text: str) -> list[ast.ImportFrom]:
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.level]


class SavedWithCode:
    """Base of all configurations and models, whose code their configuration saves."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str | type | None = None) -> None:
        """As in transformers, for classes outside this package; for those in it, does nothing.

        transformers would copy the code of a registered class, but supports imports from siblings only. Here,
        `copy_code` saves the code of all classes, whether registered or not.
        """
        if cls.__module__.split(".")[:-2] != __package__.split("."):  # a class of a saved folder, or a user's subclass
            super().register_for_auto_class(*([] if auto_class is None else [auto_class]))


class TakesStockConfig:
    """Base of models whose type transformers has, too: of its configuration, they keep a copy as the zoo's.

    The copy is what the zoo's class loads from a folder where the configuration is saved. transformers' own
    configurations lack some of the zoo's fields, and models that have one would be saved without the code.
    """

    def __init__(self, config: PreTrainedConfig, *inputs, **kwargs) -> None:
        stock = config
        if not isinstance(stock, self.config_class) and stock.model_type == self.config_class.model_type:
            config = self.config_class.from_dict(stock.to_dict())
            for name in UNSAVED & vars(stock).keys():
                setattr(config, name, getattr(stock, name))
        super().__init__(config, *inputs, **kwargs)


def announce_names(auto_map: dict[str, str]) -> None:
    """Adds the class names of `auto_map` to the tables of names in which transformers looks up a model's class.

    By these names, Trainer decides whether to shift labels when it smooths them, pipelines warn of classes that are
    missing, and transformers' server sorts models. Auto classes look up model types in the same tables. A key here is
    a reference such as "modeling_gpt.ZooGPTLMHeadModel", which is not a model type, so Auto classes are not affected.
    """
    for auto, reference in auto_map.items():
        if auto.startswith("AutoModel"):
            names = getattr(modeling_auto, auto)._model_mapping._model_mapping  # MODEL_FOR_..._MAPPING_NAMES
            names[reference] = reference.split(".")[1]
