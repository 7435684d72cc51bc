"""ElmoForTokenClassification: ELMo's tagger, its baseline and TagLM."""

import itertools

import pytest
import torch
from torch import nn
from transformers import AutoModelForTokenClassification

from modeling import ElmoConfig, ElmoForTokenClassification
from modeling.elmo.tokenization_elmo_spelling import ByteSpelling


NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
LENGTHS = (5, 3, 1, 6)
SIZES = {
    "max_characters_per_token": 9,
    "char_embedding_size": 4,
    "filters": [[1, 3], [2, 4]],
    "num_highway_layers": 1,
    "hidden_size": 10,
    "cell_size": 7,
    "num_word_vectors": 13,
    "word_vector_size": 6,
    "task_char_filters": 5,
    "rnn_size": 4,
    "id2label": dict(enumerate(NAMES)),
    "label2id": {name: index for index, name in enumerate(NAMES)},
}
CALLS: list[str] = []
TAGLM = {"elmo_placement": "after_first_rnn", "mix_top_layer_only": True}
KINDS = {
    "elmo": {},
    "softmax": {"use_crf": False},
    "any tags": {"constrain_tags": False},
    "taglm": TAGLM,
    "output": {"elmo_placement": "output"},
    "both": {"elmo_placement": "both", "num_mixes": 2},
    "vectors": {"use_elmo": False, "task_char_filters": 0},
    "characters": {"use_elmo": False, "num_word_vectors": 0},
    "one layer": {"rnn_layers": 1, "elmo_placement": "after_first_rnn"},
}


def make_model(**changes) -> ElmoForTokenClassification:
    """A tiny model in evaluation, with weights large enough for every part to matter."""
    model = ElmoForTokenClassification(ElmoConfig(**(SIZES | changes))).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


