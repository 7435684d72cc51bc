"""Word vectors for ELMo's task networks -> a folder that the `AutoModelFor...` classes of these networks read.

    python -m elmo_gpt_bert.convert.vectors --model elmo-original --vectors glove.6B.100d.txt \\
        --texts train.conll dev.conll test.conll --output elmo-with-glove

`--model` is a model folder of ELMo, whose biLM is copied, or a configuration JSON, whose biLM, if it has one, gets
random weights. `--vectors` is a text file of GloVe or fastText, a text or binary file of word2vec, or a model of
fastText (.bin). The format, and whether gzip compressed the file, is told by its content.

With `--texts`, only the vectors of words in these files are kept, of their spelling there and in lower case, so that
little of a file of gigabytes is ever in memory. The words are found as follows:

- in a .json or .jsonl file, in the strings;
- in a .conll, .bmes, .bio or .iob2 file, in the first column, as `run_ner.py` reads it. Give other names of files of
  columns, such as CoNLL-2003's eng.train, one of these ends;
- in any other file, in its text. The tokenizer splits texts and strings into words.

Without `--vectors`, the words that occur at least `--min_count` times in the texts get random vectors, to be learned.
All other words are unknown. Their vector is the mean of the others.
"""

import gzip
import json
import re
import struct
import tempfile
import zlib
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Annotated, BinaryIO

import numpy as np
import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import save_file

from elmo_gpt_bert.convert.files import command_line, new_folder, whole_folder
from elmo_gpt_bert.tasks.columns import DOCUMENT, read_columns
from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError, as_user_errors
from elmo_gpt_bert.training.files import plain, shown
from elmo_gpt_bert.training.flags import find_config
from elmo_gpt_bert.training.loading import check_indices
from modeling.elmo.configuration_elmo import ElmoConfig
from modeling.elmo.modeling_elmo import ElmoModel
from modeling.elmo.tokenization_elmo import ElmoTokenizer, split_words
from modeling.released import name_all, read_json


FASTTEXT = struct.pack("<i", 793712314)  # the first four bytes of its models
SUPERVISED = 3  # in these models, the number of the supervised kind
SENTENCE_END = "</s>"  # fastText's, the only word without subwords
STRING = re.compile(r'"(?:[^"\\]|\\.)*"')  # of JSON
BLOCK = 1 << 20  # bytes that are read at a time
COLUMNS = (".conll", ".bmes", ".bio", ".iob2")  # how the names of files of columns end

Vectors = tuple[list[str], np.ndarray]  # n different words, and (n, size) float32


def convert(
    model: Annotated[str, "a model folder of ELMo, or a configuration JSON"],
    output: Annotated[str, "the folder to write; must be new or empty"],
    vectors: Annotated[str | None, "a file of GloVe, word2vec or fastText"] = None,
    texts: Annotated[
        list[str] | None,
        f"files whose words are kept, or get random vectors: columns ({', '.join(COLUMNS)}), .json, .jsonl, or text",
    ] = None,
    size: Annotated[int | None, "numbers of a random vector (default: 100)"] = None,
    min_count: Annotated[int, "how often --texts must have a word with a random vector (default: 2)"] = 2,
) -> None:
    """Writes a folder with configuration, tokenizer, weights, and our code; none if a file is broken.

    Raises:
        OSError: when a file is missing or damaged, or `output` holds something.
        ValueError: when a file does not have its format, or arguments contradict each other.
    """
    new_folder(output)
    counts = None if texts is None else count_words([Path(path) for path in texts], splitter(model))
    if vectors is not None:
        wanted = None if counts is None else counts.keys() | {word.lower() for word in counts}
        words, table = read_vectors(Path(vectors), wanted)
        if size not in (None, table.shape[1]):
            raise InputError(f"--size {size}, but the vectors of {vectors} have {table.shape[1]} numbers")
    elif counts is not None:
        words, table = random_vectors(counts, min_count, 100 if size is None else size)
    else:
        raise InputError("give --vectors or --texts, which have the words")
    config, weights = read_model(model)
    tokenizer = make_tokenizer(model, config, words)
    mean = table.mean(0, keepdims=True, dtype=np.float64)
    rows = np.concatenate([np.zeros_like(mean), mean, table], dtype=np.float32)
    weights["word_vectors.weight"] = torch.from_numpy(rows)
    config.num_word_vectors, config.word_vector_size = rows.shape
    config.architectures = None  # the folder is for all of them
    with whole_folder(output) as folder:
        config.save_pretrained(folder)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        tokenizer.save_pretrained(folder)
    bilm = "a biLM" if config.use_elmo else "no biLM"
    print(f"{output}: {len(words):,} words of {config.word_vector_size} numbers, and {bilm}")


