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
"""What the zoo's classes need to be at home in transformers from a saved folder as well, where this package is not
installed: the code of the model in the folder, and the names of its classes where transformers looks them up.
"""

import re
from pathlib import Path

from transformers.models.auto import modeling_auto


def copy_code(names: tuple[str, ...], auto_map: dict[str, str], folder: str | Path) -> dict[str, str]:
    """Copies the files `names` from beside this one into `folder`, and returns what of `auto_map` is then in there.

    A process that itself runs on a folder's code has only the files of the classes that it loaded.
    """
    here, folder = Path(__file__).parent, Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    code = [path for path in here.rglob("*.py") if path.name in names]
    if here.resolve() != folder.resolve():
        for path in code:
            flat = re.sub(r"^from \.\.(shared\.)?", "from .", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            (folder / path.name).write_text(flat, encoding="utf-8")
    return {
        auto: name for auto, name in auto_map.items() if (folder / name.split(".")[0]).with_suffix(".py").is_file()
    }


def announce_names(auto_map: dict[str, str]) -> None:
    """Adds the class names of `auto_map` to the tables in which transformers looks a model's class up by its name.

    Trainer shifts the labels of the language models that are named there when it smooths them, pipelines warn of
    classes that are not, and transformers' server sorts models by them. Auto classes look their tables up by model
    types, and a reference such as "modeling_gpt.ZooGPTLMHeadModel" is none: what they resolve stays as it is.
    """
    for auto, reference in auto_map.items():
        if auto.startswith("AutoModel"):
            names = getattr(modeling_auto, auto)._model_mapping._model_mapping  # MODEL_FOR_..._MAPPING_NAMES
            names[reference] = reference.split(".")[1]
