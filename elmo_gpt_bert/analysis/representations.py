"""The vectors that the layers of a model give to the words of sentences, whatever the model reads.

    encoder = load_encoder("runs/bert")
    vectors = word_vectors(encoder, [["the", "cat", "sat"], ["cats", "sit"]])      # (layers, 5, size)

- BERT, GPT and other models of subwords: the embeddings (layer 0) and the output of each layer. The tokenizer adds the
  special tokens with which the model was pre-trained. A word of several tokens has the vector of one of them, or their
  mean: `pieces`. By default it is the first token, as in section 5.3 of the BERT paper; of a causal model it is the
  last, since the others have not read the whole word.
- ELMo: the character layer, and each LSTM layer with its two directions side by side.
- A file of word vectors: one layer, the same vector for a word wherever it stands.

A word without tokens, or behind the last position of the model, and a word that the file lacks have zeros.

Letters: L layers and the embeddings, B sentences, T tokens, W words of a sentence, N words of all, H size of a vector.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModel, AutoModelForCausalLM

from elmo_gpt_bert.analysis.reporting import RANDOM
from elmo_gpt_bert.convert.vectors import read_vectors
from elmo_gpt_bert.tasks.minimal_pairs.scoring import choose_head
from elmo_gpt_bert.tasks.ner.features import encode, space_before_words
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.batches import in_pieces
from elmo_gpt_bert.training.errors import InputError, MissingFileError, as_user_errors
from elmo_gpt_bert.training.launching import choose_implementation
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer, positions
from modeling import ElmoModel, ElmoTokenizer


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


BATCH = 32  # sentences that a model reads in one call
LONGEST = 512  # tokens of a sentence, of models without a limit
SEED = 0  # of random weights

Words = Sequence[str]
Pieces = Literal["first", "last", "mean"]
Layers = Sequence[int] | None


class Encoder(Protocol):
    """A model whose layers give vectors to words.

    Attributes:
        layers: what its layers are called.
    """

    layers: list[str]

    def encode(self, sentences: list[Words], layers: Layers = None) -> list[np.ndarray]:
        """The vectors (L, W, H) of each sentence's words, of the layers with these numbers, by default of all."""


@dataclass(frozen=True)
class Tokens:
    """What a model of subwords reads of a text.

    tokens: with the special ones
    words: the number of each token's word, or None: a special token
    states: (L, T, H)
    length: the number of tokens of the whole text, which are more if the model cannot read all of them
    """

    tokens: list[str]
    words: list[int | None]
    states: torch.Tensor
    length: int


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


def _in_batches(encoder: Encoder, sentences: list[Words]) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the number of each sentence and the vectors (L, W, H) of its words; those of similar length together."""
    order = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
    for numbers in in_pieces(order, BATCH):
        yield from zip(numbers, encoder.encode([sentences[number] for number in numbers]), strict=True)


# Encoders


@dataclass
class SubwordEncoder:
    """A model that reads subwords.

    pieces: which token of a word gives its vector, or the mean of all
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pieces: Pieces

    def __post_init__(self) -> None:
        self.layers = ["embeddings", *(f"layer {n}" for n in range(1, self.model.config.num_hidden_layers + 1))]
        self.longest = positions(self.model) or LONGEST
        self.space = space_before_words(self.tokenizer)

    def encode(self, sentences: list[Words], layers: Layers = None) -> list[np.ndarray]:
        return [vectors for vectors, _ in self.read_words(sentences, layers)]

    def read_words(self, sentences: list[Words], layers: Layers = None) -> Iterator[tuple[np.ndarray, Tokens]]:
        """Yields the vectors (L, W, H) of each sentence's words, and the tokens that they are made of."""
        texts = [[self.space + word for word in words] for words in sentences]
        for words, read in zip(sentences, self.read(texts, layers), strict=True):
            weights = piece_weights(read.words, len(words), self.pieces)  # (W, T)
            yield torch.einsum("wt,lth->lwh", weights, read.states).numpy(), read

    @torch.no_grad()
    def read(self, texts: list[Words], layers: Layers = None) -> list[Tokens]:
        """The tokens of each text and their states. A text that is not split into words is given as one word."""
        inputs, words_of_tokens = encode(texts, self.tokenizer, self.longest)
        # Not token_type_ids: they are 0 by default, and GPT-2 would add the vector of the token with the number 0.
        blanks = {"input_ids": self.tokenizer.pad_token_id or 0, "attention_mask": 0}
        batch = {
            name: pad_sequence([torch.tensor(row) for row in inputs[name]], batch_first=True, padding_value=blank)
            for name, blank in blanks.items()
        }
        batch = {name: rows.to(self.model.device) for name, rows in batch.items()}
        with as_user_errors():
            outputs = self.model(**batch, output_hidden_states=True, return_dict=True)
        numbers = range(len(self.layers)) if layers is None else layers
        states = torch.stack([outputs.hidden_states[number] for number in numbers]).cpu()  # (L, B, T, H)
        tokens = []
        for row, (ids, of_tokens) in enumerate(zip(inputs["input_ids"], words_of_tokens, strict=True)):
            names = self.tokenizer.convert_ids_to_tokens(ids)
            length = len(ids) if len(ids) < self.longest else self._count_tokens(texts[row])
            tokens.append(Tokens(names, [*of_tokens], states[:, row, : len(ids)], length))
        return tokens

    def _count_tokens(self, words: Words) -> int:
        return len(self.tokenizer(words, is_split_into_words=True)["input_ids"])


