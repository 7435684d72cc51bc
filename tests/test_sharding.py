"""Models divided among processes: they learn what one process does, and go on where they stopped.

FSDP and DeepSpeed are made for GPUs; here they divide models among two processes of the processor, over gloo. All
models and ways of dividing them: `pip install deepspeed && ZOO_ALL=1 pytest tests/test_sharding.py`.
"""

import json
import os
from collections.abc import Callable
from functools import partial

import pytest
from accelerate import DistributedType, PartialState
from accelerate.utils import is_deepspeed_available, merge_fsdp_weights
from safetensors.torch import load_file

import run_glue
from elmo_gpt_bert.training import loop
from elmo_gpt_bert.training.output_folder import FSDP_PARTS
from tests.processes import fork, wait
from tests.run_samples import make_run
from tests.test_resume import outcome
from tests.test_scale import assert_same, launched
from tests.test_scale import flags as flags  # a fixture


ONE = ["--per_device_train_batch_size", "4"]
TWO = ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "2"]
LAYERS = {"bert": "ZooBertLayer", "gpt": "ZooGPTBlock", "elmo": "ElmoLayer", "bilm": "ElmoLayer"}
LAYERS |= {"masked_lm": "ZooBertLayer", "next_sentence": "ZooBertLayer", "causal_lm": "ZooGPTBlock"}
MODELS = ["masked_lm", "gpt glue", "elmo ner"]
OTHERS = ["bert glue", "next_sentence", "causal_lm", "elmo glue", "elmo squad", "elmo swag"]
DEEPSPEED = ["deepspeed_zero2", "deepspeed_zero3"]
SECONDS = 280  # on a busy machine


def check_installed(configuration: str) -> None:
    if configuration in DEEPSPEED and not is_deepspeed_available():
        pytest.skip("deepspeed is not installed")


def sharded(configuration: str, main: Callable[[list[str]], object], layer: str, argv: list[str]) -> None:
    """A run in this process, one of two, as `accelerate launch` with that configuration starts it, but on CPU."""
    more = ["--fsdp_transformer_layer_cls_to_wrap", layer] if configuration == "fsdp2" else []
    os.environ.update(launched(configuration, *more)[1])
    os.environ.update(ACCELERATE_USE_CPU="false", ACCELERATE_TORCH_DEVICE="cpu", DS_ACCELERATOR="cpu")
    if configuration in DEEPSPEED:
        import deepspeed

        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes
    state = PartialState(backend="gloo")
    if configuration == "fsdp2":
        state.distributed_type = DistributedType.MULTI_GPU  # accelerate offers FSDP to these only
    main(argv)
    state.destroy_process_group()


def run_sharded(configuration: str, main: Callable[[list[str]], object], layer: str, argv: list[str]) -> None:
    assert wait(fork(partial(sharded, configuration, main, layer, argv), count=2), SECONDS) == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("configuration", ["fsdp2", *DEEPSPEED])
def test_a_sharded_model_scores_as_one_process_while_it_learns_and_from_its_folder(flags, tmp_path, configuration):
    check_installed(configuration)
    run = partial(run_sharded, configuration, run_glue.main, "ZooBertLayer")
    run(flags("two", *TWO))
    run_glue.main(flags("one", *ONE))
    assert_same(tmp_path / "two", tmp_path / "one")
    run(flags("scored", "--model_name_or_path", str(tmp_path / "two"), "--do_train", "false"))
    scored, trained = (json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("scored", "two"))
    assert scored["eval_loss"] == pytest.approx(trained["eval_loss"], abs=1e-6)


CASES = [pytest.param("fsdp2", model) for model in MODELS]
CASES += [
    pytest.param(configuration, model, marks=pytest.mark.skipif("ZOO_ALL" not in os.environ, reason="needs ZOO_ALL=1"))
    for configuration in ("fsdp2", *DEEPSPEED)
    for model in [*MODELS, *OTHERS]
    if (configuration, model) not in [("fsdp2", each) for each in MODELS]
]


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
@pytest.mark.parametrize(("configuration", "model"), CASES)
def test_a_sharded_model_goes_on_where_it_stopped_and_its_weights_are_merged(tmp_path, configuration, model):
    check_installed(configuration)
    main, argv = make_run(tmp_path, model)
    argv += ["--max_steps", "4", "--save_steps", "2", "--output_dir"]
    whole, out, one = (tmp_path / name for name in ("whole", "out", "one"))
    layer = LAYERS[model.split()[0]]
    run_sharded(configuration, main, layer, [*argv, str(whole), *TWO])
    main([*argv, str(one), *ONE])
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (whole, one))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert (ours[name] - weight).abs().max() < 1e-5, name

    lost = partial(sharded, configuration, partial(lose_a_process, main), layer, [*argv, str(out), *TWO])
    assert wait(fork(lost, count=2), SECONDS)[1] == -9
    assert [path.name for path in out.glob("checkpoint-*")] == ["checkpoint-2"]
    with pytest.raises(ValueError, match="holds a model in parts, one for each process: go on with its run"):
        main([*argv, str(tmp_path / "no"), "--model_name_or_path", str(out / "checkpoint-2")])
    run_sharded(configuration, main, layer, [*argv, str(out), *TWO, "--resume"])
    assert outcome(out) == outcome(whole)

    if configuration == "fsdp2":
        merge_fsdp_weights(str(out / "checkpoint-4" / FSDP_PARTS), str(tmp_path / "merged"))
        merged = load_file(tmp_path / "merged" / "model.safetensors")
        for name, weight in ours.items():
            places = [merged[name]] if name in merged else merged.values()  # a tied weight may have its other name
            assert any(each.flatten().tolist() == weight.flatten().tolist() for each in places), name
