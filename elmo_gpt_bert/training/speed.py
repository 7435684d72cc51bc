"""How fast a run trains: tokens a second, and the share of the device's matrix-product peak."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from accelerate import Accelerator

from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.batches import count_real_tokens
from elmo_gpt_bert.training.throughput import Throughput


Result = TypeVar("Result")


class Speed:
    """Counts the tokens of micro-batches, and the operations of the first one."""

    def __init__(self, seconds: float, measures_peak: bool, args: RunArguments, accelerator: Accelerator) -> None:
        """
        seconds: that the run has spent on training before
        measures_peak: whether `values` has `peak_share`
        """
        self.seconds, self.tokens, self.processes = seconds, 0, accelerator.num_processes
        self.throughput = Throughput(accelerator.device, args.mixed_precision) if measures_peak else None
        self.operations_per_token: float | None = None

    def measure(self, batch: Mapping[str, torch.Tensor], step: Callable[[], Result]) -> Result:
        """Returns `step()`, the forward and backward pass of a micro-batch."""
        tokens = count_real_tokens(batch)
        self.tokens += tokens
        if self.throughput is None or self.operations_per_token is not None:
            return step()
        results: list[Result] = []
        operations = self.throughput.count(lambda: results.append(step()))
        self.operations_per_token = operations / max(tokens, 1)
        return results[0]

    def values(self, seconds: float) -> dict[str, float]:
        """The speed since the last call, of all processes, when the run has spent `seconds` on training."""
        passed, self.seconds = max(seconds - self.seconds, 1e-9), seconds
        rate, self.tokens = self.tokens / passed, 0
        values = {"tokens_per_second": rate * self.processes}
        if self.operations_per_token is not None and self.throughput.peak:
            values["peak_share"] = rate * self.operations_per_token / self.throughput.peak
        return values
