"""Each script and each family trains on XLA as on the CPU, without compiling anything for an update."""

import pytest
import torch

from tests.xla.cases import COMMON, OF_ALL, RUNS


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_losses_and_weights_of_the_cpu_and_compiles_no_update_twice(
    name, tmp_path, run_on_cpu, run_on_xla, tell
):
    script, write = RUNS[name]
    # A biLM learns by Adagrad, and reads held-out text in rows of its own.
    flags = [*(OF_ALL if name == "ELMo, pre-training" else COMMON), *write(tmp_path)]
    expected, found = run_on_cpu(script, flags, tmp_path / "cpu"), run_on_xla(script, flags, tmp_path / "xla")
    tell(name, max(abs(one - other) for one, other in zip(found.losses, expected.losses, strict=True)))
    assert len(found.losses) == 4 and found.losses == pytest.approx(expected.losses, abs=1e-5)
    torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-4)
    assert found.scores == pytest.approx(expected.scores, abs=1e-4)
    _, *later = found.graphs  # the second update may differ from the first one, which finds no state of the optimizer
    assert len(later) == 3 and len(set(later)) == 1, f"graphs at the end of each update: {found.graphs}"
