"""The vectors that the layers of a model give to the words of sentences, whatever the model reads.

    encoder = load_encoder("runs/bert")
    vectors = word_vectors(encoder, [["the", "cat", "sat"], ["cats", "sit"]])      # (layers, 5, size)

docs/analysis.md says which layers a model has, and whose vector a word of several tokens has.

Letters: L layers and the embeddings, B sentences, T tokens, W words of a sentence, N words of all, H size of a vector.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoModelForCausalLM

from elmo_gpt_bert.convert.vectors import read_vectors
from elmo_gpt_bert.tasks.features import choose_head
from elmo_gpt_bert.tasks.ner.features import encode, space_before_words
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.batches import in_pieces
from elmo_gpt_bert.training.errors import InputError, MissingFileError, as_user_errors
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer, positions
from modeling import ElmoModel, ElmoTokenizer


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


BATCH = 32  # sentences that a model reads in one call
LONGEST = 512  # tokens of a sentence, of models without a limit
SEED = 0  # of random weights

Words = Sequence[str]
Pieces = Literal["first", "last", "mean"]
Layers = Sequence[int] | None  # the numbers of layers; None: all of them


# The vectors of many sentences


def word_vectors(encoder: Encoder, sentences: list[Words]) -> np.ndarray:
    """The vectors (L, N, H) of all words, in the order of the sentences.

    Raises ValueError if there are no sentences.
    """
    if not sentences:
        raise ValueError("there are no sentences, so there are no vectors")
    ends = np.cumsum([len(words) for words in sentences])
    vectors = None
    for number, states in _in_batches(encoder, sentences):
        if vectors is None:
            vectors = np.empty((len(states), ends[-1], states.shape[-1]), np.float32)
        vectors[:, ends[number] - len(sentences[number]) : ends[number]] = states
    return vectors


def occurrence_vectors(encoder: Encoder, sentences: list[Words], places: list[int]) -> np.ndarray:
    """The vectors (L, B, H) of one word of each sentence: the one with that number."""
    vectors = {number: states[:, places[number]] for number, states in _in_batches(encoder, sentences)}
    return np.stack([vectors[number] for number in range(len(sentences))], axis=1)


def unit(vectors: np.ndarray) -> np.ndarray:
    """The vectors, each of length 1, or 0."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)


def _in_batches(encoder: Encoder, sentences: list[Words]) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the number of each sentence and the vectors (L, W, H) of its words; those of similar length together."""
    order = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
    for numbers in in_pieces(order, BATCH):
        read = encoder.read_words([sentences[number] for number in numbers])
        yield from zip(numbers, (each.states.numpy() for each in read), strict=True)


# Encoders: `layers` has the names of the layers, and `read_words` the vectors of each sentence's words.


@dataclass(frozen=True)
class Reading:
    """What a model reads of a text.

    tokens: with the special ones
    words: the number of each token's word, or None: a special token
    states: (L, T, H)
    length: the number of tokens of the whole text if the model cannot read all of them, otherwise None
    """

    tokens: list[str]
    words: list[int | None]
    states: torch.Tensor
    length: int | None = None


@dataclass
class SubwordEncoder:
    """A model that reads subwords. A word without tokens, or behind the model's last position, has zeros.

    pieces: which token of a word gives its vector, or the mean of all
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pieces: Pieces

    def __post_init__(self) -> None:
        self.layers = ["embeddings", *(f"layer {n}" for n in range(1, self.model.config.num_hidden_layers + 1))]
        self.longest = positions(self.model) or LONGEST
        self.space = space_before_words(self.tokenizer)

    def read_words(self, sentences: list[Words], layers: Layers = None) -> Iterator[Reading]:
        """Yields the words of each sentence as if they were tokens, with the states (L, W, H)."""
        texts = [[self.space + word for word in words] for words in sentences]
        for words, read in zip(sentences, self.read(texts, layers), strict=True):
            weights = piece_weights(read.words, len(words), self.pieces)  # (W, T)
            states = torch.einsum("wt,lth->lwh", weights, read.states)
            yield Reading([*words], [*range(len(words))], states, read.length)

    @torch.no_grad()
    def read(self, texts: list[Words], layers: Layers = None) -> list[Reading]:
        """The tokens of each text and their states. A text that is not split into words is given as one word."""
        inputs, words_of_tokens = encode(texts, self.tokenizer, self.longest)
        # Not token_type_ids: they are 0 by default, and GPT-2 would add the vector of the token with the number 0.
        blanks = {"input_ids": self.tokenizer.pad_token_id or 0, "attention_mask": 0}
        rows = {name: [torch.tensor(row) for row in inputs[name]] for name in blanks}
        batch = {name: pad_sequence(rows[name], True, blank) for name, blank in blanks.items()}
        batch = {name: padded.to(self.model.device) for name, padded in batch.items()}
        with as_user_errors():
            outputs = self.model(**batch, output_hidden_states=True, return_dict=True)
        numbers = range(len(self.layers)) if layers is None else layers
        states = torch.stack([outputs.hidden_states[number] for number in numbers]).cpu()  # (L, B, T, H)
        readings = []
        for row, (ids, of_tokens) in enumerate(zip(inputs["input_ids"], words_of_tokens, strict=True)):
            length = len(ids)
            if length == self.longest:
                length = len(self.tokenizer(texts[row], is_split_into_words=True)["input_ids"])
            tokens = self.tokenizer.convert_ids_to_tokens(ids)
            cut = length if length > len(ids) else None
            readings.append(Reading(tokens, [*of_tokens], states[:, row, : len(ids)], cut))
        return readings