# The model


def read_model(model: str) -> tuple[ElmoConfig, dict[str, torch.Tensor]]:
    """The configuration, and the biLM's weights by their names in a task network; no weights without `use_elmo`."""
    if model.endswith(".json"):
        with as_user_errors("", ImportError):
            values = read_json(Path(find_config(model)))
        if values.pop("model_type", None) != ElmoConfig.model_type:
            raise InputError(f'{model} must be a configuration of ELMo, with "model_type": "elmo"')
        unknown = sorted(values.keys() - ElmoConfig().to_dict().keys())
        if unknown:
            raise InputError(f"{model}: ELMo has no {name_all(unknown)}")
        with as_user_errors(f"{model}: ", StrictDataclassError):
            config = ElmoConfig(**values)
        elmo = ElmoModel(config) if config.use_elmo else None
    else:
        with as_user_errors():
            values, _ = ElmoConfig.get_config_dict(model)
        if values.get("model_type") != ElmoConfig.model_type:
            raise InputError(f"{model} must be a model of ELMo, not of {plain(str(values.get('model_type')))}")
        with as_user_errors(f"{model}: ", StrictDataclassError):
            config = ElmoConfig.from_pretrained(model)
        elmo = read_bilm(model) if config.use_elmo else None
    return config, {} if elmo is None else {f"elmo.{name}": tensor for name, tensor in elmo.state_dict().items()}


def read_bilm(model: str) -> ElmoModel:
    """The biLM of a model folder. Raises ValueError if the folder lacks some of its weights."""
    check_indices(Path(model))
    try:
        elmo, info = ElmoModel.from_pretrained(model, output_loading_info=True, ignore_mismatched_sizes=True)
    except (OSError, RuntimeError, SafetensorError, ValueError) as error:
        raise FileError(f"cannot load {model}: {' '.join(str(error).split())}") from error
    missing = sorted(info["missing_keys"]) + [name for name, *_ in info["mismatched_keys"]]
    if missing:
        raise InputError(f"{model} does not hold {', '.join(missing[:4])}, or not in the size of its config.json")
    return elmo


def make_tokenizer(model: str, config: ElmoConfig, words: list[str]) -> ElmoTokenizer:
    """The tokenizer of the model folder, or a new one for a configuration JSON, with these words."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "words.txt")
        path.write_text("".join(f"{word}\n" for word in words), encoding="utf-8", newline="\n")
        options = {"words_file": str(path), "max_characters_per_token": config.max_characters_per_token}
        with as_user_errors():
            if model.endswith(".json"):
                return ElmoTokenizer(**options)
            return ElmoTokenizer.from_pretrained(model, **options)


# The texts

Split = Callable[[str], list[tuple[int, int]]]  # a text -> the begin and end of each word


def splitter(model: str) -> Split:
    """How the tokenizer of the model folder splits text, or a new one for a configuration JSON."""
    if model.endswith(".json"):
        return split_words
    with as_user_errors():
        return ElmoTokenizer.from_pretrained(model).split


def count_words(paths: list[Path], split: Split = split_words) -> Counter[str]:
    """How often each word occurs in the files."""
    counts = Counter()
    for path in paths:
        with _opened(path) as file:
            counts.update(_words(_decoded(file, path), path, split))
    if not counts:
        raise InputError(f"no word in {', '.join(map(str, paths))}")
    return counts


def _decoded(file: BinaryIO, path: Path) -> Iterator[tuple[int, str]]:
    """Yields the lines of a text in UTF-8 with their numbers. A byte order mark is dropped."""
    for number, line in enumerate(file, start=1):
        try:
            yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: line {number} is not text: {error}") from error


def _words(lines: Iterator[tuple[int, str]], path: Path, split: Split) -> Iterator[str]:
    """Yields the words of a file: of its first column, of JSON's strings with escapes undone, or of all its text."""
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    if suffix in COLUMNS:
        for sentence in read_columns(lines, path, tagged=False):
            yield from sentence.words if sentence else ()
        return
    if suffix in (".json", ".jsonl"):
        texts = chain.from_iterable(_strings(number, line, path) for number, line in lines)
    else:
        texts = _text_lines(lines, path)
    for text in texts:
        for begin, end in split(text):
            yield text[begin:end]


