"""Times pre-training against transformers' Trainer on the same text, and prints Markdown tables.

    python -m benchmarks.pretraining [TABLE ...] [--text FILE] [--pairs N] [--json FILE]

`collators` compares how fast batches are made from prepared text. `training` compares whole loops, data included:
run_pretraining.py against Trainer, which is used as in run_mlm.py and run_clm.py (plain_pretraining.py). Each loop has
a process and a thread of its own. transformers has no biLM to compare with.
"""

import argparse
import contextlib
import io
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from unittest.mock import patch

import datasets
import torch
from datasets import load_from_disk
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import run_pretraining
from elmo_gpt_bert.tasks.pretraining.causal import CausalLM
from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.tasks.pretraining.masked import MaskedLM, Vocabulary
from elmo_gpt_bert.tasks.pretraining.objective import Objective
from elmo_gpt_bert.training import runs
from elmo_gpt_bert.training.batches import IGNORED, count_real_tokens
from elmo_gpt_bert.training.loop import Trained

from . import elmo, plain_pretraining
from .measure import Contest, Outputs, Side, assert_equal, in_new_process, parse_tables, take_turns, timed
from .plain_pretraining import LEARNING_RATE, LOGGED
from .reporting import describe_machine, markdown, print_head, print_machine, write_json
from .scripts import ROOT


SEED = 42
MADE_UP = "made-up.txt"  # the text without --text
DOCUMENTS, TINY_DOCUMENTS, SENTENCES = 4000, 20, 12
BATCHES = {"full": [32, 256], "tiny": [3]}  # rows of a batch, of the collators
SECONDS = {"full": 1.0, "tiny": 0.0}  # of their turns
COMPARED = 20_000  # tokens, whose shares of masked ones are compared
SHARES_TOLERANCE = 0.1  # because masks are random


# The models, and the text


@dataclass(frozen=True)
class Job:
    """A model, by the fields of its configuration, and the batches that it is trained on."""

    config: dict[str, object]
    batch_size: int
    length: int
    updates: int


def read_config(name: str) -> dict[str, object]:
    return json.loads((ROOT / "configs" / name).read_text(encoding="utf-8"))


TINY_BERT = {"vocab_size": 150, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3}
TINY_BERT |= {"intermediate_size": 17}
TINY_GPT = {"vocab_size": 310, "n_positions": 29, "n_embd": 12, "n_layer": 1, "n_head": 3}
JOBS = {
    "full": {
        "masked": Job(read_config("bert/mini.json"), 32, 128, updates=10),
        "causal": Job(read_config("gpt/mini.json"), 32, 128, updates=10),
    },
    "tiny": {
        "masked": Job({"model_type": "bert", **TINY_BERT}, 3, 19, updates=2),
        "causal": Job({"model_type": "openai-gpt", **TINY_GPT}, 3, 19, updates=2),
    },
}


def write_text(path: Path, tiny: bool) -> Path:
    """Writes documents of made-up words with the frequencies of real ones, as in the rows of ELMo."""
    text = elmo.Text(tiny)
    documents = [
        "".join(f"{' '.join(sentence)} .\n" for sentence in text.sentences(SENTENCES))
        for _ in range(TINY_DOCUMENTS if tiny else DOCUMENTS)
    ]
    path.write_text("\n".join(documents), encoding="utf-8")
    return path


