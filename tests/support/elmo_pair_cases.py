"""Tiny networks that read two sentences, rows for them, and what they compute done slowly, a word at a time."""

from typing import NamedTuple

import torch
import torch.nn as nn

from modeling import (
    ElmoConfig,
    ElmoForMultipleChoice,
    ElmoForQuestionAnswering,
    ElmoForSequenceClassification,
)


CHARACTERS, VECTORS = 11, 23  # ids of a word, rows of the word vectors
SIZES = {
    "max_characters_per_token": CHARACTERS,
    "char_embedding_size": 4,
    "filters": [[1, 3], [2, 4]],
    "num_highway_layers": 1,
    "hidden_size": 10,
    "cell_size": 7,
    "num_word_vectors": VECTORS,
    "word_vector_size": 6,
    "task_char_filters": 5,
    "rnn_size": 3,
    "classifier_size": 9,
    "task_dropout": 0.4,
}
LEARNS = {"use_elmo": False, "task_char_filters": 0, "rnn_size": 12, "rnn_layers": 1, "task_dropout": 0.1}
LENGTHS = ((3, 4), (5, 2), (1, 6), (4, 3), (2, 1))
MODELS = (ElmoForSequenceClassification, ElmoForMultipleChoice, ElmoForQuestionAnswering)


class Row(NamedTuple):
    """The words of two sentences, T of them: (T, CHARACTERS) and (T,) twice."""

    input_ids: torch.Tensor
    vector_ids: torch.Tensor
    token_type_ids: torch.Tensor


def build(model_class: type, **changes) -> nn.Module:
    """A tiny model, as initialised."""
    if changes.get("elmo_placement") == "both":
        changes["num_mixes"] = 2
    return model_class(ElmoConfig(**(SIZES | changes)))


def make_model(model_class: type, **changes) -> nn.Module:
    """A tiny model in evaluation, with weights large enough for every part to matter."""
    model = build(model_class, **changes).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def make_row(first: int, second: int, seed: int = 0) -> Row:
    """A row of random words: so many in the first sentence, so many in the second."""
    generator = torch.Generator().manual_seed(1000 * seed + 31 * first + second)
    words = first + second
    return Row(
        torch.randint(1, 258, (words, CHARACTERS), generator=generator),
        torch.randint(1, VECTORS, (words,), generator=generator),
        torch.tensor([0] * first + [1] * second, dtype=torch.long),
    )


def collate(rows: list[Row], side: str = "right", extra: int = 0) -> dict[str, torch.Tensor]:
    """Rows as the tokenizer's `pad` has them, on either side, and with so many columns more than the longest needs."""
    width = max(len(row.vector_ids) for row in rows) + extra
    batch = {}
    for name in Row._fields:
        batch[name] = torch.stack([pad(getattr(row, name), width, side) for row in rows])
    batch["attention_mask"] = torch.stack([pad(torch.ones_like(row.vector_ids), width, side) for row in rows])
    return batch


def pad(values: torch.Tensor, width: int, side: str) -> torch.Tensor:
    zeros = values.new_zeros(width - len(values), *values.shape[1:])
    return torch.cat([zeros, values] if side == "left" else [values, zeros])


def batch_for(model: nn.Module, rows: list[Row], **padding) -> dict[str, torch.Tensor]:
    """The rows as the model takes them: each is the one choice of a question, where the model takes choices."""
    batch = collate(rows, **padding)
    if isinstance(model, ElmoForMultipleChoice):
        batch = {name: tensor.unsqueeze(1) for name, tensor in batch.items()}
    return batch


def scores_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """What the model says of each row: scores of classes or choices, or of (start, end) for each word of the row."""
    outputs = model(**batch)
    if "logits" in outputs:
        return list(outputs.logits)
    logits = torch.stack([outputs.start_logits, outputs.end_logits], -1)
    return [row[mask.bool()] for row, mask in zip(logits, batch["attention_mask"], strict=True)]


