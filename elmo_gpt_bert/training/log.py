"""The trackers of --report_to, and one of our own, `curves`, which keeps the lines of the log as a file.

OUTPUT_DIR/log.jsonl     one JSON object for each line: update, train_loss, learning_rate, eval_loss, ...
OUTPUT_DIR/curves.png    drawn at the end
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker, TensorBoardTracker, get_available_trackers, on_main_process

from elmo_gpt_bert.training.arguments import TRACKERS, RunArguments, public_arguments
from elmo_gpt_bert.training.errors import FileError, LaunchError, PackageError
from elmo_gpt_bert.training.files import make_folder, new_file, parse_json, read_text, write_text, writing
from elmo_gpt_bert.training.output_folder import CURVES, LOG, remove_curves
from elmo_gpt_bert.training.processes import on_main


# A panel shows all curves whose names contain its word. Each other name has a panel of its own.
PANELS = ("loss", "perplexity", "bits_per_byte", "learning_rate", "grad_norm", "tokens_per_second")
LOGARITHMIC = {"perplexity", "grad_norm"}
FROM_ZERO = {"learning_rate", "tokens_per_second"}

Curve = tuple[list[int], list[float]]  # updates and values


class History(GeneralTracker):
    """A tracker of Accelerate."""

    name = "curves"
    requires_logging_directory = False
    tracker = None  # the object of a tracker's library, which accelerate asks for

    def __init__(self, output: Path) -> None:
        super().__init__()
        self.output = output

    @on_main_process
    def store_init_configuration(self, values: dict) -> None:
        pass  # metrics.json holds the arguments

    @on_main_process
    def log(self, values: dict[str, float], step: int, **_: Any) -> None:
        """Appends a line. Raises OSError if it cannot be written."""
        path = self.output / LOG
        make_folder(self.output)  # for callers of `train`; a script has made it
        with writing(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"update": step, **values}) + "\n")

    @on_main_process
    def finish(self) -> None:
        draw_curves(read_log(self.output), self.output / CURVES)


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


def cut_log(output: Path, update: int) -> None:
    """Removes the lines of later updates, which are made again. Raises OSError if the log is damaged."""
    if (output / LOG).is_file():
        kept = [line for line in read_log(output) if line["update"] <= update]
        write_text(output / LOG, "".join(json.dumps(line) + "\n" for line in kept))


def draw_curves(records: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes a PNG with all curves of `records`, if there are any.

    Args:
        records: what was logged, each with the `update` after which it was. A record may lack any other name. Values
            that are no numbers are left out.

    The same records make the same bytes with the same version of matplotlib. Raises OSError if the file cannot be
    written.
    """
    from matplotlib.figure import Figure  # without pyplot, which needs a display

    panels = group_curves(records)
    if not panels:
        return
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
        History.name: partial(History, Path(args.output_dir)),
    }
    return [own[name]() if name in own else name for name in names]


def start_trackers(args: RunArguments, accelerator: Accelerator, update: int | None = None) -> None:
    """Starts the trackers of --report_to. TensorBoard writes to OUTPUT_DIR/runs; others name the run after OUTPUT_DIR.

    The curves of an earlier run go, unless this one may go on from it: the tracker would show them as its own. Then
    the log keeps its lines up to the `update` from which the run goes on; None: it does not train.
    Raises RuntimeError if a tracker cannot start, for example without a login or network.
    """
    names = {"wandb": {"name": args.output_dir, "dir": args.output_dir}, "trackio": {"name": args.output_dir}}
    config = {name: str(value) for name, value in public_arguments(args).items()}  # TensorBoard does not accept None
    if accelerator.is_main_process and not args.resume:
        remove_curves(Path(args.output_dir))
    if args.resume and update is not None:
        on_main(partial(cut_log, Path(args.output_dir), update))
    try:
        accelerator.init_trackers("elmo-gpt-bert", config, init_kwargs=names)
    except Exception as error:  # each tracker raises its own
        problem = " ".join(str(error).split()).rstrip(".")
        uses_wandb = {"all", "wandb"} & {*args.report_to.split(",")}
        remedy = "WANDB_MODE=offline keeps wandb's curves here" if uses_wandb else "Mend it, or choose another tracker"
        raise LaunchError(f"--report_to {args.report_to}: {problem}. {remedy}") from error


def finish_trackers(accelerator: Accelerator) -> None:
    """Finishes the trackers that have been started; a second call does nothing."""
    trackers, accelerator.trackers = accelerator.trackers, []
    for tracker in trackers:
        tracker.finish()
