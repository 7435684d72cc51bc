"""Measures how the speed of a model changes with the work, and draws it.

    python -m benchmarks.growth [CURVE ...] [--models MODEL ...] [--plots FOLDER] [--json FILE]

A curve is tokens per second against one of `batch`, `length`, `layers` and `processes`, the other three fixed, in
inference in fp32 with one thread, ours beside transformers (of ELMo: beside plain_elmo.py). Sequences have random
lengths between a half of `length` and the whole of it; only their own tokens count. With several processes, each does
the same work, and their tokens are added up.
"""

import argparse
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier

import torch

from modeling import ElmoModel

from . import bert, elmo, gpt
from .measure import CPU, Contest, Side, assert_equal, parse_tables, take_turns
from .plain_elmo import PlainElmo
from .precision import inference, tolerance
from .reporting import describe_machine, markdown, print_head, print_machine, write_json


FIXED = {"batch": 8, "length": 64, "layers": 2, "processes": 1}
CURVES = {
    "batch": [1, 2, 4, 8, 16, 32, 64],
    "length": [4, 8, 16, 32, 64, 128, 256, 512],
    "layers": [1, 2, 4, 8],
    "processes": [1, 2],
}
TINY = {"batch": [1, 3], "length": [4, 7], "layers": [1, 2], "processes": [1, 2]}
LONGEST_SENTENCE = 128  # of ELMo; the plain one takes a step of Python for each word
HEADER = ["model", "curve", "value", "tokens / second", "ratio"]


@dataclass(frozen=True)
class Point:
    """The speed of both sides at one place of a curve, in tokens per second."""

    model: str
    curve: str
    value: int
    ours: float
    baseline: float


def make_lengths(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(batch + length)
    return torch.randint((length + 1) // 2, length + 1, (batch,), generator=generator)


def make_contest(model: str, tiny: bool, batch: int, length: int, layers: int) -> tuple[Contest, int]:
    """Both sides on one batch, and the number of its tokens."""
    lengths = make_lengths(batch, length)
    if model == "elmo":
        words = elmo.Text(tiny)
        sentences = [words.sentence(n) for n in lengths.tolist()]
        inputs = elmo.tokenize(sentences)
        config = elmo.make_config("small", tiny, num_hidden_layers=layers)
        models = elmo.make_models(ElmoModel, PlainElmo, config, CPU)
    else:
        inputs = bert.pad(bert.draw_sequences(lengths, tiny))
        builders = {"bert": bert.make_models, "gpt": gpt.make_models}
        name = "num_hidden_layers" if model == "bert" else "n_layer"
        models = builders[model]("Model", "small", tiny, dropout=0.0, **{name: layers})

    def side(name: str) -> Side:
        each = models[name].eval()

        def run(_: int) -> torch.Tensor:
            with inference("highest"):
                return elmo.outputs_of(each, inputs)[0] if model == "elmo" else each(**inputs).last_hidden_state

        def check() -> dict[str, torch.Tensor]:
            states = run(0)
            return {"states": states if model == "elmo" else states[inputs["attention_mask"].bool()]}

        return Side(name, run, check)

    contest = Contest(*map(side, models), work=f"{batch} x {length}", tolerance=tolerance("highest", "highest"))
    return contest, int(lengths.sum())


def speeds(model: str, tiny: bool, batch: int, length: int, layers: int, pairs: int) -> tuple[float, float]:
    """Tokens per second of CPU time: of our side, and of the baseline."""
    torch.set_num_threads(1)
    contest, tokens = make_contest(model, tiny, batch, length, layers)
    assert_equal(contest)
    timing = take_turns(contest, pairs, seconds=0.0 if tiny else 0.2)
    return tokens / timing.cpu_seconds, tokens / timing.baseline_cpu_seconds


def speed_of_one(model: str, tiny: bool, ours: bool, together: Barrier, seconds: float, work: dict[str, int]) -> float:
    """Tokens per second of the clock of one side, while the other processes of `together` do the same."""
    torch.set_num_threads(1)
    contest, tokens = make_contest(model, tiny, **work)
    run = (contest.side if ours else contest.baseline).run
    run(0)
    together.wait()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or not count:
        run(0)
        count += 1
    return count * tokens / (time.perf_counter() - began)


def speeds_together(model: str, tiny: bool, processes: int, pairs: int, work: dict[str, int]) -> tuple[float, float]:
    """As `speeds`, by the clock, of several processes together."""
    results: dict[bool, list[float]] = {True: [], False: []}
    context = get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(processes, context) as pool:
        together = manager.Barrier(processes)
        for _ in range(pairs):
            for ours, totals in results.items():
                given = (model, tiny, ours, together, 0.01 if tiny else 0.5, work)
                running = [pool.submit(speed_of_one, *given) for _ in range(processes)]
                totals.append(sum(each.result() for each in running))
    return statistics.median(results[True]), statistics.median(results[False])


def measure(model: str, curve: str, value: int, tiny: bool, pairs: int) -> Point:
    work = FIXED | {curve: value}
    processes = work.pop("processes")
    if curve == "processes":
        ours, baseline = speeds_together(model, tiny, processes, pairs, work)
    else:
        ours, baseline = speeds(model, tiny, pairs=pairs, **work)
    return Point(model, curve, value, ours, baseline)


def values_of(curve: str, model: str, tiny: bool) -> list[int]:
    values = (TINY if tiny else CURVES)[curve]
    return [value for value in values if model != "elmo" or curve != "length" or value <= LONGEST_SENTENCE]


def draw(points: list[Point], curve: str, path: Path) -> None:
    """A PNG with one panel for each model."""
    from matplotlib.figure import Figure  # not pyplot, which would choose a window system

    models = list(dict.fromkeys(point.model for point in points))
    figure = Figure(figsize=(4 * len(models), 3), layout="constrained")
    for axes, model in zip(figure.subplots(1, len(models), squeeze=False)[0], models, strict=True):
        line = [point for point in points if point.model == model]
        values = [point.value for point in line]
        axes.plot(values, [point.ours for point in line], marker="o", label="zoo")
        axes.plot(values, [point.baseline for point in line], marker="o", label=MODELS[model])
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, values)
        axes.set_ylim(bottom=0)
        axes.set(title=model, xlabel=curve, ylabel="tokens / second")
        axes.legend()
    figure.savefig(path, dpi=100)


MODELS = {"bert": "transformers", "gpt": "transformers", "elmo": "plain"}  # model -> its baseline


def main(argv: list[str] | None = None) -> list[Point]:
    parser = argparse.ArgumentParser("python -m benchmarks.growth", description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="also draw growth_CURVE.png in this folder")
    args = parse_tables(parser, CURVES, argv)
    torch.set_num_threads(1)
    machine, tiny = describe_machine(), args.size == "tiny"
    print_machine(machine)
    print_head(HEADER)
    points = []
    for curve in args.tables or CURVES:
        for model in args.models:
            for value in values_of(curve, model, tiny):
                points.append(measure(model, curve, value, tiny, args.pairs))
                ours, baseline = points[-1].ours, points[-1].baseline
                cells = [model, curve, str(value), f"{ours:,.0f} : {baseline:,.0f}", f"**{ours / baseline:.2f}**"]
                print(markdown(cells), flush=True)
        if args.plots is not None:
            args.plots.mkdir(parents=True, exist_ok=True)
            draw([point for point in points if point.curve == curve], curve, args.plots / f"growth_{curve}.png")
    write_json(args.json, {"machine": machine, "fixed": FIXED, "points": [asdict(point) for point in points]})
    return points


if __name__ == "__main__":
    main()
