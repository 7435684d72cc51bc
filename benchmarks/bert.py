"""BERT: this zoo's classes against those of transformers with SDPA attention, on the same weights and inputs.

A row is a function `(precision, baseline_precision, tiny, device) -> Contest`; precision.py describes the precisions.
"""

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

import modeling
from elmo_gpt_bert.training.arguments import RunArguments
from elmo_gpt_bert.training.optimization import build_optimizer, compile_layers
from modeling.shared.modeling_heads import IGNORED

from .limits import layers_flop
from .measure import Build, Contest, Need, Outputs, Side, peak_memory
from .precision import forward_backward, gradients, inference, model_dtype, tolerance


Batch = dict[str, torch.Tensor]
MakeModels = Callable[..., dict[str, PreTrainedModel]]  # (head, size, tiny, dropout) -> models by side
CountFlop = Callable[[PreTrainedConfig, Batch], float]  # of a forward pass, at least

OURS, STOCK = "zoo", "transformers"


class MaskedLMOfTraining(modeling.ZooBertForMaskedLM):
    """Returns the loss only, as run_pretraining.py asks for it."""

    def forward(self, **inputs):
        return super().forward(**inputs, skip_logits=True)


CLASSES = {OURS: (modeling, "ZooBert"), STOCK: (transformers, "Bert")}
BATCH_SIZE = 32
BATCHES = 8
PASSES = 3  # a training step: forward, and backward to the inputs and to the weights of each product

