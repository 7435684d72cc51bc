"""A folder with an ELMo -> the files of a release, which AllenNLP, bilm-tf and `modeling.convert_elmo` read.

    pip install -e ".[convert]"
    python -m modeling.export_elmo --model_name_or_path runs/elmo --output ../released

The output has options.json and weights.hdf5; for `ElmoForPreTraining` also the softmax, softmax.hdf5, and its words,
vocab.txt. Of a task network, only the biLM is exported.

A release has neither mixes nor the stored state from which sentences start. Its biases of the forget gate are without
the 1 that the released code adds. `modeling.convert_elmo` adds it, and so reads the numbers of our model to the last
bit, except biases of the forget gate that are below 1/2 in absolute value: they are rounded to multiples of 2^-24.
"""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedModel
from transformers.hf_argparser import HfArg

from elmo_gpt_bert.training.errors import InputError, PackageError, as_user_errors

from .conversion import command_line, new_folder, write_folder
from .conversion_elmo import (
    AS_IS,
    CHARACTERS,
    CONVOLUTION,
    DENSE,
    GATE_BIAS,
    INPUT,
    RECURRENT,
    released_names,
)
from .convert_elmo import SOFTMAX, TABLE, TRAINED
from .elmo.configuration_elmo import ElmoConfig
from .elmo.modeling_elmo import ElmoModel
from .elmo.modeling_elmo_pretraining import ElmoForPreTraining
from .elmo.tokenization_elmo import ElmoTokenizer
from .elmo.tokenization_elmo_spelling import ByteSpelling


def tensorflow_gates(rows: np.ndarray) -> np.ndarray:
    """The rows in TensorFlow's order of gates: input, candidate, forget, output. Ours has forget second."""
    i, f, j, o = np.split(rows, 4)
    return np.concatenate([i, j, f, o])


def released_bias(bias: np.ndarray) -> np.ndarray:
    """The bias without the 1 of the forget gate."""
    i, j, f, o = np.split(tensorflow_gates(bias), 4)
    return np.concatenate([i, j, f - np.float32(1), o])


# The inverse of each conversion: a parameter -> the released tensor, or its rows for one of two parameters.
INVERSES = {
    AS_IS: lambda parameter: parameter,
    DENSE: lambda weight: weight.T,
    CONVOLUTION: lambda weight: weight.T[None],
    INPUT: lambda weight: tensorflow_gates(weight).T,
    RECURRENT: lambda weight: tensorflow_gates(weight).T,
    GATE_BIAS: released_bias,
    CHARACTERS: lambda table: table[1:],
}


def export(model_name_or_path: str, output: str) -> None:
    """Writes the folder `output`, which must be new or empty.

    Raises:
        ImportError: when h5py is not installed.
        OSError: when a file is missing or damaged, or `output` holds something.
        ValueError: when the folder holds no ELMo, or one that the options of a release cannot describe.
    """
    new_folder(output)
    with as_user_errors(f"{model_name_or_path}: "):
        config = ElmoConfig.from_pretrained(model_name_or_path)
    if config.lexicon_size or config.vocab_size != len(ByteSpelling.names):
        raise InputError(
            f"{model_name_or_path} reads the characters of a language, by {config.vocab_size} ids, but a release has "
            "bytes: such a model cannot be exported"
        )
    with as_user_errors(f"{model_name_or_path}: "):
        has_softmax = config.architectures == ["ElmoForPreTraining"]
        model_class = ElmoForPreTraining if has_softmax else ElmoModel
        model, loading = model_class.from_pretrained(model_name_or_path, output_loading_info=True)
        tokenizer = ElmoTokenizer.from_pretrained(model_name_or_path)
    if loading["missing_keys"]:
        raise InputError(f"{model_name_or_path} holds no ELMo: it lacks {min(loading['missing_keys'])}")
    if has_softmax and (tokenizer.targets is None or len(tokenizer.targets) != config.lm_vocab_size):
        count = 0 if tokenizer.targets is None else len(tokenizer.targets)
        raise InputError(
            f"{model_name_or_path} has a softmax over {config.lm_vocab_size:,} words, but a vocab.txt of {count:,}: "
            "copy vocab.txt from where the model was trained"
        )
    options, tensors = released_options(config, has_softmax), released_tensors(model)
    softmax = {name: tensors.pop(name) for name, _, _ in SOFTMAX if name in tensors}

    def write(folder: Path) -> None:
        (folder / "options.json").write_text(json.dumps(options, indent=1) + "\n", encoding="utf-8")
        write_hdf5(folder / "weights.hdf5", tensors)
        if has_softmax:
            write_hdf5(folder / "softmax.hdf5", softmax)
            (folder / "vocab.txt").write_bytes("".join(f"{word}\n" for word in tokenizer.targets).encode())

    write_folder(output, write)
    words = f", a softmax over {config.lm_vocab_size:,} words" if has_softmax else ""
    print(f"{output}: {len(tensors)} tensors{words}")


