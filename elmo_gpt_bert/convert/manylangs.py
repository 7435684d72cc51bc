"""A release of ELMoForManyLangs, as it was unzipped -> a folder that `from_pretrained` reads.

`python -m elmo_gpt_bert.convert.elmo --weights FOLDER --output ...` calls `convert` for such a folder, which has

- char.dic and word.dic: a character or a word, a tab, and its row in a table, one a line;
- token_embedder.pkl and encoder.pkl: the state dicts of the word layer and of the biLSTM;
- config.json: how the model was trained. Its config_path names the file of sizes, by a path on an author's machine.
  That file is looked for in the folder. Releases lack it; if all tensors have the published sizes, the rest is as
  published, too.

Released code: HIT-SCIR/ELMoForManyLangs (Che et al. 2018, K18-2005). What it does that its names do not say:

- A word begins with the row named <eow> and ends with the one named <bow>, in training as in prediction. The rows of
  the converted table are in the order of what they do.
- The row <pad> within words is random, not zero, and takes part in the maximum over the windows.
- Each call goes on from the states in which the call before ended. The converted model starts each sentence from zeros
  (`--state zero`), which is what the first call of the released code gives for up to 64 sentences.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError

from elmo_gpt_bert.convert.files import new_folder, read_pickle, write_model
from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError, as_user_errors
from modeling.elmo.configuration_elmo import ElmoConfig
from modeling.elmo.modeling_elmo import ElmoModel
from modeling.elmo.released_elmo import CHARACTERS, DIRECTIONS, check_keys
from modeling.elmo.tokenization_elmo import FULL_WIDTH, ElmoTokenizer
from modeling.released import AS_IS, Conversion, as_parameters, read_json


# What ELMoForManyLangs has from AllenNLP, which keeps the two maps of a highway layer in one tensor. In
# y = g x + (1 - g) relu(..), its gate g weights the input x. The gate of bilm-tf, and ours, weights the other term:
# 1 - g = 1 - sigmoid(a) = sigmoid(-a).
TRANSFORM = Conversion(lambda ours: (2 * ours[0], *ours[1:]), lambda rows: np.split(rows, 2)[0])
CARRY = Conversion(lambda ours: (2 * ours[0], *ours[1:]), lambda rows: -np.split(rows, 2)[1])
ALLENNLP_LSTM = (
    ("input_linearity.weight", "input.weight"),
    ("state_linearity.weight", "recurrent.weight"),
    ("state_linearity.bias", "input.bias"),  # gates in torch's order, the forget gate's 1 added
    ("state_projection.weight", "projection.weight"),
)
# The release's name, ours in ElmoModel, and how to convert. {} is the number of a convolution or a layer. The tables'
# rows are in our order by then, without the row of zeros that ours begin with.
CHARACTER_TABLE, WORD_TABLE = "char_emb_layer.embedding.weight", "word_emb_layer.embedding.weight"
TOKEN_EMBEDDER = (
    (CHARACTER_TABLE, "token_encoder.char_embeddings.weight", CHARACTERS),
    (WORD_TABLE, "token_encoder.lexicon_vectors.weight", CHARACTERS),
    ("convolutions.{}.weight", "token_encoder.convolutions.{}.weight", AS_IS),
    ("convolutions.{}.bias", "token_encoder.convolutions.{}.bias", AS_IS),
    ("highways._layers.{}.weight", "token_encoder.highways.{}.transform.weight", TRANSFORM),
    ("highways._layers.{}.bias", "token_encoder.highways.{}.transform.bias", TRANSFORM),
    ("highways._layers.{}.weight", "token_encoder.highways.{}.carry.weight", CARRY),
    ("highways._layers.{}.bias", "token_encoder.highways.{}.carry.bias", CARRY),
    ("projection.weight", "token_encoder.projection.weight", AS_IS),
    ("projection.bias", "token_encoder.projection.bias", AS_IS),
)
ENCODER = tuple(
    (f"{direction}_layer_{{}}.{theirs}", f"layers.{{}}.{direction}_lstm.{ours}", AS_IS)
    for direction in DIRECTIONS
    for theirs, ours in ALLENNLP_LSTM
)
PICKLES = {"token_embedder.pkl": TOKEN_EMBEDDER, "encoder.pkl": ENCODER}
PARTS = {"token_embedder.pkl": "token_encoder.", "encoder.pkl": "layers."}  # of ElmoModel, whose parameters they fill
# The tokens of a dictionary that are no characters or words of a text, in the order of our rows: first and last ones.
SPECIAL_CHARACTERS = (("<oov>",), ("<bos>", "<eos>", "<eow>", "<bow>", "<pad>"))  # a word begins with the row <eow>
SPECIAL_WORDS = (("<oov>", "<bos>", "<eos>"), ())

MOST_LAYERS = 100  # of a release, of either kind
# The sizes of the published models: the file of sizes, as far as it says what the model is.
PUBLISHED = {
    "encoder": {
        "name": "elmo",
        "projection_dim": 512,
        "cell_clip": 3,
        "proj_clip": 3,
        "dim": 4096,
        "n_layers": 2,
    },
    "token_embedder": {
        "name": "cnn",
        "activation": "relu",
        "filters": [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]],
        "n_highway": 2,
        "word_dim": 100,
        "char_dim": 50,
        "max_characters_per_token": 50,
    },
    "dropout": 0.1,
}


def convert(folder: Path, output: str, options: str | None = None, state: str = "zero", **reading: bool) -> None:
    """Writes the folder `output`, which must be new or empty: the model, its tokenizer, and our code.

    If a file is broken, no folder is written.

    Args:
        options: the file of sizes, if it is not in `folder`.
        reading: options of the tokenizer, `full_width_to_ascii` and `nfc`.

    Raises:
        OSError: when a file is missing or damaged, or `output` holds something.
        ValueError: when a file differs from the release's, or the files do not fit together.
    """
    new_folder(output)
    if state == "warm":
        raise InputError(
            "--state warm needs sentences of the model's language: convert with the state zero, then call "
            "ElmoModel.warm_up with some, and save"
        )
    missing = [name for name in ("char.dic", *PICKLES) if not (folder / name).is_file()]
    if missing:
        raise MissingFileError(
            f"{folder} is not a release of ELMoForManyLangs, which has {missing[0]}: name the folder with this file "
            "or, of another release, the file of weights"
        )
    with as_user_errors("", ImportError):
        sizes, origin = read_sizes(folder, options)
    tensors = {name: read_tensors(folder / name) for name in PICKLES}
    characters = order_rows(folder / "char.dic", tensors["token_embedder.pkl"], CHARACTER_TABLE, SPECIAL_CHARACTERS)
    words = None
    if sizes["token_embedder"]["word_dim"]:
        words = order_rows(folder / "word.dic", tensors["token_embedder.pkl"], WORD_TABLE, SPECIAL_WORDS)
    with as_user_errors(f"{origin}: is it the file of sizes? ", StrictDataclassError, TypeError):
        config = make_config(sizes, len(characters), None if words is None else len(words))
    config.state = state
    tokenizer = make_tokenizer(config, characters, words, reading)
    with as_user_errors(f"{origin}: ", RuntimeError, TypeError), torch.device("meta"):
        outline = ElmoModel(config)  # without values: sizes are compared before memory is taken
    values = convert_tensors(outline, tensors, folder, origin)
    model = ElmoModel(config)
    model.load_state_dict(values, strict=False)  # not strict: the mix and the state to start from stay new

    write_model(output, model, tokenizer)
    lexicon = "no words" if words is None else f"{len(words):,} words"
    parameters = f"{config.num_hidden_layers} layers, {model.num_parameters():,} parameters"
    print(f"{output}: {parameters}, {len(characters):,} characters, {lexicon}")
    for line in remarks(folder, characters, tokenizer):
        print(line)


def remarks(folder: Path, characters: list[str], tokenizer: ElmoTokenizer) -> list[str]:
    """What a user should know about a converted release."""
    lines = []
    if (folder / "classifier.pkl").exists():
        lines.append(f"{folder / 'classifier.pkl'}, the softmax of the training, is left out")
    is_chinese = any("\u4e00" <= character <= "\u9fff" for character in characters)
    if is_chinese and not {*map(chr, FULL_WIDTH)} & {*characters} and not tokenizer.full_width_to_ascii:
        lines.append(
            f"{folder / 'char.dic'} has no full-width punctuation, so the model does not know it: convert with "
            "full_width_to_ascii, unless your text has ASCII's"
        )
    return lines


# The file of sizes


def read_sizes(folder: Path, options: str | None) -> tuple[dict[str, Any], str]:
    """The file of sizes, and where it is from. Its values are checked where they become a configuration."""
    name = None
    if options is None:
        config_path = read_json(folder / "config.json").get("config_path")
        if not isinstance(config_path, str):
            raise InputError(
                f"{folder / 'config.json'}: config_path must name the file of sizes, not be {config_path!r:.80}"
            )
        name = re.split(r"[/\\]", config_path)[-1]
        if not name or not (folder / name).is_file():
            return PUBLISHED, f"the published sizes ({folder} has no file of sizes {name!r:.80})"
    path = Path(options) if options is not None else folder / name
    sizes = read_json(path)
    check_keys(sizes, (*PUBLISHED, "classifier"), str(path))
    for section in ("encoder", "token_embedder"):
        values, published = sizes.get(section), PUBLISHED[section]
        is_known = isinstance(values, dict) and values.keys() == published.keys()
        if not is_known or values["name"] != published["name"]:
            raise InputError(
                f"{path}: is it the file of sizes? {section} must have the name {published['name']} and the keys "
                f"{', '.join(published)}, but is {values!r:.200}"
            )
    for count in (sizes["encoder"]["n_layers"], sizes["token_embedder"]["n_highway"]):
        if isinstance(count, int) and count > MOST_LAYERS:  # they are built before they are compared
            raise InputError(f"{path}: is it the file of sizes? It asks for {count} layers")
    return sizes, str(path)


def make_config(sizes: dict[str, Any], characters: int, words: int | None) -> ElmoConfig:
    """The configuration of the sizes, and of numbers of characters and words without the special ones."""
    encoder, embedder = sizes["encoder"], sizes["token_embedder"]
    return ElmoConfig(
        vocab_size=1 + len(SPECIAL_CHARACTERS[0]) + characters + len(SPECIAL_CHARACTERS[1]),
        max_characters_per_token=embedder["max_characters_per_token"],
        char_embedding_size=embedder["char_dim"],
        lexicon_size=0 if words is None else 1 + len(SPECIAL_WORDS[0]) + words,
        lexicon_vector_size=embedder["word_dim"] or 1,
        filters=embedder["filters"],
        char_activation=embedder["activation"],
        num_highway_layers=embedder["n_highway"],
        hidden_size=2 * encoder["projection_dim"],
        cell_size=encoder["dim"],
        num_hidden_layers=encoder["n_layers"],
        cell_clip=encoder["cell_clip"] or None,  # 0 clips nothing
        proj_clip=encoder["proj_clip"] or None,
        hidden_dropout_prob=sizes.get("dropout", PUBLISHED["dropout"]),
    )


# The dictionaries


def read_dictionary(path: Path) -> dict[str, int]:
    """The row of each token. As in the released code, white space around a line is dropped, a line with one field is
    the row of U+3000, and of lines with the same token the last one counts.
    """
    try:
        lines = path.read_bytes().decode("utf-8-sig").split("\n")  # other line separators are tokens
    except FileNotFoundError as error:
        raise MissingFileError(f"{path}: no such file") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8: {error}") from error
    rows = {}
    for number, line in enumerate(lines if lines[-1] else lines[:-1], start=1):
        *token, row = line.strip().split("\t")
        if len(token) > 1 or not re.fullmatch(r"\s*[0-9]{1,9}\s*", row):
            raise InputError(f"{path}, line {number}: {line!r:.80} is not a token, a tab and a row")
        rows[token[0] if token else "\u3000"] = int(row)
    return rows


def order_rows(
    path: Path, tensors: dict[str, np.ndarray], name: str, specials: tuple[tuple[str, ...], tuple[str, ...]]
) -> list[str]:
    """Sorts the table's rows in place: the first special tokens, the others as in the file, the last special ones.

    Returns the other tokens. Raises ValueError unless the file has each row of the table once.
    """
    rows, table = read_dictionary(path), tensors.get(name)
    pickle = path.with_name("token_embedder.pkl")
    if table is None or table.ndim != 2:
        problem = "lacks" if table is None else f"has another shape than a table, {table.shape}, of"
        raise InputError(f"{pickle} {problem} {name}, the rows of {path.name}")
    first, last = specials
    missing = [token for token in (*first, *last, "<pad>") if token not in rows]
    if missing:
        raise InputError(f"{path} has no line {missing[0]}, so it is not a dictionary of ELMoForManyLangs")
    tokens: dict[int, str] = {}
    for token, row in rows.items():
        if row >= len(table):
            raise InputError(f"{path}: {token!r:.80} has the row {row}, but {pickle} has only {len(table)} in {name}")
        if row in tokens:
            raise InputError(f"{path}: {tokens[row]!r:.80} and {token!r:.80} both have the row {row}")
        tokens[row] = token
    if len(tokens) < len(table):
        row = next(row for row in range(len(table)) if row not in tokens)
        raise InputError(
            f"{path} has {len(tokens)} tokens, but {pickle} has {len(table)} rows in {name}: no token has the row "
            f"{row}. Take both from the same release"
        )
    others = [tokens[row] for row in sorted(tokens) if tokens[row] not in (*first, *last)]
    tensors[name] = table[[rows[token] for token in (*first, *others, *last)]]
    return others


def make_tokenizer(
    config: ElmoConfig, characters: list[str], words: list[str] | None, reading: dict[str, bool]
) -> ElmoTokenizer:
    with tempfile.TemporaryDirectory() as scratch:
        files = {}
        for argument, tokens in (("characters_file", characters), ("lexicon_file", words)):
            if tokens is not None:
                path = Path(scratch, f"{argument}.json")
                path.write_text(json.dumps(tokens), encoding="utf-8")
                files[argument] = str(path)
        with as_user_errors():
            return ElmoTokenizer(**files, max_characters_per_token=config.max_characters_per_token, **reading)


# The weights


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a pickle by name. Raises ValueError unless all are in single precision."""
    state = read_pickle(path)
    claimed = 4 * sum(tensor.numel() for tensor in state.values())  # a number may stand for any number of equal ones
    if claimed > path.stat().st_size:
        raise InputError(f"{path}: its tensors claim to have {claimed:,} bytes, more than the file: download it again")
    tensors = {}
    for name, tensor in state.items():
        if tensor.dtype != torch.float32 or tensor.layout != torch.strided:
            kind = tensor.dtype if tensor.layout == torch.strided else tensor.layout
            raise InputError(f"{path}: {name!s:.80} is {kind}, but must be torch.float32")
        tensors[str(name)] = tensor.detach().numpy()
    return tensors


def convert_tensors(
    model: ElmoModel, tensors: dict[str, dict[str, np.ndarray]], folder: Path, origin: str
) -> dict[str, torch.Tensor]:
    """The tensors of both files as parameters of the model. Errors name the file, and `origin`, whose sizes it has."""
    parameters, values = dict(model.named_parameters()), {}
    for file, table in PICKLES.items():
        ours = {name: value for name, value in parameters.items() if name.startswith(PARTS[file])}
        path, remedy = str(folder / file), "Take all files from one release"
        try:
            values |= as_parameters(tensors[file], ours, table, path, origin, remedy)
        except ValueError as error:
            of_others = origin.startswith("the published sizes")
            more = ". Give the file of this model's sizes as --options" if of_others else ""
            raise InputError(f"{error}{more}") from error
    return values
