"""Minimal pairs: which of two sentences, one of them ungrammatical, a language model finds more probable.

The readers, of BLiMP's folder and of a file of the user's own, return examples with the columns sentence_good,
sentence_bad, field, linguistics_term, UID and pairID, as in BLiMP, and place, which says where a pair comes from. Only
the sentences are needed; the other columns are empty where the data lack them. A broken file is a ValueError that
names the file, the line and the mistake.

A scorer turns sentences into rows, rows into batches, and a batch into one number a sentence: the sum over its tokens
of their log-probabilities under a language model that is causal, masked, or has two directions. All numbers are
natural logarithms in float32.

Letters: B sentences, C copies of sentences, T tokens, V words of the vocabulary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from elmo_gpt_bert.tasks.rows import (
    COMPRESSED,
    READERS,
    check_folder,
    columns,
    ending,
    read_json_lines,
    to_dataset,
)
from elmo_gpt_bert.training.batches import IGNORED
from elmo_gpt_bert.training.errors import InputError, MissingFileError, as_user_errors
from elmo_gpt_bert.training.files import shown


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from transformers.utils import ModelOutput


SENTENCES = ("sentence_good", "sentence_bad")
PHENOMENA = ("field", "linguistics_term", "UID")  # from the widest to the narrowest
NAMES = (*PHENOMENA, "pairID")
BLIMP_PAIRS, BLIMP_UIDS = 67_000, 67

# For a model without the head that `choose_head` names.
REMEDY = "choose a checkpoint that was saved with the head of its language model"

AT_ONCE = 4096  # tokens that a model reads in one call
SPECIAL = -1  # in place of a word's number
DIRECTIONS = ("forward", "backward")  # of a biLM
TOKENISED = 10_000  # sentences that are tokenised in one call

Row = dict[str, list]
Batch = dict[str, torch.Tensor]


# Readers


def read_folder(data_dir: Path) -> Dataset:
    """The pairs of all files of JSON lines in a folder, which is BLiMP's or has its layout, in the order of names."""
    return to_dataset([pair for path in find_files(data_dir) for pair in _read(path)], data_dir, "pairs")


def find_files(data_dir: Path) -> list[Path]:
    """The files that `read_folder` reads. Raises FileNotFoundError if there are none."""
    check_folder(data_dir)
    folder = data_dir / "data" if (data_dir / "data").is_dir() else data_dir
    paths = sorted(path for path in folder.iterdir() if READERS.get(ending(path)) is read_json_lines)
    if not paths:
        raise MissingFileError(f"{folder} holds no .jsonl files: --data_dir is not the folder of BLiMP")
    return paths


def read_file(path: Path) -> Dataset:
    """The pairs of one file."""
    if ending(path) not in READERS:
        endings = f"{', '.join(READERS)}, which may be compressed as {', '.join(COMPRESSED)}"
        raise InputError(f"{path}: a file of pairs must be one of {endings}")
    return to_dataset([*_read(path)], path, "pairs")


def phenomena(data: Dataset) -> dict[str, list[str]]:
    """The column of `PHENOMENA` -> the names in it, in their first order. Columns without a name are left out.

    Raises ValueError if a name stands in two columns, since its score has only one place in metrics.json.
    """
    named = {column: [name for name in dict.fromkeys(data[column][:]) if name] for column in PHENOMENA}
    seen: dict[str, str] = {}
    for column, names in named.items():
        for name in names:
            if seen.setdefault(name, column) != column:
                raise InputError(f"{shown(name)} is both a {seen[name]} and a {column}: rename one of them")
    return {column: names for column, names in named.items() if names}


def is_blimp(data: Dataset) -> bool:
    """Whether the pairs are BLiMP's, all of them, judged by their number and that of their paradigms."""
    return (len(data), len({*data["UID"][:]})) == (BLIMP_PAIRS, BLIMP_UIDS)


def _read(path: Path) -> Iterator[dict[str, str]]:
    for line, row in READERS[ending(path)](path):
        yield _pair(row, f"{path.name}:{line}")


