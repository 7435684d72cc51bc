"""What a run logs: its speed, the trackers of --report_to, and the tracker `curves`, which keeps the lines as a file.

OUTPUT_DIR/log.jsonl     one JSON object for each line: update, train_loss, learning_rate, eval_loss, ...
OUTPUT_DIR/curves.png    drawn at the end

Speed is tokens a second, and the share of the machine's limit: that of matrix products of one process and its device.
A multiplication and an addition are two operations (FLOPs), both where they are counted and where the limit is
measured.
"""

import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, TensorBoardTracker, get_available_trackers, on_main_process
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from elmo_gpt_bert.training.arguments import TRACKERS, RunArguments, public_arguments
from elmo_gpt_bert.training.batches import count_real_tokens
from elmo_gpt_bert.training.errors import FileError, LaunchError, PackageError
from elmo_gpt_bert.training.files import new_file, parse_json, read_text, write_text, writing
from elmo_gpt_bert.training.layers import not_compiled
from elmo_gpt_bert.training.output_folder import CURVES, LOG, remove_curves


# A panel shows all curves whose names contain its word. Each other name has a panel of its own.
PANELS = ("loss", "perplexity", "bits_per_byte", "learning_rate", "grad_norm", "tokens_per_second", "peak_share")
LOGARITHMIC = {"perplexity", "grad_norm"}
FROM_ZERO = {"learning_rate", "tokens_per_second", "peak_share"}

Curve = tuple[list[int], list[float]]  # updates and values


class History(GeneralTracker):
    """A tracker of Accelerate."""

    name = "curves"
    requires_logging_directory = False

    def __init__(self, output: Path, resumes: bool) -> None:
        """`resumes`: whether the run may go on from a checkpoint, so that earlier lines are a part of it.

        Raises OSError if it may and these are damaged.
        """
        super().__init__()
        self.output, self.earlier = output, read_log(output) if resumes else []
        self.records: list[dict[str, Any]] | None = None  # None: nothing has been logged in this process
        self.is_complete = False  # whether the file has all records
        self.has_warned = False

    @property
    def tracker(self) -> "History":
        return self

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        pass  # metrics.json holds the arguments

    @on_main_process
    def log(self, values: dict[str, float], step: int, **_: Any) -> None:
        """Appends a line. The first one in this process replaces lines of later updates, which are made again.

        A line that cannot be written, as on a full disk, ends no run: a later call writes it.
        """
        record = {"update": step, **values}
        if self.records is None:
            self.records = [line for line in self.earlier if line["update"] < step]
        self.records.append(record)
        try:
            self._write(record)
            self.is_complete = True
        except FileError as error:
            self.is_complete = False
            if not self.has_warned:
                print(f"{error}. The run goes on, and writes the missing lines as soon as it can", file=sys.stderr)
            self.has_warned = True

    def _write(self, record: dict[str, Any]) -> None:
        path = self.output / LOG
        if not self.is_complete:
            write_text(path, "".join(json.dumps(line) + "\n" for line in self.records))
            return
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    @on_main_process
    def finish(self) -> None:
        records = self.earlier if self.records is None else self.records
        if records:
            draw_curves(records, self.output / CURVES)


def read_log(output: Path) -> list[dict[str, Any]]:
    """The lines in the folder of a run, none without a log. A last line that is incomplete is left out.

    Raises OSError if the log is damaged.
    """
    path = output / LOG
    if not path.is_file():
        return []
    try:
        records = [parse_json(line) for line in read_text(path).split("\n")[:-1]]
        sorted(record["update"] for record in records)  # fails unless all lines have a number
    except (ValueError, TypeError, KeyError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise FileError(f"{path} is damaged ({problem}): remove it, or restore it from a copy") from error
    return records


def draw_curves(records: Sequence[Mapping[str, Any]], path: Path) -> bool:
    """Writes a PNG with all curves of `records`; False if there are none.

    Args:
        records: what was logged, each with the `update` after which it was. A record may lack any other name. Values
            that are no numbers are left out.

    The same records make the same bytes with the same version of matplotlib. Raises OSError if the file cannot be
    written.
    """
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    panels = group_curves(records)
    if not panels:
        return False
    rows, columns = (len(panels) + 1) // 2, min(len(panels), 2)
    figure = Figure(figsize=(5.5 * columns, 3 * rows), layout="constrained")
    for place, (panel, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(rows, columns, place)
        for name, (updates, values) in curves.items():
            axes.plot(updates, values, marker="." if len(updates) < 50 else None, label=name)
        axes.set(xlabel="update", title=panel.replace("_", " "))
        axes.set_yscale("log" if panel in LOGARITHMIC else "linear")
        if panel in FROM_ZERO:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend()
    with new_file(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})
    return True


def group_curves(records: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Curve]]:
    """panel -> name -> curve. The panels of `PANELS` come first, in their order."""
    curves: dict[str, Curve] = {}
    for record in records:
        for name, value in record.items():
            if name != "update" and isinstance(value, int | float):
                updates, values = curves.setdefault(name, ([], []))
                updates.append(record["update"])
                values.append(value)
    panels: dict[str, dict[str, Curve]] = {panel: {} for panel in PANELS}
    for name, curve in curves.items():
        panel = next((panel for panel in PANELS if panel in name), name)
        panels.setdefault(panel, {})[name] = curve
    return {panel: names for panel, names in panels.items() if names}


