"""Questions and contexts -> the rows that a model reads: a context that is too long for it becomes several windows.

    <s> question </s> tokens 0 .. 299 of the context </s>
    <s> question </s> tokens 172 .. 471 of the context </s>        stride 128: so many tokens are in both
    <s> question </s> tokens 344 .. 350 of the context </s>

Each context is tokenised once, however many questions are asked about it, and all windows are cut from flat arrays.
What stands around question and context is the tokenizer's own: its input for a pair of texts.

Letters: Q questions, W windows, N tokens of all contexts together.
"""

import hashlib
import json
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, DatasetDict, load_from_disk
from datasets.fingerprint import generate_random_fingerprint
from datasets.table import InMemoryTable
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from training.checksums import damage, write_checksums
from training.digests import digest
from training.errors import InputError, Parameter, Text
from training.files import new_folder, writing


FORMAT = 1  # of kept windows; counts up when `make_windows` gives others for the same questions
TEXTS = 512  # tokenised at a time
ROWS = 4096  # windows that are filled at a time
OFFSETS = "offset_mapping"
LENGTH, STRIDE, QUERY = map(Parameter, ("max_seq_length", "doc_stride", "max_query_length"))


@dataclass(frozen=True)
class Windows:
    """The rows, and where their contexts stand in them.

    Attributes:
        features: the model's inputs; of windows to train on also start_positions and end_positions, the columns of the
            answer's first and last token, or both `null` where the window does not hold the whole answer.
        question: (W,) the number of the question, ascending.
        column: (W,) the column of the first token of the context.
        tokens: (W,) the number of tokens of the context.
        first: (W,) where the first of them stands in `spans`.
        null: (W,) the column that stands for "no answer": of the classification token ([CLS], GPT's extract token), of
            the token that begins each row, or the first.
        spans: (N, 2) the characters of each token in its context, from and up to.
    """

    features: Dataset
    question: np.ndarray
    column: np.ndarray
    tokens: np.ndarray
    first: np.ndarray
    null: np.ndarray
    spans: np.ndarray

    def head(self, number: int) -> "Windows":
        """The first so many windows."""
        own = {name: getattr(self, name)[:number] for name in PLACES if name != "spans"}
        return Windows(self.features.select(range(number)), **own, spans=self.spans)

    def save(self, folder: Path) -> None:
        self.features.save_to_disk(folder / "features")
        np.savez(folder / "places.npz", **{name: getattr(self, name) for name in PLACES})
        write_checksums(folder)

    @classmethod
    def load(cls, folder: Path) -> "Windows":
        with np.load(folder / "places.npz") as places:
            return cls(load_from_disk(folder / "features"), **{name: places[name] for name in PLACES})


PLACES = ("question", "column", "tokens", "first", "null", "spans")


@dataclass(frozen=True)
class Tokens:
    """Those of many texts, one text after the other."""

    columns: dict[str, np.ndarray]  # the tokenizer's columns that have one value a token, offsets left out
    spans: np.ndarray  # (tokens, 2) characters
    counts: np.ndarray  # tokens of each text

    @property
    def begins(self) -> np.ndarray:
        return np.cumsum(self.counts) - self.counts