def _pair(row: dict, place: str) -> dict[str, str]:
    """The columns of one pair. BLiMP's files spell one field both "syntax/semantics" and "syntax_semantics"."""
    pair = dict(zip(SENTENCES, columns(row, SENTENCES, place), strict=True)) | {name: row.get(name) for name in NAMES}
    for name, value in pair.items():
        if name in SENTENCES and not (isinstance(value, str) and value.strip()):
            problem = "empty: leave the pair out" if value in ("", None) else f"{shown(value)}, not a sentence"
            raise InputError(f"{place}: {name} is {problem}")
        if isinstance(value, (bool, float, list, dict)):
            raise InputError(f"{place}: {name} is {shown(value)}, not a name")
        pair[name] = "" if value is None else str(value)
    return pair | {"field": pair["field"].replace("/", "_"), "place": place}


# Scores


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
        sums = []
        for ids, mask in _pieces(input_ids, attention_mask):
            rows, losses = self._token_losses(ids, mask)
            sums.append(losses.new_zeros(len(ids)).index_add(0, rows, -losses))
        return {"log_likelihoods": torch.cat(sums)}

    def score_tokens(self, row: Row) -> dict[str, np.ndarray]:
        _, losses = self._token_losses(**self.collate([row]))
        return {"log_likelihoods": np.append(np.nan, -losses.numpy())}

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
            raise InputError(f"--pll {pll}: {type(tokenizer).__name__} does not say which tokens are of one word")
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
        losses = []
        for ids, mask, masked, tokens in _pieces(input_ids, attention_mask, places, targets):
            rows = torch.arange(len(masked), device=masked.device)
            with only_states(self.model, rows, masked):
                logits = self.model(input_ids=ids, attention_mask=mask).logits
            losses.append(_losses(logits, tokens))
        return torch.cat(losses)


class BidirectionalScorer(Scorer):
    """The sums of log p(word | words before it) and of log p(word | words after it), of a biLM such as ELMo.

    Both include a boundary: the forward direction predicts the end of the sentence, the backward one its beginning.
    """

    task_type = "feature-extraction"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        super().__init__(model, tokenizer)
        with as_user_errors("cannot score sentences: "):
            tokenizer.word_targets([])

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


def _pieces(input_ids: torch.Tensor, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Parts of a batch's tensors, of so many rows that the model reads about `AT_ONCE` tokens in one call."""
    size = max(1, AT_ONCE // input_ids.shape[1])
    return zip(*(tensor.split(size) for tensor in (input_ids, *others)), strict=True)


# Features


def make_features(data: Dataset, scorer: Scorer, longest: int | None) -> tuple[Dataset, np.ndarray]:
    """The distinct rows as features, and their numbers for each pair, (pairs, 2).

    A row that occurs twice is scored once, so two sentences of the same tokens have the same score to the last bit.
    Raises ValueError for a sentence of more than `longest` tokens, and for one without a token to score.
    """
    sentences = [sentence for pair in zip(*(data[name][:] for name in SENTENCES), strict=True) for sentence in pair]
    numbers: dict[tuple, int] = {}  # the content of a row -> its number
    rows, row_of = [], []
    for start in range(0, len(sentences), TOKENISED):
        for row in scorer.encode(sentences[start : start + TOKENISED]):
            _check_row(row, scorer, longest, data, len(row_of))
            key = tuple(map(tuple, row.values()))
            if key not in numbers:
                numbers[key] = len(rows)
                rows.append(row)
            row_of.append(numbers[key])
    features = Dataset.from_dict({name: [row[name] for row in rows] for name in rows[0]})
    return features, np.array(row_of).reshape(-1, 2)


def _check_row(row: dict[str, list], scorer: Scorer, longest: int | None, data: Dataset, number: int) -> None:
    """Raises ValueError if the row of sentence `number` cannot be scored."""
    pair, column = divmod(number, 2)
    length, scored = len(next(iter(row.values()))), scorer.count_scored(row)
    if longest is not None and length > longest:
        problem = f"has {length} tokens, but the model reads at most {longest}"
    elif scored < 1:
        problem = f"has {length} token{'s' * (length != 1)}, none of which can be scored: leave the pair out"
    else:
        return
    raise InputError(f"{data[pair]['place']}: {SENTENCES[column]} {problem}")
