"""BERT and GPT as programs and graphs: torch.export, ONNX and TorchScript take batches of any size and padding."""

import onnxruntime
import pytest
import torch

from tests.support import bert_cases, gpt_cases
from tests.support.families import each
from tests.support.gpt_cases import pairs_of_sentences
from tests.support.model_cases import Tensors, on_the_left


def shapes_of(inputs: Tensors) -> dict[str, dict]:
    """Any number of rows and columns."""
    sizes = {0: torch.export.Dim("rows", min=2, max=64), 1: torch.export.Dim("columns", min=2, max=41)}
    return dict.fromkeys(inputs, sizes)


def traced(cases) -> tuple[Tensors, list[Tensors]]:
    """A batch to trace with, and others of more and fewer rows and columns, also padded on the left."""
    if cases is gpt_cases:
        inputs = pairs_of_sentences([(3, 5), (1, 1), (6, 2)])
        others = [pairs_of_sentences([(9, 8), (20, 1), (6, 2), (1, 1)])]
    else:
        inputs, others = cases.batch(), [cases.batch([5, 3, 9]), cases.batch([41, 2, 7, 30])]
    return inputs, [*others, *map(on_the_left, others)]


@pytest.mark.slow
@each(
    "head, changes",
    [("ForSequenceClassification", {"num_hidden_layers": 2})],
    [("ForSequenceClassification", {"n_layer": 2, "both_orders": True})],
)
@torch.no_grad()
def test_an_exported_model_gives_our_logits_for_batches_of_any_size_and_padding_in_torch_and_onnx_runtime(
    cases, head, changes, tmp_path
):
    ours = cases.zoo(head, **changes)
    inputs, others = traced(cases)
    program = torch.export.export(ours, (), inputs, dynamic_shapes=shapes_of(inputs))
    path = tmp_path / "model.onnx"
    torch.onnx.export(program, (), path, dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for other in others:
        expected = ours(**other).logits
        torch.testing.assert_close(program.module()(**other).logits, expected, atol=1e-5, rtol=1e-5)
        (logits,) = session.run(None, {name: tensor.numpy() for name, tensor in other.items()})
        torch.testing.assert_close(torch.from_numpy(logits), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_an_exported_language_model_gives_our_logits(dynamic):
    ours = gpt_cases.zoo("LMHeadModel")
    inputs = gpt_cases.batch([5, 3, 9])
    shapes = shapes_of(inputs) if dynamic else None
    program = torch.export.export(
        ours, (), inputs | {"use_cache": False}, dynamic_shapes=shapes and shapes | {"use_cache": None}
    )
    for lengths in ([5, 3, 9], *([[41, 2, 7, 30]] if dynamic else [])):
        other = gpt_cases.batch(lengths)
        real = other["attention_mask"].bool()
        logits = [model(**other, use_cache=False).logits[real] for model in (program.module(), ours)]
        torch.testing.assert_close(*logits, atol=1e-5, rtol=1e-5)


class FirstOutput(torch.nn.Module):
    """What a graph can be made of: two tensors in, one out."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids, attention_mask=attention_mask)[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # TorchScript is deprecated, and warns of all that it takes for constant
@each("head", ["ForTokenClassification"], ["LMHeadModel"])
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
    _, ours = bert_cases.pair("Model", tmp_path)
    ours.config.return_dict = False
    packed = {"input_ids": torch.randint(1, 90, (1, 6)), "position_ids": torch.arange(3).repeat(1, 2)}
    with pytest.raises(ValueError, match="use torch.export, or torch.onnx.export with dynamo=True"):
        torch.jit.trace(ours, example_kwarg_inputs=packed)
