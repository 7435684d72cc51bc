"""The picture of the README: how many times as long other implementations take, on a processor and on a GPU.

python -m benchmarks.speed docs/plots/speed.png
"""

import argparse
import json
from pathlib import Path

from matplotlib.figure import Figure


RECORDS = Path(__file__).with_name("records")
# panel -> its records, and what the rows are called. A row stands in one record of the panel.
PANELS = {
    "One thread of an AMD EPYC, fp32: CPU time": (
        [
            "2026-11-25_epyc_25_17.json",
            "2026-11-25_epyc_25_17_generation.json",
            "2026-11-25_epyc_25_17_second_part.json",
        ],
        {
            "base-sst2-dev": "BERT, classifying sentences",
            "finetuning": "BERT, fine-tuning step",
            "masked-lm": "BERT, pre-training step",
            "elmo-full": "ELMo, vectors of sentences",
            "elmo-training-small": "ELMo, training step",
            "gpt-greedy": "GPT, writing a text",
            "gpt-finetuning": "GPT, fine-tuning step",
            "gpt-lm": "GPT, pre-training step",
        },
    ),
    "NVIDIA H200, bf16: time": (
        ["2026-11-27_h200.json", "2026-11-27_h200_before_packing_of_small_batches.json"],
        {
            "gpu-base-sst2": "BERT-base, fine-tuning step, phrases",
            "gpu-large-sst2": "BERT-large, fine-tuning step, phrases",
            "gpu-large-squad": "BERT-large, fine-tuning step, SQuAD",
            "gpu-base-mlm-128": "BERT-base, pre-training step",
            "gpu-base-mlm-128-compiled": "the same, compiled",
            "gpu-elmo-graphs": "ELMo, vectors of sentences",
            "gpu-gpt-greedy": "GPT, writing a text",
            "gpu-gpt-512": "GPT, pre-training step",
        },
    ),
}


def read_ratios(files: list[str], rows: list[str]) -> list[tuple[float, float, float]]:
    """The ratio of each row in the first of its settings, with the lowest and the highest one."""
    ratios: dict[str, tuple[float, float, float]] = {}
    for file in files:
        for result in json.loads((RECORDS / file).read_text(encoding="utf-8"))["results"]:
            clock = "cpu" if result["device"] == "cpu" else "wall"
            names = [f"{clock}_ratio", f"lowest_{clock}_ratio", f"highest_{clock}_ratio"]
            ratio = result[names[0]]
            ratios.setdefault(result["row"], (ratio, *(result.get(name) or ratio for name in names[1:])))
    return [ratios[row] for row in rows]


def draw() -> Figure:
    """Bars of the ratios, with their spread, one panel beside the other. At 1 the implementations are equally fast."""
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for axes, (title, (files, names)) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        ratios = read_ratios(files, list(names))
        spread = [[ratio - lowest for ratio, lowest, _ in ratios], [highest - ratio for ratio, _, highest in ratios]]
        labels = [f"{name}: {ratio:.1f}" for name, (ratio, *_) in zip(names.values(), ratios, strict=True)]
        axes.barh(labels, [ratio for ratio, *_ in ratios], xerr=spread, ecolor="gray", capsize=2)
        axes.axvline(1, color="black", linewidth=1)
        axes.invert_yaxis()
        axes.set(title=title, xlabel="the other implementation's, over ours")
    return figure


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.speed", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the PNG to write")
    draw().savefig(parser.parse_args(argv).file, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