def make_features(
    data: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    doc_stride: int,
    max_query_length: int,
    window_cache: Path | None = None,
) -> dict[str, Windows]:
    """The windows of each split, as `make_windows` makes them, of the training data with answers.

    A folder `window_cache` keeps them: those of an earlier run are read where it had the same data, tokenizer and
    lengths.
    """
    shape = {"max_length": max_seq_length, "max_query_length": max_query_length, "stride": doc_stride}  # in keys
    windows = {}
    for split, examples in data.items():
        train = split == "train"
        make = partial(make_windows, examples, tokenizer, max_seq_length, doc_stride, max_query_length, train)
        if window_cache is None:
            windows[split] = make()
        else:
            key = json.dumps([FORMAT, _digest_of(tokenizer), digest(examples), shape, train])
            key = hashlib.sha256(key.encode()).hexdigest()[:32]
            windows[split] = cached_windows(make, window_cache, key)
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

    A row has at most `max_seq_length` tokens, `max_query_length` of them the question's, whose rest is left out.
    `doc_stride` is transformers': the tokens that two neighbouring windows share. Of several answers the first is
    trained on. Raises ValueError for a context without a token, for a tokenizer that does not tell where its tokens
    stand, and where a question leaves no more room than `doc_stride`.
    """
    of_questions = examples["context"][:]  # at once: datasets makes a dictionary of each row it is asked for alone
    texts = {text: number for number, text in enumerate(dict.fromkeys(of_questions))}
    text_of = np.array([texts[text] for text in of_questions])  # (Q,)
    contexts = tokenize(texts, tokenizer)
    refuse(contexts.counts[text_of] == 0, examples, "has a context without a token for this tokenizer")
    questions = [question.strip() for question in examples["question"][:]]
    queries = tokenize(questions, tokenizer)
    layout = Layout.of(tokenizer, min([*texts, *compress(questions, queries.counts)], key=len))
    asked = np.minimum(queries.counts, max_query_length)  # (Q,)
    refuse(asked + layout.size == 0, examples, "has no token for this tokenizer, which adds none itself")
    room = max_seq_length - layout.size - asked  # (Q,) for the context
    refuse(
        room <= doc_stride,
        examples,
        ("leaves no more than ", STRIDE, f" {doc_stride} tokens of ", LENGTH, " for its context, so that windows "),
        ("would not move on: give a lower ", STRIDE, " or ", QUERY, ", or a higher ", LENGTH),
    )
    question, begin, tokens = cut(contexts.counts[text_of], room, doc_stride)
    first, asked = contexts.begins[text_of[question]] + begin, asked[question]  # from here on (W,)
    columns = layout.fill([(queries, queries.begins[question], asked), (contexts, first, tokens)])
    column, null = layout.second_column(asked), layout.marker_columns(asked, tokens)
    if train:
        begins, ends = (place[question] for place in answer_tokens(examples["answers"][:], text_of, contexts))
        inside = (begins >= first) & (ends < first + tokens) & (begins <= ends)
        columns["start_positions"] = np.where(inside, column + begins - first, null)
        columns["end_positions"] = np.where(inside, column + ends - first, null)
    # Not from_dict, which looks at every single value; for a fingerprint of its own Dataset would copy all of them.
    features = Dataset(InMemoryTable.from_pydict(columns), fingerprint=generate_random_fingerprint())
    return Windows(features, question, column, tokens, first, null, contexts.spans)


def cut(counts: np.ndarray, room: np.ndarray, stride: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Contexts of `counts` tokens into windows of up to `room`, both (Q,), that share `stride` with the next one.

    Returns (W,) each: the number of the context, the token of it that the window begins with, how many it has.
    """
    number = 1 + -(-np.maximum(counts - room, 0) // (room - stride))  # of windows of each context
    context = np.repeat(np.arange(len(number)), number)
    begin = count_up(number) * (room - stride)[context]
    return context, begin, np.minimum(room[context], counts[context] - begin)


def refuse(these: np.ndarray, examples: Dataset, *problem: Text) -> None:
    """Raises ValueError for the first of `these` questions, a mask of (Q,), if there is one."""
    if these.any():
        number = int(these.argmax())
        raise InputError(f"question {examples['id'][number]} ({examples['question'][number]!r:.80}) ", *problem)


def tokenize(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> Tokens:
    """Without special tokens. Numbers take as few bytes as they can: characters of words are many."""
    texts = list(texts)
    parts: dict[str, list[np.ndarray]] = {}
    counts: list[int] = []
    flags = {"return_offsets_mapping": True, "return_attention_mask": False, "return_token_type_ids": False}
    for begin in range(0, len(texts), TEXTS):
        encoded = tokenizer(texts[begin : begin + TEXTS], add_special_tokens=False, verbose=False, **flags)
        if OFFSETS not in encoded:
            raise InputError(
                f"{type(tokenizer).__name__} does not tell where its tokens stand in a text: choose a fast tokenizer"
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
    """Moves the ends of tokens, in place, to after the accents on their last letter; some tokenizers drop them."""
    marks = {character for character in set(text) if unicodedata.category(character)[0] == "M"}
    if marks:
        for number, end in enumerate(spans[:, 1].tolist()):
            while end < len(text) and text[end] in marks:
                end += 1
            spans[number, 1] = end


@dataclass(frozen=True)
class Layout:
    """What a tokenizer makes of a pair of texts: its columns of one pair, and where its own tokens stand in them."""

    columns: dict[str, np.ndarray]
    texts: tuple[slice, slice]  # the columns of the first and of the second text
    marker: int | None  # the column of the token that stands for "no answer"

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, text: str) -> "Layout":
        """Tried out on `text`, which has tokens. Raises ValueError where a text does not stay in one piece."""
        pair = tokenizer(text, text, return_attention_mask=False, verbose=False)
        sides = np.array([-1 if side is None else side for side in pair.sequence_ids(0)])
        places = [np.flatnonzero(sides == side) for side in (0, 1)]
        first, second = (slice(int(place[0]), int(place[-1]) + 1) for place in places)
        if (np.diff(sides[sides >= 0]) < 0).any() or any(len(np.unique(sides[text])) > 1 for text in (first, second)):
            raise InputError(f"{type(tokenizer).__name__} does not put a pair's first text before its second")
        columns = {name: np.array(values) for name, values in pair.items()}
        known = [number for number in (tokenizer.cls_token_id, tokenizer.bos_token_id) if number is not None]
        markers = [place for number in known for place in np.flatnonzero(columns["input_ids"] == number)]
        own = [int(place) for place in markers if sides[place] < 0]
        return cls(columns, (first, second), own[0] if own else None)

    @property
    def own(self) -> list[slice]:
        """The tokenizer's own tokens: before, between and after the texts."""
        first, second = self.texts
        return [slice(0, first.start), slice(first.stop, second.start), slice(second.stop, None)]

    @property
    def size(self) -> int:
        """The number of its own tokens."""
        return sum(len(self.columns["input_ids"][part]) for part in self.own)

    def second_column(self, first: np.ndarray) -> np.ndarray:
        """(W,) the column of the second text's first token in rows with so many tokens of the first text."""
        return first + self.texts[1].start - (self.texts[0].stop - self.texts[0].start)

    def marker_columns(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """(W,) the column of "no answer" in rows with so many tokens of the first and of the second text."""
        if self.marker is None:
            return np.zeros_like(first)
        moved = np.full_like(first, self.marker)
        for text, tokens in zip(self.texts, (first, second), strict=True):
            if self.marker >= text.stop:
                moved += tokens - (text.stop - text.start)
        return moved

    def fill(self, texts: list[tuple[Tokens, np.ndarray, np.ndarray]]) -> dict[str, pa.Array]:
        """The columns of W rows; of the first text and the second the tokens, (W,) the first, (W,) how many."""
        zeros = np.zeros_like(texts[0][1])
        columns = {}
        for name, pair in self.columns.items():
            parts = [(pair[part], zeros, zeros + len(pair[part])) for part in self.own]
            for place, (text, (tokens, first, count)) in enumerate(zip(self.texts, texts, strict=True)):
                if name in tokens.columns:
                    part = (tokens.columns[name], first, count)
                else:  # token_type_ids: the same at each token of a text
                    part = (np.full(count.max(), pair[text.start]), zeros, count)
                parts.insert(2 * place + 1, part)
            columns[name] = _join(parts)
        lengths = self.size + sum(count for _, _, count in texts)
        columns["attention_mask"] = _lists(np.ones(lengths.sum(), dtype=np.uint8), lengths)
        return columns


def _join(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> pa.Array:
    """W lists, each of one slice after the other; of each part the source, (W,) the slices' begins and lengths."""
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
    """Consecutive `values`, numbers or rows of numbers, as lists of these lengths."""
    flat = pa.array(values.reshape(-1))
    if values.ndim > 1:
        flat = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)), pa.int32()), flat)