def _text_lines(lines: Iterator[tuple[int, str]], path: Path) -> Iterator[str]:
    """Yields the lines. Raises ValueError for one that begins a document in CoNLL-2003's columns."""
    for _, line in lines:
        if line.startswith(DOCUMENT):
            raise InputError(f"{path} holds columns, not text: let its name end in {', '.join(COLUMNS)}")
        yield line


def _strings(number: int, line: str, path: Path) -> Iterator[str]:
    """Yields the strings in a line of JSON."""
    try:
        for string in map(json.loads, STRING.findall(line)):
            string.encode()  # raises for half a surrogate pair, such as \ud83d
            yield string
    except ValueError as error:
        raise InputError(f"{path}: line {number} is not text: {error}") from error


def random_vectors(counts: Counter[str], min_count: int, size: int) -> Vectors:
    """Random vectors of variance 1 / size for the words seen at least `min_count` times, the most frequent first."""
    if size < 1:
        raise InputError(f"--size {size} must be positive")
    words = [word for word, count in counts.most_common() if count >= min_count]
    if not words:
        raise InputError(f"no word of --texts occurs as often as --min_count {min_count}")
    bound = (3 / size) ** 0.5
    return words, np.random.default_rng(0).uniform(-bound, bound, (len(words), size)).astype(np.float32)


# The vectors


def read_vectors(path: Path, wanted: set[str] | None = None, origin: str = "--texts") -> Vectors:
    """The words of the file, or those that are also in `wanted`, and their vectors. A repeated word has the first.

    `origin` is where the wanted words come from, for the error if none of them has a vector.
    """
    with _opened(path) as file:
        start = file.read(len(FASTTEXT))
        file.seek(0)
        if start == FASTTEXT:
            words, table = read_fasttext(_Pieces(file), path, wanted)
        else:
            words, table = _collect(_rows(file, path, wanted))
    if not words:
        raise InputError(f"{path} holds no vector{'' if wanted is None else f' for any word in {origin}'}")
    broken = ~np.isfinite(table).all(1)
    if broken.any():
        raise InputError(f"{path}: the vector of {shown(words[int(broken.argmax())])} is not finite")
    return words, table


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file, uncompressed. If the caller raises because its bytes end too early, that becomes an OSError."""
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file")
    with open(path, "rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if compressed else open(path, "rb") as file:
            yield file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FileError(f"{path} is cut short or damaged ({error}): download it again") from error


def _collect(rows: Iterator[tuple[str, np.ndarray]]) -> Vectors:
    """The words and their vectors as one table. A repeated word has its first vector."""
    vectors = {}
    for word, vector in rows:
        vectors.setdefault(word, vector)
    return list(vectors), np.stack(list(vectors.values())) if vectors else np.empty((0, 0), np.float32)


def _rows(file: BinaryIO, path: Path, wanted: set[str] | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the words and vectors of a file of word2vec, or of a text file without word2vec's first line."""
    begin = len(BOM_UTF8) if file.read(len(BOM_UTF8)) == BOM_UTF8 else 0
    file.seek(begin)
    first = file.readline()
    header = re.fullmatch(rb"(\d{1,9}) (\d{1,9})\s*", first)
    if not header:
        file.seek(begin)
        return _text(file, path, len(first.rstrip().split(b" ")) - 1, None, wanted)
    count, size = int(header[1]), int(header[2])
    place = file.tell()
    # A number in text has at least two bytes, a digit and a space, so this many bytes are of one vector in any format.
    sample = file.read(BLOCK).partition(b" ")[2][: 2 * size]
    file.seek(place)
    if re.fullmatch(rb"[\t\n\r\x20-\x7e]*", sample):
        return _text(file, path, size, count, wanted)
    return _binary(_Pieces(file), path, size, count, wanted)