def labels_for(model: nn.Module, rows: int) -> dict[str, torch.Tensor]:
    """Labels for so many rows; the answer to each question is in its last word but one."""
    if isinstance(model, ElmoForQuestionAnswering):
        ends = torch.tensor([first + second - 1 for first, second in LENGTHS[:rows]])
        return {"start_positions": ends, "end_positions": ends}
    classes = 1 if isinstance(model, ElmoForMultipleChoice) else 2
    return {"labels": torch.arange(rows) % classes}


def words_of(model: nn.Module, row: Row) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]] | None]:
    """What the network reads of each word of the two sentences, and what joins later, or None where nothing does."""
    batch = collate([row])
    given = model.embed_words(
        batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], vector_ids=batch["vector_ids"]
    )

    def split(states: torch.Tensor) -> list[list[torch.Tensor]]:
        return [[states[0, i] for i, kind in enumerate(row.token_type_ids) if kind == which] for which in (0, 1)]

    return split(given.words), None if given.late is None else split(given.late)


def slow_rnn(rnn: nn.Module, words: list[torch.Tensor]) -> list[torch.Tensor]:
    """All layers of a BiLSTM or BiGRU on one sentence, a word and a gate at a time."""
    for layer in rnn.layers:
        step = slow_gru_step if isinstance(layer, nn.GRU) else slow_lstm_step
        forward = slow_direction(layer, "l0", step, words)
        backward = slow_direction(layer, "l0_reverse", step, words[::-1])[::-1]
        words = [torch.cat(both) for both in zip(forward, backward, strict=True)]
    return words


def slow_direction(layer: nn.RNNBase, which: str, step, words: list[torch.Tensor]) -> list[torch.Tensor]:
    weights = [getattr(layer, f"{name}_{which}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    state = cell = torch.zeros(layer.hidden_size)
    states = []
    for word in words:
        state, cell = step(weights, word, state, cell)
        states.append(state)
    return states


def slow_lstm_step(weights, word, state, cell):
    of_word, of_state, word_bias, state_bias = (weight.chunk(4) for weight in weights)
    gates = [of_word[g] @ word + word_bias[g] + of_state[g] @ state + state_bias[g] for g in range(4)]
    opened, kept, new, shown = gates[0].sigmoid(), gates[1].sigmoid(), gates[2].tanh(), gates[3].sigmoid()
    cell = kept * cell + opened * new
    return shown * cell.tanh(), cell


def slow_gru_step(weights, word, state, cell):
    of_word, of_state, word_bias, state_bias = (weight.chunk(3) for weight in weights)
    told = [of_word[g] @ word + word_bias[g] for g in range(3)]
    kept = [of_state[g] @ state + state_bias[g] for g in range(3)]
    update = (told[1] + kept[1]).sigmoid()
    new = (told[2] + (told[0] + kept[0]).sigmoid() * kept[2]).tanh()
    return (1 - update) * new + update * state, cell


def slow_attend(scores: list[torch.Tensor], states: list[torch.Tensor], size: int) -> torch.Tensor:
    """The mean of the states by the softmax of their scores; zeros where there are none."""
    total, mean = sum(score.exp() for score in scores), torch.zeros(size)
    for score, state in zip(scores, states, strict=True):
        mean = mean + score.exp() / total * state
    return mean


def slow_linear(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
    return layer.weight @ inputs + layer.bias


def slow_max(states: list[torch.Tensor], size: int) -> torch.Tensor:
    """The greatest value of each feature; zeros without states."""
    return torch.stack([max(state[i] for state in states) for i in range(size)]) if states else torch.zeros(size)


def fit(model: nn.Module, steps: int = 80, **batch) -> float:
    """The loss in evaluation after so many steps on one batch, or fewer where the loss is small before."""
    optimizer = torch.optim.Adam(model.train().parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        if loss.item() < 0.03:
            break
    with torch.no_grad():
        return model.eval()(**batch).loss.item()
