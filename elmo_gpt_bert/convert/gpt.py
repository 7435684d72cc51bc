"""OpenAI's release of GPT -> a folder that `from_pretrained` reads, here and in transformers.

    cd finetune-transformer-lm/model
    python -m elmo_gpt_bert.convert.gpt --params . --encoder encoder_bpe_40000.json --merges vocab_40000.bpe \\
        --output ../../openai-gpt

The release (https://github.com/openai/finetune-transformer-lm, folder model/) is one long vector of float32 numbers,
cut into params_0.npy to params_9.npy, and params_shapes.json, the shapes of the tensors in the vector, in their order.
The numbers have no checksum. A missing or shortened piece and a number that is not finite are errors, but a flipped
bit goes unnoticed.

No file says how many attention heads there are: it is one for every 64 of the width, as in the paper.

best_params.jl, which the released train.py saves after fine-tuning, is not converted. It is a pickle, which can run
any code when it is read, and its matrix of words also holds the three special tokens and the positions.
"""

import math
import re
from pathlib import Path
from typing import Annotated

import numpy as np

from elmo_gpt_bert.convert.files import build_model, command_line, new_folder, write_model
from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError, as_user_errors
from elmo_gpt_bert.training.files import shown
from modeling.gpt.configuration_gpt import ZooGPTConfig
from modeling.gpt.modeling_gpt import ZooGPTLMHeadModel
from modeling.gpt.tokenization_gpt import ZooGPTTokenizer
from modeling.released import AS_IS, Conversion, Shape, parse_json, read_json, read_text


# The kernel of a convolution one position wide, (1, in, out), is (in, out) in our model.
KERNEL = Conversion(lambda ours: (1, *ours), lambda kernel: kernel[0])
# The tensors in the vector's order: train.py's name, ours, and how to convert. Only the order tells the tensors apart,
# since six tensors of a layer have the same shape. train.py assigns them to its variables in the order in which its
# code makes these: `block` calls `attn`, `norm`, `mlp` and `norm` again, `conv1d` makes w, then b, and `norm` makes g,
# then b. https://github.com/huggingface/pytorch-openai-transformer-lm lists the same order in its
# parameters_names.json. The two embeddings, which train.py joins into one variable, come first.
EMBEDDINGS = (
    ("positions", "transformer.positions_embed.weight", AS_IS),
    ("words", "transformer.tokens_embed.weight", AS_IS),  # also the output matrix of the language model
)
LAYER = (
    ("h{}/attn/c_attn/w", "transformer.h.{}.attn.c_attn.weight", KERNEL),  # query, key and value, side by side
    ("h{}/attn/c_attn/b", "transformer.h.{}.attn.c_attn.bias", AS_IS),
    ("h{}/attn/c_proj/w", "transformer.h.{}.attn.c_proj.weight", KERNEL),
    ("h{}/attn/c_proj/b", "transformer.h.{}.attn.c_proj.bias", AS_IS),
    ("h{}/ln_1/g", "transformer.h.{}.ln_1.weight", AS_IS),
    ("h{}/ln_1/b", "transformer.h.{}.ln_1.bias", AS_IS),
    ("h{}/mlp/c_fc/w", "transformer.h.{}.mlp.c_fc.weight", KERNEL),
    ("h{}/mlp/c_fc/b", "transformer.h.{}.mlp.c_fc.bias", AS_IS),
    ("h{}/mlp/c_proj/w", "transformer.h.{}.mlp.c_proj.weight", KERNEL),
    ("h{}/mlp/c_proj/b", "transformer.h.{}.mlp.c_proj.bias", AS_IS),
    ("h{}/ln_2/g", "transformer.h.{}.ln_2.weight", AS_IS),
    ("h{}/ln_2/b", "transformer.h.{}.ln_2.bias", AS_IS),
)
HEAD_SIZE = 64
SHAPES = "params_shapes.json"
UNKNOWN = "<unk>"
WORD_END = "</w>"
AGAIN = "download it again from https://github.com/openai/finetune-transformer-lm, folder model"