def piece_weights(words_of_tokens: Sequence[int | None], words: int, pieces: Pieces) -> torch.Tensor:
    """(W, T) the share of each token in each word's vector; `words_of_tokens` has None for special tokens."""
    weights = torch.zeros(words, len(words_of_tokens))
    for token, word in enumerate(words_of_tokens):
        if word is not None:
            weights[word, token] = 1
    counts = weights.sum(1, keepdim=True)
    if pieces == "mean":
        return weights / counts.clamp(min=1)
    place = weights.cumsum(1)  # of each token in its word, 1 for the first
    return weights * (place == (1 if pieces == "first" else counts))


@dataclass
class ElmoEncoder:
    """A biLM, which reads words."""

    model: ElmoModel
    tokenizer: ElmoTokenizer

    def __post_init__(self) -> None:
        self.layers = ["characters", *(f"LSTM {n}" for n in range(1, self.model.config.num_hidden_layers + 1))]
        if self.model.config.state == "carry":  # the vectors of a sentence would depend on the one read before it
            self.model.config.state = "warm"

    def encode(self, sentences: list[Words], layers: Layers = None) -> list[np.ndarray]:
        chosen = slice(None) if layers is None else [*layers]
        states = self.model.embed(sentences, batch_size=len(sentences), layers="all", tokenizer=self.tokenizer)
        return [of_words.numpy()[chosen] for of_words in states]


class StaticVectors:
    """Word vectors that do not depend on the sentence. A word has the vector of its spelling, or of its lower case."""

    def __init__(self, path: Path, words: Iterable[str]) -> None:
        wanted = {*words}
        known, self.table = read_vectors(path, wanted | {word.lower() for word in wanted})
        self.rows = {word: row for row, word in enumerate(known)}
        self.layers = ["words"]

    def encode(self, sentences: list[Words], layers: Layers = None) -> list[np.ndarray]:
        return [np.stack([self._look_up(word) for word in words])[None] for words in sentences]

    def _look_up(self, word: str) -> np.ndarray:
        row = self.rows.get(word, self.rows.get(word.lower()))
        return np.zeros(self.table.shape[1], np.float32) if row is None else self.table[row]


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


def make_encoder(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pieces: Pieces) -> Encoder:
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


# The command line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say which models are read, and where results go."""
    model = "model folder, Hub id, or file of word vectors (.txt, .vec, .bin, .gz)"
    parser.add_argument("models", nargs="+", metavar="MODEL", help=model)
    parser.add_argument("--output_dir", type=Path, required=True, metavar="DIR", help="receives numbers and plots")
    names = "what tables and plots call the models, in their order; default: the last part of each MODEL"
    parser.add_argument("--names", nargs="+", metavar="NAME", help=names)
    parser.add_argument("--random", action="store_true", help="each model with random weights, too, as a control")
    pieces = "whose vector a word of several tokens has; default: first, and last of a causal model"
    parser.add_argument("--pieces", choices=("first", "last", "mean"), help=pieces)


def named_encoders(args: argparse.Namespace, words: Iterable[str]) -> Iterator[tuple[str, Encoder]]:
    """Yields each encoder of the command line with its name, one at a time, since each may fill the memory.

    Raises ValueError if --names has not one name for each model.
    """
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    choose_implementation("zoo")
    words, labels = {*words}, args.names or short_names(args.models)
    if len(labels) != len(args.models) or len({*labels}) != len(labels):
        found = f"{len(labels)}: {', '.join(labels)}"
        raise InputError(f"--names needs {len(args.models)} different names, one for each MODEL, and has {found}")
    for name, label in zip(args.models, labels, strict=True):
        yield label, load_encoder(name, words, pieces=args.pieces)
        if args.random and not is_vectors(name):
            yield label + RANDOM, load_encoder(name, words, random=True, pieces=args.pieces)


def short_names(names: Sequence[str]) -> list[str]:
    """The last parts of the names, as many as it takes to tell them apart."""
    parts = [Path(name).parts for name in names]
    for count in range(1, max(map(len, parts)) + 1):
        short = ["/".join(each[-count:]) for each in parts]
        if len({*short}) == len(short):
            return short
    repeated = next(name for name in short if short.count(name) > 1)
    raise InputError(f"the model {repeated} is given twice: leave one out")
