"""The files in a run's output folder, which of them another run in the same folder replaces, and their checksums.

OUTPUT_DIR/metrics.json, predictions*.*, outputs-*.safetensors     results
OUTPUT_DIR/.batch.json                                             how an update was divided when the run began
OUTPUT_DIR/log.jsonl, curves.png                                   the lines of the log, with --report_to curves
OUTPUT_DIR/runs/                                                   TensorBoard's files
OUTPUT_DIR/config.json, model.safetensors, README.md, SHA256SUMS   the model folder
OUTPUT_DIR/checkpoint-UPDATES/                                     what --resume reads
OUTPUT_DIR/seed-N/                                                 with --seeds, the output folder of each run
OUTPUT_DIR/seed-N/.diverged.json                                   how that run diverged, if another seed replaced it
"""

import os
import re
from pathlib import Path
from typing import Any

from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError
from elmo_gpt_bert.training.files import file_digest, read_json_object, remove_folder, sha256, sync


METRICS = "metrics.json"
DIVERGED = ".diverged.json"
BATCH = ".batch.json"
LOG, CURVES = "log.jsonl", "curves.png"
TENSORBOARD = ("runs/events.out.tfevents.*", "runs/*/events.out.tfevents.*", "runs/*/hparams.yml")
CHECKPOINT = re.compile(r"checkpoint-(\d+)")
HALF_WRITTEN = re.compile(r"\.checkpoint-(\d+)\.new")
SEED = re.compile(r"seed-(\d+)")
# The predictions of all scripts, in the official formats and under the names of GLUE's leaderboard.
PREDICTION_FILES = re.compile(
    r"((nbest_)?predictions|null_odds)(_mm|_validation)?\.(tsv|csv|conll|jsonl?)"
    r"|(AX|CoLA|MNLI-mm?|MRPC|QNLI|QQP|RTE|SST-2|STS-B|WNLI)\.tsv"
)
OUTPUT_FILES = re.compile(r"outputs-\w+\.safetensors")  # written by --save_outputs


def matching_folders(output: Path, name: re.Pattern) -> list[Path]:
    """The folders in `output` whose whole name matches. All other folders belong to the user."""
    return [path for path in output.glob("*") if path.is_dir() and name.fullmatch(path.name)]


def files_in(output: Path, *names: re.Pattern) -> list[str]:
    """The names of the files in `output` that match one of these, sorted."""
    matching = (path for path in output.glob("*") if any(name.fullmatch(path.name) for name in names))
    return sorted(path.name for path in matching if path.is_file())


def results_in(output: Path) -> set[str]:
    """The names of the files that tell of a run without its model: scores, predictions, saved outputs, and curves."""
    return {METRICS, DIVERGED, LOG, CURVES, *files_in(output, PREDICTION_FILES, OUTPUT_FILES)}


def remove_all_but_results(output: Path, keep_card: bool = False) -> None:
    """Removes the weights and checkpoints of a run, such as one that is not the best of its seeds.

    With `keep_card`, the model card stays, too. Of seeds, only the best has one.
    """
    kept = results_in(output) | ({"README.md"} if keep_card else set())
    for path in output.iterdir():
        if path.is_dir() and path.name not in ("runs", "wandb"):
            remove_folder(path)
        elif path.is_file() and path.name not in kept:
            path.unlink()


def remove_results(output: Path, *kinds: re.Pattern, keep: Path | None = None) -> None:
    """Removes scores, predictions and saved outputs, and the folders whose names match one of `kinds`, but `keep`."""
    for name in (METRICS, *files_in(output, PREDICTION_FILES, OUTPUT_FILES)):
        (output / name).unlink(missing_ok=True)
    for path in [path for kind in kinds for path in matching_folders(output, kind)]:
        if path != keep:
            remove_folder(path)


def remove_curves(output: Path) -> None:
    """Removes the log, the picture of its curves, and TensorBoard's files. All else in runs/ belongs to the user."""
    for pattern in (LOG, CURVES, *TENSORBOARD):
        for path in output.glob(pattern):
            path.unlink()


# SHA256SUMS, in the format of `sha256sum -c`


SHA256SUMS = "SHA256SUMS"
# The names of files that transformers, tokenizers, peft and --resume load from a folder. The other files of a run, and
# a user's notes and scripts, have other names.
LOADED_FILES = re.compile(
    r".*(config|token|vocab|template|processor|modules|characters|lexicon|\.index).*\.json|(vocab|merges|words).*\.txt"
    r"|(adapter_)?model.*\.safetensors|(optimizer|plan)\.safetensors|.*\.(bin|jinja|model|pt)"
    r"|(configuration|feature_extraction|image_processing|modeling|processing|tokenization)_.*\.py",
    re.IGNORECASE,
)


