"""The work of a step against formulas, without a change to its results; the machine's limit."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode

import modeling
from elmo_gpt_bert.training import log
from elmo_gpt_bert.training.log import Speed, _matrix_peak, count_operations, peak_of
from tests import bert_cases, gpt_cases
from tests.elmo_reference import small_config


CPU = torch.device("cpu")
ROWS, COLUMNS = 4, 8  # oneDNN's products have no rows to fill up
TOKENS = ROWS * COLUMNS
LENGTHS = (8, 6, 8, 8)


BERT_SIZES = bert_cases.SIZES | {"vocab_size": 96}  # words that the loss does not have to fill up for oneDNN


def bert_step() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    sizes = BERT_SIZES | {"hidden_dropout_prob": 0.1}
    model = modeling.ZooBertForPreTraining(modeling.ZooBertConfig(**sizes))
    ids = torch.randint(1, sizes["vocab_size"], (ROWS, COLUMNS))
    mask = (torch.arange(COLUMNS) < torch.tensor(LENGTHS)[:, None]).long()
    labels = torch.where(mask * torch.arange(COLUMNS) % 3 == 1, ids, -100)
    return model, {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": labels,
        "next_sentence_label": torch.tensor([0, 1, 1, 0]),
        "skip_logits": True,  # as the scripts train
    }


def bert_work(inputs: dict[str, torch.Tensor]) -> int:
    """Padding is not computed, and the head runs where there are labels."""
    hidden, inner, layers, words = (
        BERT_SIZES[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size")
    )
    labelled = int((inputs["labels"] != -100).sum())
    products = layers * sum(LENGTHS) * (4 * hidden * hidden + 2 * hidden * inner)
    products += labelled * hidden * (hidden + words) + ROWS * hidden * (hidden + 2)
    return 2 * 3 * products + attention_work(hidden, layers, LENGTHS)


def attention_work(hidden: int, layers: int, lengths: tuple[int, ...]) -> int:
    """Two products; in the backward pass two for each of them, and the first again, which flash attention forgets."""
    return 2 * (2 + 5) * layers * hidden * sum(length**2 for length in lengths)


def gpt_step() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    model = modeling.ZooGPTLMHeadModel(modeling.ZooGPTConfig(**gpt_cases.SIZES | {"resid_pdrop": 0.1}))
    ids = torch.randint(1, gpt_cases.SIZES["vocab_size"], (ROWS, COLUMNS))
    return model, {"input_ids": ids, "labels": ids}


def gpt_work(inputs: dict[str, torch.Tensor]) -> int:
    hidden, layers, words = (gpt_cases.SIZES[name] for name in ("n_embd", "n_layer", "vocab_size"))
    products = TOKENS * (layers * 12 * hidden * hidden + hidden * words)
    return 2 * 3 * products + attention_work(hidden, layers, (COLUMNS,) * ROWS)


def elmo_step() -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    model = modeling.ElmoForPreTraining(small_config(state="carry", hidden_dropout_prob=0.1))
    config = model.config
    words = torch.randint(1, config.vocab_size, (2, ROWS, COLUMNS, config.max_characters_per_token))
    words[1, 0, :2] = words[0, 0, :2]  # distinct words, with <S> and </S>, are then 2 * TOKENS
    labels = torch.randint(3, config.lm_vocab_size, (2, ROWS, COLUMNS))
    streams = {"input_ids": words[0], "reverse_input_ids": words[1]}
    return model, streams | {"labels": labels[0], "reverse_labels": labels[1]}


def elmo_work(inputs: dict[str, torch.Tensor]) -> int:
    config = small_config()
    size, cells, characters = config.hidden_size // 2, config.cell_size, config.max_characters_per_token
    filters = sum(number for _, number in config.filters)
    encoder = sum((characters - w + 1) * w * config.char_embedding_size * number for w, number in config.filters)
    encoder += config.num_highway_layers * 2 * filters**2 + filters * size
    direction = config.num_hidden_layers * (2 * size * 4 * cells + cells * size) + size * config.lm_vocab_size
    return 2 * 3 * 2 * TOKENS * (encoder + direction)


MODELS = {"bert": (bert_step, bert_work), "gpt": (gpt_step, gpt_work), "elmo": (elmo_step, elmo_work)}


@pytest.fixture
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "threads"), [("bert", 1), ("gpt", 1), ("elmo", 1), ("elmo", 2)], indirect=["threads"]
)
def test_the_work_of_a_step_is_what_a_formula_says_and_counting_changes_no_bit(name, threads):
    make, work = MODELS[name]
    torch.manual_seed(3)
    original, inputs = make()

    def gradients(run) -> list[torch.Tensor | None]:
        torch.manual_seed(4)
        model = copy.deepcopy(original).train()  # ELMo keeps its last states
        run(lambda: model(**inputs).loss.backward())
        return [parameter.grad for parameter in model.parameters()]

    counted = []
    plain = gradients(lambda step: step())
    watched = gradients(lambda step: counted.append(count_operations(step, CPU)))
    assert counted == [work(inputs)]
    assert torch.get_num_threads() == threads
    for one, other in zip(plain, watched, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_no_work_is_counted_on_xla_whose_slices_would_be_wrong_meanwhile():
    modes = []
    assert count_operations(lambda: modes.append(_get_current_dispatch_mode()), torch.device("xla")) == 0
    assert modes == [None]


@pytest.mark.parametrize("name", MODELS)
def test_the_work_does_not_depend_on_which_library_computes_it(name):
    make, work = MODELS[name]
    model, inputs = make()
    with torch.backends.mkldnn.flags(enabled=False):
        flops = count_operations(lambda: model.train()(**inputs).loss.backward(), CPU)
    assert flops == work(inputs)


@pytest.mark.parametrize("name", MODELS)
def test_torchs_counter_finds_the_same_products_whichever_library_computes_them(name):
    model, inputs = MODELS[name][0]()
    counts = []
    for uses_onednn in (True, False):
        with torch.backends.mkldnn.flags(enabled=uses_onednn), FlopCounterMode(display=False) as counter:
            copy.deepcopy(model).train()(**inputs).loss.backward()  # ELMo keeps its last states
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0


def test_the_limit_is_measured_once_for_each_precision_and_leaves_the_random_numbers_alone(monkeypatch):
    monkeypatch.setattr("elmo_gpt_bert.training.log.SECONDS", 0.01)
    _matrix_peak.cache_clear()
    before = torch.get_rng_state()
    limits = [peak_of(CPU, precision) for precision in ("no", "bf16", "no")]
    assert torch.equal(torch.get_rng_state(), before)
    assert limits[0] == limits[2] > 1e8 and limits[1] > 1e8
    assert _matrix_peak.cache_info().misses == 2
    _matrix_peak.cache_clear()  # of what so short a time has measured
    assert peak_of(torch.device("xla"), "no") is None


def test_the_limit_of_a_gpu_is_that_of_the_largest_product_even_if_another_process_makes_all_of_them_slow(monkeypatch):
    make_generator, make_numbers = torch.Generator, torch.rand
    monkeypatch.setattr(torch, "Generator", lambda device: make_generator(CPU))
    monkeypatch.setattr(torch, "rand", lambda *sizes, device, **options: make_numbers(*sizes, **options))
    monkeypatch.setattr(log, "SIZES", (2, 4, 8))
    for seconds, size in ((1.0, 2), (0.0, 8)):
        monkeypatch.setattr(log, "_time_product", lambda factors, seconds=seconds: seconds)
        assert len(log._large_matrix(CPU, torch.float32)) == size
        assert len(log._large_matrix(torch.device("cuda"), torch.float32)) == 8


# The values of the log


def test_the_log_has_the_tokens_of_all_processes_since_its_last_line_and_their_share_of_the_peak(monkeypatch):
    """On a machine of 100 operations a second; the first step has 42."""
    monkeypatch.setattr(log, "peak_of", lambda device, precision: 100.0)
    monkeypatch.setattr(log, "count_operations", lambda step, device: [step(), 42][1])
    machine = SimpleNamespace(num_processes=2, device=CPU)
    counter = Speed(3.0, True, SimpleNamespace(mixed_precision="no"), machine)
    padded = {"attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])}
    assert counter.measure(padded, lambda: "a loss") == "a loss"
    assert counter.measure({"input_ids": torch.zeros(2, 3, 5)}, lambda: "another") == "another"
    values = counter.values(5.0)  # 12 tokens of this process in two seconds, 7 operations each
    assert values == {"tokens_per_second": 12.0, "peak_share": pytest.approx(0.42)}
    counter.measure(padded, lambda: None)
    assert counter.values(8.0)["tokens_per_second"] == 4.0