def piece_weights(words_of_tokens: Sequence[int | None], words: int, pieces: Pieces) -> torch.Tensor:
    """(W, T) the share of each token in each word's vector; `words_of_tokens` has None for special tokens."""
    numbers = torch.tensor([-1 if word is None else word for word in words_of_tokens])
    weights = (numbers == torch.arange(words)[:, None]).float()
    counts = weights.sum(1, keepdim=True)
    if pieces == "mean":
        return weights / counts.clamp(min=1)
    place = weights.cumsum(1)  # of each token in its word, 1 for the first
    return weights * (place == (1 if pieces == "first" else counts))


@dataclass
class ElmoEncoder:
    """A biLM, which reads words. An LSTM layer has its two directions side by side."""

    model: ElmoModel
    tokenizer: ElmoTokenizer

    def __post_init__(self) -> None:
        self.layers = ["characters", *(f"LSTM {n}" for n in range(1, self.model.config.num_hidden_layers + 1))]

    def read_words(self, sentences: list[Words], layers: Layers = None) -> Iterator[Reading]:
        """Yields the words of each sentence, which are the tokens, with the states (L, W, H)."""
        chosen = slice(None) if layers is None else [*layers]
        states = self.model.embed(sentences, batch_size=len(sentences), layers="all", tokenizer=self.tokenizer)
        for words, of_words in zip(sentences, states, strict=True):
            yield Reading([*words], [*range(len(words))], of_words[chosen])

    def read(self, texts: list[Words], layers: Layers = None) -> Iterator[Reading]:
        """The same for texts that the tokenizer splits into words."""
        return self.read_words([self.tokenizer.tokenize(text) for (text,) in texts], layers)


class StaticVectors:
    """Word vectors that do not depend on the sentence. A word has the vector of its spelling, or of its lower case."""

    def __init__(self, path: Path, words: Iterable[str]) -> None:
        wanted = {*words}
        known, table = read_vectors(path, wanted | {word.lower() for word in wanted}, "the texts")
        self.table = np.concatenate([table, np.zeros_like(table, shape=(1, table.shape[1]))])  # of an unknown word
        self.rows = {word: row for row, word in enumerate(known)}
        self.layers = ["words"]

    def read_words(self, sentences: list[Words], layers: Layers = None) -> Iterator[Reading]:
        """Yields the words of each sentence with their vectors (1, W, H)."""
        for words in sentences:
            rows = [self.rows.get(word, self.rows.get(word.lower(), -1)) for word in words]
            yield Reading([*words], [*range(len(words))], torch.from_numpy(self.table[rows])[None])


Encoder = SubwordEncoder | ElmoEncoder | StaticVectors


# Loading


def load_encoder(
    name: str, words: Iterable[str] = (), *, random: bool = False, pieces: Pieces | None = None
) -> Encoder:
    """Loads a model folder, a model of the Hub, or a file of word vectors.

    Args:
        words: the only ones that are read of a file of vectors.
        random: a model has random weights instead of its own.
        pieces: None means the first token of a word, and the last of a causal model.
    """
    if is_vectors(name):
        return StaticVectors(Path(name), words)
    if name.endswith(".json"):
        raise InputError(f"{name} is a configuration, which has no weights: give a model folder")
    source = ModelSource(name, attn_implementation="eager")  # the fastest for short sentences
    config, tokenizer = load_config(source), load_tokenizer(source, for_task=False)
    if random:
        torch.manual_seed(SEED)
        model = AutoModel.from_config(config, attn_implementation="eager", dtype=torch.float32)
    else:
        with contextlib.redirect_stdout(sys.stderr):  # the table has standard output for itself
            model = load_model(AutoModel, source, config, tokenizer, train=True)  # a new pooler is no error, unused
    causal = pieces is None and choose_head(config, tokenizer, source) is AutoModelForCausalLM
    return make_encoder(model, tokenizer, pieces or ("last" if causal else "first"))


def make_encoder(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pieces: Pieces
) -> SubwordEncoder | ElmoEncoder:
    """The encoder of a base model, without a head."""
    if isinstance(model, ElmoModel):
        return ElmoEncoder(model.eval(), tokenizer)
    return SubwordEncoder(model.eval(), tokenizer, pieces)


def is_vectors(name: str) -> bool:
    """Whether the name is that of a file of word vectors. Raises FileNotFoundError for a file that does not exist."""
    path = Path(name)
    if path.suffix in (".txt", ".vec", ".bin", ".gz") and not path.exists():
        raise MissingFileError(f"{name}: no such file")
    return path.is_file() and path.suffix != ".json"
