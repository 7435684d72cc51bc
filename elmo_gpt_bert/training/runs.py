"""Runs a script: `command` calls its `main`, `repeat` its `run`, and `carry_out` trains, evaluates and predicts."""

from __future__ import annotations

import dataclasses
import importlib
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from accelerate import Accelerator, PartialState

from elmo_gpt_bert.training import hub
from elmo_gpt_bert.training.arguments import RunArguments, hub_model_id
from elmo_gpt_bert.training.batches import worker_errors
from elmo_gpt_bert.training.checksums import damage
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.ensembles import average, members, save_outputs
from elmo_gpt_bert.training.errors import FileError, InputError, flags_in_errors
from elmo_gpt_bert.training.files import write_bytes
from elmo_gpt_bert.training.identity import read_finished, run_identity
from elmo_gpt_bert.training.launching import lock_output_folder, remove_earlier_results, trackers_finished
from elmo_gpt_bert.training.loop import Trained, train
from elmo_gpt_bert.training.machine import choose_precision, forget_global_batch, keep_global_batch
from elmo_gpt_bert.training.output_folder import CHECKPOINT, METRICS, SEED, matching_folders, record_result_files
from elmo_gpt_bert.training.processes import join_processes, on_main
from elmo_gpt_bert.training.reporting import write_results
from elmo_gpt_bert.training.results import Clock, read_record, read_results
from elmo_gpt_bert.training.seeds import Run, run_seeds
from elmo_gpt_bert.training.task import Compute, Evaluation, Task, evaluate, results_of


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def command(main: Callable[[], object] | None = None) -> None:
    """Runs the `main` of a script that trains or evaluates, as `run_command`; counts the time of the imports, too.

    By default it is that of the script in `sys.argv`: accelerate's launcher for TPUs imports the script and calls this
    function in it (configs/accelerate/tpu.yaml).
    """
    if main is None:
        main = importlib.import_module(Path(sys.argv[0]).stem).main
    Clock.startup_seconds = time.time() - psutil.Process().create_time()  # the interpreter's start and the imports
    run_command(main, "interrupted: what was finished is kept, and --resume continues from it")
    PartialState().destroy_process_group()


@flags_in_errors()
def repeat(run: Run, args: RunArguments) -> dict[str, float]:
    """Calls `run(args)` once or, with --seeds or --max_restarts, once for each seed, and keeps the best.

    Returns the results as metrics.json has them.
    """
    join_processes(args.ddp_timeout)
    with worker_errors():
        if args.ensemble is not None:  # a missing folder is an error before the work
            names = ", ".join(map(str, members(args.ensemble, args.output_dir)))
            PartialState().print(f"ensemble: the mean of {names}")
        with lock_output_folder(args):
            return _repeat(run, args)


def _repeat(run: Run, args: RunArguments) -> dict[str, float]:
    args = keep_global_batch(choose_precision(args))
    if args.push_to_hub:  # a missing token is an error before the work
        args = dataclasses.replace(args, hub_model_id=on_main(partial(_create_repository, args)))
    if args.seeds > 1 or args.max_restarts:
        results = run_seeds(run, args)
    elif args.resume and on_main(lambda: bool(matching_folders(Path(args.output_dir), SEED))):
        raise InputError(f"{args.output_dir} holds runs of several seeds: --resume them with --seeds")
    else:
        results = run(args)
    forget_global_batch(args)
    if args.push_to_hub and PartialState().is_main_process:
        hub.push(hub_model_id(args), Path(args.output_dir))
    return results


def _create_repository(args: RunArguments) -> str:
    try:
        return hub.create_repository(hub_model_id(args), args.hub_private_repo)
    except FileError as error:
        raise FileError(*error.pieces, ", or leave --push_to_hub out") from error


