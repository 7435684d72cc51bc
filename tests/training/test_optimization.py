"""Optimizers against their formulas or torch's, groups and rates by layer, top layers that start anew."""

import copy
import io
import math
import re
import warnings

import pytest
import torch
import transformers
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch.optim.lr_scheduler import LambdaLR

import modeling
from elmo_gpt_bert.training import optimization
from elmo_gpt_bert.training.optimization import (
    BertAdam,
    MuonWithAdamW,
    build_optimizer,
    build_schedule,
    decay_updates,
    gather_state,
    gather_weights,
    learning_rates,
    load_state,
    load_weights,
    move_schedule,
    reinitialize_layers,
)
from tests.support.bert_cases import SIZES, pair, stock_config
from tests.support.kernels import Kernels


LAYERS = SIZES["num_hidden_layers"]
TOP = LAYERS - 1
RATE = 0.01  # of the `run` fixture
KERNELS = [{"fused": True}, {"foreach": True}, {"foreach": False}]


def warm_up_and_decay(update: int) -> float:
    """Zero at the first update, 1 at the sixth, zero at the forty-first."""
    return min(update / 5, (40 - update) / 35)


class Problem:
    """Two parameters, in groups of their own rate and decay, and the same random gradients each time."""

    def __init__(self, dtype: torch.dtype, **kernel: bool) -> None:
        generator = torch.Generator().manual_seed(1)
        start = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in [(3, 5), (7,)]]
        self.gradients = [[torch.randn(p.shape, generator=generator) for p in start] for _ in range(30)]
        self.parameters = [torch.nn.Parameter(p.to(dtype)) for p in start]
        settings = [{"lr": 0.02, "weight_decay": 0.1}, {"lr": 0.05, "weight_decay": 0.0}]
        groups = [{"params": [p]} | setting for p, setting in zip(self.parameters, settings, strict=True)]
        self.optimizer = BertAdam(groups, eps=1e-3, betas=(0.9, 0.999), **kernel)
        self.schedule = LambdaLR(self.optimizer, warm_up_and_decay)

    def run(self, updates: range) -> None:
        for update in updates:
            for parameter, gradient in zip(self.parameters, self.gradients[update], strict=True):
                parameter.grad = gradient.to(parameter.dtype)
            self.optimizer.step()
            self.schedule.step()

    def expected(self) -> list[torch.Tensor]:
        """The parameters after 30 updates, by the formula, in float64."""
        results = []
        for index, parameter in enumerate(Problem(torch.float64).parameters):
            rate, decay = [(0.02, 0.1), (0.05, 0.0)][index]
            p, m, v = parameter.detach(), 0.0, 0.0
            for update in range(30):
                g = self.gradients[update][index].double()
                m = 0.9 * m + (1 - 0.9) * g
                v = 0.999 * v + (1 - 0.999) * g * g
                p = p - rate * warm_up_and_decay(update) * (m / (v.sqrt() + 1e-3) + decay * p)
            results.append(p)
        return results


# BERT's Adam


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 1e-6)])
def test_berts_adam_follows_the_formula_of_the_released_code(dtype, tolerance, kernel):
    problem = Problem(dtype, **kernel)
    problem.run(range(30))
    for parameter, expected in zip(problem.parameters, problem.expected(), strict=True):
        torch.testing.assert_close(parameter.detach().double(), expected, rtol=tolerance, atol=tolerance)


