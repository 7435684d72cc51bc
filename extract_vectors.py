# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert==0.1.0"]
# ///
"""Writes the vectors that the layers of a model give to the words, tokens or sentences of a text file.

    python extract_vectors.py --model_name_or_path google-bert/bert-base-uncased --text_file sentences.txt \\
        --output_dir vectors/bert
    python extract_vectors.py --model_name_or_path elmo --text_file words.txt --layers all --output_dir vectors/elmo
    python extract_vectors.py --model_name_or_path runs/gpt --text_file sentences.txt --vectors_of sentences \\
        --format parquet --output_dir vectors/gpt

The text has a sentence a line, and may be compressed. Each line is read alone. Words are what has spaces around it;
with --vectors_of tokens, the model's tokenizer splits the line.
OUTPUT_DIR receives vectors-00000.safetensors (or .parquet), and further files for further lines, and vectors.json,
which says what they hold. Each file is there only when it is complete: after a crash, --resume computes the others,
and the files have the bytes that they would have had.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import tqdm
from transformers.hf_argparser import HfArg

from elmo_gpt_bert.analysis.extraction import (
    Combination,
    Extractor,
    Format,
    Info,
    Plan,
    Unit,
    choose_layers,
    make_plan,
    read_info,
    read_parts,
    write_part,
)
from elmo_gpt_bert.analysis.frame import set_up_libraries
from elmo_gpt_bert.analysis.representations import Pieces, is_vectors, load_encoder
from elmo_gpt_bert.training.arguments import without_folders
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import ExistingFileError, InputError
from elmo_gpt_bert.training.files import read_json_object, write_json
from elmo_gpt_bert.training.flags import parse_fields
from elmo_gpt_bert.training.identity import model_digest
from elmo_gpt_bert.training.launching import locked


DESCRIPTION = "vectors.json"  # there only when all files are
SETTINGS = ".settings.json"  # what all files were made with
VECTORS = re.compile(r"vectors-\d{5,}\.(safetensors|parquet)")


@dataclass(frozen=True)
class ExtractArguments:
    """The arguments of this script."""

    model_name_or_path: str = HfArg(help="a model folder or a name on the Hub: BERT, GPT, ELMo and others")
    text_file: str = HfArg(help="the text, a sentence a line; .gz, .bz2, .xz and .zst are decompressed")
    output_dir: str = HfArg(help="the folder to write")
    vectors_of: Unit = HfArg(
        default="words", help="words, split at spaces, tokens of the model's tokenizer, or sentences (default: words)"
    )
    layers: list[str] = HfArg(
        default_factory=lambda: ["-1"],
        help="numbers, 0 for the embeddings, -1 for the last layer, or all (default: -1)",
    )
    combine_layers: Combination = HfArg(
        default="none", help="the mean of the layers, or all in one long vector, in their order (default: none)"
    )
    pieces: Pieces | None = HfArg(
        default=None,
        help="whose vector a word or sentence of several tokens has (default: of words first, and last of a causal "
        "model; of sentences mean)",
    )
    format: Format = HfArg(default="safetensors", help="of the files (default: safetensors)")
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
    check_folder(folder, args)
    extractor = load_extractor(args)
    numbers = 0 if args.vectors_of == "sentences" else len(extractor.layers) * extractor.size
    plan = make_plan(text, 4 * numbers)
    settings = describe(args, extractor, plan)
    with locked(folder):
        start(folder, settings, args)
        files = {part: folder / f"vectors-{n:05}.{args.format}" for n, part in enumerate(plan.parts)}
        infos = {part: read_info(path, part, args.format) for part, path in files.items()}
        missing = [part for part, info in infos.items() if info is None]
        if missing and (folder / DESCRIPTION).exists():  # somebody has removed a file
            write_json(folder / SETTINGS, settings)
            (folder / DESCRIPTION).unlink()
        bar = tqdm(total=sum(map(len, missing)), unit=" lines", leave=False, disable=not sys.stderr.isatty())
        for part, lines in read_parts(text, missing):
            infos[part] = write_part(extractor.extract(text, part, lines), files[part], args.format)
            bar.update(len(part))
        bar.close()
        counts = {path.name: infos[part]["lines"] for part, path in files.items()}
        description = settings | summed_up([*infos.values()], plan) | {"files": counts}
        write_json(folder / DESCRIPTION, description)
    print(report(folder, description))
    return description


def load_extractor(args: ExtractArguments) -> Extractor:
    """Loads the model, and puts it on the GPU if there is one."""
    name = args.model_name_or_path
    if is_vectors(name):
        raise InputError(f"--model_name_or_path {name} is a file of word vectors, not a model: it lists them itself")
    set_up_libraries()
    torch.manual_seed(0)  # a pooler that the checkpoint lacks is the same each time, and so is the model's digest
    encoder = load_encoder(name, pieces=args.pieces if args.vectors_of == "words" else None)
    encoder.model.to(PartialState().device)
    layers = choose_layers(args.layers, encoder)
    combination = args.combine_layers if len(layers) > 1 else "none"
    pieces = args.pieces or "mean"
    return Extractor(encoder, args.vectors_of, pieces, layers, combination, args.batch_size, args.truncate)


# The folder


def check_folder(folder: Path, args: ExtractArguments) -> None:
    """Raises FileExistsError if the folder has vectors, and neither --resume nor --overwrite_output_dir is given."""
    has_vectors = any((folder / name).exists() for name in (DESCRIPTION, SETTINGS))
    if has_vectors and not (args.resume or args.overwrite_output_dir):
        raise ExistingFileError(
            f"--output_dir {folder} has vectors: choose another, --resume, or give --overwrite_output_dir"
        )


def describe(args: ExtractArguments, extractor: Extractor, plan: Plan) -> dict[str, Any]:
    """All that decides the vectors, for vectors.json and to compare with those that a folder has already."""
    encoder = extractor.encoder
    pieces = {"words": getattr(encoder, "pieces", None), "tokens": None, "sentences": extractor.pieces}
    return {
        "model": without_folders(args.model_name_or_path),
        "model_sha256": model_digest(encoder.model),
        "text": without_folders(args.text_file),
        "text_sha256": plan.digest,
        "vectors_of": args.vectors_of,
        "pieces": pieces[args.vectors_of],
        "layers": extractor.layers,
        "names_of_layers": [encoder.layers[number] for number in extractor.layers],
        "combine_layers": extractor.combination,
        "size": extractor.size * (len(extractor.layers) if extractor.combination == "concatenate" else 1),
        "format": args.format,
        "batch_size": args.batch_size,
    }


def start(folder: Path, settings: dict[str, Any], args: ExtractArguments) -> None:
    """Notes the settings. Raises ValueError if --resume finds vectors that were made with others."""
    noted = [folder / name for name in (SETTINGS, DESCRIPTION) if (folder / name).is_file()]
    if args.resume and noted:
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


def summed_up(infos: list[Info], plan: Plan) -> dict[str, Any]:
    """What vectors.json says of all files together."""
    return {
        "lines": sum(info["lines"] for info in infos),
        "empty_lines": plan.empty,
        "truncated_lines": [number for info in infos for number in info["truncated"]],
        "vectors": sum(info["vectors"] for info in infos),
    }


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


if __name__ == "__main__":
    run_command(main)