def released_options(config: ElmoConfig, has_softmax: bool) -> dict[str, Any]:
    """The contents of options.json."""
    if config.cell_size == config.projection_size and config.proj_clip is not None:
        raise InputError(
            f"proj_clip={config.proj_clip} clips states that are not projected, which a release cannot tell: with "
            f"cell_size={config.cell_size}, half of hidden_size, only proj_clip=None can be exported"
        )
    options = {
        "bidirectional": True,
        "char_cnn": {
            "activation": config.char_activation,
            "embedding": {"dim": config.char_embedding_size},
            "filters": [list(pair) for pair in config.filters],
            "max_characters_per_token": config.max_characters_per_token,
            "n_characters": config.vocab_size,
            "n_highway": config.num_highway_layers,
        },
        "dropout": config.hidden_dropout_prob,
        "lstm": {
            "cell_clip": config.cell_clip,
            "dim": config.cell_size,
            "n_layers": config.num_hidden_layers,
            "proj_clip": config.proj_clip,
            "projection_dim": config.projection_size,
            "use_skip_connections": config.use_skip_connections,
        },
    }
    if has_softmax:
        options |= {name: getattr(config, ours) for name, ours in TRAINED.items()}
        options["sample_softmax"] = config.num_sampled > 0
    return options


def released_tensors(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """The weights of the biLM, and of its softmax, under the names and in the shapes of a release."""
    prefix = f"{model.base_model_prefix}."
    parameters = {name.removeprefix(prefix): value for name, value in model.named_parameters() if "mixes." not in name}
    rows = released_names(TABLE, parameters)
    if rows.keys() != parameters.keys():
        raise ValueError(f"the table lacks {', '.join(sorted(parameters.keys() - rows.keys()))}")
    parts = defaultdict(list)  # the kernel of an LSTM has the rows of two parameters, in the order of the table
    for name, (original, conversion) in rows.items():
        parts[original].append(INVERSES[conversion](parameters[name].detach().float().numpy()))
    return {original: np.concatenate(arrays) for original, arrays in parts.items()}


def write_hdf5(path: Path, tensors: dict[str, np.ndarray]) -> None:
    try:
        import h5py
    except ImportError as error:
        raise PackageError(f"writing {path.name} needs h5py ({error}): pip install h5py") from error
    with h5py.File(path, "w") as file:
        for name, tensor in tensors.items():
            file[name] = tensor


@dataclass(frozen=True)
class ExportArguments:
    """The arguments of the command, those of `export`."""

    model_name_or_path: str = HfArg(help="the folder of an ELMo, or its name on the Hub")
    output: str = HfArg(help="the folder to write; must be new or empty")


def main(argv: list[str] | None = None) -> None:
    """Calls `export` with the arguments in `argv`, by default those of the command line."""
    command_line(export, ExportArguments, argv)


if __name__ == "__main__":
    main()