def test_the_first_update_is_not_corrected_and_the_docstrings_number_is_right():
    ratios = [(1 - 0.9**t) / math.sqrt(1 - 0.999**t) for t in range(1, 1000)]
    assert f"up to {max(ratios):.1f} times" in BertAdam.__doc__
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.ones(1)
    BertAdam([parameter], lr=1.0, eps=0.0).step()
    assert -parameter.item() == pytest.approx(ratios[0])


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_berts_adam_goes_on_from_its_saved_state_bit_by_bit(kernel):
    whole = Problem(torch.float32, **kernel)
    whole.run(range(30))
    first = Problem(torch.float32, **kernel)
    first.run(range(11))
    file = io.BytesIO()
    torch.save([first.optimizer.state_dict(), first.schedule.state_dict(), first.parameters], file)
    second = Problem(torch.float32, **kernel)
    optimizer, schedule, parameters = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    for parameter, saved in zip(second.parameters, parameters, strict=True):
        parameter.data.copy_(saved)
    second.optimizer.load_state_dict(optimizer)
    second.schedule.load_state_dict(schedule)
    second.run(range(11, 30))
    assert all(torch.equal(a, b) for a, b in zip(second.parameters, whole.parameters, strict=True))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_an_update_that_the_gradient_scaler_skips_leaves_no_trace(kernel):
    plain, scaled = Problem(torch.float32, **kernel), Problem(torch.float32, **kernel)
    plain.run(range(6))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=100)
    for update in [None, 0, 1, None, 2, 3, 4, 5]:  # None: the gradients overflow
        for parameter, gradient in zip(scaled.parameters, scaled.gradients[update or 0], strict=True):
            loss = (parameter * (math.inf if update is None else gradient)).sum()
            scaler.scale(loss).backward()
        scaler.step(scaled.optimizer)
        scaler.update()
        scaled.optimizer.zero_grad()
        if update is not None:
            scaled.schedule.step()
    for ours, expected in zip(scaled.parameters, plain.parameters, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)


def test_berts_adam_takes_its_gradients_from_a_closure_as_any_optimizer():
    plain, closed = Problem(torch.float32), Problem(torch.float32)
    plain.run(range(3))
    gradients = iter(closed.gradients)

    def closure() -> torch.Tensor:
        closed.optimizer.zero_grad()
        losses = zip(closed.parameters, next(gradients), strict=True)
        loss = sum((parameter * gradient).sum() for parameter, gradient in losses)
        loss.backward()
        return loss

    for _ in range(3):
        assert closed.optimizer.step(closure).requires_grad
        closed.schedule.step()
    assert all(torch.equal(a, b) for a, b in zip(closed.parameters, plain.parameters, strict=True))


def test_accelerate_wraps_berts_adam_and_the_schedule_still_reaches_it():
    plain, wrapped = Problem(torch.float32), Problem(torch.float32)
    plain.run(range(8))
    wrapped.optimizer = Accelerator(cpu=True).prepare(wrapped.optimizer)  # saves and loads its state on the way
    wrapped.run(range(8))
    assert all(torch.equal(a, b) for a, b in zip(wrapped.parameters, plain.parameters, strict=True))


def test_a_parameter_that_gets_its_first_gradient_later_is_not_corrected_either():
    late, on_time = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = BertAdam([late, on_time], lr=1.0)
    for update in range(5):
        on_time.grad = torch.ones(1)
        late.grad = torch.ones(1) if update == 4 else None
        optimizer.step()
    alone = torch.nn.Parameter(torch.zeros(1))
    alone.grad = torch.ones(1)
    BertAdam([alone], lr=1.0).step()
    assert torch.equal(late, alone) and on_time < late < 0


# Adagrad and Muon


def give_gradients(model: torch.nn.Module, update: int) -> None:
    """Random gradients, the same for each model of the same shape."""
    generator = torch.Generator().manual_seed(update)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def masked_lm(seed: int = 0) -> modeling.ZooBertForMaskedLM:
    torch.manual_seed(seed)
    return modeling.ZooBertForMaskedLM(stock_config())


def test_adagrad_is_that_of_the_bilms_released_code(run):
    """TensorFlow's: the accumulator starts at 1, and nothing is added to its root."""
    model = masked_lm()
    expected = [parameter.detach().double() for parameter in model.parameters()]
    sums = [torch.ones_like(parameter) for parameter in expected]
    optimizer = build_optimizer(model, run(optim="adagrad", learning_rate=0.2))
    assert type(optimizer) is torch.optim.Adagrad
    for update in range(5):
        give_gradients(model, update)
        for parameter, total, trained in zip(expected, sums, model.parameters(), strict=True):
            gradient = trained.grad.double()
            total += gradient**2
            parameter -= 0.2 * gradient / total.sqrt()
        optimizer.step()
    for parameter, trained in zip(expected, model.parameters(), strict=True):
        torch.testing.assert_close(trained.detach().double(), parameter, rtol=1e-5, atol=1e-6)


