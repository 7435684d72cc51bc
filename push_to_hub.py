# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert==0.1.0"]
# ///
"""Uploads the output folder of a run, or another model folder, to the Hub.

    python push_to_hub.py runs/bert/rte --hub_model_id me/bert-rte --dry_run
    python push_to_hub.py runs/bert/rte --hub_model_id me/bert-rte --hub_private_repo

The scripts do the same at the end of a run with --push_to_hub. With --dry_run, nothing is sent and no network is
needed: the command shows the repository, the files with their sizes, what is left out, and the model card.
Checkpoints, the runs of single seeds and saved outputs are left out. If an upload was interrupted, the same command
goes on with it.
"""

import argparse
from pathlib import Path

from huggingface_hub import ModelCard, constants

from elmo_gpt_bert.training.cards import renamed
from elmo_gpt_bert.training.checksums import verify_checksums
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import InputError, MissingFileError, as_user_errors
from elmo_gpt_bert.training.files import write_text
from elmo_gpt_bert.training.hub import CARD, benchmark_results, check_name, create_repository, push, pushed_files
from elmo_gpt_bert.training.output_folder import METRICS


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("push_to_hub.py", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the output folder of a run, or a model folder")
    parser.add_argument("--hub_model_id", metavar="NAME", help="the repository; default: the name of the folder")
    parser.add_argument("--hub_private_repo", action="store_true", help="make a new repository private")
    parser.add_argument("--dry_run", action="store_true", help="only show what would be uploaded")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Carries out what `argv`, by default the command line, asks for."""
    args = parse(argv)
    if not args.folder.is_dir():
        raise MissingFileError(f"{args.folder}: no such folder")
    verify_checksums(args.folder)
    name = args.hub_model_id or args.folder.resolve().name
    if not {"config.json", METRICS} & pushed_files(args.folder).keys():  # a folder of such folders, or any other
        remedy = "give the output folder of a run that has ended, or a model folder"
        raise InputError(f"{args.folder} has neither config.json nor {METRICS}: {remedy}")
    check_name(name)
    if args.dry_run:
        print(preview(args.folder, name, args.hub_private_repo))
        return
    name = create_repository(name, args.hub_private_repo)
    if (card := card_for(args.folder, name)) is not None and card != (args.folder / CARD).read_text(encoding="utf-8"):
        write_text(args.folder / CARD, card)
    push(name, args.folder)


def card_for(folder: Path, name: str) -> str | None:
    """The folder's card, whose code loads the model by its name on the Hub; None if it has no card."""
    if not (folder / CARD).is_file():
        return None
    with as_user_errors(f"{folder / CARD}: "):
        return str(renamed(ModelCard.load(folder / CARD), name))


def preview(folder: Path, name: str, private: bool) -> str:
    """What would be uploaded."""
    files, card = pushed_files(folder), card_for(folder, name)
    if card is not None:
        files[CARD] = len(card.encode())
    rows = [f"| {file} | {size:,} |" for file, size in files.items()]
    everything = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    left_out = sorted({file.partition("/")[0] for file in everything if file not in files})
    owner = "" if "/" in name else " of the user who is logged in"
    kind = ", private if it is new" if private else ""
    lines = [f"repository {name}{owner} on {constants.ENDPOINT}{kind}", "", "| file | bytes |", "|---|---|", *rows]
    lines += ["", f"{len(files)} files, {sum(files.values()):,} bytes"]
    lines += [f"left out: {', '.join(left_out)}"] if left_out else []
    for result in benchmark_results(folder):
        score = f"{result.metric} {result.value:.4f}"
        lines.append(f".eval_results/{result.file}, if {result.dataset} is a benchmark of the Hub: {score}")
    lines += ["", f"{CARD}:", "", card] if card else [f"no {CARD}: the repository will have no model card"]
    return "\n".join([*lines, "", "dry run: nothing was uploaded"])


if __name__ == "__main__":
    run_command(main)
