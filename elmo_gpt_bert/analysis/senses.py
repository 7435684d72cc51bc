"""Measures whether the layers of a model tell the senses of a word apart, and shows each word's nearest neighbours.

    python -m elmo_gpt_bert.analysis.senses --output_dir runs/senses runs/bert runs/gpt runs/elmo \\
        glove.6B.100d.txt --random
    python -m elmo_gpt_bert.analysis.senses --output_dir runs/senses runs/bert glove.6B.100d.txt \\
        --text_file held_out.txt --sentence 'They sat on the *bank* and watched the stream.'

The first command reads sentences in which one word is marked and has a sense: the 351 of word_senses.tsv, or a
--labelled_file of your own. As in section 5.3 of the ELMo paper, the vectors of each sense are averaged. An occurrence
is right if the mean of its own sense, without it, is the nearest by the cosine. If several means are equally near,
each counts its share, so a model that gives all occurrences of a word one vector has the accuracy of a random guess.
Accuracies are means over the words.

The second command finds the word that a --sentence marks in raw text, and prints for each layer the occurrences that
are nearest to the one in the sentence. Without --sentence, it does so for the first labelled occurrence of each sense.

OUTPUT_DIR receives senses.json with all of this, and senses.png.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from elmo_gpt_bert.analysis import frame
from elmo_gpt_bert.analysis.representations import Encoder, occurrence_vectors, unit
from elmo_gpt_bert.tasks.pretraining.text import read_documents, split_sentences
from elmo_gpt_bert.tasks.rows import columns, read_tsv
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import shown
from modeling.elmo.tokenization_elmo import split_words


LABELLED = Path(__file__).with_name("word_senses.tsv")
MARKED = re.compile(r"\*(\w[^\s*]*)\*")
LONGEST = 60  # words of a sentence of raw text
SHOWN = 3  # neighbours
AROUND = 6  # words that are shown on each side of an occurrence
EQUAL = 1e-5  # cosines that differ by less are the same


@dataclass(frozen=True)
class Occurrence:
    """A word in a sentence. `sense` is None where nobody labelled it."""

    words: list[str]
    place: int
    sense: str | None = None

    @property
    def word(self) -> str:
        return self.words[self.place].lower()

    def in_context(self) -> str:
        """A few words on each side of the word, which is in bold."""
        left, right = self.words[max(self.place - AROUND, 0) : self.place], self.words[self.place + 1 :][:AROUND]
        return " ".join([*left, f"**{self.words[self.place]}**", *right]).replace("|", r"\|")


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = frame.make_parser(__doc__)
    frame.add_models(parser)
    labelled = "tab-separated columns word, sense and sentence, in which *asterisks* mark the word"
    parser.add_argument("--labelled_file", type=Path, default=LABELLED, metavar="FILE", help=labelled)
    text = "raw text (.txt, .jsonl, .csv, .parquet, compressed or not), in which neighbours are looked for"
    parser.add_argument("--text_file", type=Path, metavar="FILE", help=text)
    column = "the text's column in .jsonl, .csv or .parquet"
    parser.add_argument("--text_column", default="text", metavar="NAME", help=column)
    sentence = "a sentence with one *marked* word, whose neighbours are shown; may be repeated"
    parser.add_argument("--sentence", action="append", metavar="TEXT", help=sentence)
    most = "read only the first N occurrences of each word in the text"
    parser.add_argument("--max_occurrences", type=int, default=300, metavar="N", help=most)
    args = frame.parse(parser, argv, max_occurrences=1)
    if args.sentence and args.text_file is None:
        raise InputError("--sentence needs a --text_file, in which its word's other occurrences are")
    return args


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Carries out what `argv`, by default the command line, asks for; returns what senses.json holds."""
    args = parse(argv)
    labelled = read_labelled(args.labelled_file)
    queries = [marked(text, None, "--sentence") for text in args.sentence or ()] or first_of_senses(labelled)
    text = find_occurrences(args.text_file, args.text_column, {each.word for each in queries}, args.max_occurrences)
    words = {*chain.from_iterable(each.words for each in (*labelled, *queries, *text))}
    by_word: dict[str, dict[str, dict[str, float]]] = {}
    neighbours: dict[str, list[dict]] = {}
    for name, encoder in frame.named_encoders(args, words):
        print(f"{name}: {', '.join(encoder.layers)}", file=sys.stderr)
        vectors = vectors_of(encoder, labelled)
        by_word[name] = {layer: accuracies(x, labelled) for layer, x in zip(encoder.layers, vectors, strict=True)}
        if text and not name.endswith(frame.RANDOM):
            neighbours[name] = find_neighbours(encoder, queries, text)
    baselines = baseline_accuracies(labelled)
    results = {"occurrences": len(labelled), "words": by_word, "baselines": baselines, "neighbours": neighbours}
    report(args.output_dir, results)
    return results


