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
sentences (WARM_UP in modeling/elmo/released_elmo.py). This is nearer to the released vectors than zeros. `--state`
chooses one of these three. Those sentences are English, so models of ELMoForManyLangs start from zeros.

`modeling.elmo_from_released` makes a model of the HDF5 file without writing a folder.
"""

import re
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch

from elmo_gpt_bert.convert import manylangs
from elmo_gpt_bert.convert.files import command_line, new_folder, read_checkpoint, read_pickle, write_model
from elmo_gpt_bert.convert.manylangs import ALLENNLP_LSTM, CARRY, TRANSFORM
from elmo_gpt_bert.training.errors import InputError, MissingFileError, as_user_errors
from elmo_gpt_bert.training.files import plain
from modeling.elmo.modeling_elmo import ElmoModel
from modeling.elmo.modeling_elmo_pretraining import ElmoForPreTraining
from modeling.elmo.released_elmo import (
    DIRECTIONS,
    SOFTMAX,
    TABLE,
    UNREAD,
    fill,
    read_hdf5,
    read_options,
    released_tensors,
    warm_up,
)
from modeling.elmo.tokenization_elmo import ElmoTokenizer, read_targets
from modeling.released import AS_IS, Conversion, Table


SCALAR = Conversion(lambda ours: (1,), lambda tensor: tensor.reshape(()))
# AllenNLP's names in place of the release's in TABLE, and the mixes, which a release does not have.
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
        (f"_elmo_lstm.{direction}_layer_{{}}.{theirs}", f"layers.{{}}.{direction}_lstm.{ours}", AS_IS)
        for direction in DIRECTIONS
        for theirs, ours in ALLENNLP_LSTM
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


def convert(
    options: Annotated[str | None, "options.json; for ELMoForManyLangs, the file of sizes if the folder lacks it"],
    weights: Annotated[
        str,
        "the HDF5 file, the path that a TensorFlow checkpoint's files share, AllenNLP's .th, or the folder of "
        "ELMoForManyLangs",
    ],
    output: Annotated[str, "the folder to write; must be new or empty"],
    vocab: Annotated[str | None, "the words of the softmax, one a line"] = None,
    softmax: Annotated[str | None, "the softmax, if it is in a separate HDF5 file"] = None,
    state: Annotated[
        Literal["zero", "warm", "carry"] | None,
        "the state that sentences start from: zeros, the stored state or, as in the released code, the state "
        "in which the same row of the batch before ended (default: zero for ELMoForManyLangs, else warm)",
    ] = None,
    full_width_to_ascii: Annotated[
        bool, "whether the tokenizer reads full-width forms (U+FF01 to U+FF5E) as ASCII's characters"
    ] = False,
    nfc: Annotated[bool, "whether the tokenizer composes letters and accents (Unicode's NFC)"] = False,
) -> None:
    """Writes a folder with the model, its tokenizer, and our code; none if a file is broken.

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
                raise InputError(f"--{flag} {value}: {weights} is a folder, which has no softmax: drop it")
        manylangs.convert(Path(weights), output, options, state or "zero", **reading)
        return
    if options is None:
        raise InputError(f"{weights} comes with an options.json: give it as --options")
    with as_user_errors("", ImportError):
        config = read_options(Path(options))
        tensors, table = read_weights(weights)
        if softmax is not None:
            tensors |= read_hdf5(Path(softmax))
            table += SOFTMAX
    config.state = state or "warm"
    config.num_mixes = max(1, sum(name.startswith("scalar_mix_") and name.endswith(".gamma") for name in tensors))
    with as_user_errors():  # the tokenizer names the file if it is not a vocabulary
        width = config.max_characters_per_token
        tokenizer = ElmoTokenizer(vocab_file=vocab, max_characters_per_token=width, **reading)
    number_words(vocab, tokenizer, tensors)
    if vocab is not None:
        config.lm_vocab_size = len(tokenizer.targets)
    model = (ElmoModel if vocab is None else ElmoForPreTraining)(config)
    with as_user_errors("", ImportError):
        fill(model, tensors, table, weights, options)
    warm_up(model.base_model)

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
            raise InputError(f"{plain(name)} scores {count} words: give the file that lists them as --vocab")
        return
    if not rows:
        raise InputError(f"--vocab {vocab} names the words of a softmax, but there is none: add --softmax or drop it")
    released = {word: number for number, word in enumerate(read_targets(Path(vocab)))}
    for name, count in rows.items():
        if count != len(released):
            raise InputError(
                f"{vocab} has {len(released)} words, but {plain(name)} scores {count}: take both from the same release"
            )
    order = [released[word] for word in tokenizer.targets]
    if order != sorted(order):
        tensors.update({name: tensors[name][order] for name in rows})


# The weights


def read_weights(path: str) -> tuple[dict[str, np.ndarray], Table]:
    """Every tensor of the biLM by its original name, and the table that has these names."""
    prefix = Path(re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", path))  # the path that a checkpoint's files share
    if prefix.with_name(f"{prefix.name}.index").is_file():
        table = tuple((checkpoint_name(original), ours, conversion) for original, ours, conversion in TABLE)
        return released_tensors(read_checkpoint(str(prefix), UNREAD), "lm/char_embed"), table
    if not Path(path).is_file():
        raise MissingFileError(f"{path}: no such file, nor a TensorFlow checkpoint (its files would share this path)")
    with open(path, "rb") as file:
        start = file.read(2)
    if start in (b"PK", b"\x80\x02"):  # what torch.save writes, today and before 1.6
        return read_state_dict(Path(path)), ALLENNLP_TABLE
    return released_tensors(read_hdf5(Path(path))), TABLE


def checkpoint_name(released: str) -> str:
    """The name in a checkpoint of a tensor with this name in the HDF5 files."""
    for dumped, variable in RENAMED:
        released = released.replace(dumped, variable)
    return f"lm/{released}"


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


def main(argv: list[str] | None = None) -> None:
    command_line(convert, argv)


if __name__ == "__main__":
    main()
