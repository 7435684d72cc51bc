"""Runs a script with several seeds, replaces runs that fail, keeps the best model and reports all scores."""

import contextlib
import dataclasses
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate import PartialState

from elmo_gpt_bert.training.arguments import RunArguments, hub_model_id, public_arguments
from elmo_gpt_bert.training.cards import with_spread
from elmo_gpt_bert.training.errors import DivergedError, InputError, flags_in_errors
from elmo_gpt_bert.training.files import read_json_object, remove_folder, write_json, write_text
from elmo_gpt_bert.training.identity import first_difference, read_finished, run_identity
from elmo_gpt_bert.training.launching import first_of_seeds, locked
from elmo_gpt_bert.training.output_folder import (
    CHECKPOINT,
    CURVES,
    DIVERGED,
    LOG,
    METRICS,
    RESULTS,
    SEED,
    matching_folders,
    read_result_files,
    record_result_files,
)
from elmo_gpt_bert.training.processes import on_main
from elmo_gpt_bert.training.reporting import move_model, print_results
from elmo_gpt_bert.training.results import (
    PREDICTED_CLASSES,
    STATISTICS,
    goodness,
    read_record,
    read_results,
    scores_of,
    spread_of_seeds,
    types_of,
)


Run = Callable[[RunArguments], dict[str, float]]  # carries out one run; returns its results as metrics.json has them


def run_seeds(run: Run, args: RunArguments) -> dict[str, float]:
    """Runs each seed in OUTPUT_DIR/seed-N, moves the best model to OUTPUT_DIR, and writes the scores of all seeds.

    Returns the entries of metrics.json: the results of the best seed and, for each score, its mean, median, standard
    deviation, minimum and maximum over the seeds. A run that diverged, or that predicts one class for the whole
    validation set, is replaced by one with another seed, at most --max_restarts times. With --resume, seeds that have
    finished, or were replaced, are not run again.
    """
    output, state = Path(args.output_dir), PartialState()
    runs: dict[int, dict[str, float]] = {}
    replaced: dict[int, dict[str, Any]] = {}
    seed = args.seed
    while len(runs) < args.seeds:
        state.print(f"seed {seed}")
        begins = seed == args.seed and not args.resume
        with first_of_seeds(output) if begins else contextlib.nullcontext():
            results, problem = _attempt(run, args, seed, may_fail=len(replaced) < args.max_restarts)
        if problem:
            state.print(f"seed {seed} {problem}: replaced by another seed")
            replaced[seed] = {"error": problem} if results is None else results
        else:
            runs[seed] = results
            _check_names(results)
        gc.collect()  # mixed precision makes a cycle of accelerate's, which would keep the seed's model
        metric = args.metric_for_best_model
        best = max(runs, key=lambda other: goodness(runs[other], metric), default=None)
        if state.is_main_process:
            for other in (runs.keys() | replaced.keys()) - {best}:
                remove_all_but_results(output / f"seed-{other}")
        state.wait_for_everyone()
        seed += 1
    spread = spread_of_seeds(list(runs.values()))
    if state.is_main_process:
        _move_best_run(output, best, runs, replaced, spread, args)
    state.wait_for_everyone()
    return runs[best] | spread


def _check_names(results: dict[str, float]) -> None:
    """Raises ValueError if a type is called as a statistic over seeds is: eval_f1_min would be both."""
    if clash := sorted({*types_of(scores_of(results)), *types_of(scores_of(results, "test"))} & STATISTICS.keys()):
        raise InputError(
            f"the type {clash[0]} has the name of a statistic over seeds, such as eval_f1_{clash[0]}: give the type "
            "another name, or start one run for each seed"
        )


def _attempt(run: Run, args: RunArguments, seed: int, may_fail: bool) -> tuple[dict[str, float] | None, str | None]:
    """Runs one seed; returns (results, problem), where `problem` says why the run must be replaced, or is None.

    Raises FloatingPointError if the run diverged and may not fail.
    """
    folder = Path(args.output_dir, f"seed-{seed}")
    changes = {"seed": seed, "seeds": 1, "max_restarts": 0, "output_dir": str(folder), "push_to_hub": False}
    seed_args = dataclasses.replace(args, **changes, hub_model_id=hub_model_id(args))
    try:
        with flags_in_errors():
            results = _run_seed(run, args, seed_args)
    except DivergedError as error:
        if not may_fail:
            raise DivergedError(f"seed {seed}: {error}; --max_restarts lets other seeds replace it") from error
        if PartialState().is_main_process:
            write_json(folder / DIVERGED, {"identity": run_identity(seed_args), "error": str(error)})
        return None, str(error)
    has_collapsed = results.get(f"eval_{PREDICTED_CLASSES}") == 1
    return results, "predicts one class only" if may_fail and has_collapsed else None