def report(output: Path, results: Mapping[str, Any]) -> None:
    """Prints the tables, and writes the files."""
    scores = {name: {layer: mean(of) for layer, of in layers.items()} for name, layers in results["words"].items()}
    baselines = {name: mean(of) for name, of in results["baselines"].items()}
    print(frame.layer_table(scores, baselines), end="\n\n")
    print(best_layers_table(results["words"], scores, results["baselines"]))
    for number, query in enumerate(next(iter(results["neighbours"].values()), ())):
        print(f"\nNearest to: {query['sentence']}\n")
        rows = []
        for name, queries in results["neighbours"].items():
            for layer, nearest in queries[number]["neighbours"].items():
                places = {f"neighbour {place}": shown for place, shown in enumerate(nearest, start=1)}
                rows.append({"model": name, "layer": layer, **places})
        print(frame.table(rows))
    frame.write_numbers(output, "senses", results)
    labels = ("How often the vector of a word in its sentence tells its sense", "occurrences with the right sense")
    frame.write_picture(output, "senses", frame.draw_layers, scores, baselines, *labels)


def best_layers_table(by_word: Mapping, scores: Mapping, baselines: Mapping) -> str:
    """A row for each model with the accuracy of each word in its best layer, and one for each baseline."""
    best = {name: max(layers, key=layers.get) for name, layers in scores.items()}
    rows = {f"{name}, {layer}": by_word[name][layer] for name, layer in best.items()} | baselines
    shares = {name: {word: f"{score:.1%}" for word, score in of.items()} for name, of in rows.items()}
    return frame.table([{"": name, **of} for name, of in shares.items()])


def mean(scores: Mapping[str, float]) -> float:
    return sum(scores.values()) / len(scores)


# Occurrences


def marked(text: str, sense: str | None, source: str) -> Occurrence:
    """The occurrence of a text in which asterisks mark one word. Raises ValueError, which names the source, if not."""
    marks = [*MARKED.finditer(text)]
    if len(marks) != 1:
        raise InputError(f"{source}: {shown(text)} must mark one word, as in: The *bank* was closed.")
    spans = split_words(text := MARKED.sub(r"\1", text))
    begin = marks[0].start()
    place = next((number for number, span in enumerate(spans) if span == (begin, begin + len(marks[0][1]))), None)
    if place is None:
        raise InputError(f"{source}: {marks[0][1]!r} is not a whole word of {shown(text)}: mark all of the word")
    return Occurrence([text[slice(*span)] for span in spans], place, sense)


def read_labelled(path: Path) -> list[Occurrence]:
    """The occurrences of a file, by words.

    Raises ValueError for a row that marks another word, for a word of one sense, and for a sense with one sentence.
    """
    occurrences = []
    for line, row in read_tsv(path):
        where = f"{path}:{line}"
        word, sense, sentence = columns(row, ("word", "sense", "sentence"), where)
        occurrence = marked(sentence, sense, where)
        if occurrence.word != word.lower():
            raise InputError(f"{where}: the sentence marks {occurrence.word}, not {word}")
        occurrences.append(occurrence)
    counts = Counter((each.word, each.sense) for each in occurrences)
    senses = Counter(word for word, _ in counts)
    if not senses or min(senses.values()) < 2:
        word = min(senses, key=senses.get, default="it")
        raise InputError(f"{path}: {word} has fewer than two senses: add sentences")
    word, sense = min(counts, key=counts.get)
    if counts[word, sense] < 2:  # its mean is that of its other occurrences
        raise InputError(f"{path}: {word} has a single sentence of the sense {sense}: add another, or leave it out")
    return sorted(occurrences, key=lambda occurrence: occurrence.word)


def first_of_senses(labelled: list[Occurrence]) -> list[Occurrence]:
    first = {(each.word, each.sense): each for each in reversed(labelled)}
    return [each for each in labelled if first[each.word, each.sense] is each]


