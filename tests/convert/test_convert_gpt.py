"""OpenAI's release of GPT, written in miniature, converts to the model that its code computes."""

import functools
import itertools
import json
import os
import pickle
import shutil
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, OpenAIGPTLMHeadModel

import modeling
from elmo_gpt_bert.convert.gpt import convert, main, open_piece, read_config, read_encoder, read_merges, read_shapes
from modeling.gpt.modeling_gpt import ZooGPTLMHeadModel
from modeling.gpt.tokenization_gpt import ZooGPTTokenizer
from tests.support import releases
from tests.support.releases import (
    LONG,
    cut,
    remove,
    write,
)


WIDTH, HEADS, LAYERS, POSITIONS, PIECES = 128, 2, 3, 11, 5  # as in every GPT, a head has a width of 64
SYMBOLS = ["a", "b", "c", "d", "a</w>", "b</w>", "c</w>", "d</w>", "\n</w>"]
MERGES = ["a b", "ab c</w>", "c a", "d d</w>", "b c</w>", "a bc</w>"]  # two of them make one token
TOKENS = dict.fromkeys(["<unk>", *SYMBOLS, *(pair.replace(" ", "") for pair in MERGES)])
ENCODER = {token: number for number, token in enumerate(TOKENS)}
SHAPES_FILE, ENCODER_FILE, MERGES_FILE = "params_shapes.json", "encoder_bpe_40000.json", "vocab_40000.bpe"


def shapes(width: int = WIDTH, layers: int = LAYERS) -> list[list[int]]:
    """As params_shapes.json has them: the positions, the words, and of each layer four pairs and two norms."""
    attention = [[1, width, 3 * width], [3 * width], [1, width, width], [width]]
    inner = [[1, width, 4 * width], [4 * width], [1, 4 * width, width], [width]]
    norm = [[width], [width]]
    return [[POSITIONS, width], [len(ENCODER), width], *layers * [*attention, *norm, *inner, *norm]]


@functools.cache
def vector() -> np.ndarray:
    """Random parameters, large enough for another order or another GELU to show."""
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(0.1, 0.2, shape).ravel() for shape in shapes()]).astype(np.float32)
    values.flags.writeable = False  # all tests share them
    return values


def write_pieces(folder: Path, values: np.ndarray, count: int = PIECES) -> None:
    for number, piece in enumerate(np.array_split(values, count)):
        np.save(folder / f"params_{number}.npy", piece)


def write_json(name: str, content: object) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(json.dumps(content), encoding="utf-8")


def write_merges(*lines: str) -> Callable[[Path], None]:
    return lambda folder: (folder / MERGES_FILE).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def release(tmp_path) -> Path:
    return write_release(tmp_path / "model")


def write_release(folder: Path) -> Path:
    folder.mkdir()
    write_pieces(folder, vector())
    write_json(SHAPES_FILE, shapes())(folder)
    write_json(ENCODER_FILE, ENCODER)(folder)
    write_merges("#version: 0.2", *MERGES)(folder)
    return folder


def flags(release: Path, output: Path) -> dict[str, str]:
    return {
        "params": str(release),
        "encoder": str(release / ENCODER_FILE),
        "merges": str(release / MERGES_FILE),
        "output": str(output),
    }


def converted(release: Path, **changes: object) -> Path:
    output = release.parent / "converted"
    convert(**flags(release, output) | changes)
    return output


assert_refused = partial(releases.assert_refused, converted)


# What the release's code computes. It takes its arrays one after another, because the vector has them in the order in
# which that code makes its variables, and it makes each where it is first needed.


Arrays = Iterator[np.ndarray]


def convolution(x: np.ndarray, arrays: Arrays) -> np.ndarray:
    kernel, bias = next(arrays), next(arrays)
    return x @ kernel[0] + bias


def norm(x: np.ndarray, arrays: Arrays) -> np.ndarray:
    gain, bias = next(arrays), next(arrays)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gain + bias


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def attention(x: np.ndarray, arrays: Arrays) -> np.ndarray:
    """One row, head and position at a time, over the position itself and those before it."""
    query, key, value = np.split(convolution(x, arrays), 3, axis=-1)
    size, mixed = WIDTH // HEADS, np.empty_like(x)
    for row, position, head in itertools.product(range(x.shape[0]), range(x.shape[1]), range(HEADS)):
        part, seen = slice(head * size, (head + 1) * size), slice(position + 1)
        weights = np.exp(key[row, seen, part] @ query[row, position, part] / np.sqrt(size))
        mixed[row, position, part] = weights @ value[row, seen, part] / weights.sum()
    return convolution(mixed, arrays)