def carry_out(
    task: Task,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    args: RunArguments,
    accelerator: Accelerator,
    clock: Clock,
) -> dict[str, float]:
    """Trains, evaluates and predicts as `args` say; writes predictions, metrics.json and, after training, the model.

    Returns the results as metrics.json has them. Every process must call it. `clock` has counted the time until now.
    """
    identity = on_main(partial(run_identity, args))
    with trackers_finished(accelerator):
        compute = _build_compute(task, model, args, accelerator)
        if not args.do_train:  # otherwise `train` does, after its checks
            remove_earlier_results(args, accelerator)
        write_outputs = partial(_write_outputs, task=task, model=model, args=args, accelerator=accelerator)
        results, seconds, evaluations, has_model = {}, {}, None, False
        if args.do_train:
            trained = _trained_before(model, args, accelerator)
            has_model = trained is not None
            if not has_model:
                trained = train(model, tokenizer, task, compute, args, accelerator, identity)
                task.finish(model)
            results, seconds, evaluations = trained.results, trained.seconds, trained.evaluations
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
            for suffix, split in task.test_splits.items():
                evaluation = evaluate(task, split, compute)
                results |= results_of({suffix: evaluation}, "test")
                write_outputs(split, evaluation)
            clock.lap("predict")
        results |= {f"{step}_runtime": value for step, value in clock.seconds.items()} | task.samples
        write_results(model, tokenizer, results, task.description, args, accelerator, identity, has_model)
        return results


def _trained_before(model: PreTrainedModel, args: RunArguments, accelerator: Accelerator) -> Trained | None:
    """With --resume, what a run that has finished without a checkpoint of its end left; `model` gets its weights.

    None if there is no such run. Every process must call it.
    """
    output = Path(args.output_dir)
    if not args.resume:
        return None
    record = on_main(partial(_read_finished, output, args))
    if record is None:
        return None
    accelerator.print(f"{output} holds the model of this run, which has finished: it is not trained again")
    model.load_state_dict(type(model).from_pretrained(output).state_dict())
    results, seconds, _ = read_results(record)
    return Trained(results, {name.removesuffix("_runtime"): value for name, value in seconds.items()}, None)


def _read_finished(output: Path, args: RunArguments) -> dict[str, Any] | None:
    """The metrics.json of the run with these arguments if it has finished in `output`, where its model is whole.

    None if a checkpoint is of its end, or if it is of another run that left checkpoints: `train` compares those.
    Raises ValueError if another run has finished there and left none.
    """
    record = read_record(output / METRICS) if (output / METRICS).is_file() else {}
    updates = [int(CHECKPOINT.fullmatch(path.name)[1]) for path in matching_folders(output, CHECKPOINT)]
    if "runs" in record or record.get("train_updates", 0) <= max(updates, default=0):
        return None
    try:
        record = read_finished(output, args)
    except InputError:
        if not updates:
            raise
        return None
    return None if damage(output) else record


def _build_compute(task: Task, model: PreTrainedModel, args: RunArguments, accelerator: Accelerator) -> Compute:
    """The function that computes the outputs for a data set: with the model, or with the runs of --ensemble.

    Raises now what `average` raises for one of the task's splits, before earlier results are removed.
    """
    if args.ensemble is None:
        return task.build_compute(model, args, accelerator)
    mean = partial(
        average,
        folders=members(args.ensemble, args.output_dir),
        model_name=args.model_name_or_path,
        id2label=model.config.id2label,
    )
    for features in task.features.values():
        mean(features)
    return mean


def _write_outputs(
    split: str,
    evaluation: Evaluation,
    task: Task,
    model: PreTrainedModel,
    args: RunArguments,
    accelerator: Accelerator,
    writes_predictions: bool = True,
) -> None:
    """Writes a split's predictions, if `writes_predictions`, and with --save_outputs the model's outputs."""
    if not accelerator.is_main_process:
        return
    output = Path(args.output_dir)
    if args.save_outputs:
        save_outputs(evaluation.outputs, task.features[split], model.config.id2label, output)
    files = task.write(split, evaluation.predictions) if writes_predictions else {}
    record_result_files(output, predictions=files)
    for name, content in files.items():
        write_bytes(output / name, content if isinstance(content, bytes) else content.encode())