def find_occurrences(path: Path | None, column: str, words: set[str], most: int) -> list[Occurrence]:
    """The first occurrences of each word in raw text, at most `most` of each, one of a sentence.

    Raises ValueError for a word that the text lacks. Sentences of more than `LONGEST` words are left out.
    """
    if path is None:
        return []
    counts, occurrences = Counter(), []
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, words))})(?!\w)", re.IGNORECASE)
    for sentence in chain.from_iterable(map(split_sentences, read_documents(path, column=column))):
        if not pattern.search(sentence):
            continue
        tokens = [sentence[slice(*span)] for span in split_words(sentence)]
        found = [Occurrence(tokens, place) for place, token in enumerate(tokens) if token.lower() in words][:1]
        for occurrence in found if len(tokens) <= LONGEST else ():
            counts[occurrence.word] += 1
            if counts[occurrence.word] <= most:
                occurrences.append(occurrence)
        if min(counts[word] for word in words) >= most:
            break
    if missing := sorted(words - counts.keys()):
        kind = f"sentence of at most {LONGEST} words"
        raise InputError(f"--text_file {path} has no {kind} with {', '.join(missing)}")
    return occurrences


# Measures


def vectors_of(encoder: Encoder, occurrences: Sequence[Occurrence]) -> np.ndarray:
    """The vectors (layers, occurrences, size), each of length 1, or 0."""
    places = [each.place for each in occurrences]
    return unit(occurrence_vectors(encoder, [each.words for each in occurrences], places))


def accuracies(vectors: np.ndarray, occurrences: list[Occurrence]) -> dict[str, float]:
    """word -> the share of its occurrences that are nearest to the mean of the other occurrences of their sense."""
    words = np.array([each.word for each in occurrences])
    senses = np.array([each.sense for each in occurrences])
    return {str(word): sense_accuracy(vectors[words == word], senses[words == word]) for word in np.unique(words)}


def sense_accuracy(vectors: np.ndarray, senses: np.ndarray) -> float:
    """The same for the occurrences of one word, whose vectors (N, H) have length 1."""
    of_senses = (senses == np.unique(senses)[:, None]).astype(vectors.dtype)  # (S, N)
    right = of_senses.argmax(0)  # (N,) the number of each occurrence's sense
    sums = (of_senses @ vectors)[None].repeat(len(vectors), 0)  # (N, S, H)
    sums[np.arange(len(vectors)), right] -= vectors  # an occurrence is not part of its own mean
    lengths = np.maximum(np.linalg.norm(sums, axis=-1), 1e-12)
    cosines = np.einsum("nsh,nh->ns", sums, vectors) / lengths  # those of the means, too
    nearest = cosines >= cosines.max(1, keepdims=True) - EQUAL
    return float((nearest[np.arange(len(vectors)), right] / nearest.sum(1)).mean())


def baseline_accuracies(occurrences: list[Occurrence]) -> dict[str, dict[str, float]]:
    """word -> the accuracy of the most frequent sense, and that of a random one."""
    words = sorted({each.word for each in occurrences})
    counts = {word: Counter(each.sense for each in occurrences if each.word == word) for word in words}
    return {
        "most frequent sense": {word: max(senses.values()) / senses.total() for word, senses in counts.items()},
        "random sense": {word: 1 / len(senses) for word, senses in counts.items()},
    }


def find_neighbours(encoder: Encoder, queries: list[Occurrence], text: list[Occurrence]) -> list[dict[str, Any]]:
    """For each query its sentence, and layer -> the nearest occurrences of its word in the text, nearest first."""
    found, of_text = vectors_of(encoder, queries), vectors_of(encoder, text)
    rows = []
    for number, query in enumerate(queries):
        chosen = [place for place, each in enumerate(text) if each.word == query.word and each.words != query.words]
        nearest = {}
        for layer, name in enumerate(encoder.layers):
            cosines = of_text[layer, chosen] @ found[layer, number]
            alike = int((cosines >= cosines.max(initial=-1) - EQUAL).sum())
            best = np.argsort(-cosines, kind="stable")[:SHOWN]
            cells = [f"{text[chosen[place]].in_context()} ({cosines[place]:.2f})" for place in best]
            if not chosen:
                cells = ["the text has no other occurrence"]
            elif alike > SHOWN or alike == len(chosen) > 1:
                cells = [f"{alike} of {len(chosen)} occurrences are equally near"]
            nearest[name] = cells + [""] * (SHOWN - len(cells))
        rows.append({"sentence": query.in_context(), "sense": query.sense, "neighbours": nearest})
    return rows


if __name__ == "__main__":
    run_command(main)
