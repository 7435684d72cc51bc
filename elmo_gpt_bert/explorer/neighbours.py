"""The words of an index, each in its sentence, that are nearest to a word in its sentence, layer by layer."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from elmo_gpt_bert.analysis.representations import unit, word_vectors
from elmo_gpt_bert.analysis.senses import EQUAL, LABELLED, read_labelled, sense_accuracy
from elmo_gpt_bert.explorer.language_models import LanguageModel
from elmo_gpt_bert.tasks.pretraining.text import read_documents, split_sentences
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from modeling.elmo.tokenization_elmo import split_words


MOST_WORDS = 10_000  # of an index; with 13 layers of 768 numbers, their vectors take 400 MB
LONGEST = 60  # words of a sentence
AROUND = 6  # words that are shown on each side of a neighbour
SHOWN = 5  # neighbours of a layer

Place = tuple[int, int]  # the number of a sentence, and that of a word in it


@dataclass(frozen=True, eq=False)
class Index:
    """Sentences as words. `is_whole` says whether they are all sentences of the file.

    `senses` are those that somebody labelled; there are none in a file of the user.
    """

    sentences: list[list[str]]
    is_whole: bool
    senses: dict[Place, str] = field(default_factory=dict)

    def places(self) -> list[Place]:
        """The places of all words."""
        return [(row, column) for row, words in enumerate(self.sentences) for column in range(len(words))]


@dataclass(frozen=True)
class Neighbour:
    """An occurrence in the index, with a few words around it; the first of `count` that are equally near.

    `sense` is its labelled sense, None where nobody labelled it.
    """

    left: str
    word: str
    right: str
    cosine: float
    count: int
    sense: str | None = None


@lru_cache(maxsize=2)
def read_index(path: str | None) -> Index:
    """The index of a text file, or of the sentences in elmo_gpt_bert/analysis/word_senses.tsv if there is none.

    Sentences of more than `LONGEST` words are left out, and all after the first `MOST_WORDS` words. A file is read
    once, even if it changes. Raises OSError for a file that cannot be read, and ValueError for one without a sentence.
    """
    if path is None:
        labelled = read_labelled(LABELLED)
        senses = {(row, each.place): each.sense for row, each in enumerate(labelled)}
        return Index([each.words for each in labelled], True, senses)
    if not Path(path).is_file():
        raise MissingFileError(f"{path}: no such file. Name a text file of sentences.")
    sentences, words, is_whole = [], 0, True
    for sentence in chain.from_iterable(map(split_sentences, read_documents(Path(path)))):
        tokens = [sentence[slice(*span)] for span in split_words(sentence)]
        if len(tokens) > LONGEST or words + len(tokens) > MOST_WORDS:
            is_whole = False
            if words + LONGEST > MOST_WORDS:
                break
            continue
        sentences.append(tokens)
        words += len(tokens)
    if not sentences:
        raise InputError(f"{path} has no sentence of 1 to {LONGEST} words.")
    return Index(sentences, is_whole)


@lru_cache(maxsize=3)
def index_vectors(model: LanguageModel, index: Index) -> np.ndarray:
    """The vectors (layers, words, size) of all words of the index, each of length 1, or 0."""
    return unit(word_vectors(model.encoder, index.sentences))


@torch.no_grad()
def find_neighbours(
    model: LanguageModel, index: Index, words: list[str], place: int, *, same_word: bool, shown: int = SHOWN
) -> dict[str, list[Neighbour]]:
    """layer -> the occurrences in the index that are nearest to the word at `place`, the nearest first.

    The sentence itself is left out. With `same_word`, only occurrences of that word count, whatever their case.
    Occurrences of a word that are equally near are one neighbour. Raises ValueError for a word without a token.
    """
    queries = unit(word_vectors(model.encoder, [words]))[:, place]
    if not queries.any():
        raise InputError(f"{model.name} has no token for word {place + 1}, {words[place]!r}: choose another word.")
    vectors = index_vectors(model, index)
    places = index.places()
    chosen = [
        number
        for number, (row, column) in enumerate(places)
        if index.sentences[row] != words
        and (not same_word or index.sentences[row][column].lower() == words[place].lower())
    ]
    layers = {}
    for name, query, of_index in zip(model.encoder.layers, queries, vectors, strict=True):
        cosines = of_index[chosen] @ query
        order = np.argsort(-cosines, kind="stable")
        ranked = ((*places[chosen[number]], float(cosines[number])) for number in order)
        layers[name] = _join_equal(index, ranked, shown)
    return layers


def sense_accuracies(model: LanguageModel, index: Index, word: str) -> dict[str, float]:
    """layer -> the share of the word's labelled occurrences that are nearest to the others of their sense.

    Empty for a word of which the index has no labels. It is the measure of elmo_gpt_bert.analysis.senses.
    """
    labelled = [(row, column) for row, column in index.senses if index.sentences[row][column].lower() == word.lower()]
    if not labelled:
        return {}
    places = index.places()
    numbers = [places.index(place) for place in labelled]
    senses = np.array([index.senses[place] for place in labelled])
    vectors = index_vectors(model, index)
    return {
        name: sense_accuracy(of_layer[numbers], senses)
        for name, of_layer in zip(model.encoder.layers, vectors, strict=True)
    }


def _join_equal(index: Index, ranked: Iterator[tuple[int, int, float]], most: int) -> list[Neighbour]:
    """The neighbours of ranked (sentence, place, cosine); successive ones of one word and one cosine are one."""
    neighbours: list[Neighbour] = []
    for row, column, cosine in ranked:
        words = index.sentences[row]
        last = neighbours[-1] if neighbours else None
        if last and last.cosine - cosine <= EQUAL and last.word.lower() == words[column].lower():
            neighbours[-1] = replace(last, count=last.count + 1, sense=None)
            continue
        if len(neighbours) == most:
            break
        left, right = words[max(column - AROUND, 0) : column], words[column + 1 :][:AROUND]
        neighbours.append(
            Neighbour(" ".join(left), words[column], " ".join(right), cosine, 1, index.senses.get((row, column)))
        )
    return neighbours
