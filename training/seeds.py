"""One run a seed: the best is kept, collapsed ones are replaced, and the spread of all is told."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import PartialState

from training.arguments import RunArguments, hub_model_id, public_arguments
from training.cards import spread_card
from training.errors import DivergedError, InputError, flags_in_errors
from training.files import remove, write_json, write_text
from training.identity import identity
from training.output_folder import (
    CHECKPOINT,
    HALF_WRITTEN,
    IDENTITY,
    METRICS,
    RESULTS,
    SEED,
    folders,
    note_results,
    noted_results,
    remove_results,
)
from training.reporting import move_model, print_results
from training.results import Results, SeedSpread, goodness, read_record


Run = Callable[[RunArguments], Results]


def run_seeds(run: Run, args: RunArguments) -> dict[str, float]:
    """Runs each seed in OUTPUT_DIR/seed-N, moves the files of the best to OUTPUT_DIR, and writes what all scored.

    Returns the best's results and, for each of its scores, mean, median, standard deviation, least and greatest over
    the seeds. A run that diverged, or whose predictions on the validation set were all one class, is replaced, while
    --max_restarts allows. With --resume, seeds that have finished are not run again.
    """
    output, state = Path(args.output_dir), PartialState()
    runs: dict[int, Results] = {}
    replaced: dict[int, dict[str, Any]] = {}
    if state.is_main_process and not args.resume:
        # --overwrite_output_dir permits it: beside the new runs, the earlier ones' would pass for theirs.
        remove_results(output, SEED, CHECKPOINT, HALF_WRITTEN)
    state.wait_for_everyone()
    seed = args.seed
    while len(runs) < args.seeds:
        state.print(f"seed {seed}")
        results, problem = _attempt(run, args, seed, may_fail=len(replaced) < args.max_restarts)
        if problem:
            state.print(f"seed {seed} {problem}: replaced by another")
            replaced[seed] = {"error": problem} if results is None else results.flat()
        else:
            runs[seed] = results
        metric = args.metric_for_best_model
        best = max(runs, key=lambda other: goodness(runs[other].validation, metric), default=None)
        if state.is_main_process:
            for other in (runs.keys() | replaced.keys()) - {best}:
                _keep_results(output / f"seed-{other}")
        state.wait_for_everyone()
        seed += 1
    spread = SeedSpread.of(list(runs.values()))
    if state.is_main_process:
        keep_best(output, best, runs, replaced, spread, args)
    state.wait_for_everyone()
    return runs[best].flat() | spread.flat()


def _attempt(run: Run, args: RunArguments, seed: int, may_fail: bool) -> tuple[Results | None, str | None]:
    """The results of one seed's run; and, where it `may_fail`, why it is to be replaced, if it is.

    Raises FloatingPointError where it diverged and may not fail.
    """
    try:
        with flags_in_errors():
            results = _run_seed(run, args, seed)
    except DivergedError as error:
        if not may_fail:
            raise DivergedError(f"seed {seed}: {error}; --max_restarts lets other seeds take over") from error
        return None, str(error)
    return results, "predicts one class only" if may_fail and results.collapsed else None


def _run_seed(run: Run, args: RunArguments, seed: int) -> Results:
    folder = Path(args.output_dir, f"seed-{seed}")
    changes = {"seed": seed, "seeds": 1, "max_restarts": 0, "output_dir": str(folder), "push_to_hub": False}
    ours = dataclasses.replace(args, **changes, hub_model_id=hub_model_id(args))
    if args.resume and (folder / METRICS).is_file():
        record = read_record(folder / METRICS)
        if record.get("identity") != identity(ours):
            raise InputError(
                f"{folder} is of a run with other arguments, data or configuration: this one needs an --output_dir of "
                "its own"
            )
        for flag, what in (("do_predict", "predictions"), ("save_outputs", "saved outputs")):
            if getattr(args, flag) and not record["args"].get(flag):
                raise InputError(f"{folder} has no {what}: --{flag} with --model_name_or_path {args.output_dir}")
        return Results.read(record)
    folder.mkdir(parents=True, exist_ok=True)
    if PartialState().is_main_process:
        _note_other_seeds(folder, args)
    PartialState().wait_for_everyone()
    return run(ours)


def _note_other_seeds(folder: Path, args: RunArguments) -> None:
    """Leaves in a seed's folder, for its training to compare, which run a finished seed was; {}: none has finished."""
    others = [other / IDENTITY for other in folders(folder.parent, SEED) if other != folder]
    noted = [path.read_text(encoding="utf-8") for path in others if args.resume and path.is_file()]
    write_text(folder / IDENTITY, next((text for text in noted if text != "{}"), "{}"))


def _keep_results(folder: Path) -> None:
    """Removes a run's weights and checkpoints, since it is not the best; its scores, outputs and curves stay."""
    noted = noted_results(folder)
    results = {METRICS, RESULTS, IDENTITY, *noted.predictions, *noted.outputs}
    for path in folder.iterdir():
        if path.is_dir() and path.name not in ("runs", "wandb"):
            remove(path)
        elif path.is_file() and path.name not in results:
            path.unlink()


def keep_best(
    output: Path,
    best: int,
    runs: dict[int, Results],
    replaced: dict[int, dict[str, Any]],
    spread: SeedSpread,
    args: RunArguments,
) -> None:
    """Moves the model of seed `best` from OUTPUT/seed-N to OUTPUT, and says there what every seed scored.

    What --save_outputs kept stays with its seed.
    """
    folder, earlier = output / f"seed-{best}", output / METRICS
    moved = not (folder / "README.md").is_file()  # by an earlier call
    if moved and not (earlier.is_file() and read_record(earlier)["seed"] == best):
        raise InputError(
            f"{folder} was not the best of the seeds of an earlier command, and its model is gone: give other seeds, "
            "or as many, another --output_dir"
        )
    record = read_record(folder / METRICS)
    if not moved:
        card = (folder / "README.md").read_text(encoding="utf-8")
        note_results(output, predictions=noted_results(folder).predictions)
        stay = {METRICS, RESULTS, "README.md", ".lock", IDENTITY, *noted_results(folder).outputs}
        move_model([path for path in folder.iterdir() if path.is_file() and path.name not in stay], output)
        write_text(output / "README.md", card + spread_card(best, spread, runs[best], len(runs)))
    for path in folders(output, SEED):
        for checkpoint in folders(path, CHECKPOINT):
            remove(checkpoint)
    entries = runs[best].flat() | spread.flat()
    flat = {seed: results.flat() for seed, results in runs.items()}
    record |= {**entries, "seed": best, "args": public_arguments(args), "runs": flat, "replaced_runs": replaced}
    write_json(output / METRICS, record)
    (folder / "README.md").unlink(missing_ok=True)  # last, for it says that not all of this has been done
    print_results(entries, output)