def convert(
    params: Annotated[str, "the folder that has params_shapes.json and params_0.npy, params_1.npy, ..."],
    encoder: Annotated[str, "encoder_bpe_40000.json"],
    merges: Annotated[str, "vocab_40000.bpe"],
    output: Annotated[str, "the folder to write; must be new or empty"],
) -> None:
    """Writes a folder with the language model, its tokenizer, and our code; none if a file is broken.

    Raises:
        OSError: when a file is missing or damaged, or `output` holds something.
        ValueError: when a file differs from the release's, or the files do not fit together.
    """
    new_folder(output)
    shapes_file = Path(params) / SHAPES
    with as_user_errors("", ImportError):
        shapes, vocabulary = read_shapes(shapes_file), read_encoder(Path(encoder))
    config = read_config(shapes, shapes_file)
    if len(vocabulary) != config.vocab_size:
        raise InputError(
            f"{encoder} has {len(vocabulary)} entries, but {shapes_file} says {config.vocab_size} words: "
            "take both from the same release"
        )
    with as_user_errors("", ImportError):
        pairs = read_merges(Path(merges), vocabulary)
    with as_user_errors():
        tokenizer = ZooGPTTokenizer(
            vocab=vocabulary, merges=pairs, words="released", model_max_length=config.n_positions
        )
    config.pad_token_id = tokenizer.pad_token_id
    tensors = name_tensors(read_vector(Path(params), shapes), shapes, config.n_layer)
    sizes, remedy = f"a GPT of width {config.n_embd}", f"Is its {SHAPES} that of the release?"
    model = build_model(ZooGPTLMHeadModel, config, tensors, (*EMBEDDINGS, *LAYER), params, sizes, remedy)

    write_model(output, model, tokenizer)
    print(f"{output}: {config.n_layer} layers, {config.n_head} heads, {model.num_parameters():,} parameters")


# The shapes


def read_shapes(path: Path) -> list[Shape]:
    """The shapes in params_shapes.json, in the order of the vector's tensors."""
    content = parse_json(path)
    is_list = isinstance(content, list) and all(isinstance(shape, list) for shape in content)
    shapes = [tuple(shape) for shape in content] if is_list else []
    are_sizes = all(type(size) is int and size > 0 for shape in shapes for size in shape)
    layers, rest = divmod(len(shapes) - len(EMBEDDINGS), len(LAYER))
    are_matrices = [len(shape) for shape in shapes[:2]] == [2, 2] and shapes[0][1] == shapes[1][1]
    if layers < 1 or rest or not are_sizes or not are_matrices:
        raise InputError(
            f"{path} must list {len(EMBEDDINGS)} shapes of matrices of one width, and {len(LAYER)} of each layer, all "
            f"of positive integers, not {shown(content)}: {AGAIN}"
        )
    return shapes


def read_config(shapes: list[Shape], path: Path) -> ZooGPTConfig:
    """The configuration that follows from the `shapes` in the file `path`."""
    (positions, width), (words, _) = shapes[: len(EMBEDDINGS)]
    if width % HEAD_SIZE:
        raise InputError(f"{path} has the width {width}, which is no multiple of {HEAD_SIZE}, the width of a head")
    layers = (len(shapes) - len(EMBEDDINGS)) // len(LAYER)
    heads = width // HEAD_SIZE
    return ZooGPTConfig(vocab_size=words, n_positions=positions, n_embd=width, n_layer=layers, n_head=heads)


# The tokenizer's files


