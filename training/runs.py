"""The frame of a script: `command` calls its `main`, `repeat` its `run`, and `carry_out` does the work of its task."""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
from accelerate import Accelerator, PartialState
from accelerate.utils import parse_flag_from_env
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training import hub
from training.arguments import RunArguments
from training.clock import Clock
from training.command_line import run_command
from training.ensembles import average, file_name, members, save_outputs
from training.errors import InputError, flags_in_errors
from training.files import write_text
from training.launching import check_launch, lock_output_folder
from training.loop import train
from training.output_folder import SEED, folders, note_results
from training.prediction import predict
from training.reporting import finish, remove_earlier_results
from training.results import Results
from training.seeds import Run, run_seeds
from training.task import Compute, Evaluation, Task, evaluate


def command(main: Callable[[], object]) -> None:
    """`run_command` for the scripts of runs, whose clock and processes begin and end with it."""
    Clock.before = time.time() - psutil.Process().create_time()  # the interpreter's start and the imports
    run_command(main, "interrupted: what was finished is kept, and --resume goes on from it")
    PartialState().destroy_process_group()


@flags_in_errors()
def repeat(run: Run, args: RunArguments) -> dict[str, float]:
    """One `run(args)`; with --seeds or --max_restarts one a seed, of which the best is kept. Returns what metrics.json
    says of the results.
    """
    PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))  # as Accelerator will; all others find this one
    check_launch()
    if args.ensemble is not None:  # a folder that is missing costs seconds
        names = ", ".join(map(str, members(args.ensemble, args.output_dir)))
        PartialState().print(f"ensemble: the mean of {names}")
    with lock_output_folder(args):
        pushes = args.push_to_hub and PartialState().is_main_process
        if pushes:  # a missing token costs seconds, not the run
            args = dataclasses.replace(args, hub_model_id=hub.create_repository(args))
        if args.seeds > 1 or args.max_restarts:
            results = run_seeds(run, args)
        elif args.resume and folders(Path(args.output_dir), SEED):
            raise InputError(f"{args.output_dir} holds runs of several seeds: --resume them with --seeds")
        else:
            results = run(args).flat()
        if pushes:
            hub.push(args)
        return results


def carry_out(
    task: Task,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    args: RunArguments,
    accelerator: Accelerator,
    clock: Clock,
) -> Results:
    """Trains, evaluates and predicts as `args` say; writes predictions, metrics.json and, after training, the model.

    To be called by every process. `clock` has counted what came before.
    """
    compute = _computation(task, model, args, accelerator)
    remove_earlier_results(args, accelerator)
    keep = partial(_keep, task=task, model=model, args=args, accelerator=accelerator)
    results, evaluations = Results(), None
    if args.do_train:
        trained = train(model, tokenizer, task, compute, args, accelerator)
        results, evaluations = trained.results, trained.evaluations
        clock.include(results.seconds)
    if args.do_eval and (not args.do_train or args.save_outputs or task.writes_validation):
        if evaluations is None:
            evaluations = {suffix: evaluate(task, split, compute) for suffix, split in task.evaluated.items()}
        if not args.do_train:
            results.validation = {suffix: evaluation.scores for suffix, evaluation in evaluations.items()}
        for suffix, split in task.evaluated.items():
            task.tune(evaluations[suffix])
            keep(split, evaluations[suffix], writes=task.writes_validation)
        clock.lap("eval")
    if args.do_predict:
        for suffix, split in task.predicted.items():
            evaluation = evaluate(task, split, compute)
            if evaluation.scores is not None:
                results.test[suffix] = evaluation.scores
            keep(split, evaluation)
        clock.lap("predict")
    results.seconds, results.samples = results.seconds | clock.seconds, dict(task.samples)
    finish(model, tokenizer, results, task.description, args, accelerator)
    return results


def _computation(task: Task, model: PreTrainedModel, args: RunArguments, accelerator: Accelerator) -> Compute:
    """What gives a data set's outputs: the model or, with --ensemble, the runs that kept theirs.

    Raises what `average` would for one of the task's splits, so that it costs no earlier results.
    """
    if args.ensemble is None:
        return partial(
            predict,
            model,
            collate=task.collate,
            accelerator=accelerator,
            batch_size=args.per_device_eval_batch_size,
            one_shape=args.pad_to_max_length,
            workers=args.dataloader_num_workers,
        )
    mean = partial(
        average,
        folders=members(args.ensemble, args.output_dir),
        model_name=args.model_name_or_path,
        id2label=model.config.id2label,
    )
    for features in task.features.values():
        mean(features)
    return mean


def _keep(
    split: str,
    evaluation: Evaluation,
    task: Task,
    model: PreTrainedModel,
    args: RunArguments,
    accelerator: Accelerator,
    writes: bool = True,
) -> None:
    """Writes a split's predictions, if the task `writes` them, and its outputs, with --save_outputs."""
    if not accelerator.is_main_process:
        return
    output = Path(args.output_dir)
    if args.save_outputs:
        features = task.features[split]
        note_results(output, outputs=[file_name(features)])
        save_outputs(evaluation.outputs, features, model.config.id2label, output)
    files = task.write(split, evaluation.predictions) if writes else {}
    note_results(output, predictions=files)
    for name, text in files.items():
        write_text(output / name, text)