HIDDEN = re.compile(r"bert\.encoder\.layer\.\d\..*dense\.weight|.*\.(query|key|value)\.weight")


def test_muon_moves_the_hidden_matrices_and_adamw_all_others(run):
    """As torch's Muon to its rounding to bfloat16, and as torch's AdamW bit by bit."""
    flags = {"weight_decay": 0.1, "adam_beta2": 0.98, "adam_epsilon": 1e-3}
    together, apart = masked_lm(), masked_lm()
    optimizer = build_optimizer(together, run(optim="muon", **flags))
    hidden = [p for name, p in apart.named_parameters() if HIDDEN.fullmatch(name)]
    assert len(hidden) == 6 * LAYERS
    groups = [{"params": [], "weight_decay": 0.1}, {"params": [], "weight_decay": 0.0}]
    for name, parameter in apart.named_parameters():
        if not HIDDEN.fullmatch(name):
            groups[parameter.dim() <= 1]["params"].append(parameter)
    oracles = [
        torch.optim.Muon(hidden, lr=RATE, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.98), eps=1e-3, fused=True),
    ]
    schedules = [LambdaLR(each, warm_up_and_decay) for each in (optimizer, *oracles)]
    before = masked_lm().state_dict()
    for update in range(5):
        give_gradients(together, update)
        give_gradients(apart, update)
        for each in (optimizer, *oracles):
            each.step()
        for schedule in schedules:
            schedule.step()
        for (name, ours), theirs in zip(together.named_parameters(), apart.parameters(), strict=True):
            if HIDDEN.fullmatch(name):
                moved = (theirs - before[name]).norm()
                assert (ours - theirs).norm() <= 0.02 * moved and (moved > 0 or update == 0)
            else:
                assert torch.equal(ours, theirs)


NO_MATRIX = {"params": [torch.nn.Parameter(torch.zeros(3))], "lr": 1.0, "weight_decay": 0.0, "muon": False}


def test_muon_makes_singular_values_equal_for_matrices_of_any_shape():
    shapes = [(24, 24), (24, 24), (60, 24), (24, 60), (24, 60), (1, 7), (7, 1)]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape)
    MuonWithAdamW([{"params": parameters, "lr": 1.0, "weight_decay": 0.0, "muon": True}, NO_MATRIX]).step()
    for parameter in parameters:
        values = torch.linalg.svdvals(parameter.detach()) / (0.2 * max(parameter.shape) ** 0.5)
        assert values.median() > 0.6 and values.max() < 1.3  # what five steps of the iteration reach


def test_muon_divides_many_matrices_to_save_memory(run, monkeypatch):
    models = []
    for at_once in (optimization.AT_ONCE, 1):
        monkeypatch.setattr(optimization, "AT_ONCE", at_once)
        models.append(masked_lm())
        optimizer = build_optimizer(models[-1], run(optim="muon"))
        give_gradients(models[-1], 0)
        optimizer.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def test_muon_starts_few_kernels_for_many_matrices():
    def parameters() -> list[torch.nn.Parameter]:
        shapes = [(6, 6)] * 4 + [(24, 6), (6, 24)]
        made = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes * 12]
        for parameter in made:
            parameter.grad = torch.randn(parameter.shape)
        return made

    counts = []
    groups = [{"params": parameters(), "lr": 1.0, "weight_decay": 0.1, "muon": True}, NO_MATRIX]
    for optimizer in (torch.optim.Muon(parameters(), lr=1.0), MuonWithAdamW(groups)):
        optimizer.step()  # makes the averages
        with Kernels() as kernels:
            optimizer.step()
        counts.append(kernels.counts.total())
    assert counts[1] <= 100 < 1500 < counts[0]