def released_model(folder: Path, ids: np.ndarray) -> np.ndarray:
    """The logits (rows, columns, words) of `ids` (rows, columns), in double precision."""
    sizes = json.loads((folder / SHAPES_FILE).read_text(encoding="utf-8"))
    numbers = np.concatenate([np.load(folder / f"params_{number}.npy") for number in range(PIECES)]).astype(float)
    parts = np.split(numbers, np.cumsum([np.prod(size) for size in sizes])[:-1])
    arrays = iter([part.reshape(size) for part, size in zip(parts, sizes, strict=True)])
    positions, words = next(arrays), next(arrays)
    x = words[ids] + positions[: ids.shape[1]]
    for _ in range(LAYERS):
        x = norm(x + attention(x, arrays), arrays)
        x = norm(x + convolution(gelu(convolution(x, arrays)), arrays), arrays)
    assert next(arrays, None) is None
    return x @ words.T


def logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


@pytest.mark.parametrize("model_class", [ZooGPTLMHeadModel, OpenAIGPTLMHeadModel], ids=["zoo", "transformers"])
def test_the_converted_model_computes_what_the_releases_code_does(model_class, release):
    model, info = model_class.from_pretrained(converted(release), output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids = torch.randint(len(ENCODER), (4, POSITIONS))
    expected = torch.from_numpy(released_model(release, ids.numpy()))
    torch.testing.assert_close(logits(model, ids).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("registered", [False, True])
def test_the_auto_classes_load_the_folder(registered, release):
    folder = converted(release)
    if registered:
        modeling.register()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert type(model) is (ZooGPTLMHeadModel if registered else OpenAIGPTLMHeadModel)
    ids = tokenizer("abc dd", return_tensors="pt").input_ids
    assert ids.tolist() == [[ENCODER["abc</w>"], ENCODER["dd</w>"]]]
    expected = torch.from_numpy(released_model(release, ids.numpy()))
    torch.testing.assert_close(logits(model, ids).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 12])
def test_pieces_are_joined_in_the_order_of_their_numbers_however_many_there_are(count, release):
    plain = ZooGPTLMHeadModel.from_pretrained(converted(release)).state_dict()
    for path in release.glob("params_*.npy"):
        path.unlink()
    write_pieces(release, vector(), count)
    shutil.rmtree(release.parent / "converted")
    again = ZooGPTLMHeadModel.from_pretrained(converted(release)).state_dict()
    assert plain.keys() == again.keys() and all(torch.equal(plain[name], again[name]) for name in plain)


def test_the_files_of_the_folder_follow_the_umask(release):
    before = os.umask(0o027)
    try:
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in converted(release).iterdir()}
    finally:
        os.umask(before)
    assert "model.safetensors" in modes and set(modes.values()) == {0o640}


