"""Runs a script: once or with several seeds, of which it keeps the best model; trains, evaluates and predicts."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator, PartialState
from safetensors.torch import load_file

from elmo_gpt_bert import starting
from elmo_gpt_bert.training import output_folder
from elmo_gpt_bert.training.arguments import RunArguments, hub_model_id, public_arguments
from elmo_gpt_bert.training.batches import worker_errors
from elmo_gpt_bert.training.checkpoints import WEIGHTS
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import DivergedError, FileError, InputError
from elmo_gpt_bert.training.files import read_json_object, remove_folder, write_json, write_text
from elmo_gpt_bert.training.identity import PREDICTIONS, first_difference, read_finished, run_identity
from elmo_gpt_bert.training.launching import (
    choose_precision,
    first_of_seeds,
    forget_global_batch,
    keep_global_batch,
    lock_output_folder,
    locked,
    make_accelerator,
    remove_earlier_results,
)
from elmo_gpt_bert.training.log import finish_trackers, start_trackers
from elmo_gpt_bert.training.loop import Trained, train
from elmo_gpt_bert.training.optimization import load_weights
from elmo_gpt_bert.training.processes import join_processes, on_main
from elmo_gpt_bert.training.reporting import (
    create_repository,
    move_model,
    print_results,
    push,
    with_spread,
    write_results,
)
from elmo_gpt_bert.training.results import (
    PREDICTED_CLASSES,
    STATISTICS,
    Clock,
    defined,
    goodness,
    read_record,
    read_results,
    scores_of,
    spread_of_seeds,
    types_of,
)
from elmo_gpt_bert.training.task import Compute, Evaluation, Task, average, evaluate, members, results_of, save_outputs


if TYPE_CHECKING:
    from transformers import PreTrainedModel


Run = Callable[[RunArguments], dict[str, float]]  # carries out one run; returns its results as metrics.json has them
Load = Callable[[RunArguments], Task]  # what a script loads: its task, still without features


def command(main: Callable[[], object] | None = None) -> None:
    """Runs the `main` of a script that trains or evaluates, as `run_command`; counts the time of the imports, too.

    By default it is that of the script in `sys.argv`: accelerate's launcher for TPUs imports the script and calls this
    function in it (configs/accelerate/tpu.yaml).
    """
    if main is None:
        main = importlib.import_module(Path(sys.argv[0]).stem).main
    Clock.startup_seconds = time.perf_counter() - starting.BEGAN  # the imports
    run_command(main, "interrupted: what was finished is kept, and --resume continues from it")
    PartialState().destroy_process_group()


def repeat(run: Run, args: RunArguments) -> dict[str, float]:
    """Calls `run(args)` once or, with --seeds or --max_restarts, once for each seed, and keeps the best.

    Returns the results as metrics.json has them.
    """
    join_processes(args.ddp_timeout)
    if args.ensemble is not None:  # a missing folder is an error before the work
        names = ", ".join(map(str, members(args.ensemble, args.output_dir)))
        PartialState().print(f"ensemble: the mean of {names}")
    output = Path(args.output_dir)
    several = args.seeds > 1 or args.max_restarts > 0
    with worker_errors(), lock_output_folder(args):
        on_main(partial(_check_folder, output, args, several))
        args = keep_global_batch(choose_precision(args))
        if args.push_to_hub:  # a missing token is an error before the work
            repository = on_main(lambda: create_repository(hub_model_id(args), args.hub_private_repo))
            args = dataclasses.replace(args, hub_model_id=repository)
        results = run_seeds(run, args) if several else run(args)
        forget_global_batch(args)
        if args.push_to_hub and PartialState().is_main_process:
            push(hub_model_id(args), output)
    return results


def run_task(load: Load, args: RunArguments) -> dict[str, float]:
    """One run of a script: loads data and model, makes features, then trains, evaluates and predicts.

    Returns the results as metrics.json has them.
    """
    clock = Clock()
    accelerator = make_accelerator(args)
    clock.lap("start")
    task = load(args)
    size = f"{task.model.num_parameters():,} parameters"
    accelerator.print(f"load: {type(task.model).__name__}, {size}{task.describe()}")
    clock.lap("load")
    task.featurize(args)
    clock.lap("tokenize")
    if task.keep_states(args, accelerator):
        clock.lap("features")
    return carry_out(task, args, accelerator, clock)


def carry_out(task: Task, args: RunArguments, accelerator: Accelerator, clock: Clock) -> dict[str, float]:
    """Trains, evaluates and predicts as `args` say; writes predictions, metrics.json and, after training, the model.

    Returns the results as metrics.json has them. Every process must call it. `clock` has counted the time until now.
    """
    identity = on_main(partial(run_identity, args))
    try:
        compute = _build_compute(task, args, accelerator)
        if not args.do_train:  # otherwise `train` does, after its checks
            remove_earlier_results(args, accelerator)
        write_outputs = partial(_write_outputs, task, args, accelerator)
        results, seconds, evaluations, former = {}, {}, None, {}
        if args.do_train:
            trained = _trained_before(task.model, args, accelerator, identity)
            if trained is None:
                trained = train(task, compute, args, accelerator, identity)
                task.finish()
            results, seconds, evaluations = trained.results, trained.seconds, trained.evaluations
            former = trained.record
            clock.include(seconds)
        if args.do_eval and (not args.do_train or args.save_outputs or task.writes_validation):
            if evaluations is None:
                evaluations = {
                    suffix: evaluate(task, split, compute) for suffix, split in task.evaluation_splits.items()
                }
            if not args.do_train:
                results |= results_of(evaluations)
            for suffix, split in task.evaluation_splits.items():
                task.tune(evaluations[suffix])
                write_outputs(split, evaluations[suffix], writes_predictions=task.writes_validation)
            clock.lap("eval")
        if args.do_predict:
            for suffix, split in task.splits("test").items():
                evaluation = evaluate(task, split, compute)
                results |= results_of({suffix: evaluation}, "test")
                write_outputs(split, evaluation)
            clock.lap("predict")
        results = defined(results) | {f"{step}_runtime": each for step, each in clock.seconds.items()} | task.samples
        write_results(task, results, args, accelerator, identity, former)
        return results
    finally:
        with contextlib.suppress(FileError):  # after an error, which says more; another seed may follow
            finish_trackers(accelerator)


def _trained_before(
    model: PreTrainedModel, args: RunArguments, accelerator: Accelerator, identity: dict[str, Any]
) -> Trained | None:
    """With --resume, what a run that has finished left; `model` gets its weights.

    None if there is no such run. Its scores of a test set are kept, so `identity` gets the name of that set. Every
    process must call it.
    """
    output = Path(args.output_dir)
    record = on_main(partial(_read_finished, output, args)) if args.resume else None
    if record is None:
        return None
    accelerator.print(f"{output} holds the model of this run, which has finished: it is not trained again")
    start_trackers(args, accelerator)  # to draw again what could not be drawn
    load_weights(model, load_file(output / WEIGHTS))
    results, seconds, samples = read_results(record)
    identity.update({name: record["identity"][name] for name in PREDICTIONS & record["identity"].keys()})
    seconds = {name.removesuffix("_runtime"): value for name, value in seconds.items()}
    return Trained(results | samples, seconds, None, record)


def _read_finished(output: Path, args: RunArguments) -> dict[str, Any] | None:
    """The metrics.json of the run with these arguments if it has finished in `output`, where its model is whole.

    None if another run has finished there and left checkpoints, which `train` compares; and, after a line that says
    why, if the run goes on from a checkpoint because its model is damaged, or begins again because the model is gone.
    Raises ValueError if another run left no checkpoint, and OSError if this one did not and its model is damaged.
    """
    has_checkpoint = bool(output_folder.matching_folders(output, output_folder.CHECKPOINT))
    try:
        record = read_finished(output, args)
    except InputError:
        if not has_checkpoint:
            raise
        return None
    problem = None if record is None else output_folder.damage(output, may_have_more=True)
    if problem is None:
        return record
    problem = f"{output} holds a finished run, but {problem}"
    if not has_checkpoint and (output / WEIGHTS).exists():
        raise FileError(
            f"{problem}, so its scores may be those of other weights: copy the folder again, or train again with "
            "--overwrite_output_dir in place of --resume"
        )
    print(f"{problem}: it {'goes on from its last checkpoint' if has_checkpoint else 'is trained again'}")
    return None


def _build_compute(task: Task, args: RunArguments, accelerator: Accelerator) -> Compute:
    """The function that computes the outputs for a data set: with the model, or with the runs of --ensemble.

    Raises now what `average` raises for one of the task's splits, before earlier results are removed.
    """
    if args.ensemble is None:
        return task.build_compute(args, accelerator)
    mean = partial(
        average,
        folders=members(args.ensemble, args.output_dir),
        model_name=args.model_name_or_path,
        id2label=_meaning_of_outputs(task.model),
    )
    for features in task.features.values():
        mean(features)
    return mean


def _meaning_of_outputs(model: PreTrainedModel) -> dict[int | str, str]:
    """The labels of a model; with any number of them for a text, also that word, so that no ensemble mixes both."""
    if model.config.problem_type != "multi_label_classification":
        return model.config.id2label
    return {"problem_type": model.config.problem_type} | {str(n): name for n, name in model.config.id2label.items()}


def _write_outputs(
    task: Task,
    args: RunArguments,
    accelerator: Accelerator,
    split: str,
    evaluation: Evaluation,
    writes_predictions: bool = True,
) -> None:
    """Writes a split's predictions, if `writes_predictions`, and with --save_outputs the model's outputs."""
    if not accelerator.is_main_process:
        return
    output = Path(args.output_dir)
    if args.save_outputs:
        save_outputs(evaluation.outputs, task.features[split], _meaning_of_outputs(task.model), output)
    files = task.write(split, evaluation.predictions) if writes_predictions else {}
    for name, content in files.items():
        write_text(output / name, content)


# Several seeds


def _check_folder(output: Path, args: RunArguments, several: bool) -> None:
    """Raises ValueError where a run would write over another one that is in the folder, and that it does not compare.

    That is a run that trained, for one that only evaluates; with --resume, the best of several seeds, for one run or
    without the folders of the seeds; and one run, for several seeds.
    """
    if args.do_train and not args.resume:
        return  # it begins anew
    record = read_record(output)
    has_trained = record.get("args", {}).get("do_train")
    if has_trained and not args.do_train:
        raise InputError(f"{output} holds the scores of a model that was trained there: choose another --output_dir")
    if not args.resume:
        return
    is_single = has_trained and "runs" not in record
    if several and (is_single or output_folder.matching_folders(output, output_folder.CHECKPOINT)):
        raise InputError(
            f"{output} holds a run of one seed: --resume it without --seeds and --max_restarts, or choose another "
            "--output_dir"
        )
    runs = record.get("runs", {})
    if gone := [seed for seed in runs if not Path(output, f"seed-{seed}").is_dir()]:
        raise InputError(
            f"{output} holds runs of several seeds, and its folder seed-{gone[0]} is gone: choose another "
            "--output_dir, or --overwrite_output_dir"
        )
    if not several and (runs or output_folder.matching_folders(output, output_folder.SEED)):
        raise InputError(f"{output} holds runs of several seeds: --resume them with --seeds")


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
                output_folder.remove_all_but_results(output / f"seed-{other}")
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
    """Runs one seed or, with --resume, reads what it left; returns (results, why it must be replaced or None).

    Raises FloatingPointError if the run diverged, also in an earlier command, and may not fail.
    """
    folder = Path(args.output_dir, f"seed-{seed}")
    changes = {"seed": seed, "seeds": 1, "max_restarts": 0, "output_dir": str(folder), "push_to_hub": False}
    seed_args = dataclasses.replace(args, **changes, hub_model_id=hub_model_id(args))
    try:
        results = on_main(lambda: _finished_seed(folder, seed_args)) if args.resume else None
        if results is None:
            with contextlib.ExitStack() as lock:  # another command may name the seed's folder as its --output_dir
                on_main(lambda: lock.enter_context(locked(folder)))
                results = run(seed_args)
    except DivergedError as error:
        if not may_fail:
            raise DivergedError(f"seed {seed}: {error}; --max_restarts lets other seeds replace it") from error
        if PartialState().is_main_process:
            write_json(folder / output_folder.DIVERGED, {"identity": run_identity(seed_args), "error": str(error)})
        return None, str(error)
    has_collapsed = results.get(f"eval_{PREDICTED_CLASSES}") == 1
    return results, "predicts one class only" if may_fail and has_collapsed else None


def _finished_seed(folder: Path, args: RunArguments) -> dict[str, float] | None:
    """The results of a seed that has finished in `folder`, where its run has these arguments; None if none has.

    Raises ValueError if they are of another run, or lack what this one writes, and FloatingPointError if a run with
    these arguments diverged there and was replaced.
    """
    record = read_finished(folder, args)
    if record is None:
        path = folder / output_folder.DIVERGED
        diverged = read_json_object(path) if path.is_file() else {}
        if diverged and first_difference(run_identity(args), diverged["identity"]) is None:
            raise DivergedError(diverged["error"])
        return None
    for flag, files in (("do_predict", "predictions"), ("save_outputs", "saved outputs")):
        if getattr(args, flag) and not record["args"].get(flag):
            raise InputError(f"{folder} has no {files}: --{flag} with --model_name_or_path {folder.parent}")
    scores, seconds, samples = read_results(record)
    return scores | seconds | samples


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
    folder = output / f"seed-{best}"
    was_moved = not (folder / "README.md").is_file()  # by an earlier call
    if was_moved and read_record(output).get("seed") != best:
        raise InputError(
            f"{folder} was not the best of the seeds of an earlier command, and its model was removed: choose another "
            "--output_dir, or repeat the earlier command"
        )
    record = read_record(folder)
    card = (output if was_moved else folder) / "README.md"
    text = card.read_text(encoding="utf-8") if card.is_file() else None
    if not was_moved:
        staying = {"README.md", ".lock", *output_folder.results_in(folder)}
        staying -= {*output_folder.files_in(folder, output_folder.PREDICTION_FILES)}
        move_model([path for path in folder.iterdir() if path.is_file() and path.name not in staying], output)
    if text is not None:  # the user may have removed it
        write_text(output / "README.md", with_spread(text, best, spread, runs[best], len(runs)))
    for path in output_folder.matching_folders(output, output_folder.SEED):
        for checkpoint in output_folder.matching_folders(path, output_folder.CHECKPOINT):
            remove_folder(checkpoint)
    results = runs[best] | spread
    record |= {**results, "seed": best, "args": public_arguments(args), "runs": runs, "replaced_runs": replaced}
    write_json(output / output_folder.METRICS, record)
    (folder / "README.md").unlink(missing_ok=True)  # last: as long as it exists, the move is not complete
    print_results(results, args, best)
