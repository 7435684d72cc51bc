"""Writes the vectors that the layers of a model give to the words, tokens or sentences of a text file.

    python -m elmo_gpt_bert.analysis.extraction --model_name_or_path google-bert/bert-base-uncased \\
        --text_file sentences.txt --output_dir vectors/bert
    python -m elmo_gpt_bert.analysis.extraction --model_name_or_path elmo --text_file words.txt --layers all \\
        --output_dir vectors/elmo
    python -m elmo_gpt_bert.analysis.extraction --model_name_or_path runs/gpt --text_file sentences.txt \\
        --vectors_of sentences --format parquet --output_dir vectors/gpt

The text has a sentence a line, and may be compressed. Each line is read alone. Words are what has spaces around it;
with --vectors_of tokens, the model's tokenizer splits the line.
OUTPUT_DIR receives vectors-00000.safetensors (or .parquet), and further files for further lines, and vectors.json,
which says what they hold. Each file is there only when it is complete: after a crash, --resume computes the others,
and the files have the bytes that they would have had. A file has one entry of metadata, `vectors`, because safetensors
stores several in any order.

Letters: L layers that were asked for, W words or tokens of a line, H size of a vector.
"""

import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate import PartialState
from accelerate.utils import tqdm
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from transformers.hf_argparser import HfArg

from elmo_gpt_bert.analysis.frame import set_up_libraries
from elmo_gpt_bert.analysis.representations import Pieces, Reading, is_vectors, load_encoder, piece_weights
from elmo_gpt_bert.tasks.rows import read_lines
from elmo_gpt_bert.training.arguments import without_folders
from elmo_gpt_bert.training.batches import in_pieces
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import ExistingFileError, InputError
from elmo_gpt_bert.training.files import new_file, read_json_object, write_json
from elmo_gpt_bert.training.flags import parse_fields
from elmo_gpt_bert.training.identity import model_digest
from elmo_gpt_bert.training.launching import locked


Info = dict[str, Any]  # what a file says of itself

MEMORY = 1 << 29  # bytes of the vectors of a part, at most
LINES = 2000  # of a part
REMEDY = "Make room, then give the same command with --resume"
INFO = "vectors"  # the entry of metadata
DESCRIPTION = "vectors.json"  # there only when all files are
SETTINGS = ".settings.json"  # what all files were made with
VECTORS = re.compile(r"vectors-\d{5,}\.(safetensors|parquet)")


