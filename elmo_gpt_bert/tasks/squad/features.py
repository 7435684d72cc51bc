"""Questions and contexts -> the rows that a model reads; a context too long for one row becomes several windows.

    <s> question </s> tokens 0 .. 299 of the context </s>
    <s> question </s> tokens 172 .. 471 of the context </s>        stride 128: neighbours share 128 tokens
    <s> question </s> tokens 344 .. 350 of the context </s>

Each context is tokenised once, however many questions there are about it, and all windows are cut from flat arrays.
The special tokens around question and context are those that the tokenizer adds to a pair of texts.

Letters: Q questions, W windows, N tokens of all contexts together.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, compress
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from datasets.fingerprint import generate_random_fingerprint
from datasets.table import InMemoryTable

from elmo_gpt_bert.tasks.features import count_up, report_known_words
from elmo_gpt_bert.training.errors import InputError


if TYPE_CHECKING:
    from datasets import DatasetDict
    from transformers import PreTrainedTokenizerBase


TEXTS = 512  # texts that are tokenised at a time
ROWS = 4096  # windows that are filled at a time
OFFSETS = "offset_mapping"


@dataclass(frozen=True)
class Windows:
    """The windows, a row each, and the places of their contexts.

    Attributes:
        features: the model's inputs. Windows to train on also have start_positions and end_positions, the columns of
            the first and the last token of the answer; both are `null` if the window does not hold the whole answer.
        question: (W,) the number of the question, ascending.
        column: (W,) the column of the context's first token in the window.
        tokens: (W,) the number of the context's tokens in the window.
        first: (W,) the index in `spans` of the first of these tokens.
        null: (W,) the column that stands for "no answer": that of the classification token ([CLS], GPT's extract
            token), else that of the token that begins each row, else 0.
        spans: (N, 2) for each token of all contexts, its first character in its context, and the first after it.
    """

    features: Dataset
    question: np.ndarray
    column: np.ndarray
    tokens: np.ndarray
    first: np.ndarray
    null: np.ndarray
    spans: np.ndarray

    def head(self, number: int) -> Windows:
        """The first `number` windows."""
        places = {name: getattr(self, name)[:number] for name in ("question", "column", "tokens", "first", "null")}
        return replace(self, features=self.features.select(range(number)), **places)


@dataclass(frozen=True)
class Tokens:
    """The tokens of many texts, one text after the other."""

    columns: dict[str, np.ndarray]  # the tokenizer's outputs with one value a token, other than offsets
    spans: np.ndarray  # (tokens, 2) the first character of each token in its text, and the first after it
    counts: np.ndarray  # (texts,) the number of tokens of each text

    @property
    def begins(self) -> np.ndarray:
        """(texts,) the index of each text's first token."""
        return np.cumsum(self.counts) - self.counts


def make_features(
    data: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
) -> dict[str, Windows]:
    """The windows of each split, as `make_windows` makes them; those of the training data have answers."""
    windows = {}
    for split, examples in data.items():
        report_known_words(split, dict.fromkeys(examples["context"][:]), tokenizer)
        windows[split] = make_windows(
            examples, tokenizer, max_seq_length, doc_stride, max_query_length, train=split == "train"
        )
    return windows


def make_windows(
    examples: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int = 384,
    doc_stride: int = 128,
    max_query_length: int = 64,
    train: bool = False,
) -> Windows:
    """The windows of all `examples`, which have the columns id, context and question; to `train` on, answers too.

    Args:
        max_seq_length: the tokens that a window may have.
        doc_stride: the tokens that two neighbouring windows of a context share (transformers' meaning of a stride).
        max_query_length: the tokens of a question that are kept.
        train: whether windows get start_positions and end_positions, those of the first of a question's answers.

    Raises:
        ValueError: when a context has no token, when the tokenizer does not return offsets, and when a question leaves
            no more room for its context than `doc_stride`.
    """
    question_contexts = examples["context"][:]  # all at once: datasets makes a dictionary of each single row
    texts = {text: number for number, text in enumerate(dict.fromkeys(question_contexts))}
    context_of = np.array([texts[text] for text in question_contexts])  # (Q,) numbers of contexts
    contexts = tokenize(texts, tokenizer)
    refuse(contexts.counts[context_of] == 0, examples, "has a context without a token for this tokenizer")
    questions = [question.strip() for question in examples["question"][:]]
    queries = tokenize(questions, tokenizer)
    layout = Layout.of(tokenizer, min([*texts, *compress(questions, queries.counts)], key=len))
    query_tokens = np.minimum(queries.counts, max_query_length)  # (Q,)
    refuse(query_tokens + layout.size == 0, examples, "has no token for this tokenizer, which adds no special tokens")
    room = max_seq_length - layout.size - query_tokens  # (Q,) for the context
    refuse(
        room <= doc_stride,
        examples,
        f"leaves no more than --doc_stride {doc_stride} tokens of --max_seq_length for its context, so that windows "
        "would not move on: give a lower --doc_stride or --max_query_length, or a higher --max_seq_length",
    )
    question, begin, tokens = cut(contexts.counts[context_of], room, doc_stride)
    first, query_tokens = contexts.begins[context_of[question]] + begin, query_tokens[question]  # from here on (W,)
    columns = layout.fill((queries, queries.begins[question], query_tokens), (contexts, first, tokens))
    column, null = layout.places(query_tokens, tokens)
    if train:
        starts, ends = (token[question] for token in answer_tokens(examples["answers"][:], context_of, contexts))
        inside = (starts >= first) & (ends < first + tokens) & (starts <= ends)
        columns["start_positions"] = np.where(inside, column + starts - first, null)
        columns["end_positions"] = np.where(inside, column + ends - first, null)
    # from_dict would look at every single value, and without a fingerprint Dataset would copy all of them.
    features = Dataset(InMemoryTable.from_pydict(columns), fingerprint=generate_random_fingerprint())
    return Windows(features, question, column, tokens, first, null, contexts.spans)


