"""At home in transformers: Trainer, pipelines, peft, checkpointing, device maps, export, several processes."""

import copy
import pickle

import onnxruntime
import peft
import pytest
import torch
import transformers
from transformers import BertTokenizer, Trainer, TrainingArguments, pipeline

import modeling
from modeling import ZooBertConfig
from tests.support import bert_cases, gpt_cases
from tests.support.bert_cases import SIZES, batch, case, pair
from tests.support.sharded_step import assert_same_step


WORDS = "the a cat dog sat ran on mat paris is in france who where , . ? ##s ##ed"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]


@pytest.fixture
def tokenizer():
    return BertTokenizer(vocab={piece: index for index, piece in enumerate(PIECES)}, model_max_length=41)


def accumulated(model, rows, accumulation, folder, **labels):
    """One update of `rows` examples by transformers' Trainer, in one batch or several: the change of each weight."""
    before = copy.deepcopy(model.state_dict())
    examples = [{name: tensor[row] for name, tensor in labels.items()} for row in range(rows)]
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
        train_dataset=examples,
    ).train()
    return {name: tensor - before[name] for name, tensor in model.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "problem_type"),
    [
        ("ForMaskedLM", None),
        ("ForTokenClassification", None),
        ("ForSequenceClassification", "single_label_classification"),
        ("ForSequenceClassification", "regression"),
        ("ForSequenceClassification", "multi_label_classification"),
        ("ForMultipleChoice", None),
        ("ForNextSentencePrediction", None),
        ("ForQuestionAnswering", None),
        ("ForPreTraining", None),
    ],
)
def test_trainer_updates_alike_from_one_batch_and_from_accumulated_ones(head, problem_type, tmp_path):
    _, ours = pair(head, tmp_path / "model", num_labels=2 if head == "ForQuestionAnswering" else 5)
    ours.config.problem_type = problem_type
    this = case(head)
    labels = {name: tensor[:6] for name, tensor in (this.inputs | this.labels).items()}
    if problem_type == "regression":
        labels["labels"] = torch.randn(6, 5)
    if problem_type == "multi_label_classification":
        labels["labels"] = torch.randint(0, 2, (6, 5)).float()
    if head == "ForPreTraining":  # its losses are means over each batch: equal counts make both ways the same
        labels["labels"] = torch.where(
            torch.arange(labels["input_ids"].shape[1]) < 2, labels["labels"].abs() % 97, -100
        )
    whole = accumulated(copy.deepcopy(ours), 6, 1, tmp_path / "whole", **labels)
    parts = accumulated(copy.deepcopy(ours), 6, 3, tmp_path / "parts", **labels)
    assert any(change.abs().max() > 1e-5 for change in whole.values())
    for name, change in whole.items():
        torch.testing.assert_close(parts[name], change, atol=1e-6, rtol=1e-3, msg=lambda text, name=name: name + text)


PIPELINES = [
    ("fill-mask", "ForMaskedLM", ("the cat [MASK] on the mat .",), {"top_k": 3}),
    ("text-classification", "ForSequenceClassification", (["the cat sat .", "where is paris ?"],), {"batch_size": 2}),
    ("token-classification", "ForTokenClassification", ("the cats sat in paris .",), {}),
    (
        "zero-shot-classification",
        "ForSequenceClassification",
        ("the dog ran .",),
        {"candidate_labels": ["cat", "dog", "paris"]},
    ),
    ("feature-extraction", "Model", ("who sat on the mat ?",), {}),
]


@pytest.mark.parametrize(("task", "head", "texts", "options"), PIPELINES, ids=[row[0] for row in PIPELINES])
def test_pipelines_find_the_zoo_and_answer_as_with_the_stock_model(task, head, texts, options, tokenizer, tmp_path):
    labels = {0: "contradiction", 1: "neutral", 2: "entailment"}
    sizes = {"vocab_size": len(PIECES), "num_labels": 3, "id2label": labels}
    pair(head, tmp_path, **sizes, label2id={name: index for index, name in labels.items()})
    tokenizer.save_pretrained(tmp_path)
    answers = []
    for implementation in ("transformers", "zoo"):
        if implementation == "zoo":
            modeling.register()
        pipe = pipeline(task, model=str(tmp_path))
        assert type(pipe.model).__name__ == {"transformers": f"Bert{head}", "zoo": f"ZooBert{head}"}[implementation]
        answers.append(pipe(*texts, **options))
    assert_alike(*answers)


