"""Masked language modelling, alone or with next sentence prediction (Devlin et al. 2018, section 3.1).

The rules are those of the released `create_pretraining_data.py`, but masks are drawn anew for each sample of each
epoch, where the released code writes ten copies of the text with fixed masks. Its limit of predictions in a row (20 of
128) is left out, because 15 % of a row stay below it. Three kinds of rows (`Segments`):

- next_sentence: [CLS] A [SEP] B [SEP]. B follows A in its document or is from another one: with probability 1/2, and
  always where the row is a single sentence.
- full_sentences: sentences up to the length of a row, [SEP] between documents (RoBERTa; Liu et al. 2019, section 4.2).
- document_sentences: the same, but no row goes on after the end of its document.

Held-out text (`shuffle=False`) comes in its order, and its masks and pairs depend on the seed and the row only. So
each evaluation predicts the same tokens from the same inputs, and a change of the loss is a change of the model. The
loss is the mean over one draw of 15 % of the tokens, given the others. Its exponential is not the perplexity of the
text, and it cannot be compared with the loss at other shares, lengths or kinds of rows.

A row is a run of whole sentences. Where the rows begin depends on all sentences before, so their boundaries are
computed in one pass and kept with the tokens, in a file from which any row is read at once:

    FOLDER/rows/SPLIT-SEGMENTS-LENGTH.rows    int64: the first token of each row, and the number of all tokens

Pairs are drawn as by the released code. Segment A is the first sentences of a row, up to a random one. With
probability 1/2, and always if the row is a single sentence, segment B begins at a random sentence of another document;
otherwise it is the rest of the row. So at most half of the pairs follow, and none where each document is a single
sentence. The released code puts the rest of a row whose B is random back into the text, so that its later rows begin
elsewhere. Here rows are read in any order, and their boundaries are fixed: such a rest is left out in this epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from filelock import FileLock

from elmo_gpt_bert.tasks.features import count_up
from elmo_gpt_bert.tasks.pretraining.corpus import ENDS, Corpus, Ends, FileArray, ends_within
from elmo_gpt_bert.tasks.pretraining.draws import shuffle_epochs, uniform
from elmo_gpt_bert.tasks.pretraining.objective import Objective, Use, skip_logits
from elmo_gpt_bert.tasks.pretraining.text import MORE_HELD_OUT
from elmo_gpt_bert.training.batches import IGNORED
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import new_file, writing


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


CONTINUATION = "##"
BLOCK = 1 << 22  # tokens
SHORT_TARGETS = 0.1


@dataclass(frozen=True)
class Vocabulary:
    """What masking knows of a tokenizer: the numbers of its special tokens, and which tokens continue a word."""

    cls: int
    sep: int
    mask: int
    pad: int
    size: int
    continues: np.ndarray  # (size,) booleans

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
        """Raises ValueError if the tokenizer lacks a special token that the rows need."""
        specials = {name: getattr(tokenizer, f"{name}_token_id") for name in ("cls", "sep", "mask", "pad")}
        missing = [f"{name}_token" for name, number in specials.items() if number is None]
        if missing:
            raise InputError(
                f"the tokenizer {tokenizer.name_or_path!r} has no {', '.join(missing)}, which a masked language model "
                "needs: choose a tokenizer made for BERT, or add the tokens to it"
            )
        continues = np.zeros(len(tokenizer), dtype=bool)
        continues[[number for token, number in tokenizer.get_vocab().items() if token.startswith(CONTINUATION)]] = True
        return cls(**specials, size=len(tokenizer), continues=continues)


@dataclass(frozen=True)
class Shares:
    """How many of a row's tokens are masked, and how. Raises ValueError for numbers that are no shares.

    chosen: of the tokens of a row, special ones counted, how many are predicted; at least one is
    mask, random: of those, how many become [MASK], and a random token; the others stay the same
    """

    chosen: float = 0.15
    mask: float = 0.8
    random: float = 0.1

    def __post_init__(self):
        if not 0 < self.chosen <= 1:
            raise InputError(f"--mlm_probability {self.chosen}: above 0, and at most 1")
        if min(self.mask, self.random) < 0 or self.mask + self.random > 1 + 1e-6:  # 0.9 + 0.1 may be a little above 1
            raise InputError(f"--mask_share and --random_share are {self.mask} and {self.random}: at most 1 in all")


# Rows


class Segments(StrEnum):
    """What a row of a masked language model holds."""

    NEXT_SENTENCE = "next_sentence"
    FULL_SENTENCES = "full_sentences"
    DOCUMENT_SENTENCES = "document_sentences"

    def capacity(self, length: int) -> int:
        """The tokens of text in a row of `length`, without [CLS] and the [SEP] after each segment."""
        return length - (3 if self is Segments.NEXT_SENTENCE else 2)


class Rows(FileArray):
    """Where each row begins and ends, memory-mapped. Pickling keeps the path only."""

    def __init__(self, path: Path):
        super().__init__(path, ENDS)

    def __len__(self) -> int:
        return super().__len__() - 1

    def bounds(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first tokens of these rows, and the tokens after their last ones."""
        return self.values[numbers], self.values[numbers + 1]


