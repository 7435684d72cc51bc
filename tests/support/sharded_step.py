"""One step of a model whose weights two processes share, against the same step of the whole model."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import PreTrainedModel
from transformers.distributed import DistributedConfig

from tests.support.processes import fork, wait


def assert_same_step(model: PreTrainedModel, batch: Mapping[str, torch.Tensor], way: str, folder: Path) -> None:
    """`way` is `tp_size` or `fsdp_size`; words and layers must be shared. The model is saved in `folder`."""
    model.save_pretrained(folder)
    assert wait(fork(partial(_compare, type(model), batch, way, folder), count=2)) == [0, 0]


def _compare(model_class: type[PreTrainedModel], batch: Mapping[str, torch.Tensor], way: str, folder: Path) -> None:
    dist.init_process_group("gloo")
    whole = model_class.from_pretrained(folder).train()
    split = model_class.from_pretrained(folder, distributed_config=DistributedConfig(**{way: 2})).train()
    parameters = dict(split.named_parameters())
    sharded = [name for name, parameter in parameters.items() if type(parameter).__name__ == "DTensor"]
    words = split.get_input_embeddings().weight
    assert any(parameters[name] is words for name in sharded) and any(".1." in name for name in sharded), sharded
    for unpad in (True, False):
        losses = []
        for model in (whole, split):
            model.zero_grad()
            losses.append(model(**batch, unpad=unpad).loss)
            losses[-1].backward()
        torch.testing.assert_close(*losses, atol=1e-5, rtol=1e-5)
        for name, parameter in whole.named_parameters():
            gradient = parameters[name].grad
            assert (gradient is None) == (parameter.grad is None), name
            if gradient is not None:
                gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
                explain = partial("{}: {}".format, name)
                torch.testing.assert_close(gradient, parameter.grad, atol=1e-5, rtol=1e-4, msg=explain)
    dist.destroy_process_group()
