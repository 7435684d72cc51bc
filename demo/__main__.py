"""The three models of `checkpoints/`, and what pre-training is worth.

    python -m demo [OUTPUT_DIR]

ELMo tells two senses of a word apart, BERT fills in a blank, GPT continues a text. Then BERT is fine-tuned on the
demo's sample, once from its checkpoint and once from random weights, and classifies new sentences.

Run it from the root of the repository, or use `make demo`, which first installs what it needs.
"""

import argparse
import json
from pathlib import Path
from textwrap import fill

import torch
from torch.nn.functional import normalize
from transformers import pipeline, set_seed
from transformers.utils import logging

import modeling
import run_glue
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import MissingFileError


BERT, GPT, ELMO = (f"checkpoints/{family}-books" for family in ("bert", "gpt", "elmo"))
RECIPE = "demo/recipe.yaml"

WORD = "light"
SENSES = ["the light of the lamp fell on the table .", "it was light work for a strong man ."]
OCCURRENCES = [  # of the first sense and of the second
    "the morning light came into the room .",
    "the basket was light and easy to carry .",
    "a faint light shone through the window .",
    "she wore a light cloak over her dress .",
]
BLANK = "the ship sailed across the [MASK] ."
BEGINNING = "the old man opened the door and"
SENTENCES = [  # none of them is in train
    "although the music is awful , the movie is a small miracle .",
    "the dialogue is simply wonderful , but the ending is simply awful .",
    "not bad at all !",
    "there is nothing funny in this comedy .",
]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m demo", description=__doc__.splitlines()[0])
    output = "folder of the two fine-tuned models; default: demo/output"
    parser.add_argument("output_dir", nargs="?", default="demo/output", metavar="OUTPUT_DIR", help=output)
    return parser.parse_args(argv)


def main(output_dir: str) -> None:
    """Shows each model, and fine-tunes BERT in the folders "pretrained" and "random" of `output_dir`."""
    if not Path(BERT).is_dir():
        raise MissingFileError(f"{BERT}: no such folder. Run the demo from the root of the repository.")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    modeling.register()
    show_senses()
    show_blank()
    show_continuation()
    show_fine_tuning(Path(output_dir))


def show_senses() -> None:
    """Prints for each of `SENSES` how similar the word's vector is to those of `OCCURRENCES`."""
    print(f'ELMo gives each "{WORD}" a vector that depends on its sentence. Cosines between them:')
    known, others = occurrence_vectors(SENSES), occurrence_vectors(OCCURRENCES)
    for sentence, cosines in zip(SENSES, known @ others.T, strict=True):
        print(f"  {sentence}")
        for cosine, place in zip(*cosines.sort(descending=True), strict=True):
            print(f"    {cosine:.2f}  {OCCURRENCES[place]}")


def occurrence_vectors(sentences: list[str]) -> torch.Tensor:
    """ELMo's vectors of `WORD` in each sentence, of length 1: (sentences, 2 x projection size)."""
    words = [sentence.split() for sentence in sentences]
    vectors = modeling.ElmoModel.from_pretrained(ELMO).embed(words)
    return normalize(torch.stack([vector[each.index(WORD)] for vector, each in zip(vectors, words, strict=True)]))


def show_blank() -> None:
    """Prints BERT's best words for the blank."""
    print(f"\nBERT fills in a blank: {BLANK}")
    for answer in pipeline("fill-mask", model=BERT)(BLANK):
        print(f"    {answer['score']:.2f}  {answer['token_str']}")


def show_continuation() -> None:
    """Prints a text that GPT continues."""
    set_seed(0)
    tokenizer = modeling.ZooGPTTokenizer.from_pretrained(GPT)
    model = modeling.ZooGPTLMHeadModel.from_pretrained(GPT)
    tokens = model.generate(**tokenizer(BEGINNING, return_tensors="pt"), max_new_tokens=40, do_sample=True, top_k=40)
    text = fill(tokenizer.decode(tokens[0]), width=100, initial_indent="    ", subsequent_indent="    ")
    print(f"\nGPT continues a text:\n{text}\n")


def show_fine_tuning(output: Path) -> None:
    """Fine-tunes BERT on few reviews, with pre-training and without, and classifies `SENTENCES`."""
    print("BERT learns to classify reviews, first from its checkpoint, then from random weights.")
    trained, random = output / "pretrained", output / "random"
    run_glue.main([RECIPE, "--output_dir", str(trained)])
    weights = ["--model_name_or_path", f"{BERT}/config.json", "--tokenizer_name", BERT]
    run_glue.main([RECIPE, *weights, "--output_dir", str(random)])
    print(
        f"\nWith pre-training, {accuracy(trained):.1%} of the dev reviews are classified right; from random weights, "
        f"{accuracy(random):.1%}. Guessing gets 50.0%.\n"
    )
    classify = pipeline("text-classification", model=str(trained))
    for sentence, answer in zip(SENTENCES, classify(SENTENCES), strict=True):
        print(f'"{sentence}" -> {answer["label"]} ({answer["score"]:.2f})')


def accuracy(folder: Path) -> float:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["eval_accuracy"]


if __name__ == "__main__":
    run_command(lambda: main(parse().output_dir))
