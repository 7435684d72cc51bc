"""Draws scores over pre-training: those of models that were fine-tuned from checkpoints (BERT's figure 5).

    python -m elmo_gpt_bert.analysis.curves --score eval_accuracy --output_dir runs/figure5 \\
        runs/mnli/mlm/checkpoint-* runs/mnli/ltr/checkpoint-*

Each RUN is the output folder of a run whose `--model_name_or_path` was a checkpoint-N. Runs whose folders are in the
same folder are one curve, which has that folder's name. Of a run over several seeds, the mean is drawn with the
standard deviation. OUTPUT_DIR receives curves.json and curves.png.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from elmo_gpt_bert.analysis import frame
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import read_json_object
from elmo_gpt_bert.training.output_folder import CHECKPOINT, METRICS


# What scores are without a model that knows anything.
CHANCE = {"accuracy": 0.5, "auc": 0.5, "matthews": 0.0, "matthews_correlation": 0.0}

Row = Mapping[str, Any]  # of a table: the curve's name in `run`, its place on the axis, and scores


def main(argv: list[str] | None = None) -> list[Row]:
    """Carries out what `argv`, by default the command line, asks for; returns the table's rows."""
    parser = frame.make_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="output folder of a run from a checkpoint")
    parser.add_argument("--score", required=True, metavar="NAME", help="name in metrics.json, as in eval_accuracy")
    args = frame.parse(parser, argv)
    parents = {run: run.resolve().parent for run in args.runs}
    folders = list(dict.fromkeys(parents.values()))
    names = dict(zip(folders, frame.short_names(folders), strict=True))
    rows = [{"run": names[parents[run]], **read_point(run, args.score)} for run in args.runs]
    rows.sort(key=lambda row: (row["run"], row["updates"]))
    print(frame.table(rows))
    frame.write_numbers(args.output_dir, "curves", rows)
    frame.write_picture(args.output_dir, "curves", draw, rows, [args.score], "updates")
    return rows


def read_point(run: Path, score: str) -> dict[str, float]:
    """The updates of the checkpoint that the run began with, and its score. Raises ValueError if it has none."""
    record = read_json_object(run / METRICS)
    name = Path(record.get("args", {}).get("model_name_or_path", "")).name
    checkpoint = CHECKPOINT.fullmatch(name)
    if not checkpoint:
        raise InputError(f"{run} did not begin with a checkpoint-N, but with {name}")
    if score not in record:
        names = ", ".join(key for key in record if key.startswith("eval_"))
        raise InputError(f"{run / METRICS} has no {score}: --score is one of {names}")
    values = {"updates": int(checkpoint[1]), score: record.get(f"{score}_mean", record[score])}
    return values | {name: record[name] for name in [f"{score}_std"] if record.get(name) is not None}


def draw(figure: frame.Figure, rows: Sequence[Row], scores: Sequence[str], against: str) -> None:
    """A panel for each score with a curve for each run, over the logarithm of the column `against`."""
    from matplotlib.ticker import LogLocator, NullFormatter

    width, height = min(len(scores), 2), -(-len(scores) // 2)
    figure.set_size_inches(5.5 * width, 3.5 * height)
    for number, score in enumerate(scores, start=1):
        axes = figure.add_subplot(height, width, number)
        for name in dict.fromkeys(row["run"] for row in rows):
            points = [row for row in rows if row["run"] == name and row.get(against) and score in row]
            deviations = [row.get(f"{score}_std", 0.0) for row in points]
            places, values = [row[against] for row in points], [row[score] for row in points]
            axes.errorbar(places, values, yerr=deviations if any(deviations) else None, marker="o", label=name)
        for chance in [CHANCE[end] for end in CHANCE if score.endswith(end)][:1]:
            axes.axhline(chance, color="gray", linewidth=0.8, linestyle="dashed")
        axes.set(xscale="log", xlabel=f"{against} of pre-training", title=score.replace("_", " "))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:,.12g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)


if __name__ == "__main__":
    run_command(main)