def read_encoder(path: Path) -> dict[str, int]:
    """The tokens with their ids. Raises ValueError unless n tokens have the ids 0 to n - 1, the unknown token 0.

    0 is the id that train.py gives to every unknown symbol.
    """
    encoder = read_json(path)
    tokens = {number: token for token, number in encoder.items() if type(number) is int}
    missing = next((number for number in range(len(encoder)) if number not in tokens), 0)
    if missing or tokens.get(0) != UNKNOWN:
        token = shown(tokens[missing]) if missing in tokens else "missing"
        raise InputError(
            f"{path}: its {len(encoder)} tokens must have the ids from 0 on, each once, and {UNKNOWN!r} the 0, but "
            f"the token with the id {missing} is {token}: {AGAIN}"
        )
    return encoder


def read_merges(path: Path, encoder: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs of tokens that are merged into one, in the order of their priority.

    Raises ValueError if a pair has unknown tokens, and if no pair makes a token of more than one character.
    """
    lines = read_text(path).removesuffix("\n").split("\n")
    merges = [tuple(line.split(" ")) for line in lines[1:]]
    made = {UNKNOWN, *map("".join, merges)}
    is_whole = all(len(token.removesuffix(WORD_END)) <= 1 or token in made for token in encoder)
    are_right = [lines[0].startswith("#version"), *(_joins(pair, encoder) for pair in merges), is_whole]
    if not all(are_right):
        number = are_right.index(False) + 1
        line = shown(lines[number - 1]) if number <= len(lines) else "missing"
        raise InputError(
            f"{path} must begin with #version and then, in each line, join two tokens of the encoder to a third, "
            f"until all longer tokens are made, but line {number} is {line}: take both files from the same release"
        )
    return merges


def _joins(pair: tuple[str, ...], encoder: dict[str, int]) -> bool:
    """Whether these are two tokens of the encoder that make a third one."""
    return len(pair) == 2 and {*pair, "".join(pair)} <= encoder.keys()


# The weights


def read_vector(folder: Path, shapes: list[Shape]) -> np.ndarray:
    """The joined float32 numbers of params_0.npy, params_1.npy and so on.

    Raises OSError if a piece is missing, ValueError if there are not as many numbers as the shapes need.
    """
    matches = [re.fullmatch(r"params_(0|[1-9]\d*)\.npy", path.name) for path in folder.iterdir()]
    last = max((int(match[1]) for match in matches if match), default=0)
    paths = [folder / f"params_{number}.npy" for number in range(last + 1)]
    for path in paths:
        if not path.is_file():
            raise MissingFileError(f"{path}: no such file, but the numbers need this piece: {AGAIN}")
    pieces = [open_piece(path) for path in paths]
    count, expected = sum(map(len, pieces)), sum(map(math.prod, shapes))
    if count != expected:
        raise InputError(
            f"{folder}: params_0.npy to {paths[-1].name} hold {count:,} numbers, but {SHAPES} needs {expected:,}. The "
            "release has params_0.npy to params_9.npy: a piece is missing, or is that of another model"
        )
    return np.concatenate(pieces)


def open_piece(path: Path) -> np.ndarray:
    """The numbers of one piece, which stay in the file until they are read."""
    try:
        piece = np.lib.format.open_memmap(path, mode="r")  # refuses a pickle, which could run any code
        if piece.ndim != 1 or piece.dtype != np.float32:
            raise ValueError(f"{piece.dtype} {piece.shape}")
    except Exception as error:  # numpy raises many: OSError, ValueError, EOFError, SyntaxError, tokenize's
        raise FileError(f"{path} is not a vector of float32, or is damaged ({error!r:.80}): {AGAIN}") from error
    return piece


def name_tensors(vector: np.ndarray, shapes: list[Shape], layers: int) -> dict[str, np.ndarray]:
    """The tensors of these `shapes` in the vector, by their names in train.py."""
    names = [name for name, _, _ in EMBEDDINGS]
    names += [name.format(layer) for layer in range(layers) for name, _, _ in LAYER]
    parts = np.split(vector, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
    return {name: part.reshape(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}


def main(argv: list[str] | None = None) -> None:
    command_line(convert, argv)


if __name__ == "__main__":
    main()