def test_the_configuration_says_the_sizes_of_the_release(release):
    saved = json.loads((converted(release) / "config.json").read_text(encoding="utf-8"))
    sizes = {"n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "vocab_size": len(ENCODER)}
    kind = {"model_type": "openai-gpt", "afn": "gelu", "layer_norm_epsilon": 1e-5, "pad_token_id": 0}
    assert saved.items() >= (sizes | kind).items()


@pytest.mark.parametrize(("width", "heads"), [(64, 1), (768, 12)])
def test_a_head_has_64_dimensions(width, heads):
    of_width = [tuple(shape) for shape in shapes(width, layers=2)]
    assert read_config(of_width, Path(SHAPES_FILE)).n_head == heads


# The tokenizer


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n"])
def test_the_tokenizer_merges_and_numbers_as_the_files_say(last, line_end, release):
    lines = "\n".join(["#version: 0.2", *MERGES]) + last
    (release / MERGES_FILE).write_bytes(lines.replace("\n", line_end).encode())
    tokenizer = ZooGPTTokenizer.from_pretrained(converted(release))
    assert tokenizer.get_vocab() == ENCODER
    tokens = ["ab", "ca", "d", "b</w>", "abc</w>", "\n</w>", "bc</w>", "dd</w>", "<unk>"]  # as released: line breaks
    assert tokenizer("abcadb abc\nbc DD z").input_ids == [ENCODER[token] for token in tokens]
    assert (tokenizer.model_max_length, tokenizer.pad_token_id) == (POSITIONS, 0)


def test_the_released_files_are_read_whole(data):
    folder = data / "vocab"
    files = [folder / f"openai-gpt_{name}" for name in (SHAPES_FILE, ENCODER_FILE, MERGES_FILE)]
    if not all(path.is_file() for path in files):
        pytest.skip(f"the files of GPT's release are not in {folder}")
    config = read_config(read_shapes(files[0]), files[0])
    assert (config.n_positions, config.n_embd, config.n_layer, config.n_head) == (512, 768, 12, 12)
    with torch.device("meta"):
        parameters = ZooGPTLMHeadModel(config).num_parameters()
    assert parameters == sum(np.prod(shape) for shape in read_shapes(files[0])) == 116_534_784
    encoder = read_encoder(files[1])
    assert len(encoder) == config.vocab_size == 40_478
    merges = read_merges(files[2], encoder)
    assert (len(merges), merges[0], merges[-1]) == (40_000, ("t", "h"), ("bachel", "orette</w>"))


# Bad input


def piece(change: Callable[[np.ndarray], np.ndarray], number: int = 1) -> Callable[[Path], None]:
    """Replaces a piece by what `change` makes of it."""

    def apply(folder: Path) -> None:
        path = folder / f"params_{number}.npy"
        np.save(path, change(np.load(path)))

    return apply


def spoil(value: float) -> Callable[[Path], None]:
    """Puts `value` before the last number, which is the last layer's last bias."""

    def apply(folder: Path) -> None:
        values = vector().copy()
        values[-2] = value
        write_pieces(folder, values)

    return apply


def archive(folder: Path) -> None:
    np.savez(folder / "archive.npz", vector())
    (folder / "archive.npz").rename(folder / "params_0.npy")


def reshape(changes: dict[int, list]) -> Callable[[Path], None]:
    """Other shapes at these places of params_shapes.json."""
    return write_json(SHAPES_FILE, [changes.get(number, shape) for number, shape in enumerate(shapes())])


def encode(**changes: object) -> Callable[[Path], None]:
    return write_json(ENCODER_FILE, ENCODER | changes)


def merge(*more: str) -> Callable[[Path], None]:
    return write_merges("#version: 0.2", *MERGES, *more)


NO_SHAPES = r"params_shapes.json must list 2 shapes of matrices .* 12 of each layer, .*, not \[\[.*: download it again"
FILES = {
    "no shapes": (remove(SHAPES_FILE), OSError, "params_shapes.json: no such file"),
    "no encoder": (remove(ENCODER_FILE), OSError, "encoder_bpe_40000.json: no such file"),
    "no merges": (remove(MERGES_FILE), OSError, "vocab_40000.bpe: no such file"),
    # The pieces
    "no piece": (remove(*(f"params_{n}.npy" for n in range(PIECES))), OSError, "params_0.npy: no such file.*download"),
    "first piece missing": (remove("params_0.npy"), OSError, "params_0.npy: no such file.*download"),
    "piece missing": (remove("params_2.npy"), OSError, "params_2.npy: no such file.*download"),
    "last piece missing": (
        remove("params_4.npy"),
        ValueError,
        f"params_0.npy to params_3.npy hold .*, but params_shapes.json needs {len(vector()):,}.*a piece is missing",
    ),
    "a piece too many": (
        lambda folder: shutil.copy(folder / "params_0.npy", folder / "params_5.npy"),
        ValueError,
        "params_0.npy to params_5.npy hold .* numbers, but params_shapes.json needs .*of another model",
    ),
    "piece short": (piece(lambda values: values[:-1]), ValueError, "hold .* numbers, but params_shapes.json needs"),
    "piece cut": (cut("params_3.npy"), OSError, "params_3.npy is not a vector of float32, or is damaged.*download"),
    "piece empty": (write("params_3.npy", b""), OSError, "params_3.npy is not a vector of float32, or is damaged"),
    "piece a text": (write("params_3.npy", b"404: Not Found"), OSError, "params_3.npy is not a vector of float32, or"),
    "piece an archive": (archive, OSError, "params_0.npy is not a vector of float32, .*magic string"),
    "float64": (piece(np.float64), OSError, r"params_1.npy is not a vector of float32, .*float64 \(.*,\)"),
    "float16": (piece(np.float16), OSError, r"params_1.npy is not a vector of float32, .*float16 \(.*,\)"),
    "integers": (piece(np.int32), OSError, r"params_1.npy is not a vector of float32, .*int32 \(.*,\)"),
    "other bytes first": (piece(lambda values: values.astype(">f4")), OSError, "params_1.npy is not a vector .*>f4"),
    "matrix": (piece(lambda values: values[None]), OSError, r"params_1.npy is not a vector .*float32 \(1, .*\)"),
    "one number": (piece(lambda values: values[0]), OSError, r"params_1.npy is not a vector .*float32 \(\)"),
    "not a number": (spoil(np.nan), ValueError, "not all numbers of h2/ln_2/b are finite.*download"),
    "infinite": (spoil(-np.inf), ValueError, "not all numbers of h2/ln_2/b are finite.*download"),
    # The shapes
    "shapes cut": (cut(SHAPES_FILE), ValueError, "params_shapes.json is not JSON"),
    "shapes an object": (write_json(SHAPES_FILE, {}), ValueError, f"{SHAPES_FILE} must list .*, not {{}}: download"),
    "shape a number": (reshape({3: 72}), ValueError, NO_SHAPES),
    "shape zero": (reshape({3: [0]}), ValueError, NO_SHAPES),
    "shape negative": (reshape({3: [-384]}), ValueError, NO_SHAPES),
    "shape a fraction": (reshape({3: [384.0]}), ValueError, NO_SHAPES),
    "shape a text": (reshape({3: ["384"]}), ValueError, NO_SHAPES),
    "shape a truth": (reshape({3: [True]}), ValueError, NO_SHAPES),
    "no shape": (write_json(SHAPES_FILE, []), ValueError, r"must list .*, not \[\]"),
    "no layer": (write_json(SHAPES_FILE, shapes(layers=0)), ValueError, NO_SHAPES),
    "shape missing": (write_json(SHAPES_FILE, shapes()[:-1]), ValueError, NO_SHAPES),
    "widths disagree": (reshape({0: [11, 192]}), ValueError, NO_SHAPES),
    "no matrix": (reshape({1: [15 * WIDTH]}), ValueError, NO_SHAPES),
    "one embedding": (reshape({0: [1, 11, WIDTH]}), ValueError, NO_SHAPES),
    "heads do not share the width": (
        write_json(SHAPES_FILE, shapes(width=96)),
        ValueError,
        "params_shapes.json has the width 96, which is no multiple of 64, the width of a head",
    ),
    "a tensor on its side": (
        reshape({8: [1, 512, 128]}),
        ValueError,
        r"model does not fit a GPT of width 128: h0/mlp/c_fc/w is float32 \(1, 512, 128\), but should be float32 "
        r"\(1, 128, 512\)\. Is its params_shapes.json that of the release\?",
    ),
    "a wide convolution": (
        reshape({14: [2, 64, 384]}),
        ValueError,
        r"h1/attn/c_attn/w is float32 \(2, 64, 384\), but",
    ),
    "no convolution": (reshape({14: [128, 384]}), ValueError, r"h1/attn/c_attn/w is float32 \(128, 384\), but"),
    "too many positions": (
        reshape({0: [10**30, WIDTH]}),
        ValueError,
        f"{len(vector()):,} numbers, but params_shapes.json needs 128,0",
    ),
    "another model": (
        write_json(SHAPES_FILE, shapes(layers=2)),
        ValueError,
        "params_4.npy hold .* numbers, but params_shapes.json needs .*of another model",
    ),
    # The encoder
    "encoder cut": (cut(ENCODER_FILE), ValueError, "encoder_bpe_40000.json is not JSON"),
    "encoder a list": (write_json(ENCODER_FILE, []), ValueError, "must hold one JSON object, not list"),
    "encoder not UTF-8": (write(ENCODER_FILE, b'{"\xff": 0}'), ValueError, "encoder_bpe_40000.json is not UTF-8"),
    "a gap": (
        encode(a=15),
        ValueError,
        "its 15 tokens must have the ids from 0 on, .* the token with the id 1 is missing: download",
    ),
    "an id below 0": (encode(a=-1), ValueError, "the token with the id 1 is missing"),
    "an id no integer": (encode(a=1.0), ValueError, "the token with the id 1 is missing"),
    "an id a truth": (encode(a=True), ValueError, "the token with the id 1 is missing"),
    "an id twice": (encode(a=2), ValueError, "the token with the id 1 is missing"),
    "no unknown": (
        write_json(ENCODER_FILE, {token.replace("<unk>", "?"): number for token, number in ENCODER.items()}),
        ValueError,
        r"encoder_bpe_40000.json: .* and '<unk>' the 0, but the token with the id 0 is '\?'",
    ),
    "encoder empty": (write_json(ENCODER_FILE, {}), ValueError, "the token with the id 0 is missing"),
    "encoder of another size": (
        encode(e=15),
        ValueError,
        "encoder_bpe_40000.json has 16 entries, but .*params_shapes.json says 15 words",
    ),
    "an id of any length": (encode(a="x" * LONG), ValueError, "the token with the id 1 is missing"),
    "an unknown token of any length": (
        write_json(ENCODER_FILE, {"x" * LONG if token == "<unk>" else token: n for token, n in ENCODER.items()}),
        ValueError,
        "the token with the id 0 is 'xxx",
    ),
    # The merges
    "a line of any length": (merge("x" * LONG), ValueError, "but line 8 is 'xxx"),
    "a part of any length": (merge(f"a {'x' * LONG}"), ValueError, "but line 8 is 'a xxx"),
    "no version": (
        write_merges(*MERGES),
        ValueError,
        "vocab_40000.bpe must begin with #version .*, but line 1 is 'a b': take both files from the same release",
    ),
    "merges empty": (write(MERGES_FILE, b""), ValueError, "vocab_40000.bpe must begin with #version .* line 1 is ''"),
    "merges not UTF-8": (write(MERGES_FILE, b"#version\n\xff b"), ValueError, "vocab_40000.bpe is not UTF-8"),
    "one token": (merge("a"), ValueError, "join two tokens of the encoder to a third, until .*, but line 8 is 'a'"),
    "three tokens": (merge("a b c"), ValueError, "but line 8 is 'a b c'"),
    "two spaces": (merge("a "), ValueError, "but line 8 is 'a '"),
    "unknown part": (merge("a x</w>"), ValueError, "but line 8 is 'a x</w>'"),
    "unknown whole": (merge("a c"), ValueError, "but line 8 is 'a c'"),
    "merges short": (write_merges("#version: 0.2", *MERGES[:2]), ValueError, "but line 4 is missing"),
}


@pytest.mark.parametrize(("damage", "error", "message"), FILES.values(), ids=FILES)
def test_a_file_that_is_missing_damaged_or_of_another_model_is_one_clear_error(damage, error, message, release):
    damage(release)
    assert_refused(release, error, message)


class Trap:
    """Its pickle makes a folder when it is read."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return Path.mkdir, (self.folder,)


@pytest.mark.parametrize("kind", ["array of objects", "plain pickle"])
def test_a_pickle_is_refused_and_not_read(kind, release):
    trap, path = Trap(release / "sprung"), release / "params_0.npy"
    if kind == "array of objects":
        np.save(path, np.array([trap], dtype=object), allow_pickle=True)
        np.load(path, allow_pickle=True)
    else:
        path.write_bytes(pickle.dumps(trap))
        pickle.loads(path.read_bytes())
    trap.folder.rmdir()  # sprung by the lines above, as it would be by a careless reader
    assert_refused(release, OSError, "params_0.npy is not a vector of float32")


def test_a_damaged_header_of_a_piece_is_one_clear_error(release):
    path, rng = release / "params_0.npy", np.random.default_rng(0)
    content = path.read_bytes()
    whole, refused = len(open_piece(path)), 0
    for place in rng.integers(len(content) - 4 * whole, size=200):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.integers(8)
        path.write_bytes(flipped)
        try:
            assert len(open_piece(path)) <= whole  # of the digits of the length; another length is noticed, too
        except (OSError, ValueError) as error:
            refused += str(path) in str(error)
    assert refused > 180


# The command


def command(release: Path) -> list[str]:
    words = flags(release, release.parent / "out").items()
    return [word for flag, value in words for word in (f"--{flag}", str(value))]


def test_the_command_converts_and_says_what_it_wrote(release, capsys):
    main(command(release))
    model = ZooGPTLMHeadModel.from_pretrained(release.parent / "out")
    assert f"3 layers, 2 heads, {model.num_parameters():,} parameters" in capsys.readouterr().out
