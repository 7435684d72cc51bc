"""ESIM for multiple choice: against a slow one, its loss, and that it learns."""

import copy

import pytest
import torch
import torch.nn as nn
from transformers import DataCollatorForMultipleChoice, Trainer, TrainingArguments

from modeling import ElmoForMultipleChoice, ElmoTokenizer
from tests.support.elmo_pair_cases import (
    CHARACTERS,
    LEARNS,
    Row,
    build,
    collate,
    fit,
    make_model,
    make_row,
    slow_attend,
    slow_linear,
    slow_max,
    slow_rnn,
    words_of,
)


def slow_score(model: nn.Module, row: Row) -> torch.Tensor:
    """The score of one choice with its context, a word at a time."""
    sentences, late = words_of(model, row)
    states = [slow_rnn(model.sentence_rnn, words) for words in sentences]
    if late is not None:
        states = [[torch.cat(both) for both in zip(*each, strict=True)] for each in zip(states, late, strict=True)]
    pooled = []
    for own, other in (states, states[::-1]):
        enhanced = []
        for word in own:
            aligned = slow_attend([word @ each for each in other], other, len(word))
            enhanced.append(torch.cat([word, aligned, word - aligned, word * aligned]))
        compared = slow_rnn(model.pair_rnn, [slow_linear(model.projection, each).clamp(min=0) for each in enhanced])
        size = 2 * model.config.rnn_size
        pooled += [sum(compared, torch.zeros(size)) / max(len(compared), 1), slow_max(compared, size)]
    return slow_linear(model.classifier, slow_linear(model.hidden, torch.cat(pooled)).clamp(min=0))


def choices(rows: list[Row], count: int) -> dict[str, torch.Tensor]:
    """Rows as questions with so many choices each."""
    return {name: tensor.unflatten(0, (-1, count)) for name, tensor in collate(rows).items()}


@pytest.mark.parametrize("placement", ["input", "output", "both", None])
def test_scores_are_those_of_the_slow_network(placement):
    changes = {"elmo_placement": placement} if placement else {"use_elmo": False}
    model = make_model(ElmoForMultipleChoice, **changes)
    rows = [make_row(*lengths) for lengths in ((3, 4), (3, 1), (3, 2), (5, 6), (5, 0), (0, 2))]
    with torch.no_grad():
        expected = torch.cat([slow_score(model, row) for row in rows]).view(2, 3)
        torch.testing.assert_close(model(**choices(rows, 3)).logits, expected, atol=1e-5, rtol=1e-5)


def test_the_loss_is_the_cross_entropy_of_the_choices():
    model = make_model(ElmoForMultipleChoice)
    batch, labels = choices([make_row(2, words) for words in (1, 2, 3, 4, 5, 6)], 3), torch.tensor([2, 0])
    output = model(**batch, labels=labels)
    expected = -output.logits.log_softmax(1)[[0, 1], labels]
    torch.testing.assert_close(output.loss, expected.mean())
    torch.testing.assert_close(model(**batch, labels=labels, num_items_in_batch=5).loss, expected.sum() / 5)


def test_the_characters_of_a_choice_may_lie_in_one_row():
    model = make_model(ElmoForMultipleChoice)
    batch = choices([make_row(2, words) for words in (1, 2, 3, 4)], 2)
    expected = model(**batch).logits
    assert torch.equal(model(**batch | {"input_ids": batch["input_ids"].flatten(2)}).logits, expected)
    nothing = {name: tensor[:0] for name, tensor in batch.items()}
    assert model(**nothing | {"input_ids": nothing["input_ids"].flatten(2)}).logits.shape == (0, 2)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            "input_ids",
            (2, 2, 6 * CHARACTERS - 1),
            r"\(2, 2, 65\), not \(rows, choices, words, 11\) or, of the 6",
        ),
        ("input_ids", (2, 6, CHARACTERS), r"\(2, 6, 11\), not \(rows, choices, words, 11\)"),
        ("token_type_ids", (2, 6), r"token_type_ids are \(2, 6\), not \(rows, choices, words\)"),
    ],
)
def test_inputs_without_choices_or_of_other_words_are_one_clear_error(name, shape, message):
    batch = choices([make_row(2, words) for words in (1, 2, 3, 4)], 2)
    with pytest.raises(ValueError, match=message):
        make_model(ElmoForMultipleChoice)(**batch | {name: torch.ones(shape, dtype=torch.long)})


def test_trainer_takes_the_choices_that_transformers_collates(tmp_path):
    """Choices of unequal lengths, with word vectors; training, and predictions that are the model's own."""
    (tmp_path / "words.txt").write_text("a\nb\nthe\n", encoding="utf-8")
    tokenizer = ElmoTokenizer(words_file=str(tmp_path / "words.txt"), max_characters_per_token=CHARACTERS)
    questions = [("a b", ["b", "the cat sat"], 0), ("the", ["a", "a b a b"], 1), ("c", ["no one , a", "b"], 0)]
    examples = [dict(tokenizer([context] * 2, endings)) | {"label": label} for context, endings, label in questions]
    model = build(ElmoForMultipleChoice, num_word_vectors=len(tokenizer.vectors) + 2)
    before = copy.deepcopy(model.state_dict())
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    trainer = Trainer(
        model,
        TrainingArguments(str(tmp_path / "out"), max_steps=2, per_device_train_batch_size=2, **quiet),
        train_dataset=examples,
        data_collator=DataCollatorForMultipleChoice(tokenizer),
    )
    trainer.train()
    assert not torch.equal(model.classifier.weight, before["classifier.weight"])
    predictions = trainer.predict(examples).predictions
    for logits, (context, endings, _) in zip(predictions, questions, strict=True):
        alone = tokenizer([context] * 2, endings, padding=True, return_tensors="pt")
        expected = model.eval()(**{name: tensor.unsqueeze(0) for name, tensor in alone.items()}).logits[0]
        torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_it_learns_to_choose_what_repeats_a_word_of_the_context():
    rows = [make_row(2, 3, seed) for seed in range(48)]
    labels = torch.arange(24) % 2
    for question, label in enumerate(labels):
        right = rows[2 * question + label]
        right.vector_ids[3] = right.vector_ids[1]
    batch = choices(rows, 2)
    model = build(ElmoForMultipleChoice, **LEARNS)
    assert fit(model, **batch, labels=labels) < 0.1
    assert (model(**batch).logits.argmax(1) == labels).all()
