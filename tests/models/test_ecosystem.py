"""BERT and GPT at home in transformers: Trainer, pipelines, peft, checkpointing, device maps, copies."""

import copy
import pickle
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from transformers import BertTokenizer, OpenAIGPTTokenizer, PreTrainedModel, Trainer, TrainingArguments, pipeline

import modeling
from tests.support import bert_cases, gpt_cases
from tests.support.families import EACH_FAMILY, each
from tests.support.gpt_sample import merges, vocabulary


WORDS = "the a cat dog sat ran on mat paris is in france who where , . ? ##s ##ed"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
TEXTS = ["the film is good", "not good , not the film .", "is it ?"]


def accumulated(model, rows, accumulation, folder, **columns) -> dict[str, torch.Tensor]:
    """One update of `rows` examples by transformers' Trainer, in one batch or several: the change of each weight."""
    before = copy.deepcopy(model.state_dict())
    Trainer(
        model,
        TrainingArguments(
            str(folder),
            per_device_train_batch_size=rows // accumulation,
            gradient_accumulation_steps=accumulation,
            max_steps=1,
            learning_rate=1e-2,
            optim="sgd",
            max_grad_norm=0.0,
            lr_scheduler_type="constant",
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=[{name: tensor[row] for name, tensor in columns.items()} for row in range(rows)],
    ).train()
    return {name: tensor - before[name] for name, tensor in model.state_dict().items()}


def assert_updated_alike(model: PreTrainedModel, folder: Path, **columns):
    """The changes of the weights by an update of six examples, the same in one batch and in three of two."""
    whole = accumulated(copy.deepcopy(model), 6, 1, folder / "whole", **columns)
    parts = accumulated(copy.deepcopy(model), 6, 3, folder / "parts", **columns)
    for name, change in whole.items():
        torch.testing.assert_close(parts[name], change, atol=1e-6, rtol=1e-3, msg=lambda text, name=name: name + text)
    return whole


OF_SEVERAL_NUMBERS = [{"problem_type": "regression"}, {"problem_type": "multi_label_classification"}]
SENTENCES = [(3, 5), (1, 1), (6, 2), (4, 4), (2, 7), (1, 9), (2, 2)]


@pytest.mark.slow
@each(
    "head, changes",
    [(head, {}) for head in bert_cases.HEADS]
    + [("ForSequenceClassification", changes) for changes in OF_SEVERAL_NUMBERS],
    [(head, {}) for head in ("LMHeadModel", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")]
    + [("ForSequenceClassification", changes) for changes in [{"both_orders": True}, *OF_SEVERAL_NUMBERS]],
)
def test_trainer_updates_alike_from_one_batch_and_from_accumulated_ones(cases, head, changes, tmp_path):
    ours = cases.zoo(head, **changes, **({"lm_loss_weight": 0.5} if cases is gpt_cases else {}))
    this = cases.case(head)
    columns = this.inputs | this.labels
    if changes.get("both_orders"):
        columns |= gpt_cases.pairs_of_sentences(SENTENCES)
    if "problem_type" in changes:
        columns["labels"] = torch.rand(7, 5)
    if head == "LMHeadModel":
        columns["labels"][:, 0] = -100  # no token predicts it
    if head == "ForPreTraining":  # its losses are means over each batch: equal counts make both ways the same
        first = torch.arange(this.real.shape[1]) < 2
        columns["labels"] = torch.where(first, columns["labels"].abs() % 97, -100)
    changes = assert_updated_alike(ours, tmp_path, **columns)
    assert any(change.abs().max() > 1e-5 for change in changes.values())


OF_THREE = {"candidate_labels": ["cat", "dog", "paris"]}


@each(
    "task, head, texts, options",
    [
        ("fill-mask", "ForMaskedLM", "the cat [MASK] on the mat .", {"top_k": 3}),
        ("text-classification", "ForSequenceClassification", ["the cat sat .", "where is paris ?"], {"batch_size": 2}),
        ("token-classification", "ForTokenClassification", "the cats sat in paris .", {}),
        ("zero-shot-classification", "ForSequenceClassification", "the dog ran .", OF_THREE),
        ("feature-extraction", "Model", "who sat on the mat ?", {}),
    ],
    [
        ("text-classification", "ForSequenceClassification", TEXTS, {"batch_size": 2, "top_k": None}),
        ("zero-shot-classification", "ForSequenceClassification", TEXTS[0], {"candidate_labels": ["good", "not"]}),
        ("feature-extraction", "Model", TEXTS[0], {}),
    ],
)
def test_pipelines_find_the_zoo_and_answer_as_with_the_stock_model(cases, task, head, texts, options, tmp_path):
    if cases is bert_cases:
        tokenizer = BertTokenizer(vocab={piece: index for index, piece in enumerate(PIECES)}, model_max_length=41)
    else:
        tokenizer = OpenAIGPTTokenizer(vocab=vocabulary(), merges=merges(), pad_token="<unk>")
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    sizes = {"vocab_size": len(tokenizer), "num_labels": 3, "id2label": labels}
    cases.pair(head, tmp_path, **sizes, label2id={name: index for index, name in labels.items()})
    tokenizer.save_pretrained(tmp_path)
    answers = []
    for prefix in (cases.STOCK, cases.OURS):
        if prefix == cases.OURS:
            modeling.register()
        pipe = pipeline(task, model=str(tmp_path))
        assert type(pipe.model).__name__ == prefix + head
        answers.append(pipe(texts, **options))
    assert_alike(*answers)


def assert_alike(left, right):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        left, right = list(left.values()), list(right.values())
    if isinstance(left, list):
        assert len(left) == len(right) > 0
        for one, other in zip(left, right, strict=True):
            assert_alike(one, other)
    elif isinstance(left, float | np.floating):
        assert left == pytest.approx(right, abs=1e-5)
    else:
        assert left == right


@EACH_FAMILY
def test_lora_adapters_go_between_the_zoo_and_the_stock_model(cases, tmp_path):
    stock, ours = cases.pair("ForSequenceClassification", tmp_path / "model")
    this = cases.case("ForSequenceClassification")
    # peft's own choice of layers for `bert`: query and value
    layers = None if cases is bert_cases else ["c_attn", "c_proj"]
    adapter = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=layers)
    tuned = peft.get_peft_model(copy.deepcopy(ours), adapter)
    optimizer = torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=0.5)
    for _ in range(3):
        tuned(**this.inputs, **this.labels).loss.backward()
        optimizer.step()
    tuned.save_pretrained(tmp_path / "adapter")
    # peft knows whose weights are (in, out)
    assert tuned.peft_config["default"].fan_in_fan_out == (cases is gpt_cases)
    expected = tuned.eval()(**this.inputs).logits
    assert (expected - ours(**this.inputs).logits).abs().max() > 1e-2
    for model in (stock, ours):
        loaded = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
        torch.testing.assert_close(loaded(**this.inputs).logits, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(loaded.merge_and_unload()(**this.inputs).logits, expected, atol=1e-4, rtol=1e-4)


@each(
    "head, changes, attention",
    [
        (head, {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3}, "bert.encoder.layer.0.attention")
        for head in ("ForMaskedLM", "ForSequenceClassification")
    ],
    [
        (head, {"lm_loss_weight": 0.5, "resid_pdrop": 0.2, "attn_pdrop": 0.3}, "transformer.h.0.attn")
        for head in ("LMHeadModel", "ForSequenceClassification", "ForMultipleChoice")
    ],
)
def test_gradient_checkpointing_changes_memory_not_gradients(cases, head, changes, attention):
    ours, this = cases.zoo(head, **changes), cases.case(head)
    gradients, calls = [], []
    ours.get_submodule(attention).register_forward_hook(lambda *call: calls.append(1))
    for checkpointing in (False, True):
        if checkpointing:
            ours.activation_checkpointing_enable()
        ours.train().zero_grad()
        torch.manual_seed(0)
        ours(**this.inputs, **this.labels, unpad=True).loss.backward()
        gradients.append([parameter.grad.clone() for parameter in ours.parameters()])
    assert len(calls) == 3  # once, then once more in the backward pass
    torch.testing.assert_close(*gradients, atol=1e-6, rtol=1e-5)


@each(
    "names, layers",
    [("bert.embeddings bert.pooler classifier", "bert.encoder.layer")],
    [("transformer.tokens_embed transformer.positions_embed transformer.drop score dropout", "transformer.h")],
)
def test_layers_may_live_on_disk(cases, names, layers, tmp_path):
    stock, ours = cases.pair("ForSequenceClassification", tmp_path / "model")
    spread = dict.fromkeys(names.split(), "cpu")
    spread |= {f"{layers}.{index}": "disk" if index == 1 else "cpu" for index in range(3)}
    placed = type(ours).from_pretrained(tmp_path / "model", device_map=spread, offload_folder=tmp_path / "offload")
    inputs = cases.batch()
    with torch.no_grad():
        for model in (stock, ours):
            torch.testing.assert_close(placed(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)


@each("head", ["ForMaskedLM"], ["LMHeadModel"])
def test_copies_and_pickles_are_the_same_model(cases, head):
    ours, this = cases.zoo(head), cases.case(head)
    expected = ours(**this.inputs)[0]
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(copied(**this.inputs)[0], expected)
        assert copied.get_output_embeddings().weight is copied.get_input_embeddings().weight
