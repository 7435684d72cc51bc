"""How probable a language model finds each word of a sentence in its place, in bits of surprisal.

The surprisal of a word is -log2 p. A word of several tokens has the sum of theirs, each given those before it in the
word, which is the surprisal of the word. The words of a sentence add up to its score in run_blimp.py (for a masked
model with --pll within_word_l2r), in bits instead of natural logarithms.

- Causal models: p(token | tokens before it). The first token has none before it, so it is not predicted.
- Masked models: p(token | all other words), where the token and those after it in its word are masked. Words are the
  tokenizer's here: for BERT's, 0.5 is three words, whose surprisals are added.
- biLMs: p(word | words before it) and p(word | words after it). A word's surprisal is the sum of both, and the
  boundaries of the sentence are predicted, too.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from elmo_gpt_bert.explorer.language_models import LanguageModel, Span, words_of
from elmo_gpt_bert.tasks.minimal_pairs import DIRECTIONS, SPECIAL, BidirectionalScorer
from modeling.elmo.tokenization_elmo import split_words


NAT = 1 / math.log(2)  # in bits


@dataclass(frozen=True)
class ScoredWord:
    """A word in its place.

    Attributes:
        pieces: the tokens that the model reads in its place.
        bits: its surprisal; of a biLM in each direction; empty if it is not predicted.
        is_partial: its first token is not predicted, because nothing is before it.
        is_unknown: the model does not know the word, or a piece of it, and predicts its mark for unknown words.
    """

    word: str
    pieces: list[str]
    bits: list[float]
    is_partial: bool = False
    is_unknown: bool = False

    @property
    def probability(self) -> float | None:
        return 2 ** -sum(self.bits) if self.bits else None


@dataclass(frozen=True)
class ScoredSentence:
    """The words of a sentence; `edges` are the surprisals of a biLM's boundaries, its end and its beginning."""

    words: list[ScoredWord]
    edges: list[float] = field(default_factory=list)

    @property
    def bits(self) -> float:
        return sum(map(sum, (word.bits for word in self.words))) + sum(self.edges)


@torch.no_grad()
def score_sentence(model: LanguageModel, sentence: str) -> ScoredSentence:
    """The surprisals of a sentence. Raises ValueError for one that is empty or too long."""
    if isinstance(model.scorer, BidirectionalScorer):
        return _score_words(model.scorer, sentence)
    return _score_tokens(model, sentence)


def _score_words(scorer: BidirectionalScorer, sentence: str) -> ScoredSentence:
    """The surprisals of a biLM, whose tokens are words."""
    words = words_of(sentence, scorer.tokenizer.split(sentence))
    row = {"words": words, "attention_mask": [1] * len(words)}
    names = [f"{direction}_log_likelihoods" for direction in DIRECTIONS]
    scores, sums = scorer.score_tokens(row), scorer(**scorer.collate([row]))
    both = np.stack([scores[name] for name in names], 1) * -NAT  # (T, 2)
    unknown = scorer.tokenizer.word_targets(["<UNK>"])[0]
    targets = scorer.tokenizer.word_targets(words)
    return ScoredSentence(
        [
            ScoredWord(word, [word], bits.tolist(), is_unknown=target == unknown)
            for word, bits, target in zip(words, both, targets, strict=True)
        ],
        [float(sums[name] * -NAT) - float(of.sum()) for name, of in zip(names, both.T, strict=True)],
    )


def _score_tokens(model: LanguageModel, sentence: str) -> ScoredSentence:
    """The surprisals of a model of subwords."""
    words = words_of(sentence, spans := split_words(sentence))
    encoding = model.scorer.tokenizer(sentence, return_offsets_mapping=True, return_special_tokens_mask=True)
    (row,) = model.scorer.encode([sentence])
    ids = row["input_ids"]
    model.check_length(len(ids))
    word_of_token = _words_of_tokens(encoding["offset_mapping"], encoding["special_tokens_mask"], spans)
    scores = model.scorer.score_tokens(row)["log_likelihoods"]
    return ScoredSentence([_join(model, n, word, ids, word_of_token, scores) for n, word in enumerate(words)])


def _words_of_tokens(offsets: list[Span], special: list[int], spans: list[Span]) -> list[int]:
    """The number of the word that each token's last character is in; SPECIAL: of none."""
    owner = {place: number for number, (begin, end) in enumerate(spans) for place in range(begin, end)}
    tokens = zip(offsets, special, strict=True)
    return [SPECIAL if is_special else owner.get(end - 1, SPECIAL) for (_, end), is_special in tokens]


def _join(
    model: LanguageModel, number: int, word: str, ids: list[int], word_of_token: list[int], scores: np.ndarray
) -> ScoredWord:
    """The word that consists of the tokens with its number."""
    places = [place for place, of_token in enumerate(word_of_token) if of_token == number]
    of_word = scores[places]
    known = of_word[~np.isnan(of_word)]
    return ScoredWord(
        word,
        model.pieces([ids[place] for place in places]),
        [float(known.sum() * -NAT)] if len(known) else [],
        is_partial=0 < len(known) < len(places),
        is_unknown=model.scorer.tokenizer.unk_token_id in [ids[place] for place in places],
    )
