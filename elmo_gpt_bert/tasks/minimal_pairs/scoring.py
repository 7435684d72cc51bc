"""The log-probability of sentences under a language model: causal, masked, or with two directions.

A scorer turns sentences into rows, rows into batches, and a batch into one number a sentence, the sum over its tokens.
All numbers are natural logarithms in float32.

Letters: B sentences, C copies of sentences, T tokens, V words of the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from elmo_gpt_bert.tasks.language_models import candidate_heads
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.batches import IGNORED
from elmo_gpt_bert.training.errors import InputError, Parameter, as_user_errors
from elmo_gpt_bert.training.loading import has_head


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput


# For a model without the head that `choose_head` names.
REMEDY = "choose a checkpoint that was saved with the head of its language model"

AT_ONCE = 4096  # tokens that a model reads in one call
SPECIAL = -1  # in place of a word's number
DIRECTIONS = ("forward", "backward")  # of a biLM
PLL = Parameter("pll")

Row = dict[str, list]
Batch = dict[str, torch.Tensor]


class Scorer(nn.Module, ABC):
    """A language model with its tokenizer. `forward` returns `..._log_likelihoods` (B,), one for each direction."""

    task_type: ClassVar[str]  # the Hub's name of the task that the model was trained for

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        super().__init__()
        self.model, self.config, self.tokenizer = model, model.config, tokenizer

    @abstractmethod
    def encode(self, sentences: list[str]) -> list[Row]:
        """The rows of sentences, from which `collate` makes batches."""

    @abstractmethod
    def count_scored(self, row: Row) -> int:
        """The number of tokens whose probabilities make the sentence's."""

    @abstractmethod
    def collate(self, rows: list[Row]) -> Batch:
        """The arguments of `forward`."""

    @abstractmethod
    def score_tokens(self, row: Row) -> dict[str, np.ndarray]:
        """The log-probability of each token of a row, (T,), by the names that `forward` returns; NaN: not scored.

        Without the boundaries of a biLM's sentence, which are no tokens, they add up to what `forward` returns.
        """