@pytest.mark.parametrize(("layers", "width", "most"), [(5, 384, 75), (12, 768, 280)], ids=["12 million", "BERT-base"])
def test_muon_starts_few_kernels_for_a_model_of_its_usual_size(layers, width, most):
    """Those of BERT-base are divided, to save memory."""
    shapes = [(width, width)] * 4 + [(4 * width, width), (width, 4 * width)]
    parameters = [torch.nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes * layers]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer = MuonWithAdamW([{"params": parameters, "lr": 1.0, "weight_decay": 0.1, "muon": True}, NO_MATRIX])
    optimizer.step()  # makes the averages
    with Kernels() as kernels:
        optimizer.step()
    assert kernels.counts.total() <= most


@pytest.mark.parametrize("optim", ["adamw", "bert_adam", "adagrad", "muon"])
def test_the_optimizer_goes_on_from_a_file_of_tensors_bit_by_bit(run, tmp_path, optim):
    """Also where a parameter has had no gradient, and where one is not contiguous."""
    args = run(optim=optim, weight_decay=0.1)
    models = []
    for seed, updates in [(0, range(7)), (0, range(3)), (1, range(3, 7))]:
        model = masked_lm(seed)
        turned = model.bert.encoder.layer[0].output.dense.weight
        turned.data = turned.data.t().contiguous().t()
        names = {parameter: name for name, parameter in model.named_parameters()}
        optimizer = build_optimizer(model, args)
        schedule = LambdaLR(optimizer, warm_up_and_decay)
        if updates.start:
            load_weights(model, load_file(tmp_path / "model.safetensors"))
            load_state(optimizer, names, load_file(tmp_path / "optimizer.safetensors"))
            move_schedule(schedule, updates.start)
        for update in updates:
            give_gradients(model, update)
            model.bert.encoder.layer[1].output.dense.bias.grad = None
            optimizer.step()
            schedule.step()
        if updates == range(3):
            save_file(gather_weights(model), tmp_path / "model.safetensors")
            save_file(gather_state(optimizer, names), tmp_path / "optimizer.safetensors")
        models.append(model)
    whole, first, second = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(whole[name], second[name]) for name in whole)
    same = {name for name in whole if torch.equal(whole[name], first[name])}
    assert same == {"bert.encoder.layer.1.output.dense.bias"}
    saved = load_file(tmp_path / "optimizer.safetensors")
    if optim != "adagrad":  # whose state is there from the beginning
        assert not [name for name in saved if name.startswith("bert.encoder.layer.1.output.dense.bias.")]
    if optim == "bert_adam":
        assert saved["bert.embeddings.word_embeddings.weight.step"] == math.inf


def test_muon_takes_its_gradients_from_a_closure_and_leaves_frozen_parameters_alone(run):
    model = masked_lm()
    model.bert.embeddings.requires_grad_(False)
    before = copy.deepcopy(model)
    optimizer = build_optimizer(model, run(optim="muon"))

    def closure() -> torch.Tensor:
        give_gradients(model, 0)
        return torch.tensor(7.0)

    assert optimizer.step(closure) == 7.0
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert changed(model, before.state_dict()) & {name for name, _ in model.named_parameters()} == trained


def test_an_update_of_muon_without_gradients_changes_nothing(run):
    model = masked_lm()
    before, optimizer = copy.deepcopy(model).state_dict(), build_optimizer(model, run(optim="muon"))
    optimizer.step()
    assert changed(model, before) == set()


def test_muon_without_hidden_matrices_or_in_an_older_torch_is_one_clear_error(run, monkeypatch):
    model = masked_lm()
    model.bert.requires_grad_(False)
    with pytest.raises(ValueError, match="^--optim muon trains hidden matrices, and ZooBertForMaskedLM trains none"):
        build_optimizer(model, run(optim="muon"))
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(
        ImportError, match=f"^--optim muon needs torch 2.9 or later, not {re.escape(torch.__version__)}"
    ):
        MuonWithAdamW([])


# Groups