def cut(counts: np.ndarray, room: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts contexts of `counts` tokens into windows of up to `room` tokens, (Q,) each, which overlap by `stride`.

    Returns three arrays (W,): the number of the context, its token that begins the window, the number of tokens.
    """
    windows = 1 + -(-np.maximum(counts - room, 0) // (room - stride))  # (Q,) how many each context needs
    context = np.repeat(np.arange(len(windows)), windows)
    begin = count_up(windows) * (room - stride)[context]
    return context, begin, np.minimum(room[context], counts[context] - begin)


def refuse(broken: np.ndarray, examples: Dataset, problem: str) -> None:
    """Raises ValueError for the first question where the mask `broken`, (Q,), is true, if there is one."""
    if broken.any():
        number = int(broken.argmax())
        raise InputError(f"question {examples['id'][number]} ({examples['question'][number]!r:.80}) {problem}")


def tokenize(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """The tokens of the texts, without special tokens. Values take as few bytes as possible: ELMo has 50 a word."""
    texts = list(texts)
    parts: dict[str, list[np.ndarray]] = {}
    counts: list[int] = []
    flags = {"return_offsets_mapping": True, "return_attention_mask": False, "return_token_type_ids": False}
    for begin in range(0, len(texts), TEXTS):
        encoded = tokenizer(texts[begin : begin + TEXTS], add_special_tokens=False, verbose=False, **flags)
        if OFFSETS not in encoded:
            raise InputError(
                f"{type(tokenizer).__name__} does not return the offsets of its tokens: choose a fast tokenizer"
            )
        counts += map(len, encoded["input_ids"])
        for name, rows in encoded.items():
            arrays = parts.setdefault(name, [])
            if values := list(chain.from_iterable(rows)):
                array = np.array(values)
                arrays.append(array.astype(np.min_scalar_type(array.max())))
    columns = {name: np.concatenate(arrays) if arrays else np.zeros(0, np.uint8) for name, arrays in parts.items()}
    tokens = Tokens(columns, columns.pop(OFFSETS).astype(np.int64).reshape(-1, 2), np.array(counts))
    for text, begin, count in zip(texts, tokens.begins, tokens.counts, strict=True):
        if not text.isascii():
            include_marks(text, tokens.spans[begin : begin + count])
    return tokens


def include_marks(text: str, spans: np.ndarray) -> None:
    """Moves the ends of tokens, in place, behind the accents on their last letter, which some tokenizers drop."""
    marks = {character for character in set(text) if unicodedata.category(character)[0] == "M"}
    if marks:
        for number, end in enumerate(spans[:, 1].tolist()):
            while end < len(text) and text[end] in marks:
                end += 1
            spans[number, 1] = end


@dataclass(frozen=True)
class Layout:
    """How a tokenizer joins a pair of texts, as one encoded pair shows it: a row has five parts, the two texts, and
    the tokens that the tokenizer adds before, between and after them.
    """

    columns: dict[str, np.ndarray]  # the tokenizer's outputs for the pair
    parts: tuple[slice, ...]  # the columns of each part
    marker: int | None  # the column of the token that stands for "no answer"

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, text: str) -> Layout:
        """The layout that shows when `text`, which must have tokens, is encoded as both texts of a pair.

        Raises ValueError if the second text does not follow the first, or if a text is not in one piece.
        """
        pair = tokenizer(text, text, return_attention_mask=False, verbose=False)
        sides = np.array([-1 if side is None else side for side in pair.sequence_ids(0)])
        places = [np.flatnonzero(sides == side) for side in (0, 1)]
        if (np.diff(sides[sides >= 0]) < 0).any() or any(np.ptp(place) + 1 != len(place) for place in places):
            raise InputError(f"{type(tokenizer).__name__} does not put a pair's first text before its second")
        edges = [0, *(int(edge) for place in places for edge in (place[0], place[-1] + 1)), len(sides)]
        columns = {name: np.array(values) for name, values in pair.items()}
        ids = [number for number in (tokenizer.cls_token_id, tokenizer.bos_token_id) if number is not None]
        candidates = [place for number in ids for place in np.flatnonzero(columns["input_ids"] == number)]
        markers = [int(place) for place in candidates if sides[place] < 0]
        return cls(columns, tuple(map(slice, edges, edges[1:])), markers[0] if markers else None)

    @property
    def size(self) -> int:
        """The number of tokens that the tokenizer adds."""
        return sum(part.stop - part.start for part in self.parts[::2])

    def places(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(W,) and (W,): the columns of the second text's first token and of "no answer", in rows with `first` and
        `second` tokens of the two texts.
        """
        sizes = [part.stop - part.start for part in self.parts]
        lengths = np.stack(np.broadcast_arrays(sizes[0], first, sizes[2], second, sizes[4]))  # (5, W)
        begins = np.cumsum(lengths, axis=0) - lengths
        if self.marker is None:
            return begins[3], np.zeros_like(first)
        number = next(number for number, part in enumerate(self.parts) if self.marker < part.stop)
        return begins[3], begins[number] + self.marker - self.parts[number].start

    def fill(self, *texts: tuple[Tokens, np.ndarray, np.ndarray]) -> dict[str, pa.Array]:
        """The model's inputs of W rows.

        `texts` has, for the first and the second text of the rows: the tokens that they are slices of, (W,) the
        indices of their first tokens, and (W,) their numbers of tokens.
        """
        zeros = np.zeros_like(texts[0][1])
        columns = {}
        for name, pair in self.columns.items():
            parts = [(pair[part], zeros, zeros + len(pair[part])) for part in self.parts]
            for place, (tokens, first, count) in zip((1, 3), texts, strict=True):
                if name in tokens.columns:
                    parts[place] = (tokens.columns[name], first, count)
                else:  # token_type_ids: the same at each token of a text
                    parts[place] = (np.full(count.max(), pair[self.parts[place].start]), zeros, count)
            columns[name] = _join(parts)
        lengths = self.size + sum(count for _, _, count in texts)
        columns["attention_mask"] = _lists(np.ones(lengths.sum(), dtype=np.uint8), lengths)
        return columns


def _join(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> pa.Array:
    """W lists, each made of one slice of each part. A part is a source, and (W,) begins and lengths of its slices."""
    lengths = sum(length for _, _, length in parts)
    widest = max((source for source, _, _ in parts), key=lambda source: source.ndim)
    kind = np.result_type(*(np.min_scalar_type(source.max(initial=0)) for source, _, _ in parts))
    values = np.empty((lengths.sum(), *widest.shape[1:]), dtype=kind)
    places = np.cumsum(lengths) - lengths
    for source, begins, length in parts:
        for first in range(0, len(lengths), ROWS):
            rows = slice(first, first + ROWS)
            values[_ranges(places[rows], length[rows])] = source[_ranges(begins[rows], length[rows])]
        places = places + length
    return _lists(values, lengths)


def _lists(values: np.ndarray, lengths: np.ndarray) -> pa.Array:
    """The `values`, numbers or rows of numbers, as one list after the other, of these lengths."""
    flat = pa.array(values.reshape(-1))
    if values.ndim > 1:
        flat = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)), pa.int32()), flat)