def make_row(length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return {
        "input_ids": torch.randint(1, 258, (length, 9), generator=generator),
        "vector_ids": torch.randint(1, 13, (length,), generator=generator),
        "attention_mask": torch.ones(length, dtype=torch.long),
        "labels": torch.randint(0, len(NAMES), (length,), generator=generator),
    }


def collate(rows: list[dict[str, torch.Tensor]], side: str = "right", extra: int = 0) -> dict[str, torch.Tensor]:
    """Padded on one side, to so many columns more than the longest row needs."""
    width = max(len(row["labels"]) for row in rows) + extra
    batch = {}
    for name in rows[0]:
        fill = -100 if name == "labels" else 0
        padded = []
        for row in rows:
            empty = torch.full((width - len(row[name]), *row[name].shape[1:]), fill)
            padded.append(torch.cat([empty, row[name]] if side == "left" else [row[name], empty]))
        batch[name] = torch.stack(padded)
    return batch


def make_batch() -> dict[str, torch.Tensor]:
    return collate([make_row(length) for length in LENGTHS])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_has_the_same_logits_and_loss_in_any_batch_under_any_padding(kind):
    model = make_model(**KINDS[kind])
    rows = [make_row(length) for length in LENGTHS]
    alone = [model(**collate([row])) for row in rows]
    for side, extra in (("right", 0), ("left", 2)):
        batch = collate(rows[::-1], side, extra)
        together = model(**batch)
        for one, logits, mask in zip(alone[::-1], together.logits, batch["attention_mask"], strict=True):
            torch.testing.assert_close(logits[mask.bool()], one.logits[0], atol=1e-5, rtol=0)
        total = sum(one.loss * length for one, length in zip(alone, LENGTHS, strict=True))
        torch.testing.assert_close(together.loss, total / sum(LENGTHS), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_loads_with_the_same_logits(kind, tmp_path):
    model, batch = make_model(**KINDS[kind]), make_batch()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForTokenClassification.from_pretrained(tmp_path)
    assert type(loaded) is ElmoForTokenClassification
    one, other = model(**batch), loaded(**batch)
    assert torch.equal(one.logits, other.logits) and torch.equal(one.loss, other.loss)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_reach_all_that_is_to_be_learned_and_nothing_else(kind):
    model = make_model(**KINDS[kind]).train()
    model(**make_batch()).loss.backward()
    top_only = kind == "taglm"  # the weights of a mix that there is not
    frozen = {name for name, _ in model.named_parameters() if name.startswith(("elmo.token_encoder", "elmo.layers"))}
    for name, parameter in model.named_parameters():
        if name in frozen or (top_only and name.endswith("mixes.0.weights")):
            assert parameter.grad is None, name
        else:
            assert parameter.grad.any(), name
    assert bool(frozen) == model.config.use_elmo
    if model.config.num_word_vectors:
        assert not model.word_vectors.weight.grad[0].any()


def test_the_bilm_learns_too_when_it_is_not_frozen():
    model = make_model(freeze_bilm=False).train()
    model(**make_batch()).loss.backward()
    assert all(parameter.grad.any() for parameter in model.elmo.parameters())


def test_layers_computed_before_give_the_same_logits_and_loss():
    model, batch = make_model(task_char_filters=0), make_batch()
    outputs = model(**batch, output_hidden_states=True)
    assert len(outputs.hidden_states) == 3
    layers = torch.stack(outputs.hidden_states, 2)
    del batch["input_ids"]
    found = model(**batch, layer_states=layers)
    torch.testing.assert_close(found.logits, outputs.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.loss, outputs.loss)


def test_taglm_reads_the_top_layer_beside_the_first_layers_states():
    model, batch = make_model(**TAGLM), make_batch()
    top = model.elmo(batch["input_ids"], batch["attention_mask"], output_hidden_states=True).hidden_states[-1]
    read = model.embed_words(batch["input_ids"], batch["attention_mask"], vector_ids=batch["vector_ids"])
    assert read.words.shape[-1] == 6 + 5  # word vector and characters
    first, second = model.rnn.layers
    logits = []
    for row, length in enumerate(LENGTHS):
        states = first(read.words[row, :length])[0]
        states = second(torch.cat([states, model.elmo.mixes[0].gamma * top[row, :length]], -1))[0]
        logits.append(model.classifier(states))
    found = model.train()  # emission scores; no dropout, so that they can be compared
    found.dropout.p = found.rnn.dropout.p = found.elmo.dropout.p = 0.0
    emissions = found(**batch).logits
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(emissions[row, :length], logits[row], atol=1e-5, rtol=0)


def test_the_states_of_the_rnn_are_joined_by_the_second_mix():
    model, batch = make_model(elmo_placement="both", num_mixes=2), make_batch()
    assert model.classifier.in_features == 2 * 4 + 10
    with torch.no_grad():
        model.classifier.weight[:, :8] = 0
        model.classifier.bias.zero_()
    model.dropout.p = model.rnn.dropout.p = model.elmo.dropout.p = 0.0
    mix = model.elmo(batch["input_ids"], batch["attention_mask"]).mixes[:, 1]
    emissions = model.train()(**batch).logits
    torch.testing.assert_close(emissions, mix @ model.classifier.weight[:, 8:].T, atol=1e-5, rtol=0)


def test_dropout_is_on_what_each_layer_reads_and_the_same_for_all_words_of_a_row(monkeypatch):
    model, dropped = make_model(task_dropout=0.4), []

    def dropout(states, p, training=True, inplace=False):
        dropped.extend([states.shape] if training and p == 0.4 else [])
        return states

    monkeypatch.setattr("torch.nn.functional.dropout", dropout)
    model(**make_batch())
    assert dropped == []
    model.train()(**make_batch())
    assert dropped == [(4, 1, 21), (4, 1, 8), (4, 1, 8)]  # two LSTM layers and the classifier


def test_logits_are_emissions_in_training_and_show_the_best_sequence_otherwise():
    model, batch = make_model(task_dropout=0.0, mix_dropout=0.0), make_batch()
    mask = batch["attention_mask"].bool()
    emissions = model.train()(**batch).logits
    logits = model.eval()(**batch).logits
    assert not torch.equal(emissions.argmax(-1), logits.argmax(-1))
    torch.testing.assert_close(logits, model.crf.max_marginals(emissions, mask), atol=1e-5, rtol=0)
    assert logits.isfinite().all() and not logits[~mask].any()


def test_without_a_crf_each_tag_is_scored_alone():
    model, batch = make_model(use_crf=False), make_batch()
    outputs = model(**batch)
    known = batch["labels"] != -100
    wanted = nn.functional.cross_entropy(outputs.logits[known], batch["labels"][known])
    torch.testing.assert_close(outputs.loss, wanted)
    assert not any("crf" in name for name, _ in model.named_parameters())


def test_the_constraint_comes_from_the_names_of_the_tags_and_can_be_left_off():
    assert make_model().crf.forbidden.any()
    assert make_model(constrain_tags=False).crf.forbidden is None
    assert make_model(id2label={0: "NOUN", 1: "VERB"}, label2id={"NOUN": 0, "VERB": 1}).crf.forbidden is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_names_that_are_given_later_constrain_as_they_do_after_the_model_is_saved_and_loaded(mode, tmp_path):
    tags, batch = {tag: f"LABEL_{tag}" for tag in range(len(NAMES))}, make_batch()
    others = {0: "B-PER", 1: "I-PER", 2: "B-LOC", 3: "I-LOC", 4: "O"}
    model = make_model(id2label=tags, label2id={name: tag for tag, name in tags.items()})
    results = []
    for names in (tags, SIZES["id2label"], others, tags):
        model.config.id2label, model.config.label2id = names, {name: tag for tag, name in names.items()}
        with mode():
            results.append(model(**batch))
        model.save_pretrained(tmp_path)
        loaded = ElmoForTokenClassification.from_pretrained(tmp_path)
        with torch.no_grad():
            expected = loaded(**batch)
        for name in ("loss", "logits"):
            torch.testing.assert_close(results[-1][name].clone(), expected[name])
        model(**batch).loss.backward()  # the constraint may have been made without gradients
    changes = [not torch.equal(one.logits, other.logits) for one, other in itertools.pairwise(results)]
    assert changes == [True, True, True]


@pytest.mark.parametrize("names", [{"0": "O", "1": "B", "2": "I"}, {0: "O", 1: "B"}])
def test_a_tag_that_loses_its_name_is_one_clear_error(names):
    model = make_model(id2label=dict(enumerate(["O", "B", "I"])), label2id={"O": 0, "B": 1, "I": 2})
    model.config.id2label = names
    batch = make_batch()
    del batch["labels"]
    with pytest.raises(
        ValueError, match=r"id2label has no name for tag \d, but the model has 3 tags.*constrain_tags=False"
    ):
        model(**batch)
    model.config.constrain_tags = False
    model(**batch)


@pytest.mark.parametrize("use_crf", [True, False])
def test_accumulated_batches_weigh_each_labelled_word_alike(use_crf):
    model = make_model(use_crf=use_crf, mix_l2=0.1)
    rows = [make_row(length) for length in LENGTHS]
    rows[0]["labels"][1] = -100
    whole = model(**collate(rows)).loss
    parts = [model(**collate([row]), num_items_in_batch=torch.tensor(sum(LENGTHS) - 1)).loss for row in rows]
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize("use_crf", [True, False])
def test_labels_of_padding_do_not_count_and_without_any_the_loss_is_zero(use_crf):
    model, batch = make_model(use_crf=use_crf), make_batch()
    wanted = model(**batch).loss
    batch["labels"] = batch["labels"].clamp(min=0)
    torch.testing.assert_close(model(**batch).loss, wanted)
    batch["labels"].fill_(-100)
    assert model(**batch).loss == 0


@pytest.mark.parametrize("use_crf", [True, False])
@pytest.mark.parametrize("label", [5, -1])
def test_a_label_that_is_no_tag_is_one_clear_error(use_crf, label):
    batch = make_batch()
    batch["labels"][1, 2] = label
    with pytest.raises(ValueError, match=rf"labels hold {label}.*num_labels=5.*label2id"):
        make_model(use_crf=use_crf)(**batch)


@pytest.mark.parametrize("use_crf", [True, False])
def test_labels_that_are_not_one_for_each_word_are_one_clear_error(use_crf):
    batch = make_batch()
    batch["labels"] = batch["labels"][:1]
    with pytest.raises(ValueError, match=r"labels are \(1, \d+\), not \(\d+, \d+\): one tag a word"):
        make_model(use_crf=use_crf)(**batch)


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_sentence_changes_nothing_and_may_be_all_there_is(kind):
    model, rows = make_model(**KINDS[kind]), [make_row(3), make_row(0)]
    together = model(**collate(rows))
    torch.testing.assert_close(together.logits[0], model(**collate(rows[:1])).logits[0])
    alone = model(**collate(rows[1:], extra=2))
    assert alone.logits.isfinite().all() and alone.loss == 0
    nothing = {name: tensor[:0] for name, tensor in collate(rows).items()}
    assert model(**nothing).logits.shape == (0, 3, len(NAMES))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["elmo", "taglm", "softmax"])
def test_half_precision_models_train_and_decode(dtype, kind):
    model, batch = make_model(**KINDS[kind]), make_batch()
    wanted = model(**batch)
    half = model.to(dtype)
    outputs = half(**batch)
    torch.testing.assert_close(outputs.loss.float(), wanted.loss, rtol=0.05, atol=0)
    assert outputs.logits.isfinite().all() and outputs.loss.dtype == torch.float32
    half.train()(**batch).loss.backward()
    assert half.classifier.weight.grad.isfinite().all()


@pytest.mark.slow
def test_an_exported_model_computes_the_same_for_batches_of_any_size():
    model, batch = make_model(**TAGLM), collate([make_row(2), make_row(1)])
    del batch["labels"]
    rows = {0: torch.export.Dim("rows", min=2, max=64)}
    exported = torch.export.export(model, (), batch, dynamic_shapes=dict.fromkeys(batch, rows)).module()
    for chosen in ([0, 1], [1, 0, 1]):
        some = {name: tensor[chosen] for name, tensor in batch.items()}
        torch.testing.assert_close(exported(**some).logits, model(**some).logits, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_training_step_computes_the_same(whole):
    """As one graph, which dynamo makes of modules with an LSTM when told to, or in several as it does by default."""
    model, batch = make_model(use_elmo=False, rnn_layers=1, task_dropout=0.0), collate([make_row(2), make_row(1)])
    model.train()(**batch).loss.backward()
    wanted = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    with torch._dynamo.config.patch(allow_rnn=whole):
        torch.compile(model, backend="aot_eager", fullgraph=whole)(**batch).loss.backward()
    found = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-4)


# Learning


def spell(word: str) -> list[int]:
    return ByteSpelling(12).rows([word])[0].tolist()


def make_sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Random words of small letters; those with a capital are names, and names next to each other are one."""
    rows = []
    for _ in range(count):
        names = torch.rand(int(torch.randint(1, 9, ()))) < 0.4
        spelled, labels, before = [], [], False
        for is_name in names.tolist():
            word = "".join(chr(97 + int(letter)) for letter in torch.randint(0, 26, (int(torch.randint(2, 8, ())),)))
            spelled.append(spell(word.capitalize() if is_name else word))
            labels.append(0 if not is_name else 2 if before else 1)
            before = is_name
        mask = torch.ones(len(labels), dtype=torch.long)
        rows.append({"input_ids": torch.tensor(spelled), "attention_mask": mask, "labels": torch.tensor(labels)})
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("use_crf", [True, False])
def test_the_baseline_learns_that_capitals_begin_names(use_crf):
    config = ElmoConfig(
        max_characters_per_token=12,
        use_elmo=False,
        task_char_filters=16,
        rnn_size=12,
        rnn_layers=1,
        task_dropout=0.1,
        use_crf=use_crf,
        id2label={0: "O", 1: "B-N", 2: "I-N"},
    )
    model = ElmoForTokenClassification(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(40):
        optimizer.zero_grad()
        model(**collate(make_sentences(16))).loss.backward()
        optimizer.step()
    unseen = collate(make_sentences(100))
    with torch.no_grad():
        tags = model.eval()(**unseen).logits.argmax(-1)
    known = unseen["labels"] != -100
    assert torch.equal(tags[known], unseen["labels"][known])


def test_a_hook_on_the_lstm_or_another_class_in_its_place_is_called():
    """The fast recurrence reads the weights of torch's LSTM alone, and so must stand back."""
    model, batch = make_model(use_crf=False), make_batch()
    plain = model(**batch).logits
    hook = model.rnn.layers[0].register_forward_hook(lambda *_: CALLS.append("hook"))
    torch.testing.assert_close(model(**batch).logits, plain, atol=1e-5, rtol=0)
    hook.remove()

    class Silent(nn.LSTM):
        def forward(self, packed, hx=None):
            output, state = super().forward(packed, hx)
            return output._replace(data=torch.zeros_like(output.data)), state

    model.rnn.layers[0].__class__ = Silent
    assert CALLS == ["hook"] and not torch.allclose(model(**batch).logits, plain, atol=1e-2)
    model.rnn.layers[0].__class__ = nn.LSTM
    quantized = torch.ao.quantization.quantize_dynamic(model, {nn.LSTM})
    torch.testing.assert_close(quantized(**batch).logits, plain, atol=0.1, rtol=0)
