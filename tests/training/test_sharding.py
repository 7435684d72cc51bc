"""Models divided among processes: they learn what one process does, go on where they stopped, and are saved whole.

FSDP is made for GPUs; here it divides models among two processes of the processor, over gloo. All models:
`ZOO_ALL=1 pytest tests/training/test_sharding.py`.
"""

import json
import os
import shutil
from collections.abc import Callable
from functools import partial

import pytest
import torch
from accelerate import DistributedType, PartialState
from safetensors.torch import load_file

import run_glue
from elmo_gpt_bert.training import loop
from tests.support.processes import fork, wait
from tests.support.run_samples import make_run
from tests.training.test_resume import outcome
from tests.training.test_scale import assert_same, launched
from tests.training.test_scale import flags as flags  # a fixture


ONE = ["--per_device_train_batch_size", "4"]
TWO = ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2"]
LAYERS = {"bert": "ZooBertLayer", "gpt": "ZooGPTBlock", "elmo": "ElmoLayer", "bilm": "ElmoLayer"}
LAYERS |= {"masked_lm": "ZooBertLayer", "next_sentence": "ZooBertLayer", "causal_lm": "ZooGPTBlock"}
MODELS = ["masked_lm", "gpt glue", "elmo ner"]
OTHERS = ["bert glue", "next_sentence", "causal_lm", "elmo glue", "elmo squad", "elmo swag"]
SECONDS = 280  # on a busy machine


def sharded(main: Callable[[list[str]], object], layer: str, argv: list[str]) -> None:
    """A run in this process, one of two, as `accelerate launch` with fsdp2.yaml starts it, but on CPU."""
    os.environ.update(launched("fsdp2", "--fsdp_transformer_layer_cls_to_wrap", layer)[1])
    os.environ.update(ACCELERATE_USE_CPU="false", ACCELERATE_TORCH_DEVICE="cpu")
    state = PartialState(backend="gloo")
    state.distributed_type = DistributedType.MULTI_GPU  # accelerate offers FSDP to these only
    main(argv)
    state.destroy_process_group()


def run_sharded(main: Callable[[list[str]], object], layer: str, argv: list[str]) -> None:
    assert wait(fork(partial(sharded, main, layer, argv), count=2), SECONDS) == [0, 0]


@pytest.mark.slow
def test_a_sharded_model_scores_as_one_process_while_it_learns_and_from_its_folder(flags, tmp_path):
    run = partial(run_sharded, run_glue.main, "ZooBertLayer")
    run(flags("two", *TWO))
    run_glue.main(flags("one", *ONE))
    assert_same(tmp_path / "two", tmp_path / "one")
    run(flags("scored", "--model_name_or_path", str(tmp_path / "two"), "--do_train", "false"))
    scored, trained = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("scored", "two"))
    assert scored["eval_loss"] == pytest.approx(trained["eval_loss"], abs=1e-6)


@pytest.mark.slow
def test_a_finished_sharded_run_without_checkpoints_is_not_trained_again(flags, tmp_path, monkeypatch):
    run = partial(run_sharded, run_glue.main, "ZooBertLayer")
    words = [*TWO, "--save_strategy", "no"]
    run(flags("two", *words))
    before = outcome(tmp_path / "two")
    monkeypatch.setattr(loop._Training, "step", lambda _: pytest.fail("trained again"))
    run(flags("two", *words, "--resume", "--do_predict"))
    assert outcome(tmp_path / "two") == before and (tmp_path / "two" / "predictions.tsv").exists()


needs_all = pytest.mark.skipif("ZOO_ALL" not in os.environ, reason="needs ZOO_ALL=1")
CASES = [*MODELS, *(pytest.param(model, marks=needs_all) for model in OTHERS)]


def lose_a_process(main: Callable[[list[str]], object], argv: list[str]) -> None:
    """A run whose second process is killed after the third update."""
    update = loop._Training.update

    def update_and_end(self, *parts):
        update(self, *parts)
        if self.progress.update == 3 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)

    loop._Training.update = update_and_end
    main(argv)


@pytest.mark.slow
@pytest.mark.parametrize("model", CASES)
def test_a_sharded_model_goes_on_where_it_stopped_and_is_saved_whole(tmp_path, model):
    main, argv = make_run(tmp_path, model)
    argv += ["--max_steps", "4", "--save_steps", "2", "--output_dir"]
    whole, out, one = (tmp_path / name for name in ("whole", "out", "one"))
    layer = LAYERS[model.split()[0]]
    run_sharded(main, layer, [*argv, str(whole), *TWO])
    main([*argv, str(one), *ONE])
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (whole, one))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert (ours[name] - weight).abs().max() < 1e-5, name

    lost = partial(sharded, partial(lose_a_process, main), layer, [*argv, str(out), *TWO])
    assert wait(fork(lost, count=2), SECONDS)[1] == -9
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-2"]
    main([*argv, str(tmp_path / "next"), *ONE, "--model_name_or_path", str(out / "checkpoint-2"), "--max_steps", "1"])
    shutil.copytree(out, tmp_path / "undivided")
    run_sharded(main, layer, [*argv, str(out), *TWO, "--resume"])
    assert outcome(out) == outcome(whole)
    saved = load_file(out / "checkpoint-4" / "model.safetensors")
    assert saved.keys() == ours.keys() and all((saved[name] == weight).all() for name, weight in ours.items())

    main([*argv, str(tmp_path / "undivided"), *ONE, "--resume"])
    (tmp_path / "divided").mkdir()
    shutil.move(one / "checkpoint-2", tmp_path / "divided")
    run_sharded(main, layer, [*argv, str(tmp_path / "divided"), *TWO, "--resume"])
    for folder in ("undivided", "divided"):
        torch.testing.assert_close(load_file(tmp_path / folder / "model.safetensors"), theirs, rtol=0, atol=1e-5)