class CausalScorer(Scorer):
    """The sum of log p(token | tokens before it).

    The first token of a row has none before it. So it is not scored, unless the tokenizer begins each text with a
    token of its own, such as a beginning-of-sentence token. GPT's and GPT-2's do not.
    """

    task_type = "text-generation"

    def encode(self, sentences: list[str]) -> list[Row]:
        return [{"input_ids": ids} for ids in self.tokenizer(sentences)["input_ids"]]

    def count_scored(self, row: Row) -> int:
        return len(row["input_ids"]) - 1

    def collate(self, rows: list[Row]) -> Batch:
        return _padded([row["input_ids"] for row in rows], self.tokenizer.pad_token_id or 0)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Batch:
        """Scores rows (B, T)."""
        size = _rows_at_once(input_ids)
        pieces = zip(input_ids.split(size), attention_mask.split(size), strict=True)
        return {"log_likelihoods": torch.cat([self._score(*piece) for piece in pieces])}

    def score_tokens(self, row: Row) -> dict[str, np.ndarray]:
        _, losses = self._token_losses(**self.collate([row]))
        return {"log_likelihoods": np.append(np.nan, -losses.numpy())}

    def _score(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        rows, losses = self._token_losses(input_ids, attention_mask)
        return losses.new_zeros(len(input_ids)).index_add(0, rows, -losses)

    def _token_losses(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The row of each token that is scored, and its -log p: (N,) each."""
        rows, places = attention_mask[:, 1:].nonzero(as_tuple=True)  # (N,) each, of the N tokens before a real one
        with only_states(self.model, rows, places):
            logits = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        return rows, _losses(logits, input_ids[rows, places + 1])


class MaskedScorer(Scorer):
    """The pseudo-log-likelihood: the sum of log p(token | the sentence with this token masked).

    One copy of the sentence is read for each token. `pll` says what else is masked in it: nothing (Salazar et al.
    2020), or the tokens after it in the same word, which would give it away (Kauf and Ivanova 2023, PLL-word-l2r).
    """

    task_type = "fill-mask"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        pll: Literal["original", "within_word_l2r"],
    ):
        super().__init__(model, tokenizer)
        if tokenizer.mask_token_id is None:
            raise InputError("the tokenizer has no mask token, so it is not that of a masked language model")
        if pll == "within_word_l2r" and not tokenizer.is_fast:
            raise InputError(PLL, f" {pll}: {type(tokenizer).__name__} does not say which tokens are of one word")
        self.by_word = pll == "within_word_l2r"

    def encode(self, sentences: list[str]) -> list[Row]:
        """The rows: `input_ids`, and in `words` the number of each token's word; `original`: each token is a word."""
        encoding = self.tokenizer(sentences, return_special_tokens_mask=True)
        rows = []
        for number, ids in enumerate(encoding["input_ids"]):
            words = encoding.word_ids(number) if self.by_word else range(len(ids))
            is_special = np.array(encoding["special_tokens_mask"][number], dtype=bool)
            rows.append({"input_ids": ids, "words": np.where(is_special, SPECIAL, _numbers(words)).tolist()})
        return rows

    def count_scored(self, row: Row) -> int:
        return sum(word != SPECIAL for word in row["words"])

    def collate(self, rows: list[Row]) -> Batch:
        """The masked copies (C, T), each with the place and the id of its token and the number of its sentence."""
        copies, places, targets = [], [], []
        for row in rows:
            ids, words = np.array(row["input_ids"]), np.array(row["words"])
            scored = np.flatnonzero(words != SPECIAL)
            hidden = (words == words[scored, None]) & (np.arange(len(ids)) >= scored[:, None])
            copies.extend(np.where(hidden, self.tokenizer.mask_token_id, ids))
            places.append(scored)
            targets.append(ids[scored])
        sentences = np.repeat(np.arange(len(rows)), [len(scored) for scored in places])
        vectors = {"places": np.concatenate(places), "targets": np.concatenate(targets), "sentences": sentences}
        batch = _padded(copies, self.tokenizer.pad_token_id or 0)
        return batch | {name: torch.from_numpy(vector) for name, vector in vectors.items()}

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        places: torch.Tensor,
        targets: torch.Tensor,
        sentences: torch.Tensor,
    ) -> Batch:
        """Scores copies (C, T)."""
        losses = self._token_losses(input_ids, attention_mask, places, targets)
        sums = losses.new_zeros(int(sentences[-1]) + 1)
        return {"log_likelihoods": sums.index_add(0, sentences, -losses)}

    def score_tokens(self, row: Row) -> dict[str, np.ndarray]:
        batch = self.collate([row])
        del batch["sentences"]
        scores = np.full(len(row["words"]), np.nan, np.float32)
        scores[batch["places"].numpy()] = -self._token_losses(**batch).numpy()
        return {"log_likelihoods": scores}

    def _token_losses(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, places: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """(C,): -log p of the token of each copy."""
        size = _rows_at_once(input_ids)
        pieces = zip(*(each.split(size) for each in (input_ids, attention_mask, places, targets)), strict=True)
        return torch.cat([self._score(*piece) for piece in pieces])

    def _score(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, places: torch.Tensor, targets: torch.Tensor
    ) -> torch.Tensor:
        """(C,): -log p of each target."""
        rows = torch.arange(len(places), device=places.device)
        with only_states(self.model, rows, places):
            logits = self.model(input_ids=input_ids, attention_mask=attention_mask).logits
        return _losses(logits, targets)


class BidirectionalScorer(Scorer):
    """The sums of log p(word | words before it) and of log p(word | words after it), of a biLM such as ELMo.

    Both include a boundary: the forward direction predicts the end of the sentence, the backward one its beginning.
    """

    task_type = "feature-extraction"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        super().__init__(model, tokenizer)
        with as_user_errors("cannot score sentences: "):
            tokenizer.word_targets([])
        if self.config.state == "carry":  # the score of a sentence would depend on the one scored before it
            self.config.state = "warm"

    def encode(self, sentences: list[str]) -> list[Row]:
        """The words. Their characters are looked up batch by batch, since they are fifty times as many."""
        rows = [self.tokenizer.tokenize(sentence) for sentence in sentences]
        return [{"words": words, "attention_mask": [1] * len(words)} for words in rows]

    def count_scored(self, row: Row) -> int:
        return len(row["words"])

    def collate(self, rows: list[Row]) -> Batch:
        words = [row["words"] for row in rows]
        encoding = self.tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
        targets = _padded([self.tokenizer.word_targets(row) for row in words], IGNORED)["input_ids"]
        return {"input_ids": encoding["input_ids"], "attention_mask": encoding["attention_mask"], "targets": targets}

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, targets: torch.Tensor) -> Batch:
        """Scores sentences (B, T, characters) with the numbers of their words (B, T)."""
        outputs = self.model(input_ids=input_ids, attention_mask=attention_mask, labels=targets)
        directions = zip(DIRECTIONS, outputs.log_likelihoods.unbind(1), strict=True)
        return {f"{name}_log_likelihoods": scores for name, scores in directions}

    def score_tokens(self, row: Row) -> dict[str, np.ndarray]:
        batch = self.collate([row])
        targets = batch.pop("targets")[0]
        outputs = self.model(**batch)
        losses = [_losses(logits, targets) for logits in (outputs.logits, outputs.reverse_logits)]
        return {f"{name}_log_likelihoods": -of.numpy() for name, of in zip(DIRECTIONS, losses, strict=True)}


def choose_head(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, source: ModelSource) -> type:
    """The Auto class of the model: the first of `candidate_heads` that it has. Raises ValueError if it has none."""
    heads = candidate_heads(config, tokenizer)
    for head in heads:
        if has_head(head, config, source):
            return head
    names = " or ".join(head.__name__ for head in heads)
    raise InputError(f"{source.model_name_or_path}: {type(config).__name__} is no language model, it has no {names}")


def make_scorer(
    head: type, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pll: Literal["original", "within_word_l2r"]
) -> Scorer:
    """The scorer of a model of the Auto class `head`."""
    if head is AutoModelForMaskedLM:
        return MaskedScorer(model, tokenizer, pll)
    return (CausalScorer if head is AutoModelForCausalLM else BidirectionalScorer)(model, tokenizer)


def _numbers(words: Sequence[int | None]) -> np.ndarray:
    """The number of each token's word. A token that the tokenizer puts into no word becomes one of its own."""
    return np.array([len(words) + place if word is None else word for place, word in enumerate(words)])


@contextmanager
def only_states(model: PreTrainedModel, rows: torch.Tensor, places: torch.Tensor) -> Iterator[None]:
    """Within the context, the head of `model` sees only the states of these N tokens, as one row: (1, N, H).

    A head over the vocabulary costs as much as several layers.
    """

    def keep(module: nn.Module, inputs: tuple, output: ModelOutput) -> None:
        output.last_hidden_state = output.last_hidden_state[rows, places][None]

    states = model.base_model.get_decoder()  # itself, or what the heads of OPT and BART read instead of it
    hook = states.register_forward_hook(keep)
    try:
        yield
    finally:
        hook.remove()


def _losses(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """-log p of each target: (1, N, V), (N,) -> (N,)"""
    return nn.functional.cross_entropy(logits[0].float(), targets, reduction="none")


def _padded(rows: list[list[int]] | list[np.ndarray], value: int) -> Batch:
    """`input_ids` (B, T), padded with `value`, and their `attention_mask`."""
    ids = nn.utils.rnn.pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True, padding_value=value)
    lengths = torch.tensor([len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}


def _rows_at_once(input_ids: torch.Tensor) -> int:
    return max(1, AT_ONCE // input_ids.shape[1])