def _run_seed(run: Run, args: RunArguments, seed_args: RunArguments) -> dict[str, float]:
    """Runs one seed or, with --resume, reads the results of one that has finished.

    Raises FloatingPointError if the seed diverges, or diverged in an earlier command and was replaced.
    """
    folder = Path(seed_args.output_dir)
    finished = on_main(lambda: _read_finished(folder, seed_args)) if args.resume else None
    if finished is not None:
        return finished
    with contextlib.ExitStack() as lock:  # another command may name the seed's folder as its --output_dir
        on_main(lambda: lock.enter_context(locked(folder)))
        return run(seed_args)


def _read_finished(folder: Path, args: RunArguments) -> dict[str, float] | None:
    """The results of a seed that has finished in `folder`, where its run has these arguments; None if none has.

    Raises ValueError if they are of another run, or lack what this one writes, and FloatingPointError if a run with
    these arguments diverged there and was replaced.
    """
    record = read_finished(folder, args)
    if record is None:
        diverged = read_json_object(folder / DIVERGED) if (folder / DIVERGED).is_file() else {}
        if diverged and first_difference(run_identity(args), diverged["identity"]) is None:
            raise DivergedError(diverged["error"])
        return None
    for flag, files in (("do_predict", "predictions"), ("save_outputs", "saved outputs")):
        if getattr(args, flag) and not record["args"].get(flag):
            raise InputError(f"{folder} has no {files}: --{flag} with --model_name_or_path {folder.parent}")
    scores, seconds, samples = read_results(record)
    return scores | seconds | samples


def remove_all_but_results(folder: Path, keep_card: bool = False) -> None:
    """Removes the weights and checkpoints of a run, such as one that is not the best of its seeds.

    Its scores, outputs and curves stay, and with `keep_card` the model card. Of seeds, only the best has one.
    """
    files = read_result_files(folder)
    kept = {METRICS, RESULTS, DIVERGED, LOG, CURVES, *files.predictions, *files.outputs}
    kept |= {"README.md"} if keep_card else set()
    for path in folder.iterdir():
        if path.is_dir() and path.name not in ("runs", "wandb"):
            remove_folder(path)
        elif path.is_file() and path.name not in kept:
            path.unlink()


def _move_best_run(
    output: Path,
    best: int,
    runs: dict[int, dict[str, float]],
    replaced: dict[int, dict[str, Any]],
    spread: dict[str, float],
    args: RunArguments,
) -> None:
    """Moves the model and predictions of seed `best` from OUTPUT_DIR/seed-N to OUTPUT_DIR; writes metrics.json there.

    Outputs written by --save_outputs stay in the seed's folder. Raises ValueError if the model of `best` was removed.
    """
    folder, earlier = output / f"seed-{best}", output / METRICS
    was_moved = not (folder / "README.md").is_file()  # by an earlier call
    if was_moved and not (earlier.is_file() and read_record(earlier)["seed"] == best):
        raise InputError(
            f"{folder} was not the best of the seeds of an earlier command, and its model was removed: choose another "
            "--output_dir, or repeat the earlier command"
        )
    record = read_record(folder / METRICS)
    card = (output if was_moved else folder) / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else None
    if not was_moved:
        files = read_result_files(folder)
        record_result_files(output, predictions=files.predictions)
        staying = {METRICS, RESULTS, "README.md", ".lock", LOG, CURVES, *files.outputs}
        move_model([path for path in folder.iterdir() if path.is_file() and path.name not in staying], output)
    if text is not None:  # the user may have removed it
        write_text(output / "README.md", with_spread(text, best, spread, runs[best], len(runs)))
    for path in matching_folders(output, SEED):
        for checkpoint in matching_folders(path, CHECKPOINT):
            remove_folder(checkpoint)
    results = runs[best] | spread
    record |= {**results, "seed": best, "args": public_arguments(args), "runs": runs, "replaced_runs": replaced}
    write_json(output / METRICS, record)
    (folder / "README.md").unlink(missing_ok=True)  # last: as long as it exists, the move is not complete
    print_results(results, args)
