"""What --mixed_precision auto stands for on each device, and that a run records it."""

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState

import run_glue
from elmo_gpt_bert.training import launching, loop
from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.identity import read_finished, run_identity
from elmo_gpt_bert.training.processes import join_processes
from elmo_gpt_bert.training.runs import repeat
from modeling import ElmoConfig
from tests.support import run_samples
from tests.support.glue_sample import write_model, write_vocabulary
from tests.support.tiny_run import Arguments


AUTO = {"mixed_precision": "auto", "matmul_precision": "auto"}
NO, BF16 = ("no", "highest"), ("bf16", "high")
A100, T4 = (8, 0), (7, 5)


@pytest.fixture
def on_gpu(monkeypatch) -> Callable:
    """Makes this process's device a GPU of that capability for the choice of the precision, and only for it."""

    def put(capability: tuple[int, int] = A100, device: str = "cuda") -> None:
        choose = launching._choose
        AcceleratorState._reset_state(True)  # a process keeps the precision of its first run
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tensor 9000")
        monkeypatch.setattr(launching, "_cpu_has_bfloat16", lambda: True)

        def choose_there(args: RunArguments) -> tuple:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(PartialState(), "device", torch.device(device))
                return choose(args)

        monkeypatch.setattr(launching, "_choose", choose_there)

    return put


def chosen(args: RunArguments) -> tuple[str, str]:
    """What `repeat` hands to a run that has these arguments."""
    seen = []

    def run(args: RunArguments) -> dict[str, float]:
        seen.append((args.mixed_precision, args.matmul_precision))
        return {}

    repeat(run, args)
    (pair,) = seen
    return pair


@pytest.fixture
def flags(tmp_path) -> list[str]:
    """One update on the data of RTE in miniature, without a precision."""
    model = ["--model_name_or_path", str(write_model(tmp_path)), "--tokenizer_name", str(write_vocabulary(tmp_path))]
    task = [*run_samples.data(tmp_path, "glue"), "--do_train", "--do_eval", "--max_steps", "2", "--save_steps", "1"]
    return [*model, *task, "--max_seq_length", "24", "--output_dir", str(tmp_path / "out")]


def recorded(folder: Path) -> set[tuple[str, str]]:
    """The precisions in a folder's records."""
    record = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    parts = [record["args"], record["identity"]]
    parts += [json.loads(path.read_text(encoding="utf-8"))["identity"] for path in folder.rglob("progress.json")]
    return {(part["mixed_precision"], part["matmul_precision"]) for part in parts}


def test_transformers_own_models_need_nothing_of_the_zoo(monkeypatch):
    monkeypatch.delitem(sys.modules, "modeling")
    launching.choose_implementation("transformers")
    assert "modeling" not in sys.modules


def test_the_scripts_leave_the_precision_to_the_device():
    args = parse_arguments(Arguments, ["--model_name_or_path", "m", "--output_dir", "o", "--do_train"])
    assert (args.mixed_precision, args.matmul_precision) == ("auto", "auto")


def test_a_gpu_that_computes_in_bf16_trains_in_it_and_says_so(run, on_gpu, capsys):
    on_gpu()
    assert chosen(run(**AUTO)) == BF16
    assert capsys.readouterr().out == (
        "--mixed_precision auto: bf16, as the GPU Tensor 9000 has it; --mixed_precision no computes in float32\n"
    )


@pytest.mark.parametrize("device", [{"capability": T4}, {"device": "cpu"}, {"device": "xla"}])
def test_other_devices_train_in_float32_without_a_word(run, on_gpu, capsys, device):
    on_gpu(**device)
    assert chosen(run(**AUTO)) == NO and capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["no", "fp16", "bf16"])
def test_a_precision_that_the_user_gives_stays(run, on_gpu, capsys, name):
    on_gpu()
    assert chosen(run(mixed_precision=name, matmul_precision="auto")) == (name, "highest")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["highest", "high", "medium"])
def test_float32_products_that_the_user_wants_exact_stay_so(run, on_gpu, name):
    on_gpu()
    assert chosen(run(mixed_precision="auto", matmul_precision=name)) == ("bf16", name)


@pytest.mark.parametrize("device", [A100, T4, None])
def test_the_launcher_has_the_first_word(run, on_gpu, monkeypatch, capsys, device):
    if device is not None:
        on_gpu(device)
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert chosen(run(**AUTO)) == ("bf16", "highest")
    assert "auto: bf16, as the launcher was told;" in capsys.readouterr().out
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # accelerate launch says so where nobody else does
    assert chosen(run(**AUTO, overwrite_output_dir=True)) == (BF16 if device == A100 else NO)


def test_what_only_the_launcher_knows_is_refused_as_before(run, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    assert chosen(run(**AUTO)) == NO  # which make_accelerator then finds to differ from the launcher's


def test_elmo_stays_in_float32_unless_someone_says_otherwise(run, on_gpu, monkeypatch, tmp_path):
    on_gpu()
    ElmoConfig(**run_samples.SIZES).save_pretrained(tmp_path / "elmo")
    for model in (tmp_path / "elmo", tmp_path / "elmo" / "config.json"):
        assert chosen(run(**AUTO, model_name_or_path=str(model))) == NO
    assert chosen(run(mixed_precision="bf16", model_name_or_path=str(tmp_path / "elmo"))) == ("bf16", "highest")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert chosen(run(**AUTO, model_name_or_path=str(tmp_path / "elmo"))) == ("bf16", "highest")


def test_a_model_without_a_configuration_is_left_to_what_loads_it(run, on_gpu, tmp_path):
    on_gpu()
    assert chosen(run(**AUTO, model_name_or_path=str(tmp_path / "absent"))) == BF16


def test_all_records_of_a_run_have_the_precision_that_it_computed_in(flags, tmp_path, on_gpu, monkeypatch):
    precisions = []
    losses = loop._Training.losses

    def watched(training: loop._Training, stretch: object):
        precisions.append((training.accelerator.mixed_precision, torch.get_float32_matmul_precision()))
        return losses(training, stretch)

    monkeypatch.setattr(loop._Training, "losses", watched)
    run_glue.main(flags)
    assert precisions == [NO] and recorded(tmp_path / "out") == {NO}
    assert "mixed_precision: 'no'" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    on_gpu()
    run_glue.main([*flags, "--overwrite_output_dir"])
    assert precisions == [NO, BF16] and recorded(tmp_path / "out") == {BF16}
    assert "mixed_precision: bf16" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("first", "then", "kept"), [(T4, A100, NO), (A100, T4, BF16)])
