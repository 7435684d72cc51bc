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
"""The files of a released ELMo -> an `ElmoModel`.

A release, as the `dump_weights` of https://github.com/allenai/bilm-tf writes it, is options.json and an HDF5 file of
weights, whose names are in `TABLE`. elmo_gpt_bert/convert/elmo.py reads other kinds, too, and makes a folder of them.

No class of a saved folder imports this module: a folder must load where h5py is not installed.
"""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError

from ..released import AS_IS, DENSE, Conversion, Table, as_parameters, name_all, read_json
from .configuration_elmo import ElmoConfig
from .modeling_elmo import ElmoModel


if TYPE_CHECKING:
    from .modeling_elmo_pretraining import ElmoForPreTraining


# How tensors become parameters


def torch_gates(rows: np.ndarray) -> np.ndarray:
    """The rows in torch's order of gates, forget second. TensorFlow's order is input, candidate, forget, output."""
    i, j, f, o = np.split(rows, 4)
    return np.concatenate([i, f, j, o])


def gate_bias(bias: np.ndarray) -> np.ndarray:
    """The bias in torch's order, plus 1 for the forget gate, which TensorFlow adds at each step (`forget_bias`)."""
    i, f, j, o = np.split(torch_gates(bias), 4)
    return np.concatenate([i, f + np.float32(1), j, o])


# The kernels of TensorFlow's convolutions, over images of height 1, are (1, width, in, out). The kernel of an LSTM
# multiplies [x; h]: it has the rows of the input, then as many rows of the state.
CONVOLUTION = Conversion(lambda ours: (1, *ours[::-1]), lambda kernel: kernel[0].T)
INPUT = Conversion(lambda ours: (2 * ours[1], ours[0]), lambda kernel: torch_gates(np.split(kernel, 2)[0].T))
RECURRENT = Conversion(lambda ours: (2 * ours[1], ours[0]), lambda kernel: torch_gates(np.split(kernel, 2)[1].T))
GATE_BIAS = Conversion(lambda ours: ours, gate_bias)
# Our table begins with a row of zeros, which the release lacks: that of the id 0, no character.
CHARACTERS = Conversion(lambda ours: (ours[0] - 1, ours[1]), lambda table: np.pad(table, ((1, 0), (0, 0))))

DIRECTIONS = ("forward", "backward")
SOFTMAX = (  # of both directions
    ("softmax/W", "lm_head.weight", AS_IS),
    ("softmax/b", "lm_head.bias", AS_IS),
)
LSTM = (
    ("W_0", "input.weight", INPUT),
    ("W_0", "recurrent.weight", RECURRENT),
    ("B", "input.bias", GATE_BIAS),
    ("W_P_0", "projection.weight", DENSE),
)
# The release's name, ours in ElmoModel, and how to convert. {} is the number of a convolution or a layer.
TABLE = (
    ("char_embed", "token_encoder.char_embeddings.weight", CHARACTERS),
    ("CNN/W_cnn_{}", "token_encoder.convolutions.{}.weight", CONVOLUTION),
    ("CNN/b_cnn_{}", "token_encoder.convolutions.{}.bias", AS_IS),
    ("CNN_high_{}/W_transform", "token_encoder.highways.{}.transform.weight", DENSE),
    ("CNN_high_{}/b_transform", "token_encoder.highways.{}.transform.bias", AS_IS),
    ("CNN_high_{}/W_carry", "token_encoder.highways.{}.carry.weight", DENSE),
    ("CNN_high_{}/b_carry", "token_encoder.highways.{}.carry.bias", AS_IS),
    ("CNN_proj/W_proj", "token_encoder.projection.weight", DENSE),
    ("CNN_proj/b_proj", "token_encoder.projection.bias", AS_IS),
    *(
        (f"RNN_{number}/RNN/MultiRNNCell/Cell{{}}/LSTMCell/{row[0]}", f"layers.{{}}.{direction}_lstm.{row[1]}", row[2])
        for number, direction in enumerate(DIRECTIONS)
        for row in LSTM
    ),
    *SOFTMAX,
)
# A single layer has no MultiRNNCell around it: parts of its names, and of the first of several layers.
SINGLE_LAYER = (
    ("/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/"),
    ("/rnn/lstm_cell/", "/rnn/multi_rnn_cell/cell_0/lstm_cell/"),  # in a checkpoint of the training
)

# Other tensors of a training, by the ends of their names: the step, a number for the log, and Adagrad's sum of squares
# of each variable.
UNREAD = ("global_step", "train_perplexity", "/Adagrad")

