"""The releases of ELMo -> a folder that `from_pretrained` reads.

    pip install -e ".[convert]"
    python -m elmo_gpt_bert.convert.elmo --options elmo_options.json --weights elmo_weights.hdf5 --output elmo-original

`--weights` is one of

- the HDF5 file of a release, or of the `dump_weights` of https://github.com/allenai/bilm-tf;
- a TensorFlow checkpoint of its training, by the path its files share, e.g. .../model.ckpt-935588;
- the folder of a release of ELMoForManyLangs, as it was unzipped: see manylangs.py beside this file. `--options` is
  then only needed if the file of sizes is not in the folder and the sizes are not the published ones;
- a state dict that AllenNLP saved (.th): that of its biLM, of its `Elmo` with its mixes, or of a whole model with an
  ELMo in it, of which only the ELMo is converted. The file does not say whether AllenNLP normalised the layers before
  mixing them. If it did, write "mix_layer_norm": true into config.json. The means are then those of the words, as in
  the released code. AllenNLP's means include <S> and </S>, so its mixes differ a little.

The softmax of the language model is part of the checkpoints. Some releases have it in a separate HDF5 file, for
`--softmax`. It needs the vocabulary, `--vocab`, and the folder is then one of `ElmoForPreTraining`.

The released code starts each batch from the state in which the batch before ended, so the vectors of a text depend on
the texts before it. Here, every text starts from one stored state instead: that of a model which has just read a few
sentences (WARM_UP). This is nearer to the released vectors than zeros. `--state` chooses one of these three. Those
sentences are English, so models of ELMoForManyLangs start from zeros.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers.hf_argparser import HfArg

from elmo_gpt_bert.convert import manylangs
from elmo_gpt_bert.convert.elmo_tensors import (
    AS_IS,
    CARRY,
    CHARACTERS,
    CONVOLUTION,
    DENSE,
    GATE_BIAS,
    INPUT,
    RECURRENT,
    SCALAR,
    TRANSFORM,
    Table,
    fill,
    read_pickle,
    released_names,
)
from elmo_gpt_bert.convert.files import command_line, name_all, new_folder, read_checkpoint, read_json, write_model
from elmo_gpt_bert.training.errors import (
    FileError,
    InputError,
    MissingFileError,
    PackageError,
    Parameter,
    as_user_errors,
)
from elmo_gpt_bert.training.files import plain, shown
from modeling.elmo.configuration_elmo import ElmoConfig
from modeling.elmo.modeling_elmo import ElmoModel
from modeling.elmo.modeling_elmo_pretraining import ElmoForPreTraining
from modeling.elmo.tokenization_elmo import ElmoTokenizer, read_targets


DIRECTIONS = ("forward", "backward")
# The release's name, ours in ElmoModel, and how to convert. {} is the number of a convolution or a layer.
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
ALLENNLP_LSTM = (
    ("input_linearity.weight", "input.weight", AS_IS),
    ("state_linearity.weight", "recurrent.weight", AS_IS),
    ("state_linearity.bias", "input.bias", AS_IS),  # gates in torch's order, the forget gate's 1 added
    ("state_projection.weight", "projection.weight", AS_IS),
)
ALLENNLP_TABLE = (
    ("_token_embedder._char_embedding_weights", "token_encoder.char_embeddings.weight", AS_IS),
    ("_token_embedder.char_conv_{}.weight", "token_encoder.convolutions.{}.weight", AS_IS),
    ("_token_embedder.char_conv_{}.bias", "token_encoder.convolutions.{}.bias", AS_IS),
    ("_token_embedder._highways._layers.{}.weight", "token_encoder.highways.{}.transform.weight", TRANSFORM),
    ("_token_embedder._highways._layers.{}.bias", "token_encoder.highways.{}.transform.bias", TRANSFORM),
    ("_token_embedder._highways._layers.{}.weight", "token_encoder.highways.{}.carry.weight", CARRY),
    ("_token_embedder._highways._layers.{}.bias", "token_encoder.highways.{}.carry.bias", CARRY),
    ("_token_embedder._projection.weight", "token_encoder.projection.weight", AS_IS),
    ("_token_embedder._projection.bias", "token_encoder.projection.bias", AS_IS),
    *(
        (f"_elmo_lstm.{direction}_layer_{{}}.{row[0]}", f"layers.{{}}.{direction}_lstm.{row[1]}", row[2])
        for direction in DIRECTIONS
        for row in ALLENNLP_LSTM
    ),
    ("scalar_mix_{}.scalar_parameters", "mixes.{}.weights", AS_IS),
    ("scalar_mix_{}.gamma", "mixes.{}.gamma", SCALAR),
)

# dump_weights renames the training code's variables: parts of names in the HDF5 files, and in the checkpoints.
RENAMED = (
    ("/RNN/MultiRNNCell/Cell", "/rnn/multi_rnn_cell/cell_"),
    ("/LSTMCell/W_0", "/lstm_cell/kernel"),
    ("/LSTMCell/B", "/lstm_cell/bias"),
    ("/LSTMCell/W_P_0", "/lstm_cell/projection/kernel"),
)
# A single layer has no MultiRNNCell around it in TensorFlow: parts of its names, and of the first of several layers.
SINGLE_LAYER = (
    ("/RNN/LSTMCell/", "/RNN/MultiRNNCell/Cell0/LSTMCell/"),
    ("/rnn/lstm_cell/", "/rnn/multi_rnn_cell/cell_0/lstm_cell/"),
)
# Other tensors of the checkpoints: the step, a number for the log, and Adagrad's sum of squares of each variable.
COUNTERS = ("global_step", "train_perplexity")
ADAGRAD = "/Adagrad"

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

VOCAB = Parameter("vocab")

# The model reads these sentences once, one after another, before the folder is written. Any plain text will do, as a
# state forgets within 20 words.
WARM_UP = (
    "The train to the coast leaves at seven , and it is rarely late .",
    "She had written the letter twice before she found the courage to send it .",
    "In 1998 , the company opened its third office , this time in a town nobody had heard of .",
    '" What would you do , " he asked , " if the bridge were closed ? "',
    "Rain fell on the fields for three days , so the farmers waited .",
    "Most of the committee 's members voted for the plan ; two of them did not .",
)


def convert(
    options: str | None,
    weights: str,
    output: str,
    vocab: str | None = None,
    softmax: str | None = None,
    state: str | None = None,
    full_width_to_ascii: bool = False,
    nfc: bool = False,
) -> None:
    """Writes the folder `output`, which must be new or empty: the model, its tokenizer, and our code.

    If a file is broken, no folder is written. The last two are options of the tokenizer.

    Raises:
        ImportError: when h5py or TensorFlow is not installed, but the file needs it.
        OSError: when a file is missing or damaged, or `output` holds something.
        ValueError: when a file differs from the release's, or the files do not fit together.
    """
    new_folder(output)
    reading = {"full_width_to_ascii": full_width_to_ascii, "nfc": nfc}
    if Path(weights).is_dir():
        for flag, value in (("vocab", vocab), ("softmax", softmax)):
            if value is not None:
                raise InputError(Parameter(flag), f" {value}: {weights} is a folder, which has no softmax: drop it")
        manylangs.convert(Path(weights), output, options, state or "zero", **reading)
        return
    if options is None:
        raise InputError(f"{weights} comes with an options.json: give it as ", Parameter("options"))
    config = read_options(Path(options))
    config.state = state or "warm"
    tensors, table = read_weights(weights)
    if softmax is not None:
        tensors |= read_hdf5(Path(softmax))
        table += SOFTMAX
    config.num_mixes = max(1, sum(name.startswith("scalar_mix_") and name.endswith(".gamma") for name in tensors))
    with as_user_errors():  # the tokenizer names the file if it is not a vocabulary
        width = config.max_characters_per_token
        tokenizer = ElmoTokenizer(vocab_file=vocab, max_characters_per_token=width, **reading)
    number_words(vocab, tokenizer, tensors)
    if vocab is not None:
        config.lm_vocab_size = len(tokenizer.targets)
    model = (ElmoModel if vocab is None else ElmoForPreTraining)(config)
    load(model, tensors, table, weights, options)
    model.base_model.warm_up([sentence.split() for sentence in WARM_UP])

    write_model(output, model, tokenizer)
    softmax = "no softmax" if vocab is None else f"a softmax over {config.lm_vocab_size:,} words"
    print(f"{output}: {config.num_hidden_layers} layers, {model.num_parameters():,} parameters, {softmax}")


def number_words(vocab: str | None, tokenizer: ElmoTokenizer, tensors: dict[str, np.ndarray]) -> None:
    """Sorts the rows of the softmax into the tokenizer's order, in which <S>, </S> and <UNK> are first.

    Raises ValueError if there is a softmax without a vocabulary, or the other way, and if they differ in size.
    """
    rows = {name: len(value) for name, value in tensors.items() if re.search("softmax/[Wb]$", name) and value.ndim}
    if vocab is None:
        for name, count in rows.items():
            raise InputError(f"{plain(name)} scores {count} words: give the file that lists them as ", VOCAB)
        return
    if not rows:
        problem = f" {vocab} names the words of a softmax, but there is none: add "
        raise InputError(VOCAB, problem, Parameter("softmax"), " or drop it")
    released = {word: number for number, word in enumerate(read_targets(Path(vocab)))}
    for name, count in rows.items():
        if count != len(released):
            raise InputError(
                f"{vocab} has {len(released)} words, but {plain(name)} scores {count}: take both from the same release"
            )
    order = [released[word] for word in tokenizer.targets]
    if order != sorted(order):
        tensors.update({name: tensors[name][order] for name in rows})


# The options


def read_options(path: Path) -> ElmoConfig:
    """The configuration that options.json says."""
    options = read_json(path)
    if "char_cnn" not in options and "lstm" in options:
        raise InputError(
            f"{path} has no char_cnn: its biLM reads whole words, but only biLMs over characters can be converted"
        )
    lstm = _section(options, "lstm", LSTM_KEYS, path)
    characters = _section(options, "char_cnn", CHARACTER_KEYS, path)
    embedding = _section(characters, "embedding", ("dim",), path)
    _check_keys(options, ("lstm", "char_cnn", *TRAINING_KEYS), str(path))
    lstm, characters = {"n_layers": 1} | lstm, {"n_highway": 0, "size": embedding.get("dim")} | characters
    positive = [(lstm, ("dim", "projection_dim", "n_layers")), (characters, ("size", "max_characters_per_token"))]
    for section, name in ((section, name) for section, names in positive for name in names):
        if type(section.get(name)) is not int or section[name] <= 0:
            raise InputError(f"{path}: {name} must be a positive integer, not {shown(section.get(name))}")
    if not options.get("bidirectional", True):
        raise InputError(f"{path} says bidirectional false, but ELMo needs both directions")
    if characters.get("n_characters") not in (261, 262):  # 262 counts padding's 0, which the tables of files lack
        raise InputError(f"{path}: n_characters must be 261 or 262, not {shown(characters.get('n_characters'))}")
    if lstm["dim"] < lstm["projection_dim"]:
        raise InputError(
            f"{path}: dim {shown(lstm['dim'])} is smaller than projection_dim {shown(lstm['projection_dim'])}"
        )
    with as_user_errors(f"{path}: ", StrictDataclassError):
        return _config(options, lstm, characters)


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
        raise InputError(f"{path} lacks the object {name}: is it the options.json of the release?")
    _check_keys(section, keys, f"{path}: {name}")
    return section


def _check_keys(section: dict[str, Any], keys: tuple[str, ...], where: str) -> None:
    """Raises ValueError if the section has other keys."""
    unknown = sorted(section.keys() - {*keys})
    if unknown:
        raise InputError(f"{where} has the unknown {name_all(unknown)}; remove it if it does not change the model")


# The weights


def read_weights(path: str) -> tuple[dict[str, np.ndarray], Table]:
    """Every tensor of the biLM by its original name, and the table that has these names."""
    prefix = Path(re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", path))  # the path that a checkpoint's files share
    if prefix.with_name(f"{prefix.name}.index").is_file():
        table = tuple((checkpoint_name(original), ours, conversion) for original, ours, conversion in TABLE)
        return _released(read_checkpoint(str(prefix)), "lm/char_embed"), table
    if not Path(path).is_file():
        raise MissingFileError(f"{path}: no such file, nor a TensorFlow checkpoint (its files would share this path)")
    with open(path, "rb") as file:
        start = file.read(2)
    if start in (b"PK", b"\x80\x02"):  # what torch.save writes, today and before 1.6
        return read_state_dict(Path(path)), ALLENNLP_TABLE
    return _released(read_hdf5(Path(path)), "char_embed"), TABLE


def checkpoint_name(released: str) -> str:
    """The name in a checkpoint of a tensor with this name in the HDF5 files."""
    for dumped, variable in RENAMED:
        released = released.replace(dumped, variable)
    return f"lm/{released}"


def read_hdf5(path: Path) -> dict[str, np.ndarray]:
    """Every data set of the file by its name. The values have no checksums, but a file that is cut short is an error.

    Raises ValueError if values are in another file, or if the file is too small for the values that it claims to hold.
    """
    try:
        import h5py
    except ImportError as error:
        raise PackageError(f"reading {path} needs h5py ({error}): pip install h5py") from error
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file")
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
        raise FileError(
            f"{path} is not an HDF5 file, or is damaged ({' '.join(str(error).split())}): download it again"
        ) from error
    if problem:
        raise InputError(f"{path}: {problem}")
    return tensors


def _problem(items: dict[str, Any], outside: list[str], size: int) -> str | None:
    """Why a file of `size` bytes with the data sets `items` must not be read, or None. `outside` names the items whose
    values are in other files.
    """
    if outside:
        return f"the values of {plain(outside[0])} are in another file: copy them into this one"
    for name, item in items.items():
        if item.shape is None or item.dtype.kind not in "biuf":
            return f"{plain(name)} must hold numbers, not {item.dtype}"
    claimed = sum(item.nbytes for item in items.values())
    if claimed > size:
        return (
            f"its data sets claim to have {claimed:,} bytes, but the file has {size:,}: download it again or, if it "
            "is compressed, unpack it with h5repack -f NONE"
        )
    return None


def read_state_dict(path: Path) -> dict[str, np.ndarray]:
    """The tensors of the biLM in AllenNLP's state dict, by their names in `_ElmoBiLm`, and of mixes, as in `Elmo`."""
    state = read_pickle(path)
    first = ALLENNLP_TABLE[0][0]
    prefixes = [name.removesuffix(first) for name in state if name.endswith(first)]
    if len(prefixes) != 1:
        raise InputError(
            f"{path} holds {len(prefixes)} tensors {first}, one for each biLM: save the state dict of a single ELMo"
        )
    (prefix,) = prefixes
    tensors = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    tensors.pop("_word_embedding.weight", None)  # AllenNLP's cache of the convolutions' outputs for some words
    tensors |= _mixes(state, prefix.removesuffix("_elmo_lstm."))
    return {name: value.detach().float().numpy() for name, value in tensors.items()}