# Speed


Result = TypeVar("Result")

DTYPES = {"no": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}  # of matrix products, by precision

SECONDS = 0.15  # for which the limit is measured
SHORT = 0.002  # seconds of a product that is too small to use the whole device
SIZES = (512, 1024, 2048, 4096, 8192)  # rows of the matrices


class Speed:
    """Counts the tokens of micro-batches, and the operations of the first one."""

    def __init__(self, seconds: float, measures_peak: bool, args: RunArguments, accelerator: Accelerator) -> None:
        """
        seconds: that the run has spent on training before
        measures_peak: whether `values` has `peak_share`
        """
        self.seconds, self.tokens, self.processes = seconds, 0, accelerator.num_processes
        self.measures_peak, self.device, self.precision = measures_peak, accelerator.device, args.mixed_precision
        self.operations_per_token: float | None = None

    def measure(self, batch: Mapping[str, torch.Tensor], step: Callable[[], Result]) -> Result:
        """Returns `step()`, the forward and backward pass of a micro-batch."""
        tokens = count_real_tokens(batch)
        self.tokens += tokens
        if not self.measures_peak or self.operations_per_token is not None:
            return step()
        results: list[Result] = []
        operations = count_operations(lambda: results.append(step()), self.device)
        self.operations_per_token = operations / max(tokens, 1)
        return results[0]

    def values(self, seconds: float) -> dict[str, float]:
        """The speed since the last call, of all processes, when the run has spent `seconds` on training."""
        passed, self.seconds = max(seconds - self.seconds, 1e-9), seconds
        rate, self.tokens = self.tokens / passed, 0
        values = {"tokens_per_second": rate * self.processes}
        if self.operations_per_token is not None and (peak := peak_of(self.device, self.precision)):
            values["peak_share"] = rate * self.operations_per_token / peak
        return values


def peak_of(device: torch.device, precision: str) -> float | None:
    """FLOPs a second of large matrix products in a --mixed_precision, measured once; None on XLA."""
    if device.type == "xla":  # products run when their result is read
        return None
    return _matrix_peak(device, DTYPES[precision], (torch.get_num_threads(), torch.get_float32_matmul_precision()))


def count_operations(step: Callable[[], object], device: torch.device) -> int:
    """Calls `step`, usually a forward and a backward pass, and returns its FLOPs.

    They are those of matrix products, convolutions and attention, as they are run: padding counts where it is
    computed, and what gradient checkpointing computes again counts twice. Attention counts in full where its mask
    hides a part. LSTMs that run as one operation of cuDNN or oneDNN (torch.nn.LSTM) are not counted. Compiled
    layers are computed uncompiled here, with other draws of dropout. Otherwise counting changes no result.

    On XLA nothing is counted, and the number is 0: while torch counts, torch_xla 2.9 takes a slice of a slice from
    a wrong place.
    """
    if device.type == "xla":
        step()
        return 0
    counter = FlopCounterMode(display=False, custom_mapping=FORMULAS)
    counter.mod_tracker = _NoModules()
    with counter, not_compiled():
        step()
    return counter.get_total_flops()


class _NoModules(contextlib.nullcontext):
    """Takes the place of the counter's hooks on all modules, with which BERT's products would be torch's own."""

    parents = frozenset({"Global"})


