"""The objective of ELMo's biLM: each direction predicts its next word, in streams that continue from batch to batch.

Section 3.1 of Peters et al. 2018 (arXiv 1802.05365); released code: allenai/bilm-tf, `bilm/data.py` and
`bilm/training.py`. As there:

- a row of batches is a stream: the steps of sentences, one after another, without padding. The next batch goes on
  where this one ends, and so does the state of the LSTM; only the gradient stops there (truncated backpropagation
  through time);
- the forward direction reads <S> w1 ... wn and predicts w1 ... wn </S>; the backward direction reads </S> wn ... w1
  and predicts wn ... w1 <S>. A sentence of n words has n + 1 steps in each;
- the two directions have orders of their own, so a batch holds different sentences in each;
- a word that the vocabulary lacks is read by its characters; its target is <UNK>;
- the softmax of a direction is over one sample of words for all predictions of an update.

The order of an epoch is a function of the seed, the epoch and the direction. The text is cut into pieces of whole
sentences, of about PIECE words. The pieces are shuffled, and so are the sentences within each piece. The steps of all
sentences in this order are one long line, which is cut into equal parts, one for each row of the global batch. The
last steps, fewer than a batch has, are left out; they differ from epoch to epoch. Where its part of an epoch ends, a
row goes on with its part of the next.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import broadcast, extract_model_from_parallel

from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.tasks.pretraining.draws import permute, uniform
from elmo_gpt_bert.tasks.pretraining.objective import Objective, Use
from elmo_gpt_bert.tasks.pretraining.text import MORE_HELD_OUT
from elmo_gpt_bert.training.errors import InputError


if TYPE_CHECKING:
    from transformers import PreTrainedModel


BEGIN, END, UNKNOWN = 0, 1, 2  # the numbers of <S>, </S> and <UNK>
BOUNDARY = -1  # between sentences: the end of one and the beginning of the next
PIECE = 2**15  # words; a row keeps one piece for each direction in memory
WARM_UP = 200  # words that the model reads for its warm state; a state forgets within about 20
INPUTS = ("input_ids", "reverse_input_ids", "labels", "reverse_labels", "sampled_words", "num_draws")


class BiLM(Objective):
    """Streams of words for a language model in both directions.

    Sample (epoch * windows + window) * rows + row is a window of `steps` steps in that row. A batch holds any rows of
    one window, so that an update may be shared among processes and micro-batches.

    The released code multiplies the loss, the mean of both directions, by the number of steps, and clips the norm of
    that gradient to 10. So does `gradient_scale`; the losses themselves are means. Their exponentials are the
    perplexities of the directions, in training with sampled words those of the sample.

    Args:
        rows: of the global batch, over all processes.
        steps: of a batch, through which the gradient goes back.
        num_sampled: words in the sampled softmax; 0 for the full softmax, as for held-out text.
        shuffle: with False, sentences are in the order of the text.
        training: for held-out text, the objective in training.

    Raises:
        ValueError: for a corpus that is too short for a window.
    """

    losses = word_losses = ("forward", "backward")
    weights = (0.5, 0.5)

    def __init__(
        self,
        corpus: Corpus,
        rows: int,
        steps: int,
        seed: int = 0,
        num_sampled: int = 0,
        shuffle: bool = True,
        training: BiLM | None = None,
    ):
        self.corpus, self.rows, self.steps, self.seed, self.training = corpus, rows, steps, seed, training
        self.num_sampled = num_sampled if num_sampled < corpus.vocab_size else 0
        self.directions = [
            Direction(corpus, number, (seed, Use.ORDER, number) if shuffle else None)
            for number in range(len(self.losses))
        ]
        self.windows = self.directions[0].size // (rows * steps)
        if self.windows == 0:
            problem = f"{corpus.name} has {self.directions[0].size:,} words and ends of sentences, too few for "
            if corpus.split == "validation":  # whose rows are as few as the text has room for
                raise InputError(f"{problem}{steps}: {MORE_HELD_OUT}, or lower --max_seq_length")
            lower = "lower --per_device_train_batch_size or --max_seq_length"
            raise InputError(f"{problem}{rows} rows of {steps}: give more, or {lower}")
        self.size, self.batch_size, self.length = self.windows * rows, rows, steps
        self.predictions = self.directions[0].size
        self.gradient_scale = steps
        self.states: tuple[torch.Tensor, torch.Tensor] | None = None  # (rows, L, 2, P) hidden and (rows, L, 2, C) cell
        self.begins = self.states  # of the window that each row has read last,
        self.window = torch.full((rows,), -1)  # and its number; -1: of a row that this process has not computed

    def __getstate__(self) -> dict[str, Any]:
        """What a worker needs: batches do not depend on states, which may be on a GPU."""
        return self.__dict__ | {"states": None, "begins": None, "window": torch.full((self.rows,), -1)}

    def batch(self, samples: Sequence[int]) -> dict[str, torch.Tensor]:
        """The window of N rows. Raises ValueError if the samples are of several windows.

        Returns:
            input_ids and reverse_input_ids (N, steps, K) and labels and reverse_labels (N, steps); with sampled words,
            sampled_words (2, num_sampled) and num_draws (2,), the same for all rows of the window; rows (N,), their
            numbers; and windows (N,), the number of the window, counted from the beginning of the training.
        """
        windows, rows = np.divmod(np.asarray(samples, np.int64), self.rows)
        if len(np.unique(windows)) != 1:
            raise ValueError(
                f"the samples are of {len(np.unique(windows))} windows, but a batch holds rows of one window: let an "
                f"update have as many samples as there are rows, {self.rows}"
            )
        epoch, window = divmod(int(windows[0]), self.windows)
        begins = (rows * self.windows + window) * self.steps
        batch = {"rows": torch.from_numpy(rows), "windows": torch.from_numpy(windows)}
        for direction, prefix in zip(self.directions, ("", "reverse_"), strict=True):
            words = direction.read(epoch, begins, self.steps + 1, rows)
            inputs, targets = direction.inputs_and_targets(words)
            characters = np.asarray(self.corpus.characters)[inputs]
            batch[f"{prefix}input_ids"] = torch.from_numpy(characters.astype(np.int64))
            batch[f"{prefix}labels"] = torch.from_numpy(targets)
        if self.num_sampled:
            sizes = (self.corpus.vocab_size, self.num_sampled)
            samples = [sample_words(*sizes, int(windows[0]), self.seed, Use.WORDS, number) for number in range(2)]
            batch["sampled_words"] = torch.from_numpy(np.stack([words for words, _ in samples]))
            batch["num_draws"] = torch.tensor([draws for _, draws in samples])
        return batch

    def count(self, batch: Mapping[str, torch.Tensor]) -> list[int]:
        return [batch["labels"].numel(), batch["reverse_labels"].numel()]

    def compute(
        self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor], options: Mapping[str, Any]
    ) -> torch.Tensor:
        """As `Objective.compute`. Each row continues from the states in which its last batch ended.

        In the first window, also of each evaluation, it starts from `first_state`. A window that is computed again, as
        after an overflow in fp16, starts where it started before.
        """
        rows, continues = batch["rows"], batch["windows"] > 0
        if self.states is None:
            if continues.any():
                window = int(batch["windows"].max())
                raise ValueError(f"the streams go on at window {window}, but have no states: call load_state first")
            self.states = tuple(part.new_zeros(self.rows, *part.shape) for part in self.first_state(model))
        self.states = tuple(part.to(rows.device) for part in self.states)
        self.begins = tuple(part.clone() for part in self.states) if self.begins is None else self.begins
        self.window = self.window.to(rows.device)
        repeats = (self.window[rows] == batch["windows"]).view(-1, 1, 1, 1)
        self.window[rows] = batch["windows"]
        for begin, end in zip(self.begins, self.states, strict=True):
            begin[rows] = begin[rows].where(repeats, end[rows])
        start = tuple(
            part[rows].where(continues.view(-1, 1, 1, 1), first.to(part)).movedim(0, 2)
            for part, first in zip(self.begins, self.first_state(model), strict=True)
        )
        inputs = {name: batch[name] for name in INPUTS if name in batch}
        output = model(**inputs, **options, stream_state=start)
        for part, end in zip(self.states, output.stream_state, strict=True):
            part[rows] = end.movedim(2, 0).to(part)
        return output.direction_losses

    def first_state(self, model: PreTrainedModel) -> tuple[torch.Tensor, torch.Tensor]:
        """(L, 2, P) hidden states and (L, 2, C) cells from which a row starts: zeros for a new model.

        A trained model knows no zeros, because its streams never start again: some rows would fall into a state which
        they never leave, and predict nothing. So it starts from the state that it has stored and, in the evaluations
        of a training, from that of the first stream.
        """
        if self.training is not None and self.training.states is not None:
            hidden, cell = self.training.states
            return hidden[0], cell[0]
        elmo = extract_model_from_parallel(model).base_model
        return elmo.initial_hidden, elmo.initial_cell

    def begin_evaluation(self, device: torch.device) -> None:
        """Gives all processes the state of the training's first stream, which the first of them computes."""
        if self.training is not None and self.training.states is not None:
            self.training.states = tuple(part.to(device) for part in self.training.states)
            for part in self.training.states:
                part[0] = broadcast(part[0].contiguous())

    def state(self) -> dict[str, torch.Tensor]:
        """The numbers (N,) of this process's rows, and their hidden states (N, L, 2, P) and cells (N, L, 2, C)."""
        if self.states is None:
            return {}
        rows = (self.window >= 0).nonzero()[:, 0].cpu()
        hidden, cell = (part.cpu()[rows] for part in self.states)
        return {"rows": rows, "hidden": hidden, "cell": cell}

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        self.states, self.begins, self.window[:] = None, None, -1
        if not state:
            return
        rows = state["rows"]
        if rows.unique().tolist() != list(range(self.rows)):
            raise InputError(
                f"the checkpoint has the states of {len(rows.unique())} streams, but this run has {self.rows}: keep "
                "the product of batch size, accumulation steps and processes"
            )
        self.states = tuple(
            part.new_empty(self.rows, *part.shape[1:]).index_copy(0, rows, part)
            for part in (state["hidden"], state["cell"])
        )

    def finish(self, model: PreTrainedModel) -> None:
        """Stores the state of a model that has read a few sentences. All sentences start from it from now on.

        It reads them where the first row of the training has ended, because it knows no other states.
        """
        start = None if self.states is None else tuple(part[:1].movedim(0, 2) for part in self.states)
        model = extract_model_from_parallel(model)
        if model.device.type == "xla":  # which would compile a graph for each length of a sentence
            model.cpu()
        stop = min(WARM_UP, self.corpus.num_tokens)
        ends = self.corpus.sentences.between(0, stop)
        sentences = np.split(self.corpus.read(0, stop), ends[ends < stop])
        characters = np.asarray(self.corpus.characters)
        rows = [torch.from_numpy(characters[words].astype(np.int64)) for words in sentences]
        model.base_model.warm_up(rows, start)
        model.config.state = "warm"


