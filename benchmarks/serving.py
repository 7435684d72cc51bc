"""What a server asks of BERT: the latency of one sentence and the sentences a second, as it is, in int8, and by ONNX.

Both sides are converted by the same tools: torch's dynamic quantization of linear layers, and torch's export to ONNX,
which onnxruntime computes, both on the CPU. A graph of ONNX computes padding on both sides. Results are compared
before the conversion: in int8, a number depends on the largest one of its batch, padding included.
"""

import copy
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel

from .bert import (
    BATCHES,
    OURS,
    STOCK,
    Batch,
    classifier_flop,
    draw_lengths,
    draw_sequences,
    make_models,
    on,
    pad,
    padding,
)
from .measure import CPU, Build, Contest, Need, Outputs, Side
from .precision import inference, model_dtype, tolerance


Classify = Callable[[Batch], object]


def as_it_is(model: PreTrainedModel, batch: Batch) -> Classify:
    return lambda batch: model(**batch).logits


def in_int8(model: PreTrainedModel, batch: Batch) -> Classify:
    """Weights in eight bits; the numbers that they are multiplied with are rounded to eight bits in each call."""
    model = copy.deepcopy(model)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.__class__ = torch.nn.Linear  # the type that the conversion asks for
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is to move into another package
        small = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
    return lambda batch: small(**batch).logits


def by_onnx(model: PreTrainedModel, batch: Batch) -> Classify:
    """The graph in onnxruntime, with as many threads as torch has."""
    import onnxruntime

    names, axes = ["input_ids", "attention_mask"], {0: "rows", 1: "columns"}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, which says that it is the older one
        path, inputs = Path(folder, "model.onnx"), tuple(batch[name] for name in names)
        options = {"input_names": names, "dynamic_axes": dict.fromkeys(names, axes), "dynamo": False}
        torch.onnx.export(model, inputs, path, **options)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda batch: session.run(None, {name: batch[name].numpy() for name in names})


def serve(convert: Callable[[PreTrainedModel, Batch], Classify], rows: int) -> Build:
    """Logits of batches of so many sentences with the lengths of SST-2's dev set, or of one of them."""

    def build(precision: str, baseline_precision: str, tiny: bool, device: torch.device) -> Contest:
        if device != CPU and convert is not as_it_is:
            raise ValueError(f"rows in int8 and by ONNX are measured on the CPU, and not on {device}")
        count = BATCHES if rows > 1 else 1  # one sentence is always the same, so that rows have the same work
        sequences = draw_sequences(draw_lengths("sst2-dev", rows * count), tiny)
        batches = [on(device, pad(sequences[start : start + rows])) for start in range(0, len(sequences), rows)]
        models = make_models("ForSequenceClassification", "base", tiny, dropout=0.0)

        def side(name: str, precision: str) -> Side:
            model = models[name].eval().to(device, model_dtype(precision))
            classify = convert(model, batches[0])

            def run(index: int) -> object:
                with inference(precision):
                    return classify(batches[index % count])

            def check() -> Outputs:
                with inference(precision):
                    return {"logits": model(**batches[0]).logits}

            return Side(name, run, check)

        return Contest(
            side(OURS, precision),
            side(STOCK, baseline_precision),
            f"{rows} x sst2-dev, padded {padding(batches):.2f}x" if rows > 1 else f"{len(sequences[0])} tokens",
            tolerance(precision, baseline_precision, device=device),
            Need("products", lambda index: classifier_flop(models[OURS].config, batches[index % count])),
            device,
            items=lambda index: rows,
            unit="sentences",
        )

    return build


FORMS = {"": as_it_is, "-int8": in_int8, "-onnx": by_onnx}
TITLES = {1: "BERT-base, one sentence", 32: "BERT-base, 32 sentences"}
ROWS: dict[str, tuple[str, Build]] = {
    f"serving-{rows}{form}": (title, serve(convert, rows))
    for rows, title in TITLES.items()
    for form, convert in FORMS.items()
}
CONVERTED = [row for row in ROWS if row.endswith(("-int8", "-onnx"))]