def open_rows(corpus: Corpus, segments: Segments, length: int) -> Rows:
    """Opens the partition of the corpus into rows of this kind and length, and makes it if there is none.

    Of several processes, one makes it and the others wait. 75 million tokens take two seconds.

    Raises:
        ValueError: if the rows have no room for text, or the corpus lacks what they need.
        OSError: if the file cannot be written.
    """
    check_corpus(corpus, segments, length)
    path = corpus.folder / "rows" / f"{corpus.split}-{segments}-{length}.rows"
    if not path.is_file():
        with writing(path):
            path.parent.mkdir(exist_ok=True)
            with FileLock(path.with_suffix(".lock")):
                if not path.is_file():  # another process may have made it
                    with new_file(path) as temporary, temporary.open("wb") as file:
                        for starts in (*find_rows(corpus, segments, length), np.array([corpus.num_tokens])):
                            file.write(starts.astype(ENDS).tobytes())
    return Rows(path)


def check_corpus(corpus: Corpus, segments: Segments, length: int) -> None:
    """Raises ValueError if the corpus cannot be divided into such rows."""
    least = length - segments.capacity(length) + 2
    if length < least:
        raise InputError(f"--max_seq_length={length} has no room for text in rows of {segments}: use {least} or more")
    if segments is not Segments.NEXT_SENTENCE:
        return
    others = f"{Segments.FULL_SENTENCES} or {Segments.DOCUMENT_SENTENCES}"
    if len(corpus.documents) < 2:
        problem = f"--segments={segments} takes sentences of other documents, but {corpus.name} is one document"
        remedy = "separate its documents by blank lines" if corpus.split == "train" else MORE_HELD_OUT
        raise InputError(f"{problem}: {remedy}, or choose {others}")


def find_rows(corpus: Corpus, segments: Segments, length: int, block: int = BLOCK) -> Iterator[np.ndarray]:
    """The first token of each row, block by block. Each token is in one row.

    A sentence that does not fit into a row is cut into pieces that do. The size of a block, in tokens, changes nothing
    but the memory it takes.
    """
    units = corpus.sentences
    capacity = segments.capacity(length)
    block = max(block, 4 * length)  # a row of next_sentence may be almost twice as long as its target
    start = 0
    while start < corpus.num_tokens:
        stop = min(start + block, corpus.num_tokens)
        stop = int(units[units.find(np.array([stop - 1]))][0])
        starts, ends = cut_units(start, units.between(start, stop), capacity)
        documents = np.searchsorted(corpus.documents.between(start, stop), ends - 1, side="right")
        following = find_next_rows(starts, ends, documents, segments, capacity)
        chosen, first = [], 0
        while first < len(starts) and (following[first] < len(starts) or stop == corpus.num_tokens):
            chosen.append(first)
            first = following[first]
        yield starts[chosen]
        start = int(starts[first]) if first < len(starts) else stop


