"""Measures how long commands take to start and models to load, against transformers, and prints a Markdown table.

    python -m benchmarks.start [ROW ...] [--pairs N] [--json FILE]

The rows `import`, `help` and `first-update` time whole commands with one thread, from their start until they end or
until the first update is made. The rows `load-...` time `from_pretrained` of a folder with safetensors, whose files
the system has in memory, in a process that has loaded a model before; and they measure the peak memory of new
processes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
import transformers
from safetensors.torch import load_file

from modeling import ElmoModel

from . import bert, elmo, gpt
from .measure import Contest, Seconds, Side, assert_equal, parse_tables, peak_memory, take_turns
from .plain_elmo import PlainElmo
from .plain_start import BATCH, FIRST_UPDATE, LENGTH
from .reporting import describe_machine, markdown, print_head, print_machine, write_json


ROOT = Path(__file__).resolve().parent.parent
HEADER = ["row", "compared", "CPU seconds", "CPU time ratio", "wall seconds", "wall ratio", "peak MB"]
DATA = ROOT / "demo" / "data"
AUTO_CLASSES = "from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer"
STATES = ("initial_hidden", "initial_cell")  # of our ELMo, which the plain one lacks
Run = Callable[[], Seconds]


class Result(NamedTuple):
    """The seconds of each turn of both sides."""

    sides: list[str]
    turns: list[tuple[Seconds, Seconds]]
    peaks: list[float] | None = None  # MB

    def line(self, row: str) -> list[str]:
        cells = [row, " : ".join(self.sides)]
        for clock in Seconds._fields:
            ours, theirs = ([getattr(turn[side], clock) for turn in self.turns] for side in (0, 1))
            ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
            median, lowest, highest = statistics.median(ratios), min(ratios), max(ratios)
            cells.append(f"{statistics.median(ours):.2f} : {statistics.median(theirs):.2f}")
            cells.append(f"**{median:.2f}** ({lowest:.2f} - {highest:.2f})")
        return [*cells, "" if self.peaks is None else " : ".join(f"{peak:.0f}" for peak in self.peaks)]


# Commands


def time_command(words: list[str], until: str | None = None) -> Seconds:
    """The seconds of a command of Python, until its end or until it prints a line that begins with `until`."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        pipes = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
        before, started = os.times(), time.perf_counter()
        process = psutil.Popen([sys.executable, *words], cwd=ROOT, env=environment, **pipes)
        lines = iter(process.stdout.readline, "")
        printed = next((line for line in lines if until is not None and line.startswith(until)), None)
        wall = time.perf_counter() - started
        until_now = None if printed is None else process.cpu_times()
        process.communicate()
        if process.returncode or (until is not None and printed is None):
            errors.seek(0)
            raise RuntimeError(f"{' '.join(words)} failed: {errors.read()}")
    if until_now is not None:
        return Seconds(until_now.user + until_now.system, wall)
    after = os.times()
    return Seconds(after.children_user + after.children_system - before.children_user - before.children_system, wall)


def in_turns(names: list[str], runs: list[Run], pairs: int) -> Result:
    for run in runs:  # files that are read for the first time
        run()
    return Result(names, [(runs[0](), runs[1]()) for _ in range(pairs)])


def compare_imports(pairs: int, tiny: bool) -> Result:
    commands = [["-c", "import modeling"], ["-c", AUTO_CLASSES]]
    return in_turns(["import modeling", "Auto classes"], [partial(time_command, words) for words in commands], pairs)


def compare_help(pairs: int, tiny: bool) -> Result:
    commands = [["run_glue.py", "--help"], ["-c", AUTO_CLASSES]]
    return in_turns(
        ["run_glue.py --help", "Auto classes"], [partial(time_command, words) for words in commands], pairs
    )