def _mixes(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """The mixes of the `Elmo` at `prefix`. AllenNLP keeps the weights of a mix apart; they are joined."""
    mixes, weights = {}, defaultdict(dict)
    for name, value in state.items():
        part = re.fullmatch(rf"{re.escape(prefix)}(scalar_mix_\d+\.(?:gamma|scalar_parameters))(?:\.(\d+))?", name)
        if part and part[2]:
            weights[part[1]][int(part[2])] = value.flatten()
        elif part:
            mixes[part[1]] = value
    return mixes | {name: torch.cat([rows[k] for k in sorted(rows)]) for name, rows in weights.items()}


def _released(tensors: dict[str, np.ndarray], characters: str) -> dict[str, np.ndarray]:
    """The biLM's tensors by the names of a biLM with several layers, with the 261 rows of the table `characters`."""
    released = {}
    for name, value in tensors.items():
        if name not in COUNTERS and not name.endswith(ADAGRAD):
            for single, first in SINGLE_LAYER:
                name = name.replace(single, first)
            released[name] = value
    table = released.get(characters)
    # Of 262 rows, one is too many. If the training took n_characters from the options for prediction, the last row is
    # never used. If prediction wrote the table, a row of zeros precedes the others.
    if table is not None and table.ndim == 2 and len(table) == 262:
        released[characters] = table[:-1] if table[0].any() else table[1:]
    return released


def load(
    model: ElmoModel | ElmoForPreTraining, tensors: dict[str, np.ndarray], table: Table, weights: str, options: str
) -> None:
    """Copies all of `tensors` into the model by means of the table. Errors name the files `weights` and `options`."""
    prefix = f"{model.base_model_prefix}."
    parameters = {name.removeprefix(prefix): value for name, value in model.named_parameters()}
    mixes = {name for name in parameters if name.startswith("mixes.")}
    rows = released_names(table, parameters)
    if not any(name.startswith("scalar_mix_") for name in tensors):  # a biLM without mixes: the model's stay new
        rows = {name: row for name, row in rows.items() if name not in mixes}
    if parameters.keys() - rows.keys() - mixes:
        raise ValueError(f"the table and {type(model).__name__} do not name the same parameters")
    remedy = "Take both from the same release, of a biLM in both directions over characters"
    fill(parameters, rows, tensors, weights, options, remedy)


@dataclass(frozen=True)
class ConvertArguments:
    """The arguments of the command, those of `convert`."""

    weights: str = HfArg(
        help="the HDF5 file, the path that a TensorFlow checkpoint's files share, AllenNLP's .th, or the folder of "
        "ELMoForManyLangs"
    )
    output: str = HfArg(help="the folder to write; must be new or empty")
    options: str | None = HfArg(
        default=None, help="options.json; for ELMoForManyLangs, the file of sizes if the folder lacks it"
    )
    vocab: str | None = HfArg(default=None, help="the words of the softmax, one a line")
    softmax: str | None = HfArg(default=None, help="the softmax, if it is in a separate HDF5 file")
    state: Literal["zero", "warm", "carry"] | None = HfArg(
        default=None,
        help="the state that sentences start from: zeros, the stored state or, as in the released code, the state "
        "in which the same row of the batch before ended (default: zero for ELMoForManyLangs, else warm)",
    )
    full_width_to_ascii: bool = HfArg(
        default=False, help="whether the tokenizer reads full-width forms (U+FF01 to U+FF5E) as ASCII's characters"
    )
    nfc: bool = HfArg(default=False, help="whether the tokenizer composes letters and accents (Unicode's NFC)")


def main(argv: list[str] | None = None) -> None:
    """Calls `convert` with the arguments in `argv`, by default those of the command line."""
    command_line(convert, ConvertArguments, argv)


if __name__ == "__main__":
    main()