def test_a_run_goes_on_in_its_precision_on_another_device(
    flags, tmp_path, on_gpu, monkeypatch, first, then, kept, seeds
):
    flags += ["--seeds", str(seeds)]
    on_gpu(first)
    with monkeypatch.context() as patch:
        patch.setattr(loop.memory, "release", lambda: 1 / 0)  # after its last checkpoint
        with pytest.raises(ZeroDivisionError):
            run_glue.main(flags)
    on_gpu(then)
    run_glue.main([*flags, "--resume"])  # from a checkpoint
    assert recorded(tmp_path / "out") == {kept}
    assert run_glue.main([*flags, "--resume"])["train_updates"] == 2  # what has finished
    assert recorded(tmp_path / "out") == {kept}


def test_a_run_that_is_resumed_in_another_precision_by_the_user_is_refused(flags, on_gpu):
    run_glue.main(flags)
    on_gpu()
    with pytest.raises(ValueError, match="is of a run with mixed_precision no, not bf16"):
        run_glue.main([*flags, "--resume", "--mixed_precision", "bf16"])


def test_a_run_that_has_left_no_record_begins_in_the_precision_of_its_device(flags, tmp_path, on_gpu):
    run_glue.main(flags)
    shutil.rmtree(tmp_path / "out")
    on_gpu()
    run_glue.main([*flags, "--resume"])
    assert recorded(tmp_path / "out") == {BF16}


def test_evaluation_alone_computes_as_the_run_of_the_model_on_a_gpu(run, on_gpu, tmp_path, capsys):
    model = tmp_path / "run"
    (model / "checkpoint-1").mkdir(parents=True)
    evaluation = {"do_train": False, "do_eval": True, "overwrite_output_dir": True, **AUTO}
    join_processes(60)
    identity = {"identity": {"mixed_precision": "bf16", "matmul_precision": "high"}}
    (model / "checkpoint-1" / "progress.json").write_text(json.dumps(identity), encoding="utf-8")
    assert chosen(run(**evaluation, model_name_or_path=str(model))) == NO  # on a CPU
    on_gpu()
    assert chosen(run(**evaluation)) == NO  # of this model there is no record
    assert capsys.readouterr().out == ""
    for folder in (model / "checkpoint-1", model):
        assert chosen(run(**evaluation, model_name_or_path=str(folder))) == BF16
        assert f"auto: bf16, as the run of {folder} computed; --mixed" in capsys.readouterr().out
    for damaged in ("{", "[]", '{"identity": 1}', "{}"):
        (model / "checkpoint-1" / "progress.json").write_text(damaged, encoding="utf-8")
        assert chosen(run(**evaluation, model_name_or_path=str(model))) == NO
    (model / "metrics.json").write_text(json.dumps(identity), encoding="utf-8")
    assert chosen(run(**evaluation, model_name_or_path=str(model))) == BF16


def test_only_a_run_that_goes_on_takes_what_its_folder_records_and_the_launcher_says_the_rest(run, monkeypatch):
    join_processes(60)
    out = Path(run().output_dir)
    out.mkdir(exist_ok=True)
    identity = {"mixed_precision": "bf16", "matmul_precision": "medium"}
    (out / "metrics.json").write_text(json.dumps({"identity": identity}), encoding="utf-8")

    def choice(**changes: bool) -> tuple[str, str]:
        args = launching.choose_precision(run(**AUTO, resume=True, **changes))
        return args.mixed_precision, args.matmul_precision

    assert choice() == ("bf16", "medium")
    assert choice(do_train=False, do_eval=True) == NO
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    assert choice() == ("fp16", "medium")


def test_a_table_counts_runs_in_whatever_precision_auto_has_chosen(run, tmp_path):
    args = run(mixed_precision="bf16", matmul_precision="high")
    join_processes(60)
    record = {"seed": 42, "args": asdict(args), "identity": run_identity(args), "train_updates": 2}
    (tmp_path / "metrics.json").write_text(json.dumps(record), encoding="utf-8")
    assert read_finished(tmp_path, run(**AUTO), absent=True)["train_updates"] == 2
    with pytest.raises(ValueError, match="is of a run with m[a-z]+_precision"):
        read_finished(tmp_path, run(), absent=True)


@pytest.mark.parametrize(("precision", "has_it", "says_so"), [("bf16", False, 1), ("bf16", True, 0), ("no", False, 0)])
def test_a_processor_that_imitates_bfloat16_is_named_before_the_work(
    run, monkeypatch, capsys, precision, has_it, says_so
):
    monkeypatch.setattr(launching, "_cpu_has_bfloat16", lambda: has_it)
    chosen(run(mixed_precision=precision))
    assert capsys.readouterr().out.count("bf16: this processor imitates bfloat16") == says_so