class Prepared:
    """A job whose text has been converted to tokens, once for each side, by the same tokenizer.

    run_pretraining.py makes the tokenizer, the tokens, and the configuration that fits the text. The baseline takes
    both from the folder that it saves.
    """

    def __init__(self, name: str, job: Job, text: Path, folder: Path) -> None:
        self.name, self.job, self.text, self.folder = name, job, text, folder
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(job.config), encoding="utf-8")
        in_new_process(train_zoo, self.flags(updates=1))

    def flags(self, updates: int) -> list[str]:
        """The command line of run_pretraining.py."""
        job, folder = self.job, self.folder
        flags = ["--model_name_or_path", str(folder / "config.json"), "--train_file", str(self.text)]
        flags += ["--validation_split_percentage", "0", "--corpus_dir", str(folder / "corpus"), "--seed", str(SEED)]
        flags += ["--max_seq_length", str(job.length), "--per_device_train_batch_size", str(job.batch_size)]
        flags += ["--max_steps", str(updates), "--learning_rate", str(LEARNING_RATE), "--logging_steps", str(LOGGED)]
        flags += ["--report_to", "none", "--save_strategy", "no"]
        return [*flags, "--output_dir", str(self.model), "--overwrite_output_dir"]

    @property
    def model(self) -> Path:
        """The folder that run_pretraining.py writes."""
        return self.folder / "zoo"

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        return AutoTokenizer.from_pretrained(self.model)

    @property
    def is_masked(self) -> bool:
        return self.job.config["model_type"] == "bert"

    def objective(self, shuffle: bool = True) -> Objective:
        """What run_pretraining.py trains on."""
        corpus = Corpus.open(self.folder / "corpus")
        if self.is_masked:
            vocabulary = Vocabulary.of(self.tokenizer)
            return MaskedLM(corpus, vocabulary, self.job.length, "full_sentences", SEED, shuffle)
        return CausalLM(corpus, self.job.length, SEED, shuffle)

    @cached_property
    def rows(self) -> Path:
        """The baseline's rows, saved to disk."""
        rows = plain_pretraining.make_rows(self.text, self.tokenizer, self.is_masked, self.job.length)
        rows.save_to_disk(self.folder / "rows")
        return self.folder / "rows"

    @cached_property
    def filled(self) -> float:
        """The share of our rows that is no padding. Those of the baseline are full."""
        if not self.is_masked:
            return 1.0
        rows = self.job.updates * self.job.batch_size
        return count_real_tokens(self.objective().batch(range(rows))) / (rows * self.job.length)

    def describe(self, batch_size: int) -> str:
        config = json.loads((self.model / "config.json").read_text(encoding="utf-8"))
        vocabulary = config.get("lm_vocab_size", config.get("vocab_size"))
        return f"{batch_size} x {self.job.length} tokens, vocabulary {vocabulary:,}"


# Tables


@dataclass(frozen=True)
class Result:
    """One line of a table.

    rate: tokens per CPU second, that is, per second of one core; medians over the pairs of turns
    cpu_ratios, wall_ratios: how many times as fast the zoo is as the baseline, in each pair of turns
    """

    row: str
    work: str
    rate: float
    baseline_rate: float
    cpu_ratios: tuple[float, ...]
    wall_ratios: tuple[float, ...]
    peak_mb: float | None = None
    baseline_peak_mb: float | None = None

    def cells(self) -> list[str]:
        cells = [self.row, self.work, "zoo : transformers", f"{self.rate:,.0f} : {self.baseline_rate:,.0f}"]
        median, lowest, highest = statistics.median(self.cpu_ratios), min(self.cpu_ratios), max(self.cpu_ratios)
        ratios = [f"**{median:.2f}** ({lowest:.2f} - {highest:.2f})", f"{statistics.median(self.wall_ratios):.2f}"]
        peaks = "" if self.peak_mb is None else f"{self.peak_mb:,.0f} : {self.baseline_peak_mb:,.0f}"
        return [*cells, *ratios, peaks]


HEADER = ["row", "on", "compared", "tokens / CPU second", "CPU time ratio", "wall", "peak MB"]