def cut_units(start: int, ends: np.ndarray, capacity: int) -> tuple[np.ndarray, np.ndarray]:
    """The begins and ends of the pieces of each unit, all but the last of them of `capacity` tokens."""
    starts = np.concatenate([[start], ends[:-1]])
    counts = -(-(ends - starts) // capacity)
    starts = np.repeat(starts, counts) + count_up(counts) * capacity
    return starts, np.minimum(starts + capacity, np.repeat(ends, counts))


def find_next_rows(
    starts: np.ndarray, ends: np.ndarray, documents: np.ndarray, segments: Segments, capacity: int
) -> list[int]:
    """For each sentence: the sentence with which the next row begins, if a row begins with this one.

    Args:
        starts, ends: of sentences, none longer than `capacity`.
        documents: the number of each sentence's document.
    """
    if segments is Segments.FULL_SENTENCES:  # a separator stands between two documents
        return np.searchsorted(ends + documents, starts + documents + capacity, side="right").tolist()
    if segments is Segments.NEXT_SENTENCE:  # the sentence that reaches the target is the row's last
        following = np.searchsorted(ends, starts + target_lengths(starts, capacity), side="left") + 1
    else:
        following = np.searchsorted(ends, starts + capacity, side="right")
    return np.minimum(following, np.searchsorted(documents, documents, side="right")).tolist()


def target_lengths(starts: np.ndarray, capacity: int) -> np.ndarray:
    """How many tokens a row of next_sentence collects: `capacity`, and in 10 % of the rows from 2 to `capacity`.

    The released code draws the target once for a document, anew in each of its ten passes. The partition here is the
    same in all epochs, so that a book with a target of 2 would remain a book of such rows: each row has its own.
    """
    is_short, share = uniform(starts, 2).T
    return np.where(is_short < SHORT_TARGETS, 2 + np.floor(share * (capacity - 1)), capacity).astype(np.int64)


# Pairs


def draw_pairs(
    corpus: Corpus, samples: np.ndarray, starts: np.ndarray, stops: np.ndarray, capacity: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draws two segments for each of B rows, `capacity` tokens in all at most.

    Args:
        samples, starts, stops: (B,) the samples' numbers, and the tokens of their rows.

    Returns:
        (B, 2, 2) the start and stop of each segment in the corpus, and (B,) whether the second one is random.
    """
    split, chance, document, sentence = uniform(samples, 4, seed, Use.PAIRS).T
    first, last = corpus.sentences.find(np.stack([starts, stops - 1]))
    ends_a = first + np.floor(split * (last - first)).astype(np.int64)  # the last sentence of segment A
    middles = np.where(first < last, corpus.sentences[ends_a], stops)
    is_random = (first == last) | (chance < 0.5)
    wanted = target_lengths(starts, capacity) - (middles - starts)
    others = np.floor(document * (len(corpus.documents) - 1)).astype(np.int64)
    others += others >= corpus.documents.find(starts)  # a document other than the row's own
    random_starts, random_stops = _random_sentences(corpus, others, sentence, wanted, capacity)
    starts_b, stops_b = np.where(is_random, (random_starts, random_stops), (middles, stops))
    segments = np.stack([starts, middles, starts_b, stops_b], axis=1).reshape(-1, 2, 2)
    return truncate_pairs(segments, capacity, samples, seed), is_random


def _random_sentences(
    corpus: Corpus, documents: np.ndarray, draws: np.ndarray, wanted: np.ndarray, capacity: int
) -> tuple[np.ndarray, np.ndarray]:
    """Sentences from a random one of each document on: until they reach `wanted` tokens, or the document ends."""
    document_stops = corpus.documents[documents]
    first, last = corpus.sentences.find(np.stack([_starts(corpus.documents, documents), document_stops - 1]))
    starts = _starts(corpus.sentences, first + np.floor(draws * (last + 1 - first)).astype(np.int64))
    reached = np.minimum(starts + np.maximum(wanted, 1), document_stops) - 1
    stops = corpus.sentences[corpus.sentences.find(reached)]
    return starts, np.minimum(stops, starts + capacity)


def _starts(units: Ends, numbers: np.ndarray) -> np.ndarray:
    """The first token of each unit."""
    return np.where(numbers > 0, units[np.maximum(numbers - 1, 0)], 0)


def truncate_pairs(segments: np.ndarray, capacity: int, samples: np.ndarray, seed: int) -> np.ndarray:
    """(B, 2, 2) starts and stops -> those of pairs of `capacity` tokens at most.

    The rule of the released `truncate_seq_pair`: while a pair is too long, the longer segment, or the second of two
    that are equal, loses a token at its front or its back, with the same probability.
    """
    first, second = np.diff(segments)[..., 0].T
    kept = np.minimum(first, np.maximum(capacity - second, -(-capacity // 2)))
    excess = np.stack([first - kept, second - np.minimum(second, capacity - kept)], axis=1)  # (B, 2)
    columns = np.arange(excess.max(initial=0))
    fronts = np.empty_like(excess)
    for number in range(2):
        draws = uniform(samples, len(columns), seed, Use.CUTS, number) < 0.5
        fronts[:, number] = (draws & (columns < excess[:, number, None])).sum(1)
    return np.stack([segments[..., 0] + fronts, segments[..., 1] - (excess - fronts)], axis=-1)


# Masks


def choose_tokens(order: np.ndarray, is_text: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(B, T) booleans: of each row's text, the `counts` (B,) tokens that are first in a random order (B, T)."""
    order = np.where(is_text, order, np.inf)
    last = np.take_along_axis(np.sort(order, axis=1), counts[:, None] - 1, axis=1)
    return order <= last


def choose_words(order: np.ndarray, is_text: np.ndarray, continues: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """(B, T) booleans: of each row's text, words in a random order until `counts` (B,) tokens are chosen.

    As in the released code, a word that would exceed the count is skipped. A row of which every word would exceed it
    has its first one chosen all the same.

    Args:
        order: (B, T) random numbers, of which those of the words' first tokens count.
        continues: (B, T) booleans: whether the token belongs to the word of the token before it.
    """
    follows_text = np.zeros_like(is_text)
    follows_text[:, 1:] = is_text[:, :-1]
    begins = is_text & ~(continues & follows_text)
    words = np.cumsum(begins).reshape(begins.shape) - 1  # the number of each token's word in the batch
    sizes = np.zeros(begins.shape, dtype=np.int64)
    sizes[begins] = np.bincount(words[is_text])
    columns = np.argsort(np.where(begins, order, np.inf), axis=1)
    sizes = np.take_along_axis(sizes, columns, axis=1)
    taken = np.zeros(begins.shape, dtype=bool)
    totals = np.zeros_like(counts)
    for rank in range(begins.sum(1).max()):
        taken[:, rank] = (sizes[:, rank] > 0) & (totals + sizes[:, rank] <= counts)
        totals += taken[:, rank] * sizes[:, rank]
        if (totals == counts).all():
            break
    taken[totals == 0, 0] = True
    chosen = np.zeros_like(taken)
    np.put_along_axis(chosen, columns, taken, axis=1)
    return is_text & chosen[begins][words]


# The objective


class MaskedLM(Objective):
    """Predicts chosen tokens from those around them, and for next_sentence whether the second segment follows.

    Args:
        length: of a row, with its special tokens.
        segments: the kind of rows, one of `Segments`.
        seed: of the order, the masks and the pairs.
        shuffle: False takes the rows as they lie in the corpus, with the same masks and pairs in each epoch.
        whole_words: whether all tokens of a word are chosen, or none.
        shares: how many tokens are masked, and how.
        pad_to_max_length: whether all batches are of `length` columns, rather than of those of their longest row.

    Raises:
        ValueError: for rows without room for text, whole words that the tokenizer does not mark, and next_sentence
            with a single document, without ends of sentences, or in training with no row of two sentences.
    """

    def __init__(
        self,
        corpus: Corpus,
        vocabulary: Vocabulary,
        length: int,
        segments: str,
        seed: int = 0,
        shuffle: bool = True,
        whole_words: bool = False,
        shares: Shares = Shares(),  # noqa: B008 - immutable
        pad_to_max_length: bool = False,
    ):
        if whole_words and not vocabulary.continues.any():
            raise InputError(
                f"--whole_word_mask needs a vocabulary that marks the continuation of words by {CONTINUATION}, as "
                "WordPiece does: choose such a tokenizer, or mask single tokens"
            )
        self.corpus, self.vocabulary, self.length = corpus, vocabulary, length
        self.segments, self.seed, self.shuffle, self.whole_words = Segments(segments), seed, shuffle, whole_words
        self.shares, self.pad_to_max_length = shares, pad_to_max_length
        self.rows = open_rows(corpus, self.segments, length)
        self.size = len(self.rows)
        has_pairs = self.segments is Segments.NEXT_SENTENCE
        if has_pairs and shuffle:
            some = np.arange(0, self.size, 1 + self.size // 100_000)  # so many rows at most
            starts, stops = self.rows.bounds(some)
            first, last = corpus.sentences.find(np.stack([starts, stops - 1]))
            if (first == last).all():
                raise InputError(
                    f"--segments={self.segments} predicts whether a sentence follows, but no row of {corpus.name} has "
                    f"two: choose {Segments.FULL_SENTENCES}, or keep the sentences of a document together"
                )
        self.losses = ("masked_lm", "next_sentence") if has_pairs else ("masked_lm",)
        self.word_losses = self.losses[:1]
        self.weights = (1.0,) * len(self.losses)
        self.predictions = corpus.num_tokens

    def batch(self, samples: Sequence[int]) -> dict[str, torch.Tensor]:
        """input_ids, attention_mask and labels, (B, T) each; -100 where nothing is predicted.

        For next_sentence also token_type_ids (B, T), and next_sentence_label (B,), 0 where B follows A.
        """
        samples = np.asarray(samples, dtype=np.int64)
        if self.shuffle:
            numbers = shuffle_epochs(samples, self.size, self.seed, Use.ORDER)
        else:
            samples = numbers = samples % self.size
        starts, stops = self.rows.bounds(numbers)
        has_pairs = self.segments is Segments.NEXT_SENTENCE
        arrays = self._pairs(samples, starts, stops) if has_pairs else self._sentences(starts, stops)
        is_text = arrays.pop("is_text")
        arrays |= self._mask(arrays["input_ids"], is_text, arrays["attention_mask"].sum(1), samples)
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _sentences(self, starts: np.ndarray, stops: np.ndarray) -> dict[str, np.ndarray]:
        """Rows of one segment for each document."""
        rows, ends = ends_within(self.corpus.documents, starts, stops)
        counts = np.bincount(rows, minlength=len(starts))
        last = np.cumsum(counts)
        lengths = np.insert(ends, last, stops) - np.insert(ends, last - counts, starts)
        tokens = [self.corpus.read(*bounds) for bounds in zip(starts.tolist(), stops.tolist(), strict=True)]
        arrays, _ = self._lay_out(tokens, np.repeat(np.arange(len(starts)), counts + 1), lengths)
        return arrays

    def _pairs(self, samples: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> dict[str, np.ndarray]:
        """Rows of two segments."""
        capacity = self.segments.capacity(self.length)
        bounds, is_random = draw_pairs(self.corpus, samples, starts, stops, capacity, self.seed)  # (B, 2, 2)
        tokens = [self.corpus.read(*segment) for segment in bounds.reshape(-1, 2).tolist()]
        arrays, separators = self._lay_out(tokens, np.repeat(np.arange(len(samples)), 2), np.diff(bounds).ravel())
        columns = np.arange(arrays["input_ids"].shape[1])
        is_second = (columns > separators[::2, None]) & (columns <= separators[1::2, None])
        return arrays | {
            "token_type_ids": is_second.astype(np.int64),
            "next_sentence_label": is_random.astype(np.int64),
        }

    def _lay_out(
        self, tokens: list[np.ndarray], rows: np.ndarray, lengths: np.ndarray
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Rows of [CLS] and segments, each followed by [SEP].

        Args:
            tokens: of all segments, in their order.
            rows: (S,) the row of each segment, ascending.
            lengths: (S,) the tokens of each segment.

        Returns:
            input_ids, attention_mask and is_text (B, T), and (S,) the column of the [SEP] after each segment.
        """
        row_lengths = 1 + np.bincount(rows, lengths + 1).astype(np.int64)
        before = np.cumsum(row_lengths - 1) - (row_lengths - 1)  # segments and [SEP] of the rows before
        separators = np.cumsum(lengths + 1) - before[rows]
        width = self.length if self.pad_to_max_length else row_lengths.max()
        is_text = np.arange(width) < row_lengths[:, None]
        attention_mask = is_text.astype(np.int64)
        input_ids = np.full(is_text.shape, self.vocabulary.pad, dtype=np.int64)
        for columns, token in ((0, self.vocabulary.cls), (separators, self.vocabulary.sep)):
            input_ids[rows, columns] = token
            is_text[rows, columns] = False
        input_ids[is_text] = np.concatenate(tokens)
        return {"input_ids": input_ids, "attention_mask": attention_mask, "is_text": is_text}, separators

    def _mask(
        self, input_ids: np.ndarray, is_text: np.ndarray, row_lengths: np.ndarray, samples: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The masked input_ids and the labels, (B, T) each."""
        width = input_ids.shape[1]
        counts = np.rint(row_lengths * self.shares.chosen).astype(np.int64)
        counts = counts.clip(1, is_text.sum(1))
        order = uniform(samples, width, self.seed, Use.MASKED)
        if self.whole_words:
            chosen = choose_words(order, is_text, self.vocabulary.continues[input_ids], counts)
        else:
            chosen = choose_tokens(order, is_text, counts)
        draws = uniform(samples, width, self.seed, Use.REPLACED)
        words = (uniform(samples, width, self.seed, Use.WORDS) * self.vocabulary.size).astype(np.int64)
        masked = np.where(draws < self.shares.mask + self.shares.random, words, input_ids)
        masked = np.where(draws < self.shares.mask, self.vocabulary.mask, masked)
        return {
            "input_ids": np.where(chosen, masked, input_ids),
            "labels": np.where(chosen, input_ids, IGNORED),
        }

    def count(self, batch: Mapping[str, torch.Tensor]) -> list[int]:
        return [int((batch["labels"] != IGNORED).sum()), len(batch["labels"])][: len(self.losses)]

    def compute(
        self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor], options: Mapping[str, Any]
    ) -> torch.Tensor:
        outputs = model(**batch, **skip_logits(model), **options)
        if len(self.losses) == 1:
            return outputs.loss.unsqueeze(0)
        # The model's loss is the sum of both. Stock BERT computes none without both kinds of labels.
        next_sentence = torch.nn.functional.cross_entropy(
            outputs.seq_relationship_logits, batch["next_sentence_label"]
        )
        return torch.stack([outputs.loss - next_sentence, next_sentence])