def write_checksums(folder: Path) -> None:
    """Lists all files of `folder` except README.md, which users may edit, and syncs them to the disk."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() or path.is_dir()]
    names = {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    files = {name: path for name, path in names.items() if name not in (SHA256SUMS, "README.md")}
    sums = [f"{sha256(path)}  {name}\n" for name, path in files.items()]
    (folder / SHA256SUMS).write_text("".join(sums), encoding="utf-8", newline="\n")
    for path in {*paths, folder / SHA256SUMS, folder}:
        sync(path)


def damage(folder: Path, may_have_more: bool = False) -> str | None:
    """The first problem of a folder: no list, or a file that is missing, changed, or added and would be read; or None.

    may_have_more: whether files may have been added
    A link may lead outside the folder, as in the Hub's cache; its target is compared.
    """
    if not (folder / SHA256SUMS).is_file():
        return f"there is no {SHA256SUMS}"
    try:
        sums = _sums(folder / SHA256SUMS)
        if not sums:
            return f"{SHA256SUMS} lists no file"
        for name, digest in sums.items():
            if not os.path.isfile(folder / name):  # False, too, for what cannot be a name
                return f"{name[:200]} is not a file of the folder"
            if file_digest(folder / name) != digest:
                return f"{name} was changed"
        unlisted = [path.name for path in loadable_files(folder) if path.name not in sums]
    except OSError as error:  # of a disk that fails
        return f"{Path(error.filename or SHA256SUMS).name}: {error.strerror}"
    return f"{unlisted[0]} is not in {SHA256SUMS}, but would be read" if unlisted and not may_have_more else None


def _sums(listing: Path) -> dict[str, str]:
    """name -> SHA-256, for each line of a SHA256SUMS; sha256sum puts " *" before a name in binary mode."""
    lines = listing.read_text(encoding="utf-8", errors="replace").split("\n")
    return {line[66:] or line: line[:64] for line in lines if line and not line.startswith("#")}


def loaded_names(listing: Path) -> set[str]:
    """The names in a SHA256SUMS that a library would load from the folder itself."""
    return {name for name in _sums(listing) if "/" not in name and LOADED_FILES.fullmatch(name)}


def loadable_files(folder: Path) -> list[Path]:
    """The files in `folder`, not below it, that a library would load, sorted by their names."""
    return sorted(path for path in folder.iterdir() if LOADED_FILES.fullmatch(path.name) and not path.is_dir())


def superseded_files(folder: Path, new: Path) -> set[str]:
    """The files of a model in `folder` that its SHA256SUMS lists, and that of the folder `new` does not."""
    if not (folder / SHA256SUMS).exists():
        return set()
    here = {path.name for path in loadable_files(folder)}
    return here & loaded_names(folder / SHA256SUMS) - loaded_names(new / SHA256SUMS)


def verify_checksums(folder: Path) -> None:
    """Raises OSError if `folder` has a SHA256SUMS that its files do not match."""
    problem = damage(folder) if (folder / SHA256SUMS).exists() else None
    if problem:
        raise FileError(
            f"{folder}: {problem}. Copy the folder again or, if the change is on purpose, delete its {SHA256SUMS}."
        )


# The folder of an adapter that peft has trained


def adapted_model(name: str) -> str:
    """The model that an adapter was trained on, if `name` is the folder of one; `name` otherwise.

    Raises ValueError if base.json, as examples/lora.py writes it, has the checksum of other weights, and
    FileNotFoundError if they are not here.
    """
    path = Path(name, "adapter_config.json")
    if not path.is_file() or Path(name, "config.json").is_file():
        return name
    base = read_json_object(path).get("base_model_name_or_path")
    if not isinstance(base, str):
        raise InputError(f"{path} does not name its model, base_model_name_or_path: copy it again")
    weights, expected = Path(base, "model.safetensors"), base_of_adapter(name).get("sha256")
    if expected and not weights.is_file():
        raise MissingFileError(
            f"{path} names its model {base}, and there is no {weights} here: run from the folder in which the name is "
            "right, or correct base_model_name_or_path"
        )
    if expected and file_digest(weights) != expected:
        raise InputError(f"{name} was trained on {base} with other weights than {weights}: train it anew")
    return base


def tokenizer_of(name: str) -> str:
    """The folder or name with a model's tokenizer; an adapter has its own or, without one, that of its model."""
    return name if Path(name, "tokenizer_config.json").is_file() else adapted_model(name)


def base_of_adapter(name: str) -> dict[str, Any]:
    """What base.json says: "sha256", of the model's weights, and the adapter's "id2label" and "problem_type"."""
    path = Path(name, "base.json")
    return read_json_object(path) if path.is_file() else {}
