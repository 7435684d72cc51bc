"""Left-to-right language modelling on packed rows, as in GPT (Radford et al. 2018, section 3.1).

A row is `length` consecutive tokens of the corpus, whatever documents they come from, so that nothing is padding. GPT
sampled such rows from its books; here the rows of an epoch lie side by side, and each token is read once.

A batch says where documents begin, so that they do not attend to each other: `seq_idx` numbers the documents of a row
for the models of this zoo, and the positions restart, which models of transformers read that pass `position_ids` to
the attention mask. transformers' OpenAI GPT and BERT keep documents apart by neither (`keeps_apart`): to them, the
documents of a row are one text, whose positions go on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from elmo_gpt_bert.tasks.pretraining.corpus import Corpus, ends_within
from elmo_gpt_bert.tasks.pretraining.draws import shuffle_epochs
from elmo_gpt_bert.tasks.pretraining.objective import Objective, Use, skip_logits
from elmo_gpt_bert.training.batches import IGNORED
from elmo_gpt_bert.training.errors import InputError


if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CausalLM(Objective):
    """Each token but the first of a document is predicted once in an epoch, also where it begins a row.

    The last row of the corpus is filled up with padding. Like a document, padding has positions of its own, so it
    needs no attention mask: transformers ignores restarting positions where it is given one.

    A document that is longer than a row goes on in the next one, with positions from 0.

    Args:
        length: tokens of a row.
        seed: of the order of the rows.
        shuffle: False takes the rows as they lie in the corpus, the same in each epoch (for held-out text).
        pad_token_id: any token, since no loss counts it. None, of a tokenizer without padding, means 0.
        apart: whether the model `keeps_apart` the documents of a row.

    Raises:
        ValueError: for a corpus in which no token follows another.
    """

    losses = word_losses = ("causal_lm",)
    weights = (1.0,)

    def __init__(
        self,
        corpus: Corpus,
        length: int,
        seed: int = 0,
        shuffle: bool = True,
        pad_token_id: int | None = None,
        apart: bool = True,
    ):
        self.corpus, self.length, self.seed, self.shuffle = corpus, length, seed, shuffle
        self.pad_token_id, self.apart = pad_token_id or 0, apart
        self.size = -(-corpus.num_tokens // length)
        self.predictions = corpus.num_tokens  # a document's first token counts as much as the mean of the others
        if self.predictions == len(corpus.documents):
            raise InputError(
                f"{corpus.name} has only documents of one token, of which none follows another: give more"
            )

    def batch(self, samples: Sequence[int]) -> dict[str, torch.Tensor]:
        """Of (B, length) each: input_ids, seq_idx, shift_labels and, if the model keeps documents apart, position_ids.

        seq_idx is the number of the token's document in its row, shift_labels the token that follows; -100 for none.
        """
        samples = np.asarray(samples, dtype=np.int64)
        rows = shuffle_epochs(samples, self.size, self.seed, Use.ORDER) if self.shuffle else samples % self.size
        starts = rows * self.length
        stops = np.minimum(starts + self.length + 1, self.corpus.num_tokens)
        tokens = np.full((len(rows), self.length + 1), self.pad_token_id, dtype=np.int64)  # one more than a row
        for row, start, stop in zip(tokens, starts.tolist(), stops.tolist(), strict=True):
            row[: stop - start] = self.corpus.read(start, stop)
        begins = self._begins(starts, stops)
        columns = np.arange(self.length)
        positions = columns - np.maximum.accumulate(np.where(begins[:, :-1], columns, 0), axis=1)
        follows = ~begins[:, 1:] & (columns + 1 < (stops - starts)[:, None])
        arrays = {
            "input_ids": np.ascontiguousarray(tokens[:, :-1]),
            "seq_idx": np.cumsum(begins[:, :-1], axis=1, dtype=np.int32),
            "shift_labels": np.where(follows, tokens[:, 1:], IGNORED),
        }
        if self.apart:
            arrays["position_ids"] = positions
        return {name: torch.from_numpy(array) for name, array in arrays.items()}

    def _begins(self, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """(B, length + 1) whether a document begins at the token, or padding."""
        begins = np.zeros((len(starts), self.length + 1), dtype=bool)
        rows, ends = ends_within(self.corpus.documents, starts, stops)
        begins[rows, ends - starts[rows]] = True
        padded = np.flatnonzero(stops - starts <= self.length)
        begins[padded, (stops - starts)[padded]] = True
        return begins

    def count(self, batch: Mapping[str, torch.Tensor]) -> list[int]:
        return [int((batch["shift_labels"] != IGNORED).sum())]

    def compute(
        self, model: PreTrainedModel, batch: Mapping[str, torch.Tensor], options: Mapping[str, Any]
    ) -> torch.Tensor:
        targets = batch["shift_labels"]
        count = (targets != IGNORED).sum().clamp(min=1)  # a batch without predictions has the loss 0, not NaN
        options = {**options, **skip_logits(model)}
        # `labels` asks for a loss, in which `shift_labels` take their place. With a cache, transformers ignores
        # restarting positions.
        outputs = model(**batch, labels=targets, num_items_in_batch=count, use_cache=False, **options)
        return outputs.loss.unsqueeze(0)


@torch.no_grad()
def keeps_apart(model: PreTrainedModel) -> bool:
    """Whether no token of a row sees another document: the scores of one do not change with the document before it."""
    rows = {
        "input_ids": [[0, 0, 1, 0], [1, 1, 1, 0]],
        "seq_idx": [[0, 0, 1, 1]] * 2,
        "position_ids": [[0, 1, 0, 1]] * 2,
    }
    training = model.training
    model.eval()
    batch = {name: torch.tensor(values, device=model.device) for name, values in rows.items()}
    logits = model(**batch, use_cache=False).logits
    model.train(training)
    change = (logits[0] - logits[1]).abs().amax(-1)  # (4,) of each token's scores
    return bool(change[2:].max() <= 1e-3 * change[:2].max())