SIZES = {
    "base": {"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
    "small": {"num_hidden_layers": 4, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 2048},
    # configs/bert/12m.json
    "12m": {"num_hidden_layers": 5, "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536},
    # So narrow that the calls of a step take longer than its products (overhead.py).
    "narrow": {"num_hidden_layers": 12, "hidden_size": 12, "num_attention_heads": 12, "intermediate_size": 48},
    "tiny": {"num_hidden_layers": 2, "hidden_size": 36, "num_attention_heads": 3, "intermediate_size": 53},
}
VOCABULARY, TINY_VOCABULARY = 30522, 97
VOCABULARIES = {
    "12m": 8000,
    "narrow": TINY_VOCABULARY,
    "tiny": TINY_VOCABULARY,
}  # of the sizes that do not have the published one

# Quantiles of lengths in word pieces of the uncased vocabulary, with [CLS] and [SEP].
QUANTILES = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1]
LENGTHS = {
    # Counted on SST-2's train.tsv as GLUE publishes it: 67,349 phrases, most of them parts of a sentence; mean 13.3.
    "sst2-train": [3, 4, 6, 7, 8, 10, 13, 16, 20, 27, 33, 44, 66],
    # Counted on its dev.tsv: 872 whole sentences, mean 25.2.
    "sst2-dev": [4, 12, 16, 19, 21, 24.5, 27, 30, 34, 40, 44, 51.3, 55],
    # Not counted, but chosen like pairs of MNLI, with a mean of 39 and 1.5 columns per token when padded.
    "pairs": [15, 28, 31, 34, 36, 39, 41, 44, 46, 50, 53, 59, 63],
    # Counted on the windows of SQuAD's dev-v1.1.json, of up to 384 tokens with a stride of 128; mean 176.0.
    "squad-dev": [41, 110, 127, 138, 150, 164, 179, 196, 219, 264, 304, 384, 384],
    # Counted in GPT's tokens on every tenth paragraph of 15 books in the public domain, cut off at 128; mean 52.8.
    "paragraphs": [1, 8, 13, 19, 26, 37, 51, 72, 106, 128, 128, 128, 128],
}


@dataclass(frozen=True)
class Inputs:
    batches: list[Batch]
    work: str

    def to(self, device: torch.device) -> "Inputs":
        return Inputs([on(device, batch) for batch in self.batches], self.work)


def on(device: torch.device, batch: Batch) -> Batch:
    return {name: values.to(device) for name, values in batch.items()}


def draw_lengths(name: str, count: int) -> torch.Tensor:
    """`count` lengths from the named distribution in random order, the same in every call."""
    generator = np.random.default_rng(0)
    lengths = np.interp(generator.random(count), QUANTILES, LENGTHS[name])
    return torch.from_numpy(lengths.round().astype(np.int64))


# (batch) -> a copy of it that carries its packing
add_packing = modeling.DataCollatorWithPacking(dict)


def pad(sequences: list[torch.Tensor]) -> Batch:
    """B sequences (T_i,) of ids -> (B, T) ids and mask, where T is the greatest T_i."""
    ids = pad_sequence(sequences, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def draw_sequences(lengths: torch.Tensor, tiny: bool, vocabulary: int = VOCABULARY) -> list[torch.Tensor]:
    """Random word pieces, on which speed does not depend. None is 0, the id of padding."""
    generator = torch.Generator().manual_seed(0)
    vocabulary = TINY_VOCABULARY if tiny else vocabulary
    return [torch.randint(1, vocabulary, (length,), generator=generator) for length in lengths.tolist()]


def make_batches(lengths_name: str, tiny: bool) -> Inputs:
    size, count = (5, 2) if tiny else (BATCH_SIZE, BATCHES)
    sequences = draw_sequences(draw_lengths(lengths_name, size * count), tiny)
    batches = [pad(sequences[start : start + size]) for start in range(0, len(sequences), size)]
    generator = torch.Generator().manual_seed(0)
    for batch in batches:
        batch["labels"] = torch.randint(0, 2, (size,), generator=generator)
    return Inputs(batches, f"{size} x {lengths_name}, padded {padding(batches):.2f}x")


def padding(batches: list[Batch]) -> float:
    """The number of columns per real token."""
    masks = [batch["attention_mask"] for batch in batches]
    return sum(mask.numel() for mask in masks) / sum(int(mask.sum()) for mask in masks)


def drawn_once(make_models: MakeModels) -> MakeModels:
    """Draws the weights of models once for rows of the same size that follow each other, and gives each row a copy.

    Two sets are kept: a training row with dropout has another one without, on which results are compared.
    """
    drawn = functools.lru_cache(maxsize=2)(make_models)

    @functools.wraps(make_models)
    def copies(*args, **changes) -> dict[str, PreTrainedModel]:
        return copy.deepcopy(drawn(*args, **changes))

    return copies


@drawn_once
def make_models(head: str, size: str, tiny: bool, dropout: float, **changes: int) -> dict[str, PreTrainedModel]:
    """transformers' class and ours with the same random weights, large enough to reveal a missing term."""
    with no_init_weights():  # all are drawn below
        models = {side: make_model(side, head, size, tiny, dropout, **changes) for side in (OURS, STOCK)}
    for model in models.values():
        model.tie_weights()
    generator = torch.Generator().manual_seed(0)
    for name, parameter in models[STOCK].named_parameters():
        mean = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        parameter.data.normal_(mean, 0.05, generator=generator)
    models[OURS].load_state_dict(models[STOCK].state_dict())
    return models


def make_model(side: str, head: str, size: str, tiny: bool, dropout: float, **changes: int) -> PreTrainedModel:
    """The model of one side; `changes` are fields of its configuration."""
    package, prefix = CLASSES[side]
    model_class = getattr(package, f"{prefix}{head}")
    size = "tiny" if tiny else size
    if model_class is modeling.ZooBertForMaskedLM:
        model_class = MaskedLMOfTraining
    config = model_class.config_class(
        **SIZES[size] | changes,
        vocab_size=VOCABULARIES.get(size, VOCABULARY),
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = model_class(config)
    model.set_attn_implementation("sdpa")
    return model


# What a forward pass needs


def lengths_of(batch: Batch) -> list[int]:
    return batch["attention_mask"].sum(-1).tolist()


def classifier_flop(config: PreTrainedConfig, batch: Batch) -> float:
    """Of the layers, where only the state of [CLS] is read, the pooler and the scores of the labels."""
    lengths, hidden = lengths_of(batch), config.hidden_size
    head = 2 * len(lengths) * hidden * (hidden + config.num_labels)
    return layers_flop(config, lengths, causal=False, one_state=True) + head


def masked_lm_flop(config: PreTrainedConfig, batch: Batch) -> float:
    """Of the layers and, for each labelled token, the head with the scores of all words."""
    hidden, labelled = config.hidden_size, int((batch["labels"] != IGNORED).sum())
    head = 2 * labelled * hidden * (hidden + config.vocab_size)
    return layers_flop(config, lengths_of(batch), causal=False, one_state=False) + head


# Inference


def classify(
    size: str, lengths_name: str, make_models: MakeModels = make_models, count: CountFlop = classifier_flop
) -> Build:
    """Computes logits of batches in random order, each padded to its longest sequence."""

    def build(precision: str, baseline_precision: str, tiny: bool, device: torch.device) -> Contest:
        inputs = make_batches(lengths_name, tiny).to(device)
        models = make_models("ForSequenceClassification", size, tiny, dropout=0.0)

        def side(name: str, precision: str) -> Side:
            model = models[name].eval().to(device, model_dtype(precision))

            def run(index: int) -> torch.Tensor:
                batch = inputs.batches[index % len(inputs.batches)]
                with inference(precision):
                    return model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits

            return Side(name, run, check=lambda: {"logits": run(0)})

        config, batches = models[OURS].config, inputs.batches
        return Contest(
            side(OURS, precision),
            side(STOCK, baseline_precision),
            inputs.work,
            tolerance(precision, baseline_precision, device=device),
            Need("products", lambda index: count(config, batches[index % len(batches)])),
            device,
        )

    return build


# Training


def make_masked_batches(tiny: bool, rows: int = 8, columns: int = 128, vocabulary: int = VOCABULARY) -> Inputs:
    """Tokens without padding, 15 % of them labelled, as in BERT's pre-training (section 3.1, appendix A.2)."""
    rows, columns = (3, 19) if tiny else (rows, columns)
    generator = torch.Generator().manual_seed(0)
    batches = []
    sequences = draw_sequences(torch.full((rows * BATCHES,), columns), tiny, vocabulary)
    for ids in torch.stack(sequences).split(rows):
        labelled = torch.rand(ids.shape, generator=generator) < 0.15
        labels = torch.where(labelled, ids, IGNORED)
        batches.append({"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels})
    return Inputs(batches, f"{rows} x {columns}, no padding")


def make_classified_batches(tiny: bool) -> Inputs:
    return make_batches("sst2-train", tiny)


def loss_and_gradients(model: PreTrainedModel, batch: Batch, precision: str) -> Outputs:
    """The loss and all gradients of one training pass."""
    model.train().zero_grad()
    loss = forward_backward(lambda: model(**batch).loss, precision, model.device)
    return {"loss": loss, "gradients": gradients(model)}


def compiled(side: str, model: PreTrainedModel, mode: str) -> PreTrainedModel:
    """The model of this side as its user compiles it: ours by --torch_compile, transformers' as a whole."""
    if side == STOCK:
        return torch.compile(model, dynamic=True)
    model = copy.deepcopy(model)  # rows share their models, and layers are compiled in place
    compile_layers(model, mode)
    return model


def make_step(
    model: PreTrainedModel, batches: list[Batch], precision: str, optim: str = "adamw"
) -> Callable[[int], None]:
    model.train()
    settings = {"optim": optim, "learning_rate": 2e-5, "weight_decay": 0.01}
    optimizer = build_optimizer(
        model, RunArguments(model_name_or_path="any", output_dir="any", do_train=True, **settings)
    )

    def step(index: int) -> None:
        forward_backward(lambda: model(**batches[index % len(batches)]).loss, precision, model.device)
        optimizer.step()
        optimizer.zero_grad()

    return step


def after_all_batches(step: Callable[[int], None], count: int) -> Callable[[int], None]:
    """`step`, whose first call computes all batches before, so that no later one waits for a graph to be compiled."""
    ahead = list(range(count))

    def run(index: int) -> None:
        while ahead:
            step(ahead.pop())
        step(index)

    return run


@dataclass(frozen=True)
class Setup:
    """The models of a training step.

    Attributes:
        size: one of `SIZES`.
        dropout: the probability, everywhere.
        compiled: the sides that are compiled by torch.
        compile_mode: the --torch_compile_mode of ours.
        optim: the optimizer of both sides, by the name that the scripts have for it.
        checkpointing: whether both sides compute the states of each layer again for its backward pass.
        packing: whether our batches carry their packing, as those of the scripts do on a GPU.
    """

    size: str = "small"
    dropout: float = 0.1
    compiled: tuple[str, ...] = ()
    compile_mode: str = "default"
    optim: str = "adamw"
    checkpointing: bool = False
    packing: bool = False


def two_steps(
    side: str,
    head: str,
    make_inputs: Callable[[bool], Inputs],
    setup: Setup,
    precision: str,
    tiny: bool,
    device: torch.device,
) -> None:
    """The work whose memory is measured: in the second step, the optimizer has its state."""
    model = make_model(side, head, setup.size, tiny, setup.dropout).to(device)
    if setup.checkpointing:
        model.activation_checkpointing_enable()
    step = make_step(model, make_inputs(tiny).to(device).batches, precision)
    step(0)
    step(1)


def train_step(
    head: str,
    make_inputs: Callable[[bool], Inputs],
    count: CountFlop,
    with_memory: bool = False,
    make_models: MakeModels = make_models,
    setup: Setup = Setup(),
) -> Build:
    """Forward, backward and the optimizer of `setup`, with its dropout; results are compared without dropout.

    `with_memory` says whether the peak memory of a process is measured that does nothing else.
    """

    def build(precision: str, baseline_precision: str, tiny: bool, device: torch.device) -> Contest:
        inputs = make_inputs(tiny)
        ours = [add_packing(batch) for batch in inputs.batches] if setup.packing else inputs.batches
        of_side = {OURS: ours, STOCK: inputs.batches}

        def models(dropout: float) -> dict[str, PreTrainedModel]:
            both = make_models(head, setup.size, tiny, dropout=dropout)
            for model in both.values() if setup.checkpointing else ():
                model.activation_checkpointing_enable()
            return both

        trained = models(setup.dropout)
        checked = models(0.0) if setup.dropout else trained

        def side(name: str, precision: str) -> Side:
            batches = [on(device, batch) for batch in of_side[name]]

            def check() -> Outputs:
                return loss_and_gradients(checked[name].to(device), batches[0], precision)

            def memory() -> float:
                return peak_memory(two_steps, name, head, make_inputs, setup, precision, tiny, device)

            model, is_compiled = trained[name].to(device), name in setup.compiled
            used = compiled(name, model, setup.compile_mode) if is_compiled else model
            run = make_step(used, batches, precision, setup.optim)
            if is_compiled:
                run = after_all_batches(run, len(batches))
            return Side(f"{name}, compiled" if is_compiled else name, run, check, memory if with_memory else None)

        config, batches = trained[OURS].config, inputs.batches
        return Contest(
            side(OURS, precision),
            side(STOCK, baseline_precision),
            inputs.work,
            tolerance(precision, baseline_precision, device=device),
            Need("products", lambda index: PASSES * count(config, batches[index % len(batches)])),
            device,
            items=lambda index: sum(lengths_of(batches[index % len(batches)])),
        )

    return build


CHECKPOINTING = Setup(checkpointing=True)
ROWS: dict[str, tuple[str, Build]] = {
    "base-sst2": ("BERT-base, inference", classify("base", "sst2-train")),
    "base-sst2-dev": ("BERT-base, inference", classify("base", "sst2-dev")),
    "base-pairs": ("BERT-base, inference", classify("base", "pairs")),
    "small-pairs": ("4 x 512, inference", classify("small", "pairs")),
    "finetuning": (
        "4 x 512, fine-tuning step",
        train_step("ForSequenceClassification", make_classified_batches, classifier_flop),
    ),
    "masked-lm": (
        "4 x 512, masked LM step",
        train_step("ForMaskedLM", make_masked_batches, masked_lm_flop, with_memory=True),
    ),
    "masked-lm-checkpointing": (
        "4 x 512, masked LM step",
        train_step("ForMaskedLM", make_masked_batches, masked_lm_flop, with_memory=True, setup=CHECKPOINTING),
    ),
}
