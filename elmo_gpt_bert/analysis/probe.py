"""Measures what each layer of a model knows of the tags of words, by a linear classifier on its vectors.

    python -m elmo_gpt_bert.analysis.probe --train_file pos/ud-english-train.tsv \\
        --validation_file pos/ud-english-dev.tsv --output_dir runs/probe \\
        runs/bert runs/gpt runs/elmo glove.6B.100d.txt --random

The models stay as they are: only the classifier is trained, on each layer by itself. It is a multinomial logistic
regression on standardised vectors, with an L2 penalty. Accuracies are those of all words of the validation file.

Two baselines need no vectors. The first is each word's most frequent tag in the training file; a new word has the most
frequent tag of all. The second is that tag for every word. OUTPUT_DIR receives probe.json and probe.png.
"""

import sys
from collections import Counter, defaultdict
from itertools import islice
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from elmo_gpt_bert.analysis import frame
from elmo_gpt_bert.analysis.representations import word_vectors
from elmo_gpt_bert.tasks.columns import Sentence, read_columns
from elmo_gpt_bert.tasks.rows import read_lines
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import InputError


PENALTY = 1e-3  # half of it times the squares of all weights is added to the mean loss of a word
TOLERANCE = 1e-4
MOST_STEPS = 1000  # of L-BFGS, which stops earlier at the tolerance


def main(argv: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Carries out what `argv`, by default the command line, asks for; returns model -> layer -> accuracy."""
    parser = frame.make_parser(__doc__)
    frame.add_models(parser)
    columns = "words with tags, a blank line after each sentence"
    parser.add_argument("--train_file", type=Path, required=True, metavar="FILE", help=columns)
    parser.add_argument("--validation_file", type=Path, required=True, metavar="FILE", help="the same")
    parser.add_argument("--max_train_samples", type=int, metavar="N", help="train on the first N sentences only")
    parser.add_argument("--text_column_name", metavar="N", help="number of the words' column; default: 1, the first")
    parser.add_argument("--label_column_name", metavar="N", help="number of the tags' column; default: -1, the last")
    args = frame.parse(parser, argv, max_train_samples=1)
    numbers = args.text_column_name, args.label_column_name
    train = read_sentences(args.train_file, *numbers, args.max_train_samples)
    validation = read_sentences(args.validation_file, *numbers)
    tags, references = tags_of(train), tags_of(validation)
    names = sorted({*tags})
    if len(names) < 2:
        raise InputError(f"{args.train_file}: all words have the tag {tags[0]}; a classifier needs two tags or more")
    print(f"{len(tags):,} words to train on, {len(references):,} to measure on, {len(names)} tags")
    scores: dict[str, dict[str, float]] = {}
    for name, encoder in frame.named_encoders(args, words_of(train + validation)):
        vectors, held_out = (word_vectors(encoder, [each.words for each in part]) for part in (train, validation))
        scores[name] = {}
        for layer, x, z in zip(encoder.layers, vectors, held_out, strict=True):
            scores[name][layer] = probe_accuracy(x, tags, z, references)
            print(f"{name}, {layer}: {scores[name][layer]:.1%}", file=sys.stderr)
    baselines = baseline_accuracies(train, validation)
    counts = {"train_words": len(tags), "validation_words": len(references), "tags": names}
    results = {**counts, "penalty": PENALTY, "baselines": baselines, "accuracy": scores}
    labels = ("How often a linear classifier reads a word's tag from its vector", "words with the right tag")
    frame.report_layers(args.output_dir, "probe", results, scores, baselines, *labels)
    return scores


def read_sentences(
    path: Path, text_column: str | None, label_column: str | None, limit: int | None = None
) -> list[Sentence]:
    """The first sentences of a file of columns, up to the limit. Raises ValueError if there are none."""
    sentences = filter(None, read_columns(read_lines(path), path, text_column, label_column))
    sentences = list(islice(sentences, limit))
    if not sentences:
        raise InputError(f"{path} holds no sentences")
    return sentences


def words_of(sentences: list[Sentence]) -> list[str]:
    return [word for sentence in sentences for word in sentence.words]


def tags_of(sentences: list[Sentence]) -> np.ndarray:
    return np.array([tag for sentence in sentences for tag in sentence.tags])


def probe_accuracy(vectors: np.ndarray, tags: np.ndarray, held_out: np.ndarray, references: np.ndarray) -> float:
    """The accuracy on `held_out` vectors (M, H) of a classifier that was trained on `vectors` (N, H)."""
    scaler = StandardScaler().fit(vectors)
    classifier = LogisticRegression(C=1 / (PENALTY * len(tags)), tol=TOLERANCE, max_iter=MOST_STEPS)
    classifier.fit(scaler.transform(vectors), tags)
    return float(np.mean(classifier.predict(scaler.transform(held_out)) == references))


def baseline_accuracies(train: list[Sentence], validation: list[Sentence]) -> dict[str, float]:
    """The accuracies of each word's most frequent tag, and of the most frequent tag. Ties go to the first in order."""
    tags, references = tags_of(train), tags_of(validation)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for word, tag in sorted(zip(words_of(train), tags, strict=True)):  # the first of equal counts is taken
        counts[word][tag] += 1
    ((majority, _),) = Counter(sorted(tags)).most_common(1)
    guesses = [max(counts[word], key=counts[word].get, default=majority) for word in words_of(validation)]
    return {
        "each word's most frequent tag": float(np.mean(np.array(guesses) == references)),
        "most frequent tag": float(np.mean(references == majority)),
    }


if __name__ == "__main__":
    run_command(main)