@dataclass(frozen=True)
class ExtractArguments:
    model_name_or_path: str = HfArg(help="a model folder or a name on the Hub: BERT, GPT, ELMo and others")
    text_file: str = HfArg(help="the text, a sentence a line; .gz, .bz2, .xz and .zst are decompressed")
    output_dir: str = HfArg(help="the folder to write")
    vectors_of: Literal["words", "tokens", "sentences"] = HfArg(
        default="words", help="words, split at spaces, tokens of the model's tokenizer, or sentences (default: words)"
    )
    layers: list[str] = HfArg(
        default_factory=lambda: ["-1"],
        help="numbers, 0 for the embeddings, -1 for the last layer, or all (default: -1)",
    )
    combine_layers: Literal["none", "mean", "concatenate"] = HfArg(
        default="none", help="the mean of the layers, or all in one long vector, in their order (default: none)"
    )
    pieces: Pieces | None = HfArg(
        default=None,
        help="whose vector a word or sentence of several tokens has (default: of words first, and last of a causal "
        "model; of sentences mean)",
    )
    format: Literal["safetensors", "parquet"] = HfArg(
        default="safetensors", help="of the files (default: safetensors)"
    )
    batch_size: int = HfArg(default=32, help="lines that the model reads at once (default: 32)")
    truncate: bool = HfArg(default=False, help="read only the first tokens of a line that is too long for the model")
    resume: bool = HfArg(default=False, help="go on in a folder that has some of the files")
    overwrite_output_dir: bool = HfArg(default=False, help="replace the vectors in the folder")

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"--batch_size must be at least 1, not {self.batch_size}")
        if self.pieces and self.vectors_of == "tokens":
            raise InputError("--pieces says how tokens make a word or sentence: leave it out with --vectors_of tokens")


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Carries out what `argv`, by default the command line, asks for; returns the content of vectors.json."""
    args = parse_fields(ExtractArguments, argv, description=__doc__.partition("\n")[0])
    folder, text = Path(args.output_dir), Path(args.text_file)
    has_vectors = any((folder / name).exists() for name in (DESCRIPTION, SETTINGS))
    if has_vectors and not (args.resume or args.overwrite_output_dir):
        raise ExistingFileError(
            f"--output_dir {folder} has vectors: choose another, --resume, or give --overwrite_output_dir"
        )
    extractor = Extractor(args)
    numbers = 0 if args.vectors_of == "sentences" else len(extractor.layers) * extractor.size
    plan = make_plan(text, 4 * numbers)
    settings = extractor.settings | {"text_sha256": plan.digest}
    with locked(folder):
        start(folder, settings, args.resume)
        files = {part: folder / f"vectors-{n:05}.{args.format}" for n, part in enumerate(plan.parts)}
        infos = {part: read_info(path, part) for part, path in files.items()}
        missing = [part for part, info in infos.items() if info is None]
        if missing and (folder / DESCRIPTION).exists():  # somebody has removed a file
            write_json(folder / SETTINGS, settings)
            (folder / DESCRIPTION).unlink()
        bar = tqdm(total=sum(map(len, missing)), unit=" lines", leave=False, disable=not sys.stderr.isatty())
        for part, lines in read_parts(text, missing):
            vectors = extractor.extract(part, lines)
            with new_file(files[part], REMEDY) as temporary:  # complete, or not there
                (_write_safetensors if args.format == "safetensors" else _write_parquet)(vectors, temporary)
            infos[part] = vectors.info
            bar.update(len(part))
        bar.close()
        description = settings | {
            "lines": sum(map(len, plan.parts)),
            "empty_lines": plan.empty,
            "truncated_lines": [number for info in infos.values() for number in info["truncated"]],
            "vectors": sum(info["vectors"] for info in infos.values()),
            "files": {path.name: len(part) for part, path in files.items()},
        }
        write_json(folder / DESCRIPTION, description)
    print(report(folder, description))
    return description


def start(folder: Path, settings: dict[str, Any], resume: bool) -> None:
    """Notes the settings. Raises ValueError if --resume finds vectors that were made with others."""
    noted = [folder / name for name in (SETTINGS, DESCRIPTION) if (folder / name).is_file()]
    if resume and noted:
        earlier = read_json_object(noted[0])  # a copy of the folder may lack SETTINGS, whose name is hidden
        # The names of model and text do not count, their digests do.
        changed = [name for name in settings if name not in ("model", "text") and earlier.get(name) != settings[name]]
        if changed:
            raise InputError(
                f"--output_dir {folder} has vectors with other settings ({changed[0].removesuffix('_sha256')}): "
                "choose another folder, or give --overwrite_output_dir instead of --resume"
            )
        return
    (folder / DESCRIPTION).unlink(missing_ok=True)
    for path in [path for path in folder.iterdir() if VECTORS.fullmatch(path.name)]:
        path.unlink()
    write_json(folder / SETTINGS, settings)


def report(folder: Path, description: dict[str, Any]) -> str:
    """What is in the folder, in words that suit one file or line and many."""
    layers = ", ".join(description["names_of_layers"])
    text = f"{folder} has the vectors of {description['vectors_of']}: {description['vectors']:,} of them. "
    text += f"A vector has {description['size']} numbers ({layers}).\n"
    text += f"Lines of the text: {description['lines']:,}. Files: {len(description['files']):,}."
    if empty := description["empty_lines"]:
        text += f"\nLines without words: {empty:,}."
    if cut := description["truncated_lines"]:
        text += f"\nLines that the model did not read to the end: {len(cut):,}. The first is line {cut[0] + 1}."
    return text


# Parts of the text


class Plan(NamedTuple):
    """How a text is split: the numbers of the lines in each part, 0 for the first line of the text.

    digest: SHA-256 of the lines
    empty: how many lines have no words
    """

    parts: list[range]
    digest: str
    empty: int


def make_plan(path: Path, bytes_each: int) -> Plan:
    """Splits a text into parts of up to LINES lines whose vectors take up to MEMORY, or of a single longer line.

    `bytes_each` is the memory of a vector; a line has no more words or tokens than bytes. With 0, only the number of
    lines counts. The text is read to its end, so that what is broken in it is found before the work begins. Raises
    ValueError if there is no line.
    """
    starts, size, empty = [0], 0, 0
    content, number = hashlib.sha256(), -1
    for number, (_, line) in enumerate(read_lines(path)):
        encoded = line.encode()
        content.update(encoded)
        empty += not line.split()
        size += len(encoded)
        if number > starts[-1] and (number - starts[-1] == LINES or size * bytes_each > MEMORY):
            starts.append(number)
            size = len(encoded)
    if number < 0:
        raise InputError(f"{path} has no lines")
    return Plan([*map(range, starts, [*starts[1:], number + 1])], content.hexdigest(), empty)


def read_parts(path: Path, parts: list[range]) -> Iterator[tuple[range, list[str]]]:
    """Yields each part with its lines, without white space around them. `parts` are in order, some may be missing."""
    lines, place = read_lines(path), 0
    for part in parts:
        yield part, [line.strip() for _, line in islice(lines, part.start - place, part.stop - place)]
        place = part.stop


# Vectors


class Part(NamedTuple):
    """The vectors of a few lines of a text.

    first: the number of the first line, 0 for the first of the text
    columns: what the layers of `vectors` are called: one name if they were combined, or only one was asked for
    words: the words or tokens of each line; None if each line has one vector
    texts: the lines
    vectors: of each line (L, W, H), with W = 1 if it has one vector; L has its name in `columns`
    truncated: the numbers of the lines that the model has not read to their end
    """

    first: int
    columns: list[str]
    words: list[list[str]] | None
    texts: list[str]
    vectors: list[np.ndarray]
    truncated: list[int]

    @property
    def info(self) -> Info:
        """What the file says of itself."""
        count = sum(array.shape[1] for array in self.vectors)
        return {"first": self.first, "lines": len(self.vectors), "vectors": count, "truncated": self.truncated}


class Extractor:
    """Computes the vectors of lines. The model is on the GPU if there is one."""

    def __init__(self, args: ExtractArguments) -> None:
        name = args.model_name_or_path
        if is_vectors(name):
            raise InputError(
                f"--model_name_or_path {name} is a file of word vectors, not a model: it lists them itself"
            )
        set_up_libraries()
        torch.manual_seed(0)  # a pooler that the checkpoint lacks is the same each time, and so is the model's digest
        self.args, self.of_sentences = args, args.vectors_of == "sentences"
        self.encoder = load_encoder(name, pieces=args.pieces if args.vectors_of == "words" else None)
        self.encoder.model.to(PartialState().device)
        self.layers = self._choose_layers()
        self.combination = args.combine_layers if len(self.layers) > 1 else "none"
        (example,) = self.encoder.read_words([["a"]], self.layers)
        self.size: int = example.states.shape[-1]

    def _choose_layers(self) -> list[int]:
        """The numbers of layers in --layers, which has names such as "all", "0" and "-1", or several with commas."""
        names, count, numbers = self.args.layers, len(self.encoder.layers), []
        for name in ",".join(names).split(","):
            try:
                numbers += range(count) if name.strip() == "all" else [range(count)[int(name)]]
            except (ValueError, IndexError) as error:
                last = count - 1
                raise InputError(
                    f"--layers {name}: the model has the layers 0 to {last}, or -{count} to -1"
                ) from error
        if len({*numbers}) < len(numbers):
            raise InputError(f"--layers {' '.join(names)} names a layer twice: leave one out")
        return numbers

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the vectors but the text, for vectors.json and to compare with what a folder has."""
        args, encoder = self.args, self.encoder
        sentences = args.pieces or "mean"
        pieces = {"words": getattr(encoder, "pieces", None), "tokens": None, "sentences": sentences}
        return {
            "model": without_folders(args.model_name_or_path),
            "model_sha256": model_digest(encoder.model),
            "text": without_folders(args.text_file),
            "text_sha256": None,
            "vectors_of": args.vectors_of,
            "pieces": pieces[args.vectors_of],
            "layers": self.layers,
            "names_of_layers": [encoder.layers[number] for number in self.layers],
            "combine_layers": self.combination,
            "size": self.size * (len(self.layers) if self.combination == "concatenate" else 1),
            "format": args.format,
            "batch_size": args.batch_size,
        }

    def extract(self, part: range, lines: list[str]) -> Part:
        """The vectors of a part of the text. Raises ValueError for a line that is too long for the model."""
        nothing = self._combined(np.zeros((len(self.layers), int(self.of_sentences), self.size), np.float32))
        words, vectors, truncated = [[] for _ in lines], [nothing] * len(lines), []
        order = sorted((number for number, line in enumerate(lines) if line), key=lambda number: len(lines[number]))
        for numbers in in_pieces(order, self.args.batch_size):
            texts = [lines[number] for number in numbers]
            if self.args.vectors_of == "words":
                readings = self.encoder.read_words([text.split() for text in texts], self.layers)
            else:
                readings = self.encoder.read([[text] for text in texts], self.layers)
            for number, reading in zip(numbers, readings, strict=True):
                words[number], vectors[number] = reading.tokens, self._vectors(reading)
                if reading.length is not None:
                    truncated.append((part[number], reading.length))
        truncated.sort()
        if truncated and not self.args.truncate:
            line, length = truncated[0]
            raise InputError(
                f"{self.args.text_file}:{line + 1}: the line has {length} tokens, and the model reads "
                f"{self.encoder.longest}: split it, or give --truncate, which reads its first tokens only"
            )
        is_single = len(self.layers) == 1 or self.combination != "none"
        columns = ["vectors"] if is_single else [f"layer_{number}" for number in self.layers]
        words = None if self.of_sentences else words
        return Part(part.start, columns, words, lines, vectors, [number for number, _ in truncated])

    def _vectors(self, reading: Reading) -> np.ndarray:
        """The vectors (L, W, H) of a line, or (L, 1, H) of a sentence; L is 1 if the layers are combined.

        A sentence has the mean of the text's tokens, or the vector of the first or last token that the model reads.
        """
        vectors = reading.states.numpy()
        if self.of_sentences:
            pieces = self.args.pieces or "mean"
            # The first and the last token may be special ones.
            words = [0 if pieces != "mean" or word is not None else None for word in reading.words]
            shares = piece_weights(words, 1, pieces)[0].numpy()  # (T)
            vectors = np.einsum("t,lth->lh", shares, vectors)[:, None]
        return self._combined(vectors)

    def _combined(self, vectors: np.ndarray) -> np.ndarray:
        if self.combination == "mean":
            return vectors.mean(0, keepdims=True)
        if self.combination == "concatenate":
            return np.concatenate(vectors, axis=-1)[None]
        return vectors


