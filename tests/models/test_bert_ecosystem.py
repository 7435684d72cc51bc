"""BERT's export, several processes, and sequence-to-sequence models of it. What GPT has, too, is in test_ecosystem."""

import copy

import onnxruntime
import pytest
import torch
import transformers

import modeling
from modeling import ZooBertConfig
from tests.support import bert_cases, gpt_cases
from tests.support.bert_cases import SIZES, batch, case, pair
from tests.support.sharded_step import assert_same_step


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
