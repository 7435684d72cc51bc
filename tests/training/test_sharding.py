"""Models divided among processes: they learn what one process does, go on where they stopped, and are saved whole.

FSDP is made for GPUs; here it divides models among two processes of the processor, over gloo. All models:
`ZOO_ALL=1 pytest tests/training/test_sharding.py`.
"""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate import DistributedType, PartialState
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

import run_glue
from elmo_gpt_bert.training import loop
from tests.support.processes import fork, wait
from tests.support.run_samples import make_run
from tests.training.test_resume import outcome
from tests.training.test_scale import assert_same, launched, run_in


# Of nine examples, an epoch's second update has three, so that one process has none in two of its three batches.
ONE = ["--per_device_train_batch_size", "6"]
TWO = ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "3"]
LAYERS = {"bert": "ZooBertLayer", "gpt": "ZooGPTBlock", "elmo": "ElmoLayer", "bilm": "ElmoLayer"}
LAYERS |= {"masked_lm": "ZooBertLayer", "next_sentence": "ZooBertLayer", "causal_lm": "ZooGPTBlock"}
MODELS = ["masked_lm", "gpt glue"]
OTHERS = ["bert glue", "next_sentence", "causal_lm", "elmo glue", "elmo squad", "elmo swag"]
SHORT = ["--num_train_epochs", "1", "--save_strategy", "no"]
SECONDS = 280  # on a busy machine


def sharded(main: Callable[[list[str]], object], layer: str, *runs: list[str]) -> None:
    """Runs in this process, one of two, as `accelerate launch` with fsdp2.yaml starts them, but on CPU.

    What torch works out of the first one's tensors serves the others.
    """
    os.environ.update(launched("fsdp2", "--fsdp_transformer_layer_cls_to_wrap", layer)[1])
    os.environ.update(ACCELERATE_USE_CPU="false", ACCELERATE_TORCH_DEVICE="cpu")
    state = PartialState(backend="gloo")
    for argv in runs:
        AcceleratorState._reset_state()
        state.distributed_type = DistributedType.MULTI_GPU  # accelerate offers FSDP to these only
        main(argv)
    state.destroy_process_group()


def run_sharded(main: Callable[[list[str]], object], layer: str, *runs: list[str]) -> None:
    assert wait(fork(partial(sharded, main, layer, *runs), count=2), SECONDS) == [0, 0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> tuple[Path, Callable[..., list[str]]]:
    """(folder, flags) of a sharded run of an epoch that has saved no checkpoint, in the folder "two" below it."""
    folder = tmp_path_factory.mktemp("sharded")
    flags = run_in(folder)
    run_sharded(run_glue.main, "ZooBertLayer", flags("two", *TWO, *SHORT))
    return folder, flags


@pytest.mark.slow
def test_a_sharded_model_scores_as_one_process_while_it_learns_and_from_its_folder(finished):
    folder, flags = finished
    run_glue.main(flags("one", *ONE, *SHORT))
    assert_same(folder / "two", folder / "one")
    scored = flags("scored", "--model_name_or_path", str(folder / "two"), "--do_train", "false")
    run_sharded(run_glue.main, "ZooBertLayer", scored)
    scored, trained = (json.loads((folder / name / "metrics.json").read_text()) for name in ("scored", "two"))
    assert scored["eval_loss"] == pytest.approx(trained["eval_loss"], abs=1e-6)


@pytest.mark.slow
def test_a_finished_sharded_run_without_checkpoints_is_not_trained_again(finished, monkeypatch):
    folder, flags = finished
    before = outcome(folder / "two")
    monkeypatch.setattr(loop._Training, "step", lambda _: pytest.fail("trained again"))
    run_sharded(run_glue.main, "ZooBertLayer", flags("two", *TWO, *SHORT, "--resume", "--do_predict"))
    assert outcome(folder / "two") == before and (folder / "two" / "predictions.tsv").exists()


needs_all = pytest.mark.skipif("ZOO_ALL" not in os.environ, reason="needs ZOO_ALL=1")
CASES = [*MODELS, *(pytest.param(model, marks=needs_all) for model in OTHERS)]


def lose_a_process(main: Callable[[list[str]], object], argv: list[str]) -> None:
    """A run whose second process is killed after the second update."""
    update = loop._Training.update

    def update_and_end(self, *parts):
        update(self, *parts)
        if self.progress.update == 2 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)

    loop._Training.update = update_and_end
    main(argv)


def make_short_run(folder: Path, model: str) -> tuple[Callable[[list[str]], object], str, list[str]]:
    """(main, the layers to wrap, flags) of two updates with a checkpoint after each; an output folder is to follow."""
    main, argv = make_run(folder, model)
    return main, LAYERS[model.split()[0]], [*argv, "--max_steps", "2", "--save_steps", "1", "--output_dir"]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Of all its files: the weights and, in a checkpoint, the optimizer's state.

    Flat, for what the optimizer keeps of a single number, such as ELMo's gamma, has a dimension where it was divided.
    """
    files = [(path.name, load_file(path)) for path in folder.glob("*.safetensors")]
    assert files
    return {f"{name} {key}": tensor.flatten() for name, content in files for key, tensor in content.items()}


def assert_goes_on(out: Path, whole: Path, one: Path, *folders: str) -> None:
    """`out`, which was resumed, has the bits of `whole`, and both what one process has, up to the order of sums."""
    assert outcome(out) == outcome(whole)
    saved, ours = (load_file(path / "model.safetensors") for path in (out / "checkpoint-2", whole))
    assert saved.keys() == ours.keys() and all((saved[name] == weight).all() for name, weight in ours.items())
    for folder in ("", *folders):
        torch.testing.assert_close(tensors(whole / folder), tensors(one / folder), rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", CASES)
def test_a_sharded_model_goes_on_where_it_stopped_and_is_saved_whole(tmp_path, model):
    """Its checkpoints are those of one process, so that either may go on from the other's."""
    main, layer, argv = make_short_run(tmp_path, model)
    whole, out, one = (tmp_path / name for name in ("whole", "out", "one"))
    main([*argv, str(one), *ONE])
    shorter = [*argv, str(out), *TWO, "--max_steps", "1"]
    run_sharded(main, layer, shorter, [*argv, str(out), *TWO, "--resume"], [*argv, str(whole), *TWO])
    assert_goes_on(out, whole, one, "checkpoint-1", "checkpoint-2")


@pytest.mark.slow
def test_a_sharded_run_of_which_a_process_is_killed_goes_on_divided_or_not_and_is_a_model(tmp_path):
    main, layer, argv = make_short_run(tmp_path, "elmo ner")
    whole, out, one, divided, undivided = (tmp_path / name for name in ("whole", "out", "one", "divided", "undivided"))
    main([*argv, str(one), *ONE])
    divided.mkdir()
    shutil.move(one / "checkpoint-1", divided)
    lost = partial(sharded, partial(lose_a_process, main), layer, [*argv, str(out), *TWO])
    assert wait(fork(lost, count=2), SECONDS)[1] == -9
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-1"]
    shutil.copytree(out, undivided)
    resumed = ([*argv, str(folder), *TWO, "--resume"] for folder in (out, divided))
    run_sharded(main, layer, *resumed, [*argv, str(whole), *TWO])
    assert_goes_on(out, whole, one)
    main([*argv, str(undivided), *ONE, "--resume"])
    for folder in (undivided, divided):
        torch.testing.assert_close(tensors(folder), tensors(one), rtol=0, atol=1e-5)
    main([*argv, str(tmp_path / "next"), *ONE, "--model_name_or_path", str(out / "checkpoint-1"), "--max_steps", "1"])