# Files


def read_info(path: Path, part: range) -> Info | None:
    """What the file of a part says of itself; None if it is missing, damaged, or of other lines."""
    try:
        if path.suffix == ".parquet":
            info = json.loads(pq.read_schema(path).metadata[INFO.encode()])
        else:
            with safe_open(path, "np") as file:
                info = json.loads(file.metadata()[INFO])
        return info if (info["first"], info["lines"]) == (part.start, len(part)) else None
    except (OSError, SafetensorError, pa.ArrowException, KeyError, ValueError):
        return None


def _write_safetensors(part: Part, path: Path) -> None:
    """A tensor for each line, named by its number; if each line has one vector, one tensor `vectors` of all of them.

    With one column, tensors lack the dimension of layers.
    """
    arrays = [array[0] if len(part.columns) == 1 else array for array in part.vectors]
    info = part.info | {"columns": part.columns}
    if part.words is None:
        tensors = {"vectors": np.stack([array[..., 0, :] for array in arrays])}
    else:
        tensors = {str(number): np.ascontiguousarray(array) for number, array in enumerate(arrays, part.first)}
        info["words"] = part.words
    save_file(tensors, path, {INFO: json.dumps(info, ensure_ascii=False)})


def _write_parquet(part: Part, path: Path) -> None:
    """A row for each line: its number, its text or its words, and a column of vectors for each name in `columns`."""
    vector = pa.list_(pa.float32(), part.vectors[0].shape[-1])
    columns = {"line": pa.array(range(part.first, part.first + len(part.vectors)), pa.int64())}
    if part.words is None:
        columns["text"] = pa.array(part.texts, pa.string())
    else:
        columns["words"] = pa.array(part.words, pa.list_(pa.string()))
    for number, name in enumerate(part.columns):
        of_layer = [array[number] for array in part.vectors]  # (W, H) of each line
        if part.words is None:
            columns[name] = pa.array([rows[0] for rows in of_layer], vector)
        else:
            columns[name] = pa.array([[*rows] for rows in of_layer], pa.list_(vector))
    table = pa.table(columns).replace_schema_metadata({INFO: json.dumps(part.info)})
    # In groups of a few rows, a reader needs not hold the whole file.
    pq.write_table(table, path, row_group_size=100)


def command() -> None:
    run_command(main)


if __name__ == "__main__":
    command()