# The keys of options.json: those that say what the model is ...
LSTM_KEYS = ("dim", "projection_dim", "n_layers", "cell_clip", "proj_clip", "use_skip_connections")
CHARACTER_KEYS = ("embedding", "n_characters", "max_characters_per_token", "filters", "n_highway", "activation")
# ... and those that say how it was trained. Our configuration has some of these.
TRAINED = {
    "dropout": "hidden_dropout_prob",
    "n_tokens_vocab": "lm_vocab_size",
    "n_negative_samples_batch": "num_sampled",
}
TRAINING_KEYS = (
    *TRAINED,
    "sample_softmax",
    "bidirectional",
    "all_clip_norm_val",
    "batch_size",
    "learning_rate",
    "n_epochs",
    "n_train_tokens",
    "share_embedding_softmax",
    "unroll_steps",
)

# The model reads these sentences once, one after another, to have a state to start from. Any plain text will do, as a
# state forgets within 20 words.
WARM_UP = (
    "The train to the coast leaves at seven , and it is rarely late .",
    "She had written the letter twice before she found the courage to send it .",
    "In 1998 , the company opened its third office , this time in a town nobody had heard of .",
    '" What would you do , " he asked , " if the bridge were closed ? "',
    "Rain fell on the fields for three days , so the farmers waited .",
    "Most of the committee 's members voted for the plan ; two of them did not .",
)


def elmo_from_released(
    options: str | Path, weights: str | Path, state: Literal["zero", "warm", "carry"] = "warm"
) -> ElmoModel:
    """The biLM of a release, ready to compute vectors. It needs h5py.

    Args:
        options: the path of options.json.
        weights: the path of the HDF5 file. Other kinds need a conversion, by elmo_gpt_bert/convert/elmo.py.
        state: the state that sentences start from. "warm" is that of a model which has just read a few English
            sentences, "zero" is zeros, and "carry" is, as in the released code, the state in which the same row of the
            batch before ended.

    Raises:
        ImportError: when h5py is not installed.
        OSError: when a file is missing or damaged.
        ValueError: when a file differs from a release's, or the two do not fit together.
    """
    config = read_options(Path(options))
    config.state = state
    model = ElmoModel(config)
    fill(model, released_tensors(read_hdf5(Path(weights))), TABLE, str(weights), str(options))
    warm_up(model)
    return model.eval()


def warm_up(model: ElmoModel) -> None:
    """Stores the state in which the model has read the sentences of `WARM_UP`."""
    model.warm_up([sentence.split() for sentence in WARM_UP])


def fill(
    model: "ElmoModel | ElmoForPreTraining", tensors: dict[str, np.ndarray], table: Table, weights: str, options: str
) -> None:
    """Copies all of `tensors` into the model by means of the table. Errors name the files `weights` and `options`.

    A biLM without mixes leaves those of the model new.
    """
    prefix = f"{model.base_model_prefix}."
    parameters = {name.removeprefix(prefix): value for name, value in model.named_parameters()}
    if not any(name.startswith("scalar_mix_") for name in tensors):
        parameters = {name: value for name, value in parameters.items() if not name.startswith("mixes.")}
    remedy = "Take both from the same release, of a biLM in both directions over characters"
    values = as_parameters(tensors, parameters, table, weights, options, remedy)
    with torch.no_grad():
        for name, value in values.items():
            parameters[name].copy_(value)


# The options


def read_options(path: Path) -> ElmoConfig:
    """The configuration that options.json says."""
    options = read_json(path)
    if "char_cnn" not in options and "lstm" in options:
        raise ValueError(
            f"{path} has no char_cnn: its biLM reads whole words, but only biLMs over characters can be converted"
        )
    lstm = _section(options, "lstm", LSTM_KEYS, path)
    characters = _section(options, "char_cnn", CHARACTER_KEYS, path)
    embedding = _section(characters, "embedding", ("dim",), path)
    check_keys(options, ("lstm", "char_cnn", *TRAINING_KEYS), str(path))
    lstm, characters = {"n_layers": 1} | lstm, {"n_highway": 0, "size": embedding.get("dim")} | characters
    positive = [(lstm, ("dim", "projection_dim", "n_layers")), (characters, ("size", "max_characters_per_token"))]
    for section, name in ((section, name) for section, names in positive for name in names):
        if type(section.get(name)) is not int or section[name] <= 0:
            raise ValueError(f"{path}: {name} must be a positive integer, not {section.get(name)!r:.80}")
    if not options.get("bidirectional", True):
        raise ValueError(f"{path} says bidirectional false, but ELMo needs both directions")
    if characters.get("n_characters") not in (261, 262):  # 262 counts padding's 0, which the tables of files lack
        raise ValueError(f"{path}: n_characters must be 261 or 262, not {characters.get('n_characters')!r:.80}")
    if lstm["dim"] < lstm["projection_dim"]:
        raise ValueError(
            f"{path}: dim {lstm['dim']!r:.80} is smaller than projection_dim {lstm['projection_dim']!r:.80}"
        )
    try:
        return _config(options, lstm, characters)
    except (StrictDataclassError, ValueError) as error:
        raise ValueError(f"{path}: {textwrap.shorten(str(error), 1000, placeholder=' ...')}") from error


