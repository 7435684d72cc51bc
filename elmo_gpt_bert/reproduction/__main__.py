"""Runs the recipes of a table over several seeds, and prints ours beside the papers' numbers.

    zoo-reproduce pretraining_pays                                     # all of it; again, to go on after a stop
    zoo-reproduce pretraining_pays --only sst2 cola --model bert --jobs 2
    zoo-reproduce ablations --dry_run                                  # the commands, without running them
    zoo-reproduce glue --budget paper --jobs 8                         # a paper's own table, a run on each GPU
    zoo-reproduce verify                                               # the published weights, in an hour of a GPU

`--budget small` runs a table with small models and local data on two CPU cores, `--budget paper` with the recipes,
models and data of the papers. `verify` first compares what published weights compute with what other code computes.
Each step is a command of one of the other scripts, as a user would type it. A step that has finished is not run
again; one that was stopped resumes. A step that fails is reported, and the others go on. docs/reproduce.md says what
a table leaves in OUTPUT_DIR.
"""

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path

from elmo_gpt_bert.reproduction.report import collect, read_runs, write_report
from elmo_gpt_bert.reproduction.runner import Folders, choose, plan, run_steps
from elmo_gpt_bert.reproduction.tables import MODELS, TABLES, Table
from elmo_gpt_bert.reproduction.verify import check
from elmo_gpt_bert.training.command_line import program, run_command
from elmo_gpt_bert.training.errors import InputError, LaunchError
from elmo_gpt_bert.training.files import make_folder, write_json


def main(argv: list[str] | None = None) -> None:
    """Carries out what `argv`, by default the command line, asks for."""
    args = parse(argv)
    table = choose_table(args)
    output = args.output_dir / table.folder
    models = read_models(args.models, MODELS[table.budget])
    every = plan(table, Folders(args.data_root, models, args.output_dir / table.runs_folder), args.seeds)
    earlier = read_runs(args.record, table, every)
    if earlier:
        print(f"{args.record} has {len(earlier)} runs, which are not made again")
    steps = choose(every, args.only, args.model, earlier)
    if args.dry_run:
        print(*(shlex.join(step.command) for step in steps), sep="\n")
        return
    if table.name == "verify":
        check(models, args.data_root)
    make_folder(output)
    try:
        failures = run_steps(steps, args.jobs)
    finally:
        record = collect(table, every, earlier)
        write_json(output / "record.json", record)
        print("", write_report(table, record, output), f"written to {output}", sep="\n")
        if args.record:
            make_folder(args.record.parent)
            # Another command may have written runs to it in the meantime.
            write_json(args.record, collect(table, every, earlier | read_runs(args.record, table, every)))
    if failures:
        raise LaunchError(f"{len(failures)} of {len(steps)} steps failed: {'; '.join(failures)}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(program(), description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=TABLES, metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--only", nargs="+", default=[], metavar="TASK", help="only the rows of these tasks")
    parser.add_argument("--model", nargs="+", default=[], metavar="FAMILY", help="only the rows of these models")
    parser.add_argument("--seeds", type=positive, default=3, metavar="N", help="42, 43, ... (default: 3 of them)")
    parser.add_argument(
        "--budget",
        choices=MODELS,
        help="small: two CPU cores and local data; paper: the papers' recipes, for GPUs (default: the smaller one)",
    )
    parser.add_argument("--jobs", type=positive, default=1, metavar="N", help="steps at once (default: 1)")
    parser.add_argument("--data_root", type=Path, default=Path("data"), help="folder of the data (docs/reproduce.md)")
    names = "; ".join(f"{', '.join(models)} for {budget}" for budget, models in MODELS.items())
    parser.add_argument("--models", nargs="+", default=[], metavar="NAME=FOLDER", help=f"other models: {names}")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/reproduce"), help="folder of all tables")
    parser.add_argument("--record", type=Path, metavar="FILE", help="go on from this record, and renew it")
    parser.add_argument("--dry_run", action="store_true", help="print the commands instead of running them")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be positive, not {number}")
    return number


def choose_table(args: argparse.Namespace) -> Table:
    """The table. Raises ValueError for a budget, a task or a family that it lacks."""
    budgets = TABLES[args.table]
    if args.budget not in (*budgets, None):
        raise InputError(f"--budget {args.budget}: {args.table} has only --budget {', '.join(budgets)}")
    table = budgets[args.budget or ("small" if "small" in budgets else "paper")]
    for flag, values, names in (
        ("only", args.only, [row.task for row in table.rows]),
        ("model", args.model, [row.family for row in table.rows]),
    ):
        names = list(dict.fromkeys(filter(None, names)))
        for value in values:
            if value not in names:
                raise InputError(f"--{flag} {value} is none of {', '.join(names)}, which {table.name} has")
    return table


def read_models(words: list[str], defaults: Mapping[str, str]) -> dict[str, str]:
    """The folders of all models, or their names on the Hub: those of the words NAME=FOLDER, and the default ones."""
    models = dict(defaults)
    for word in words:
        name, equals, folder = word.partition("=")
        if name not in defaults or not folder:
            raise InputError(f"--models {word} must be NAME=FOLDER, with one of the names {', '.join(defaults)}")
        models[name] = folder
    return models


def command() -> None:
    run_command(main)


if __name__ == "__main__":
    command()
