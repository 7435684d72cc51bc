"""Which samples each update of pre-training reads, against a plain count of them."""

from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from accelerate import DistributedType

from elmo_gpt_bert.tasks.pretraining.plan import CorpusPlan, Phase
from elmo_gpt_bert.training.identity import allowed_differences
from elmo_gpt_bert.training.loop import epoch_number
from run_pretraining import LanguageModelling, PretrainingArguments


@dataclass
class FakeObjective:
    """What a plan asks of an objective."""

    size: int
    losses: tuple[str, ...] = ("causal_lm",)
    weights: tuple[float, ...] = (1.0,)
    gradient_scale: float = 1.0
    batch: object = None

    def count(self, batch: list[int]) -> list[int]:
        return [len(batch)]


def plan_of(*phases: Phase, processes: int = 1, micro_batch: int = 3, accumulation: int = 1, **flags) -> CorpusPlan:
    args = PretrainingArguments(
        model_name_or_path="gpt.json",
        train_file="text",
        output_dir="out",
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        **flags,
    )
    accelerator = SimpleNamespace(num_processes=processes, distributed_type=DistributedType.NO)
    return LanguageModelling({}, {}, None, phases).build_plan(args, accelerator)


def updates_from(plan: CorpusPlan, update: int) -> list[tuple[int, list[list[int]]]]:
    """The size of the epoch and the micro-batches of each update, as the loop takes them."""
    taken, first = [], None
    while update < plan.updates:
        assert update != first, "a stretch without updates"
        first, stretch = update, plan.stretch(update)
        objective = next(phase.objective for phase in plan.phases if phase.objective.batch is stretch.collate)
        for batches in stretch.updates:
            taken.append((objective.size, [list(batch) for batch in batches]))
            update += 1
        assert plan.ends_epoch(update) or update in {plan.updates, *(phase.first for phase in plan.phases)}
    return taken


def two_phases() -> list[Phase]:
    return [Phase(FakeObjective(17, batch="short")), Phase(FakeObjective(11, batch="long"), first=9)]


@pytest.mark.parametrize(
    ("processes", "micro_batch", "accumulation"), [(1, 8, 1), (1, 2, 4), (2, 4, 1), (4, 1, 2), (2, 3, 1)]
)
@pytest.mark.parametrize("ramp", [0, 5])
def test_updates_read_the_samples_in_order_from_0_in_each_phase(processes, micro_batch, accumulation, ramp):
    sizes = {"processes": processes, "micro_batch": micro_batch, "accumulation": accumulation}
    plan = plan_of(*two_phases(), max_steps=14, batch_ramp_steps=ramp, **sizes)
    batch = processes * micro_batch * accumulation
    updates, sample, epochs = updates_from(plan, 0), 0, 0.0
    assert len(updates) == 14
    for number, (size, micro_batches) in enumerate(updates):
        assert size == (17 if number < 9 else 11)
        sample = 0 if number in (0, 9) else sample
        count = -(-batch * (number + 1) // ramp) if number < ramp else batch  # an incomplete sample is one
        assert sum(micro_batches, []) == list(range(sample, sample + count))
        full = processes * micro_batch
        assert all(len(each) == full for each in micro_batches[:-1]) and len(micro_batches[-1]) <= full
        assert plan.ends_epoch(number + 1) == ((sample + count) // size > sample // size)
        sample, epochs = sample + count, epochs + count / size
        assert plan.epochs(number + 1) == pytest.approx(epochs)
    assert not plan.ends_epoch(0)
    for update in range(14):
        assert updates_from(plan, update) == updates[update:]


def test_a_process_without_a_sample_of_a_batch_counts_no_item():
    plan = plan_of(Phase(FakeObjective(17, batch="short")), max_steps=3, processes=2, micro_batch=1)
    reduce = {"device": "cpu", "reduce": lambda totals, kind: totals + 2}
    plan.accelerator = SimpleNamespace(process_index=1, num_processes=2, **reduce)
    counts = plan.count([[0, 1], [2]], [[1], [2]])  # of the last batch, it computes a sample all the same
    assert counts.batches == [[1], [0]] and counts.totals.tolist() == [3]


def test_the_epochs_of_a_run_decide_its_updates():
    phase = Phase(FakeObjective(17, batch="short"))
    assert plan_of(phase, num_train_epochs=2.0).updates == 12  # of 3 samples, 34 in all
    assert plan_of(phase, num_train_epochs=0.5, batch_ramp_steps=9).updates == 6  # of 1, 1, 1, 2, 2, 2 samples
    rounded = Phase(FakeObjective(50, batch="short"))  # 50 * 1.1 is a little more than 55
    assert plan_of(rounded, micro_batch=11, num_train_epochs=1.1).updates == 5


def test_an_epoch_has_its_number_also_where_its_last_update_begins_the_next_one():
    plan = plan_of(Phase(FakeObjective(17, batch="short")), num_train_epochs=3.0)
    numbers = {update: epoch_number(plan, update) for update in range(1, plan.updates + 1) if plan.ends_epoch(update)}
    assert numbers == {6: 1, 12: 2, 17: 3}
    assert [epoch_number(plan, update) for update in (5, 7, 16)] == [1, 2, 3]


def test_a_run_goes_on_with_the_same_samples_and_updates_only():
    phase = Phase(FakeObjective(17, batch="short"))

    def identity(**sizes) -> dict:
        return plan_of(phase, **{"max_steps": 20} | sizes).identity

    same = identity(micro_batch=4)
    assert identity(processes=4, micro_batch=1) == identity(micro_batch=2, accumulation=2) == same
    for sizes in ({"micro_batch": 8}, {"max_steps": 21}):
        assert identity(**{"micro_batch": 4} | sizes) != same


@pytest.mark.parametrize("ramp", [0, 5])
def test_a_run_that_chooses_its_best_model_at_ends_of_epochs_goes_on_only_from_one(ramp):
    def identity(updates: int) -> dict:
        flags = {"load_best_model_at_end": True, "lr_scheduler_type": "constant", "warmup_ratio": 0.0}
        plan = plan_of(Phase(FakeObjective(17)), max_steps=updates, batch_ramp_steps=ramp, **flags)
        return asdict(plan.args) | {"eval_strategy": "epoch"} | plan.identity

    read = 0
    for update in range(1, 24):
        before, read = read, read + (-(-3 * update // ramp) if update <= ramp else 3)
        run, longer = identity(update), identity(30)
        if read // 17 > before // 17:
            assert "max_steps" in allowed_differences(longer, run, Path("out"), update)
        else:
            with pytest.raises(ValueError, match=f"both do the same only up to update {update - 1}:"):
                allowed_differences(longer, run, Path("out"), update)
