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
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.tasks.pretraining.draws import shuffle_epochs, uniform
from elmo_gpt_bert.tasks.pretraining.objective import Objective, Use, skip_logits
from elmo_gpt_bert.tasks.pretraining.pairs import draw_pairs, share_of_following
from elmo_gpt_bert.tasks.pretraining.rows import SEGMENTS, Segments, ends_within, open_rows
from elmo_gpt_bert.training.batches import IGNORED
from elmo_gpt_bert.training.errors import InputError, Parameter


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


CONTINUATION = "##"


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
            raise InputError(Parameter("chosen", "mlm_probability"), f" {self.chosen}: above 0, and at most 1")
        if min(self.mask, self.random) < 0 or self.mask + self.random > 1 + 1e-6:  # 0.9 + 0.1 may be a little above 1
            names = Parameter("mask", "mask_share"), Parameter("random", "random_share")
            raise InputError(names[0], " and ", names[1], f" are {self.mask} and {self.random}: at most 1 in all")


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
                Parameter("whole_words", "whole_word_mask"),
                f" needs a vocabulary that marks the continuation of words by {CONTINUATION}, as WordPiece does: "
                "choose such a tokenizer, or mask single tokens",
            )
        self.corpus, self.vocabulary, self.length = corpus, vocabulary, length
        self.segments, self.seed, self.shuffle, self.whole_words = Segments(segments), seed, shuffle, whole_words
        self.shares, self.pad_to_max_length = shares, pad_to_max_length
        self.rows = open_rows(corpus, self.segments, length)
        self.size = len(self.rows)
        has_pairs = self.segments is Segments.NEXT_SENTENCE
        self.share_of_following = share_of_following(corpus, self.rows) if has_pairs and shuffle else None
        if self.share_of_following == 0:
            raise InputError(
                SEGMENTS,
                f"={self.segments} predicts whether a sentence follows, but no row of {corpus.name} has two: choose "
                f"{Segments.FULL_SENTENCES}, or keep the sentences of a document together",
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