def assert_alike(left, right):
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        left, right = list(left.values()), list(right.values())
    if isinstance(left, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_alike(one, other)
    elif isinstance(left, float):
        assert left == pytest.approx(right, abs=1e-5)
    else:
        assert left == right


def test_lora_adapters_go_between_the_zoo_and_the_stock_model(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path / "model")
    this = case("ForSequenceClassification")
    adapter = peft.LoraConfig(task_type="SEQ_CLS", r=2)  # peft's own choice of layers for `bert`: query and value
    tuned = peft.get_peft_model(copy.deepcopy(ours), adapter)
    optimizer = torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=0.5)
    for _ in range(3):
        tuned(**this.inputs, **this.labels).loss.backward()
        optimizer.step()
    tuned.save_pretrained(tmp_path / "adapter")
    expected = tuned.eval()(**this.inputs).logits
    assert (expected - ours(**this.inputs).logits).abs().max() > 1e-2
    for model in (stock, ours):
        loaded = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
        torch.testing.assert_close(loaded(**this.inputs).logits, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(loaded.merge_and_unload()(**this.inputs).logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", ["ForMaskedLM", "ForSequenceClassification"])
def test_gradient_checkpointing_changes_memory_not_gradients(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    gradients, layers = [], []
    ours.bert.encoder.layer[0].attention.register_forward_hook(lambda *call: layers.append(1))
    for checkpointing in (False, True):
        if checkpointing:
            ours.gradient_checkpointing_enable()
        ours.train().zero_grad()
        ours(**this.inputs, **this.labels, unpad=True).loss.backward()
        gradients.append({name: parameter.grad.clone() for name, parameter in ours.named_parameters()})
    assert len(layers) == 3  # once, then once more in the backward pass
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-5)


def test_layers_may_live_on_disk(tmp_path):
    stock, ours = pair("ForSequenceClassification", tmp_path / "model")
    inputs = batch()
    spread = {"bert.embeddings": "cpu", "bert.pooler": "cpu", "classifier": "cpu"}
    spread |= {f"bert.encoder.layer.{index}": "disk" if index == 1 else "cpu" for index in range(3)}
    spread["bert.encoder.hidden_states"] = "cpu"
    placed = type(ours).from_pretrained(tmp_path / "model", device_map=spread, offload_folder=tmp_path / "offload")
    with torch.no_grad():
        torch.testing.assert_close(placed(**inputs).logits, stock(**inputs).logits, atol=1e-5, rtol=1e-5)


def test_copies_and_pickles_are_the_same_model(tmp_path):
    _, ours = pair("ForMaskedLM", tmp_path)
    inputs = batch()
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        torch.testing.assert_close(copied(**inputs).logits, ours(**inputs).logits)
        assert copied.cls.predictions.decoder.weight is copied.get_input_embeddings().weight


@pytest.mark.slow
def test_an_exported_program_takes_batches_of_any_size_and_length(tmp_path):
    _, ours = pair("ForSequenceClassification", tmp_path)
    sizes = {0: torch.export.Dim("rows", min=2, max=64), 1: torch.export.Dim("columns", min=2, max=41)}
    inputs = batch()
    program = torch.export.export(ours, (), inputs, dynamic_shapes=dict.fromkeys(inputs, sizes))
    for lengths in ([5, 3, 9], [41, 2, 7, 30]):
        other = batch(lengths=lengths)
        torch.testing.assert_close(program.module()(**other).logits, ours(**other).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification"])
def test_onnx_runtime_gives_our_logits(head, tmp_path):
    _, ours = pair(head, tmp_path)
    inputs = batch()
    sizes = {0: torch.export.Dim("rows", min=2, max=64), 1: torch.export.Dim("columns", min=2, max=41)}
    torch.onnx.export(
        ours,
        (),
        tmp_path / "model.onnx",
        kwargs=inputs,
        dynamo=True,
        dynamic_shapes=dict.fromkeys(inputs, sizes),
        verbose=False,
    )
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    other = batch(lengths=[4, 8, 12])
    (logits,) = session.run(None, {name: tensor.numpy() for name, tensor in other.items()})
    expected, actual = ours(**other).logits, torch.from_numpy(logits)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


class FirstOutput(torch.nn.Module):
    """What a graph can be made of: two tensors in, one out."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids, attention_mask=attention_mask)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated, and warns of all that it takes for constant
@pytest.mark.parametrize("cases, head", [(bert_cases, "ForTokenClassification"), (gpt_cases, "LMHeadModel")])
@torch.no_grad()
def test_torchscripts_onnx_takes_batches_of_any_size_and_length(cases, head, tmp_path):
    ours = FirstOutput(cases.pair(head, tmp_path)[1]).eval()
    ours.model.config.use_cache = False
    names, axes = ["input_ids", "attention_mask"], {0: "rows", 1: "columns"}
    inputs, other = (tuple(cases.batch(lengths)[name] for name in names) for lengths in ([5, 8], [4, 12, 3]))
    path = tmp_path / "model.onnx"
    torch.onnx.export(ours, inputs, path, dynamo=False, input_names=names, dynamic_axes=dict.fromkeys(names, axes))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, dict(zip(names, (each.numpy() for each in other), strict=True)))
    real = other[1].bool()
    torch.testing.assert_close(torch.from_numpy(logits)[real], ours(*other)[real], atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore")
def test_what_torchscript_cannot_trace_is_one_clear_error(tmp_path):
    _, ours = pair("Model", tmp_path)
    ours.config.return_dict = False
    packed = {"input_ids": torch.randint(1, 90, (1, 6)), "position_ids": torch.arange(3).repeat(1, 2)}
    with pytest.raises(ValueError, match="use torch.export, or torch.onnx.export with dynamo=True"):
        torch.jit.trace(ours, example_kwarg_inputs=packed)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["tp_size", "fsdp_size"])
def test_two_processes_that_share_the_weights_compute_the_same_step(way, tmp_path):
    ours = modeling.ZooBertForMaskedLM(ZooBertConfig(**(SIZES | {"hidden_size": 32, "num_attention_heads": 4})))
    this = case("ForMaskedLM")
    assert_same_step(ours, this.inputs | this.labels, way, tmp_path)


def test_a_sequence_to_sequence_model_of_two_berts_is_the_stock_one_after_registering(tmp_path):
    pair("ForMaskedLM", tmp_path / "bert")
    inputs = {name: batch([6, 4])[name] for name in ("input_ids", "attention_mask")}
    found = []
    for register in (modeling.unregister, modeling.register):
        register()
        torch.manual_seed(0)  # of the cross-attention, which the checkpoint lacks
        model = transformers.EncoderDecoderModel.from_encoder_decoder_pretrained(*[tmp_path / "bert"] * 2).eval()
        model.config.decoder_start_token_id, model.config.pad_token_id = 1, 0
        model.save_pretrained(tmp_path / "both")
        again = transformers.EncoderDecoderModel.from_pretrained(tmp_path / "both").eval()
        ids = model.generate(**inputs, max_new_tokens=5, decoder_start_token_id=1, pad_token_id=0)
        outputs = [each(**inputs, labels=torch.tensor([[3, 9, 4], [8, 1, 7]])) for each in (model, again)]
        found.append([ids, *(output[name] for output in outputs for name in ("loss", "logits"))])
        assert type(model.encoder).__name__ == ("BertModel" if register is modeling.unregister else "ZooBertModel")
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


def test_the_encoder_of_a_sequence_to_sequence_model_may_be_ours(tmp_path):
    """Such a model reads the encoder's configuration again, as transformers' own class."""
    stock, ours = pair("Model", tmp_path)
    decoder = transformers.BertLMHeadModel(bert_cases.stock_config(is_decoder=True, add_cross_attention=True))
    inputs = {"input_ids": batch()["input_ids"], "labels": batch()["input_ids"]}
    losses, texts = [], []
    for encoder in (stock, ours):
        model = transformers.EncoderDecoderModel(encoder=encoder, decoder=copy.deepcopy(decoder)).eval()
        model.config.decoder_start_token_id, model.config.pad_token_id = 1, 0
        losses.append(model(**inputs).loss)
        texts.append(model.generate(inputs["input_ids"], max_new_tokens=5, decoder_start_token_id=1, pad_token_id=0))
    torch.testing.assert_close(losses[1], losses[0])
    assert torch.equal(texts[1], texts[0])
