"""A small complete run: BERT learns the sample from random weights, is saved, loaded again and used.

    python -m demo [OUTPUT_DIR]

Run it from the root of the repository, or use `make demo`, which first installs what it needs.
"""

import json
import sys
from pathlib import Path

from transformers import pipeline

import run_glue


RECIPE = "demo/recipe.yaml"
SENTENCES = [  # none of them is in train
    "although the music is awful , the movie is a small miracle .",
    "the dialogue is simply wonderful , but the ending is simply awful .",
    "not bad at all !",
    "the humour is never funny .",
]


def main(output_dir: str = "demo/output") -> None:
    """Trains, then classifies `SENTENCES` with the model that is saved in `output_dir`."""
    run_glue.main([RECIPE, "--output_dir", output_dir])
    metrics = json.loads(Path(output_dir, "metrics.json").read_text(encoding="utf-8"))
    print(f"\nOf the dev sentences, {metrics['eval_accuracy']:.1%} are classified right; guessing gets 50.0%.\n")

    classify = pipeline("text-classification", model=output_dir)
    for sentence, answer in zip(SENTENCES, classify(SENTENCES), strict=True):
        print(f'"{sentence}" -> {answer["label"]} ({answer["score"]:.2f})')


if __name__ == "__main__":
    main(*sys.argv[1:])