def groups_by_name(model, args) -> dict[str, dict]:
    """The optimizer's group of each trained parameter; fails where one is in two groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    listed = [(names[id(p)], group) for group in build_optimizer(model, args).param_groups for p in group["params"]]
    assert len(listed) == len({name for name, _ in listed})
    return dict(listed)


@pytest.mark.parametrize(("optim", "kind"), [("adamw", torch.optim.AdamW), ("bert_adam", BertAdam)])
def test_the_flags_choose_the_optimizer_and_its_settings(run, optim, kind):
    args = run(optim=optim, weight_decay=0.1, adam_beta1=0.8, adam_beta2=0.98, adam_epsilon=1e-3)
    optimizer = build_optimizer(modeling.ZooBertModel(stock_config()), args)
    assert type(optimizer) is kind
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"], group["fused"]) == (RATE, (0.8, 0.98), 1e-3, True)


def test_matrices_decay_vectors_do_not_and_frozen_parameters_are_left_out(run):
    model = modeling.ZooBertForSequenceClassification(stock_config())
    model.bert.embeddings.requires_grad_(False)
    groups = groups_by_name(model, run(weight_decay=0.1))
    for name, parameter in model.named_parameters():
        if "embeddings" in name:
            assert name not in groups
        else:
            matrix = name.endswith("weight") and "LayerNorm" not in name
            assert matrix == (parameter.dim() == 2)
            assert groups[name]["weight_decay"] == (0.1 if matrix else 0.0), name


def gpt(head: str) -> transformers.PreTrainedModel:
    config = transformers.OpenAIGPTConfig(vocab_size=97, n_positions=41, n_embd=36, n_layer=LAYERS, n_head=3)
    return getattr(transformers, head)(config)


MODELS = {
    "zoo, classifier": lambda: modeling.ZooBertForSequenceClassification(stock_config()),
    "zoo, tied masked LM": lambda: modeling.ZooBertForMaskedLM(stock_config()),
    "zoo, no head": lambda: modeling.ZooBertModel(stock_config()),
    "stock, classifier": lambda: transformers.BertForSequenceClassification(stock_config()),
    "stock, tied pre-training": lambda: transformers.BertForPreTraining(stock_config()),
    "stock GPT, tied LM": lambda: gpt("OpenAIGPTLMHeadModel"),
}


# Top layers that start anew


def changed(model, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}


def shared_layers() -> transformers.PreTrainedModel:
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 17, "embedding_size": 7}
    return transformers.AlbertModel(transformers.AlbertConfig(vocab_size=23, num_hidden_layers=3, **sizes))


def is_reset(name: str) -> bool:
    """Whether a parameter belongs to one of the two top layers or to the pooler."""
    return re.search(rf"\b(layer|h)\.({TOP}|{TOP - 1})\.|pooler", name) is not None


@pytest.mark.parametrize("whose", ["stock", "ours"])
@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForTokenClassification", "Model"])
def test_the_top_layers_and_the_pooler_start_anew_and_nothing_else(tmp_path, head, whose):
    stock, ours = pair(head, tmp_path, initializer_range=0.05)
    # From the folder, so that transformers has marked every tensor as loaded.
    model = ours if whose == "ours" else type(stock).from_pretrained(tmp_path)
    before = copy.deepcopy(model.state_dict())
    reinitialize_layers(model, 2)
    assert changed(model, before) == {name for name in before if is_reset(name)}
    for name, parameter in model.named_parameters():
        if is_reset(name) and name.endswith("LayerNorm.weight"):
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif is_reset(name) and name.endswith("bias"):
            assert torch.equal(parameter, torch.zeros_like(parameter)), name
        elif is_reset(name):
            assert parameter.mean().item() == pytest.approx(0.0, abs=0.01), name
            assert parameter.std().item() == pytest.approx(0.05, rel=0.1), name


def test_the_new_weights_depend_on_the_seed_alone(tmp_path):
    _, first = pair("ForSequenceClassification", tmp_path)
    second = type(first).from_pretrained(tmp_path)
    third = type(first).from_pretrained(tmp_path)
    for model, seed in [(first, 5), (second, 5), (third, 6)]:
        torch.manual_seed(seed)
        reinitialize_layers(model, 1)
    assert changed(first, second.state_dict()) == set()
    assert f"bert.encoder.layer.{TOP}.output.dense.weight" in changed(third, first.state_dict())


@pytest.mark.parametrize("model", MODELS)
def test_new_layers_are_those_of_a_new_model(model):
    """Also where modules draw their weights when they are made, as in the stock GPT."""
    torch.manual_seed(3)
    new = MODELS[model]().base_model.state_dict()
    torch.manual_seed(4)
    model = MODELS[model]()
    before = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    reinitialize_layers(model, 2)
    for name, parameter in model.base_model.named_parameters():
        if is_reset(name):
            assert torch.equal(parameter, new[name]), name
    matrices = {name for name, parameter in model.named_parameters() if is_reset(name) and parameter.dim() > 1}
    assert changed(model, before) == matrices  # biases and LayerNorms were as new


def test_no_layers_to_reset_changes_nothing_in_any_model():
    model = shared_layers()
    before = copy.deepcopy(model.state_dict())
    reinitialize_layers(model, 0)
    assert changed(model, before) == set()


def test_more_layers_than_there_are_is_one_clear_error():
    model = modeling.ZooBertModel(stock_config())
    with pytest.raises(ValueError, match=f"^--reinit_layers {LAYERS + 1}: ZooBertModel has {LAYERS} layers"):
        reinitialize_layers(model, LAYERS + 1)
    reinitialize_layers(model, LAYERS)


def test_a_model_without_a_list_of_its_layers_is_one_clear_error(run):
    with pytest.raises(ValueError, match="^--reinit_layers needs .* AlbertModel has 0 .*: leave"):
        reinitialize_layers(shared_layers(), 1)
    assert len(build_optimizer(shared_layers(), run()).param_groups) == 2


@pytest.mark.parametrize(("ratio", "updates"), [(0.0, 1), (None, 3), (0.5, 15)])
def test_a_stable_learning_rate_falls_in_a_tenth_of_the_updates_or_as_many_as_are_asked_for(run, ratio, updates):
    assert decay_updates(run(lr_scheduler_type="warmup_stable_decay", decay_ratio=ratio), 30) == updates


def test_a_stable_learning_rate_that_falls_in_no_share_of_the_updates_stays_at_its_peak(run):
    args = run(lr_scheduler_type="warmup_stable_decay", decay_ratio=0.0, warmup_steps=3, learning_rate=0.1)
    optimizer = torch.optim.AdamW([torch.zeros(1)], lr=0.1)
    scheduler, rates = build_schedule(optimizer, args, 12), []
    for _ in range(12):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0, 0.1 / 3, 0.2 / 3, *[0.1] * 9])


@pytest.mark.parametrize(("warm_up", "decay", "updates"), [(8, 0.5, 12), (3, 0.7, 5), (100, 0.2, 110)])
def test_a_learning_rate_that_has_risen_reaches_its_peak_before_it_falls(run, warm_up, decay, updates):
    args = run(lr_scheduler_type="warmup_stable_decay", decay_ratio=decay, warmup_steps=warm_up)
    rates = [*map(learning_rates(args, updates), range(updates))]
    assert rates[warm_up] == 1 and rates[warm_up:] == sorted(rates[warm_up:], reverse=True)


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "constant_with_warmup", "warmup_stable_decay"])
@pytest.mark.parametrize("update", [1, 2, 9])
def test_a_schedule_that_is_moved_goes_on_as_one_that_was_stepped(kind, update):
    def schedule() -> LambdaLR:
        groups = [{"params": [torch.zeros(1)], "lr": rate} for rate in (0.1, 0.03)]
        options = {"num_decay_steps": 4} if kind == "warmup_stable_decay" else None
        return transformers.get_scheduler(kind, torch.optim.AdamW(groups), 3, 12, options)

    stepped, moved = schedule(), schedule()
    for _ in range(update):
        stepped.optimizer.step()
        stepped.step()
    with warnings.catch_warnings():  # of torch, where a schedule moves before its optimizer
        warnings.simplefilter("error")
        move_schedule(moved, update)
    for _ in range(12 - update):
        assert moved.get_last_lr() == stepped.get_last_lr()
        assert [group["lr"] for group in moved.optimizer.param_groups] == moved.get_last_lr()
        for each in (moved, stepped):
            each.optimizer.step()
            each.step()