class Direction:
    """The steps of one direction in the order of each epoch: BOUNDARY, a sentence's words, BOUNDARY, ...

    Args:
        number: 0 for the forward direction, 1 for the backward one.
        key: of the order; None for that of the text.

    Attributes:
        size: steps of an epoch.
    """

    def __init__(self, corpus: Corpus, number: int, key: tuple[int, ...] | None):
        self.corpus, self.is_backward, self.key = corpus, number == 1, key
        self.sentences, self.tokens = cut(corpus)
        self.lengths = np.diff(self.sentences) + np.diff(self.tokens)  # (pieces,) in steps
        self.size = int(self.lengths.sum())
        self._order: tuple[int, np.ndarray, np.ndarray] | None = None  # of an epoch
        self._pieces: dict[int, tuple[tuple[int, int], np.ndarray]] = {}  # the piece in which each row is

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_order": None, "_pieces": {}}

    def inputs_and_targets(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(N, T + 1) words -> (N, T) the inputs and (N, T) the targets."""
        opening, closing = (END, BEGIN) if self.is_backward else (BEGIN, END)
        inputs, targets = words[:, :-1], words[:, 1:]
        is_outside = targets >= self.corpus.vocab_size
        targets = np.where(targets == BOUNDARY, closing, np.where(is_outside, UNKNOWN, targets))
        return np.where(inputs == BOUNDARY, opening, inputs), targets.astype(np.int64)

    def read(self, epoch: int, begins: np.ndarray, count: int, rows: np.ndarray) -> np.ndarray:
        """The words from some places of an epoch on: (N,) -> (N, count). Boundaries follow the last word.

        `rows` (N,) are numbers of readers: the piece in which each is stays in memory.
        """
        order, starts = self._epoch(epoch)
        words = np.full((len(begins), count), BOUNDARY, np.int32)
        places = np.searchsorted(starts, begins, side="right") - 1
        for line, begin, place, row in zip(words, begins.tolist(), places.tolist(), rows.tolist(), strict=True):
            filled = 0
            while filled < count and place < len(order):
                piece = self._piece(epoch, place, row)
                first = begin + filled - int(starts[place])
                part = piece[first : first + count - filled]
                line[filled : filled + len(part)] = part
                filled, place = filled + len(part), place + 1
        return words

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """(pieces,) the pieces in the order of the epoch, and (pieces + 1,) the first step of each, and the end."""
        if self._order is None or self._order[0] != epoch:
            order = np.arange(len(self.lengths))
            if self.key is not None:
                order = permute(order, len(order), *self.key, epoch)
            self._order = (epoch, order, np.concatenate([[0], np.cumsum(self.lengths[order])]))
        return self._order[1:]

    def _piece(self, epoch: int, place: int, row: int) -> np.ndarray:
        """The steps of the piece at this place, from memory if it is the one that was read last for this row."""
        place_in_memory, words = self._pieces.get(row, (None, None))
        if place_in_memory != (epoch, place):
            words = self._read_piece(epoch, int(self._epoch(epoch)[0][place]))
            self._pieces[row] = ((epoch, place), words)
        return words

    def _read_piece(self, epoch: int, number: int) -> np.ndarray:
        """(steps of the piece,) its sentences in the order of the epoch, each after a boundary."""
        first, last = self.sentences[number : number + 2]
        start, stop = self.tokens[number : number + 2]
        words = self.corpus.read(int(start), int(stop))
        ends = self.corpus.sentences[np.arange(first, last)] - start
        lengths = np.diff(ends, prepend=0)
        if self.key is not None:
            order = permute(np.arange(len(ends)), len(ends), *self.key, epoch, number)
            ends, lengths = ends[order], lengths[order]
        before = np.cumsum(lengths) - lengths  # the words of the sentences before each, in the new order
        place = np.arange(len(words))
        if self.is_backward:
            source = np.repeat(ends - 1 + before, lengths) - place
        else:
            source = np.repeat(ends - lengths - before, lengths) + place
        is_word = np.ones(len(words) + len(ends), bool)
        is_word[before + np.arange(len(ends))] = False
        steps = np.full(len(is_word), BOUNDARY, np.int32)
        steps[is_word] = words[source]
        return steps


def cut(corpus: Corpus) -> tuple[np.ndarray, np.ndarray]:
    """(pieces + 1,) the first sentence of each piece, and the number of sentences; the same of words.

    A piece begins with the sentence that holds word 0, PIECE, 2 PIECE, ... A longer sentence is a piece by itself.
    """
    first = np.unique(corpus.sentences.find(np.arange(0, corpus.num_tokens, PIECE)))
    sentences = np.append(first, len(corpus.sentences))
    return sentences, np.append(0, corpus.sentences[sentences[1:] - 1])


def sample_words(vocabulary: int, count: int, window: int, *key: int) -> tuple[np.ndarray, int]:
    """`count` different words, drawn by frequency for this window, and the number of draws that found them.

    P(word k) = log((k + 2) / (k + 1)) / log(V + 1), as in the model's own samples, which depend on a generator.
    """
    draws = likely_draws(vocabulary, count)
    while True:
        exponents = uniform(np.array([window]), draws, *key)[0] * math.log(vocabulary + 1)
        words = np.minimum(np.exp(exponents).astype(np.int64) - 1, vocabulary - 1)
        places = np.arange(draws)
        first = np.empty(vocabulary, np.int64)
        first[words[::-1]] = places[::-1]  # of several draws of a word, the first is written last
        places = np.flatnonzero(first[words] == places)[:count]
        if len(places) == count:
            return words[places], int(places[-1]) + 1
        draws *= 2


@functools.cache
def likely_draws(vocabulary: int, count: int) -> int:
    """A number of draws that nearly always finds `count` different words: an eighth more than is expected to do."""
    probabilities = np.diff(np.log(np.arange(1, vocabulary + 2))) / math.log(vocabulary + 1)
    draws = count
    while -np.expm1(draws * np.log1p(-probabilities)).sum() < count:
        draws += draws // 8 + 1
    return draws + draws // 8