def compare_collators(prepared: Prepared, size: int, pairs: int, seconds: float) -> Result:
    """Batches of `size` rows in random order: ours from files of tokens, the baseline's from datasets' Arrow files.

    Raises:
        DifferentResults: if the rows of text differ, or the shares of masked tokens.
    """
    objective, rows, length = prepared.objective(), load_from_disk(prepared.rows), prepared.job.length
    collate = plain_pretraining.make_collator(prepared.tokenizer, prepared.is_masked)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED)).tolist()

    def ours(index: int) -> Outputs:
        return objective.batch(range(index * size, (index + 1) * size))

    def theirs(index: int) -> Outputs:
        indices = [order[sample % len(order)] for sample in range(index * size, (index + 1) * size)]
        return collate(rows.__getitems__(indices))  # what a DataLoader calls

    def compared(batch: Callable[[int], Outputs], in_order: Outputs) -> Outputs:
        if not prepared.is_masked:
            return {"input_ids": in_order["input_ids"]}
        batches = [batch(index) for index in range(-(-COMPARED // (size * length)))]
        return masked_shares(batches, prepared.tokenizer.mask_token_id)

    first = list(range(size))
    contest = Contest(
        Side("zoo", ours, lambda: compared(ours, prepared.objective(shuffle=False).batch(first))),
        Side("transformers", theirs, lambda: compared(theirs, collate(rows.__getitems__(first)))),
        work=prepared.describe(size),
        tolerance=SHARES_TOLERANCE if prepared.is_masked else 0,
    )
    assert_equal(contest)
    timing = take_turns(contest, pairs, seconds)
    return Result(
        prepared.name,
        contest.work,
        prepared.filled * size * length / timing.cpu_seconds,
        size * length / timing.baseline_cpu_seconds,
        tuple(prepared.filled * ratio for ratio in timing.cpu_ratios),
        tuple(prepared.filled * ratio for ratio in timing.wall_ratios),
    )


def masked_shares(batches: list[Outputs], mask: int) -> Outputs:
    """Of all tokens, those that are predicted; of these, those that are masked, and those that are changed."""
    input_ids, labels = (torch.cat([batch[name].flatten() for batch in batches]) for name in ("input_ids", "labels"))
    predicted = labels != IGNORED
    tokens = sum(count_real_tokens(batch) for batch in batches)
    return {
        "predicted": predicted.sum() / tokens,
        "masked": (input_ids[predicted] == mask).float().mean(),
        "changed": (input_ids != labels)[predicted].float().mean(),
    }


def compare_training(prepared: Prepared, pairs: int) -> Result:
    """Whole loops, each in a new process. Which side goes first alternates."""
    job = prepared.job
    arguments = (prepared.model, prepared.rows, prepared.is_masked, job.batch_size, job.updates)
    sides: dict[str, Callable[[], tuple[tuple[float, float], float]]] = {
        "zoo": partial(in_new_process, train_zoo, prepared.flags(job.updates)),
        "transformers": partial(in_new_process, plain_pretraining.train, *arguments, prepared.folder / "trainer"),
    }
    measured = {side: [] for side in sides}
    for pair in range(pairs):
        for side in sorted(sides, reverse=pair % 2 == 0):
            (cpu, wall), peak = sides[side]()
            measured[side].append((cpu, wall, peak))
    cpu, wall, peaks = zip(*measured["zoo"], strict=True)
    baseline_cpu, baseline_wall, baseline_peaks = zip(*measured["transformers"], strict=True)
    tokens = job.updates * job.batch_size * job.length
    return Result(
        prepared.name,
        prepared.describe(job.batch_size),
        prepared.filled * tokens / statistics.median(cpu),
        tokens / statistics.median(baseline_cpu),
        cpu_ratios=tuple(prepared.filled * theirs / ours for ours, theirs in zip(cpu, baseline_cpu, strict=True)),
        wall_ratios=tuple(prepared.filled * theirs / ours for ours, theirs in zip(wall, baseline_wall, strict=True)),
        peak_mb=max(peaks),
        baseline_peak_mb=max(baseline_peaks),
    )


def train_zoo(flags: list[str]) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of the loop in a run of run_pretraining.py."""
    train, seconds = runs.train, []

    def timed_train(*args) -> Trained:
        trained = []
        seconds.append(timed(lambda: trained.append(train(*args))))
        return trained[0]

    with contextlib.redirect_stdout(io.StringIO()), patch.object(runs, "train", timed_train):
        run_pretraining.main(flags)
    return seconds[0]


# The command


class Bench:
    """The tables, from one text in one temporary folder."""

    def __init__(self, text: Path, folder: Path, size: str, pairs: int) -> None:
        self.text, self.folder, self.size, self.pairs = text, folder, size, pairs
        self.prepared: dict[str, Prepared] = {}

    def prepare(self, name: str) -> Prepared:
        if name not in self.prepared:
            self.prepared[name] = Prepared(name, JOBS[self.size][name], self.text, self.folder / name)
        return self.prepared[name]

    def collators(self) -> Iterator[list[str]]:
        yield HEADER[:-1]
        for name in ("masked", "causal"):
            for size in BATCHES[self.size]:
                yield compare_collators(self.prepare(name), size, self.pairs, SECONDS[self.size]).cells()[:-1]

    def training(self) -> Iterator[list[str]]:
        yield HEADER
        for name in JOBS[self.size]:
            yield compare_training(self.prepare(name), self.pairs).cells()


TABLES = {"collators": Bench.collators, "training": Bench.training}


def main(argv: list[str] | None = None) -> dict[str, list[list[str]]]:
    parser = argparse.ArgumentParser("python -m benchmarks.pretraining", description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, metavar="FILE", help="text to train on; default: made-up words")
    args = parse_tables(parser, TABLES, argv)
    if args.text is not None and not args.text.is_file():
        parser.error(f"--text {args.text}: no such file")
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes to come
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    machine = describe_machine()
    print_machine(machine)
    tables = {}
    with tempfile.TemporaryDirectory() as folder:
        text = args.text or write_text(Path(folder, MADE_UP), args.size == "tiny")
        print(f"text {text.name}, bytes {text.stat().st_size:,}")
        bench = Bench(text.resolve(), Path(folder), args.size, args.pairs)
        for table in args.tables or TABLES:
            tables[table] = []
            for cells in TABLES[table](bench):
                if tables[table]:
                    print(markdown(cells), flush=True)
                else:
                    print_head(cells)
                tables[table].append(cells)
    write_json(args.json, {"machine": machine, **tables})
    return tables


if __name__ == "__main__":
    main()