def _ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """begin, begin + 1, ... of each range, one range after the other."""
    return np.repeat(begins, lengths) + count_up(lengths)


def count_up(lengths: np.ndarray) -> np.ndarray:
    """0 .. length - 1 of each length, one after the other."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def answer_tokens(answers: Iterable[dict], text_of: np.ndarray, contexts: Tokens) -> tuple[np.ndarray, np.ndarray]:
    """(Q,) and (Q,): the first and the last token of each question's first answer, in all contexts' tokens.

    Those are the tokens with at least one character of the answer. Where there is no answer, or none of its characters
    is in a token, the last stands before the first.
    """
    found = [(each["answer_start"][0], len(each["text"][0])) if each["text"] else (0, 0) for each in answers]
    begin, length = np.array(found).T
    # All contexts one after the other, with a gap, so that one search finds the tokens of all answers.
    of_token = np.repeat(np.arange(len(contexts.counts)), contexts.counts)
    widths = np.zeros(len(contexts.counts), dtype=np.int64)
    np.maximum.at(widths, of_token, contexts.spans[:, 1])
    np.maximum.at(widths, text_of, begin + length)
    base = np.cumsum(widths + 1) - (widths + 1)
    spans, begin = contexts.spans + base[of_token][:, None], begin + base[text_of]
    first = np.searchsorted(spans[:, 1], begin, side="right")
    last = np.searchsorted(spans[:, 0], begin + length, side="left") - 1
    return first, np.where(length > 0, last, first - 1)


def cached_windows(make: Callable[[], Windows], window_cache: Path, key: str) -> Windows:
    """`make()`, or what it made for the same `key` before: kept in `window_cache`, mapped into memory.

    Several processes and runs may ask at a time: one makes them, the others wait. Damaged ones are made anew. Raises
    OSError where the disk does not take them.
    """
    path, remedy = window_cache / key, ("Make room, or give another ", Parameter("window_cache"))
    with writing(window_cache, remedy):
        window_cache.mkdir(parents=True, exist_ok=True)
        with FileLock(window_cache / f".{key}.lock"):
            if damage(path):
                shutil.rmtree(path, ignore_errors=True)
                with new_folder(path, remedy) as temporary:
                    make().save(temporary)
            return Windows.load(path)


def _digest_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Of all the files that it is loaded from."""
    content = hashlib.sha256()
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for path in sorted(Path(folder).iterdir()):
            content.update(path.name.encode() + path.read_bytes())
    return content.hexdigest()


def collate(examples: list[dict], tokenizer: PreTrainedTokenizerBase, **padding: object) -> dict[str, torch.Tensor]:
    """A batch for the model, padded on the right: answers are columns."""
    labels = ("start_positions", "end_positions")
    inputs = [{name: values for name, values in example.items() if name not in labels} for example in examples]
    batch = dict(tokenizer.pad(inputs, padding_side="right", return_tensors="pt", **padding))
    return batch | {name: torch.tensor([row[name] for row in examples]) for name in labels if name in examples[0]}