def _text(
    file: BinaryIO, path: Path, size: int, count: int | None, wanted: set[str] | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the words and vectors of a text file, where a line is a word and `size` numbers.

    `count` is the number of words in word2vec's first line; None: there is no such line. Words may hold spaces, as
    some of GloVe's largest file do.
    """
    seen = 0
    for number, line in enumerate(file, start=1 if count is None else 2):
        if not line.endswith(b"\n"):
            raise InputError(
                f"{path}: line {number} has no line feed at its end: download it again, or add one if it is whole"
            )
        line = line.rstrip()
        if not line:
            continue
        head, *numbers = line.rsplit(b" ", size)
        if len(numbers) != size or size == 0 or (b" " in head and _is_number(head.rpartition(b" ")[2])):
            raise InputError(
                f"{path}: line {number} has {line.count(b' ')} numbers after the word, not {size or 'any'}"
            )
        seen += 1
        word = _spelled(head, path)
        if wanted is None or word in wanted:
            try:
                yield word, np.array(numbers, dtype=np.float32)
            except ValueError as error:
                raise InputError(f"{path}: line {number}: {plain(str(error))}") from error
    if count not in (None, seen):
        raise InputError(
            f"{path} has {seen} words, but its first line says {count}: download it again, or correct that line if "
            "you cut the file yourself"
        )


def _spelled(word: bytes, path: Path) -> str:
    """The word as a line of words.txt. Raises ValueError for a word with a line feed."""
    if b"\n" in word:
        raise InputError(f"{path} is damaged: the word {shown(word)} holds a line feed")
    return word.decode("utf-8", "replace").rstrip("\r")  # a carriage return would be lost at the end of a line


def _is_number(text: bytes) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class _Pieces:
    """Reads a file piece by piece. Raises EOFError if it ends within a piece."""

    def __init__(self, file: BinaryIO):
        self.file, self.read, self.place = file, b"", 0

    def take(self, count: int) -> bytes:
        """Takes the next `count` bytes."""
        while len(self.read) - self.place < count:
            self._more(count)
        self.place += count
        return self.read[self.place - count : self.place]

    def until(self, end: bytes) -> bytes:
        """Takes the bytes before the next byte `end`, and this byte, which is not returned."""
        while (stop := self.read.find(end, self.place)) < 0:
            self._more(BLOCK)
        piece, self.place = self.read[self.place : stop], stop + 1
        return piece

    def unpack(self, form: str) -> tuple:
        """Takes the next values, in a format of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def rest(self) -> bytes:
        """The bytes that have been read but not taken, and two more; empty at the end of the file."""
        return self.read[self.place :] + self.file.read(2)

    def _more(self, count: int) -> None:
        """Reads at least `count` bytes."""
        block = self.file.read(max(count, BLOCK))
        if not block:
            raise EOFError("it ends too early")
        self.read, self.place = self.read[self.place :] + block, 0


def _binary(
    pieces: _Pieces, path: Path, size: int, count: int, wanted: set[str] | None
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the words and vectors of word2vec's binary format: a word, a space, `size` floats, maybe a line feed."""
    for _ in range(count):
        word = _spelled(pieces.until(b" ").lstrip(b"\n"), path)
        numbers = pieces.take(4 * size)
        if wanted is None or word in wanted:
            yield word, np.frombuffer(numbers, "<f4").astype(np.float32)
    if pieces.rest().strip(b"\n"):
        raise InputError(f"{path} goes on after the {count} words of its first line: download it again")


def read_fasttext(pieces: _Pieces, path: Path, wanted: set[str] | None) -> Vectors:
    """The words and vectors of a fastText model, where a word's vector is the mean of its row and its subwords' rows.

    The format is that of `FastText::saveModel` (github.com/facebookresearch/fastText, src/fasttext.cc): the arguments,
    the dictionary, and the input matrix, which has the rows of the words and then those of the subwords' buckets.
    """
    _, version, size, *_, kind, buckets, shortest, longest, _, _ = pieces.unpack("<2i12id")
    if version == 11 and kind == SUPERVISED:  # supervised models of version 11 have no subwords
        longest = 0
    if size < 1 or (longest > 0 and buckets < 1):
        raise InputError(f"{path} is damaged: vectors of {size} numbers, and subwords in {buckets} buckets")
    entries, words, _, _, pruned = pieces.unpack("<3i2q")
    kept, members = {}, []  # words, and for each the rows whose mean is its vector
    for number in range(entries):
        spelled = pieces.until(b"\0")
        pieces.unpack("<qb")  # its count, and whether it is a label; labels follow the words
        word = _spelled(spelled, path)
        if number < words and word not in kept and (wanted is None or word in wanted):
            kept[word] = len(kept)
            subwords = [] if word == SENTENCE_END else _buckets(spelled, shortest, longest, buckets)
            members.append(np.array([number, *(words + bucket for bucket in subwords)]))
    (quantised,) = pieces.unpack("<?")
    if quantised or pruned >= 0:
        raise InputError(f"{path} is a compressed model (.ftz): take the .bin file that it was made from")
    rows, columns = pieces.unpack("<2q")
    if columns != size or rows < words + (buckets if longest else 0):
        raise InputError(f"{path} is damaged: {rows} rows of {columns} numbers, for {words} words of {size}")
    return list(kept), _means(pieces, members, rows, size)


def _means(pieces: _Pieces, members: list[np.ndarray], rows: int, size: int) -> np.ndarray:
    """(n, size): the mean of the rows in each of n lists, of a matrix that is read once, a block of rows at a time."""
    if not members:
        return np.empty((0, size), np.float32)
    counts = torch.tensor([len(rows_of_word) for rows_of_word in members])
    wanted = torch.from_numpy(np.concatenate(members))
    word = torch.arange(len(members)).repeat_interleave(counts)
    order = wanted.argsort()
    wanted, word = wanted[order], word[order]
    total = torch.zeros(len(members), size)
    step = max(1, BLOCK // (4 * size))
    for first in range(0, rows, step):
        last = min(first + step, rows)
        block = torch.from_numpy(np.frombuffer(pieces.take(4 * size * (last - first)), "<f4").astype(np.float32))
        here = slice(*torch.searchsorted(wanted, torch.tensor([first, last])).tolist())
        total.index_add_(0, word[here], block.view(-1, size)[wanted[here] - first])
    return (total / counts[:, None]).numpy()


def _buckets(word: bytes, shortest: int, longest: int, buckets: int) -> Iterator[int]:
    """Yields the buckets of a word's subwords: all strings of `shortest` to `longest` characters of <word>, except "<"
    and ">".

    A bucket is the 32-bit FNV-1a hash of a string, modulo `buckets`. fastText's hash takes bytes as signed.
    """
    word = b"<" + word + b">"
    starts = [place for place, byte in enumerate(word) if byte & 0xC0 != 0x80]  # of UTF-8 characters
    ends = [*starts[1:], len(word)]
    for first in range(len(starts)):
        number = 2166136261
        for last in range(first, min(first + longest, len(starts))):
            for byte in word[starts[last] : ends[last]]:
                number = ((number ^ (byte if byte < 128 else byte | 0xFFFFFF00)) * 16777619) & 0xFFFFFFFF
            length = last - first + 1
            if length >= shortest and not (length == 1 and first in (0, len(starts) - 1)):
                yield number % buckets


def main(argv: list[str] | None = None) -> None:
    command_line(convert, argv)


if __name__ == "__main__":
    main()