def _config(options: dict[str, Any], lstm: dict[str, Any], characters: dict[str, Any]) -> ElmoConfig:
    """The configuration of checked options and their sections."""
    trained = {ours: options[name] for name, ours in TRAINED.items() if name in options}
    if not options.get("sample_softmax", True):
        trained["num_sampled"] = 0
    return ElmoConfig(
        max_characters_per_token=characters["max_characters_per_token"],
        char_embedding_size=characters["size"],
        filters=characters.get("filters"),
        char_activation=characters.get("activation"),
        num_highway_layers=characters["n_highway"],
        hidden_size=2 * lstm["projection_dim"],
        cell_size=lstm["dim"],
        num_hidden_layers=lstm["n_layers"],
        use_skip_connections=lstm.get("use_skip_connections", False),
        cell_clip=lstm.get("cell_clip") or None,  # AllenNLP takes 0 as none
        # TensorFlow only clips projections: the outputs of a cell without a projection stay as they are.
        proj_clip=(lstm.get("proj_clip") or None) if lstm["projection_dim"] < lstm["dim"] else None,
        **trained,
    )


def _section(options: dict[str, Any], name: str, keys: tuple[str, ...], path: Path) -> dict[str, Any]:
    """The section of the options. Raises ValueError if it is missing or has other keys."""
    section = options.get(name)
    if not isinstance(section, dict):
        raise ValueError(f"{path} lacks the object {name}: is it the options.json of the release?")
    check_keys(section, keys, f"{path}: {name}")
    return section


def check_keys(section: dict[str, Any], keys: tuple[str, ...], where: str) -> None:
    """Raises ValueError if the section has other keys."""
    unknown = sorted(section.keys() - {*keys})
    if unknown:
        raise ValueError(f"{where} has the unknown {name_all(unknown)}; remove it if it does not change the model")


# The weights


def released_tensors(tensors: dict[str, np.ndarray], characters: str = "char_embed") -> dict[str, np.ndarray]:
    """The biLM's tensors by the names of a biLM with several layers, with the 261 rows of the table `characters`."""
    released = {}
    for name, value in tensors.items():
        if name.endswith(UNREAD):
            continue
        for single, first in SINGLE_LAYER:
            name = name.replace(single, first)
        released[name] = value
    table = released.get(characters)
    # Of 262 rows, one is too many. If the training took n_characters from the options for prediction, the last row is
    # never used. If prediction wrote the table, a row of zeros precedes the others.
    if table is not None and table.ndim == 2 and len(table) == 262:
        released[characters] = table[:-1] if table[0].any() else table[1:]
    return released


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """Every data set of the file by its name. The values have no checksums, but a file that is cut short is an error.

    Raises ValueError if values are in another file, or if the file is too small for the values that it claims to hold.
    """
    try:
        import h5py
    except ImportError as error:
        raise ImportError(f"reading {path} needs h5py ({error}): pip install h5py") from error
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    items, links, tensors = {}, {}, {}
    try:
        with h5py.File(path, "r") as file:
            file.visititems(items.__setitem__)
            file.visititems_links(links.__setitem__)
            items = {name: item for name, item in items.items() if isinstance(item, h5py.Dataset)}
            outside = [name for name, link in links.items() if isinstance(link, h5py.ExternalLink)]
            outside += [name for name, item in items.items() if item.external or item.is_virtual]
            problem = _problem(items, outside, path.stat().st_size)
            if not problem:
                tensors = {name: item[()] for name, item in items.items()}
    except (OSError, KeyError, RuntimeError, ValueError) as error:  # what a damaged file raises
        raise OSError(
            f"{path} is not an HDF5 file, or is damaged ({' '.join(str(error).split())}): download it again"
        ) from error
    if problem:
        raise ValueError(f"{path}: {problem}")
    return tensors


def _problem(items: dict[str, Any], outside: list[str], size: int) -> str | None:
    """Why a file of `size` bytes with the data sets `items` must not be read, or None. `outside` names the items whose
    values are in other files.
    """
    if outside:
        return f"the values of {name_all(outside[:1])} are in another file: copy them into this one"
    for name, item in items.items():
        if item.shape is None or item.dtype.kind not in "biuf":
            return f"{name_all([name])} must hold numbers, not {item.dtype}"
    claimed = sum(item.nbytes for item in items.values())
    if claimed > size:
        return (
            f"its data sets claim to have {claimed:,} bytes, but the file has {size:,}: download it again or, if it "
            "is compressed, unpack it with h5repack -f NONE"
        )
    return None