def compare_first_updates(pairs: int, tiny: bool) -> Result:
    config, vocabulary = f"configs/bert/{'tiny' if tiny else 'small'}.json", "demo/vocab.txt"

    def ours() -> Seconds:
        with tempfile.TemporaryDirectory() as folder:
            flags = ["--model_name_or_path", config, "--tokenizer_name", vocabulary, "--task_name", "sst2"]
            flags += ["--data_dir", str(DATA), "--do_train", "--max_steps", "1", "--save_strategy", "no"]
            flags += ["--per_device_train_batch_size", str(BATCH), "--max_seq_length", str(LENGTH)]
            return time_command(["run_glue.py", *flags, "--output_dir", f"{folder}/out"], "update 1/1")

    def theirs() -> Seconds:
        with tempfile.TemporaryDirectory() as folder:
            words = ["-m", "benchmarks.plain_start", config, vocabulary, str(DATA / "train.tsv"), folder]
            return time_command(words, FIRST_UPDATE)

    return in_turns(["run_glue.py", "Trainer"], [ours, theirs], pairs)


# Models


def load_plain_elmo(folder: str) -> PlainElmo:
    """ELMo without transformers: makes the plain model, and copies the weights of the file into it."""
    config = ElmoModel.config_class.from_pretrained(folder)
    with torch.device("meta"):
        model = PlainElmo(config)
    weights = load_file(f"{folder}/model.safetensors")
    model.load_state_dict({name: weights[name] for name in model.state_dict()}, assign=True)
    return model


def loaders(model: str, tiny: bool) -> tuple[torch.nn.Module, dict[str, Callable[[str], torch.nn.Module]]]:
    """A model with random weights, and what loads it from a folder on each side."""
    if model == "elmo":
        config = elmo.make_config("full", tiny)
        return ElmoModel(config), {elmo.OURS: ElmoModel.from_pretrained, elmo.PLAIN: load_plain_elmo}
    if model == "bert":
        models = bert.make_models("ForSequenceClassification", "base", tiny, dropout=0.0)
    else:
        models = gpt.make_models("LMHeadModel", "base", tiny)
    return models[bert.STOCK], {side: type(each).from_pretrained for side, each in models.items()}


def load(model: str, side: str, folder: str) -> None:
    """The work whose memory is measured: loads a model and reads all of its weights."""
    read(loaders(model, tiny=True)[1][side](folder))  # the classes are the same, whatever the size


def read(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    weights = sorted((name, weight) for name, weight in model.state_dict().items() if name not in STATES)
    return {"sums": torch.stack([weight.sum() for _, weight in weights])}


def compare_loading(pairs: int, tiny: bool, model: str) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        made, sides = loaders(model, tiny)
        made.save_pretrained(folder)
        del made
        contest = Contest(
            *(Side(name, lambda _, f=f: f(folder), lambda f=f: read(f(folder))) for name, f in sides.items()),
            work=model,
            tolerance=1e-6,
        )
        assert_equal(contest)
        turns = [take_turns(contest, 1, seconds=0.0) for _ in range(pairs)]
        peaks = [peak_memory(load, model, side, folder) for side in sides]
    seconds = [
        (Seconds(t.cpu_seconds, t.wall_seconds), Seconds(t.baseline_cpu_seconds, t.baseline_wall_seconds))
        for t in turns
    ]
    return Result([*sides], seconds, peaks)


TABLES: dict[str, Callable[[int, bool], Result]] = {
    "import": compare_imports,
    "help": compare_help,
    "first-update": compare_first_updates,
    "load-bert": partial(compare_loading, model="bert"),
    "load-gpt": partial(compare_loading, model="gpt"),
    "load-elmo": partial(compare_loading, model="elmo"),
}


def main(argv: list[str] | None = None) -> dict[str, Result]:
    parser = argparse.ArgumentParser("python -m benchmarks.start", description=__doc__.splitlines()[0])
    args = parse_tables(parser, TABLES, argv)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    machine = describe_machine()
    print_machine(machine)
    print_head(HEADER)
    results = {}
    for row in args.tables or TABLES:
        results[row] = TABLES[row](args.pairs, args.size == "tiny")
        print(markdown(results[row].line(row)), flush=True)
    write_json(args.json, {"machine": machine, "results": {row: result._asdict() for row, result in results.items()}})
    return results


if __name__ == "__main__":
    main()