def _attention(query: torch.Size, key: torch.Size, value: torch.Size, *rest: object, **names: object) -> int:
    return sdpa_flop_count(query, key, value)


def _attention_backward(
    gradient: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *rest: object, **names: object
) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


# The work of attention on the CPU, which torch's counter does not have. modeling_onednn.py adds products of oneDNN.
FORMULAS = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


@functools.cache
@torch.inference_mode()
def _matrix_peak(device: torch.device, dtype: torch.dtype, settings: tuple[int, str]) -> float:
    """FLOPs a second in the fastest of several products of matrices that are large enough to use the whole device.

    On the CPU they run on oneDNN where that is faster than torch's choice, because the limit is the chip's. `settings`
    are those settings of torch that the result depends on.
    """
    factors = _large_matrix(device, dtype)
    seconds, stop = [], time.perf_counter() + SECONDS
    while not seconds or time.perf_counter() < stop:
        seconds.append(_time_product(factors))
    return 2 * len(factors) ** 3 / min(seconds)


def _large_matrix(device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """A square matrix of random numbers, the smallest of `SIZES` whose product with itself is not `SHORT`.

    On a GPU it is the largest of them: where another process computes, a product of any size takes long.
    """
    generator = torch.Generator(device).manual_seed(0)  # the run's own generator stays as it is
    for size in SIZES if device.type == "cpu" else SIZES[-1:]:
        matrix = torch.rand(size, size, generator=generator, device=device).to(dtype)
        if min(_time_product(matrix) for _ in range(3)) > SHORT:  # the first of each size is slow
            break
    return matrix


def _time_product(factors: torch.Tensor) -> float:
    """The seconds of one product, on a device that has nothing else to do."""
    from modeling.shared.modeling_onednn import linear  # the import takes time, which --help does not need

    before = time.perf_counter()
    linear(factors, factors)
    if factors.device.type != "cpu":
        torch.accelerator.synchronize(factors.device)
    return time.perf_counter() - before


# Trackers


def trackers_of(args: RunArguments) -> list[str | GeneralTracker]:
    """The trackers of --report_to, for Accelerator. Raises ImportError for one that is not installed."""
    installed = [*map(str, get_available_trackers()), History.name]
    names = {"none": [], "all": [name for name in TRACKERS if name in installed]}
    names = names.get(args.report_to, args.report_to.split(","))
    for name in names:
        if name not in installed:  # accelerate would ignore it
            raise PackageError(f"--report_to {name} needs a package that is not installed: pip install {name}")
    # By its name, TensorBoard would write to a folder named after the project.
    own = {
        "tensorboard": partial(TensorBoardTracker, "runs", args.output_dir),
        History.name: partial(History, Path(args.output_dir), resumes=args.resume),
    }
    return [own[name]() if name in own else name for name in names]


def start_trackers(args: RunArguments, accelerator: Accelerator) -> None:
    """Starts the trackers of --report_to. TensorBoard writes to OUTPUT_DIR/runs; others name the run after OUTPUT_DIR.

    The curves of an earlier run go, unless this one may go on from it: the tracker would show them as its own.
    Raises RuntimeError if a tracker cannot start, for example without a login or network.
    """
    names = {"wandb": {"name": args.output_dir, "dir": args.output_dir}, "trackio": {"name": args.output_dir}}
    config = {name: str(value) for name, value in public_arguments(args).items()}  # TensorBoard does not accept None
    if accelerator.is_main_process and not args.resume:
        remove_curves(Path(args.output_dir))
    try:
        accelerator.init_trackers("elmo-gpt-bert", config, init_kwargs=names)
    except Exception as error:  # each tracker raises its own
        problem = " ".join(str(error).split())
        remedy = "WANDB_MODE=offline keeps wandb's curves here"
        raise LaunchError(f"--report_to {args.report_to}: {problem} {remedy}") from error


def finish_trackers(accelerator: Accelerator) -> None:
    """Finishes the trackers that have been started; a second call does nothing."""
    trackers, accelerator.trackers = accelerator.trackers, []
    for tracker in trackers:
        tracker.finish()


@contextlib.contextmanager
def trackers_finished(accelerator: Accelerator) -> Iterator[None]:
    """Finishes the trackers after an error within the context, because another seed may follow in this process."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(FileError):  # the first error says more
            finish_trackers(accelerator)
        raise
