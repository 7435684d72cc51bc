"""Times whole runs of run_glue.py, from the start of the command to its end, and prints Markdown tables.

    python -m benchmarks.scripts [TABLE ...] [--data_dir GLUE_FOLDERS] [--json FILE]

`by-length` runs the zoo's and transformers' model in turns, on batches of similar lengths, as in all recipes.
`random-order` is the same without --group_by_length. Each run is a new command, started as a user starts it, with one
thread.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .measure import parse_tables
from .reporting import describe_machine, markdown, print_head, print_machine, write_json


ROOT = Path(__file__).resolve().parent.parent
PARTS = ["start", "load", "tokenize", "train", "eval", "save"]
Record = dict[str, float]  # the numbers of metrics.json, and the seconds of the whole command

FULL = ["--model_name_or_path", "configs/bert/small.json", "--max_train_samples", "3200", "--learning_rate", "1e-4"]
TINY = ["--model_name_or_path", "configs/bert/tiny.json", "--max_train_samples", "64"]
RECIPE = ["--task_name", "sst2", "--do_train", "--do_eval", "--num_train_epochs", "1"]
RECIPE += ["--warmup_ratio", "0.1", "--max_seq_length", "64"]
DEMO = ["--data_dir", "demo/data", "--tokenizer_name", "demo/vocab.txt"]
LONGEST_LAUNCH = 60  # seconds


def timed_run(flags: list[str], launcher: list[str] | None = None, device: str = "cpu") -> Record:
    """Runs run_glue.py with `flags`. If it fails, prints its errors and raises CalledProcessError."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"ACCELERATE_USE_CPU": "true"} if device == "cpu" else {}
    with tempfile.TemporaryDirectory() as folder:
        command = [*(launcher or [sys.executable]), "run_glue.py", *flags, "--output_dir", folder]
        started = time.perf_counter()
        process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - started
        if process.returncode:
            sys.stderr.write(process.stderr)
            process.check_returncode()
        record = json.loads(Path(folder, "metrics.json").read_text(encoding="utf-8"))
    return {name: value for name, value in record.items() if isinstance(value, (int, float))} | {"seconds": seconds}


@dataclass(frozen=True)
class Launch:
    """A short run of run_glue.py on a device, to see that it ends there.

    Attributes:
        config: a file of configs/accelerate, by which `accelerate launch` starts one process; "": without a launcher.
        precision: the run's --mixed_precision.
    """

    config: str = ""
    precision: str = "bf16"

    @property
    def title(self) -> str:
        starter = f"accelerate launch, {self.config}, one process" if self.config else "python"
        return f"{starter}, run_glue.py --mixed_precision {self.precision}"

    @property
    def launcher(self) -> list[str]:
        """If it takes longer, `timeout` tells the launcher to stop its process."""
        words = ["timeout", str(LONGEST_LAUNCH), sys.executable]
        if self.config:
            words += ["-m", "accelerate.commands.launch", "--config_file", f"configs/accelerate/{self.config}"]
            words += ["--num_processes", "1", "--main_process_port", "0"]
        return words

    def run(self, tiny: bool, device: str) -> Record:
        flags = [*(TINY if tiny else FULL), *RECIPE, *DEMO, "--mixed_precision", self.precision]
        return timed_run(flags, self.launcher, device)


def implementations(flags: list[str], pairs: int, by_length: bool) -> list[list[str]]:
    """Rows of (part of the run, seconds of zoo : transformers, ratio), from runs in turns."""
    sides: dict[str, list[Record]] = {"zoo": [], "transformers": []}
    for pair in range(pairs):
        for side, records in sorted(sides.items(), reverse=pair % 2 == 0):  # the side that runs first alternates
            batches = ["--per_device_train_batch_size", "32", "--group_by_length", str(by_length)]
            records.append(timed_run([*RECIPE, *batches, *flags, "--implementation", side]))
    rows = [["part", "zoo : transformers, seconds", "ratio"]]
    for part in [*(f"{part}_runtime" for part in PARTS), "seconds"]:
        ours, theirs = ([record[part] for record in records] for records in sides.values())
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        name = "the whole command" if part == "seconds" else part.removesuffix("_runtime")
        median, lowest, highest = statistics.median(ratios), min(ratios), max(ratios)
        seconds = f"{statistics.median(ours):.1f} : {statistics.median(theirs):.1f}"
        rows.append([name, seconds, f"**{median:.2f}** ({lowest:.2f} - {highest:.2f})"])
    accuracy = " : ".join(f"{100 * records[0]['eval_accuracy']:.1f}" for records in sides.values())
    return [*rows, ["dev accuracy", accuracy, ""]]


TABLES = {
    "by-length": partial(implementations, by_length=True),
    "random-order": partial(implementations, by_length=False),
}


def main(argv: list[str] | None = None) -> dict[str, list[list[str]]]:
    parser = argparse.ArgumentParser("python -m benchmarks.scripts", description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", default="demo/data", help="the GLUE zip's folders; default: the demo's sample")
    parser.add_argument("--tokenizer_name", default="demo/vocab.txt", help="a vocab.txt for the data")
    args = parse_tables(parser, TABLES, argv)
    data = ["--data_dir", str(Path(args.data_dir).resolve())]
    data += ["--tokenizer_name", str(Path(args.tokenizer_name).resolve())]
    tables, machine = {}, describe_machine() | {"threads": 1}
    print_machine(machine)
    for table in args.tables or TABLES:
        tables[table] = TABLES[table]([*(TINY if args.size == "tiny" else FULL), *data], args.pairs)
        head, *rows = tables[table]
        print_head(head)
        print(*map(markdown, rows), sep="\n", flush=True)
    write_json(args.json, {"machine": machine, **tables})
    return tables


if __name__ == "__main__":
    main()