def _ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """begin, begin + 1, ... for each range, one range after the other."""
    return np.repeat(begins, lengths) + count_up(lengths)


def answer_tokens(answers: Iterable[dict], context_of: np.ndarray, contexts: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """(Q,) and (Q,): the first and the last token of each question's first answer, as indices of `contexts`' tokens.

    These are the first and the last token with a character of the answer. If there is no answer, or no token has a
    character of it, the last is before the first. `context_of` has the number of each question's context.
    """
    places = [(answer["answer_start"][0], len(answer["text"][0])) if answer["text"] else (0, 0) for answer in answers]
    begin, length = np.array(places).T
    # The characters of all contexts are numbered on, with gaps, so that one search finds the tokens of all answers.
    of_token = np.repeat(np.arange(len(contexts.counts)), contexts.counts)
    widths = np.zeros(len(contexts.counts), dtype=np.int64)
    np.maximum.at(widths, of_token, contexts.spans[:, 1])
    np.maximum.at(widths, context_of, begin + length)
    base = np.cumsum(widths + 1) - (widths + 1)
    spans, begin = contexts.spans + base[of_token][:, None], begin + base[context_of]
    first = np.searchsorted(spans[:, 1], begin, side="right")
    last = np.searchsorted(spans[:, 0], begin + length, side="left") - 1
    return first, np.where(length > 0, last, first - 1)


def collate(examples: list[dict], tokenizer: PreTrainedTokenizerBase, **padding: object) -> dict[str, torch.Tensor]:
    """A batch for the model. It is padded on the right, because start_positions and end_positions count columns."""
    labels = ("start_positions", "end_positions")
    inputs = [{name: values for name, values in example.items() if name not in labels} for example in examples]
    batch = dict(tokenizer.pad(inputs, padding_side="right", return_tensors="pt", **padding))
    return batch | {name: torch.tensor([row[name] for row in examples]) for name in labels if name in examples[0]}
