"""BERT, GPT and ELMo at their published sizes, on a GPU, in the order in which a quick run measures them.

Ours of BERT and GPT attends by torch's flash attention without padding, its default on a GPU in bf16. Its batches
carry their packing, as those of the scripts do; one row has batches without. The baseline is transformers' class with
SDPA attention on the padded batch, in the last rows compiled by torch. One row has dropout.
ELMo's loop over time is launched as CUDA graphs, against the plain loop and against cuDNN's without clips.
"""

from functools import partial

from . import elmo, gpt
from .attention import attend_packed
from .bert import (
    OURS,
    STOCK,
    VOCABULARIES,
    VOCABULARY,
    Setup,
    classifier_flop,
    make_batches,
    make_masked_batches,
    masked_lm_flop,
    train_step,
)
from .measure import Build
from .scripts import Launch


def gpu_setup(size: str, **fields) -> Setup:
    """The models of a training step as most rows have them."""
    return Setup(size, **{"dropout": 0.0, "packing": True} | fields)


def finetuning(size: str, lengths_name: str, **fields) -> Build:
    """A fine-tuning step on 32 sequences of these lengths."""
    return train_step(
        "ForSequenceClassification",
        partial(make_batches, lengths_name),
        classifier_flop,
        setup=gpu_setup(size, **fields),
    )


def pretraining(size: str, rows: int, columns: int, **fields) -> Build:
    """A step of masked language modeling on full rows."""
    vocabulary = VOCABULARIES.get(size, VOCABULARY)
    return train_step(
        "ForMaskedLM",
        partial(make_masked_batches, rows=rows, columns=columns, vocabulary=vocabulary),
        masked_lm_flop,
        setup=gpu_setup(size, **fields),
    )


def language_modeling(rows: int, columns: int, **fields) -> Build:
    """A step of GPT's language modeling on full rows."""
    return train_step(
        "LMLoss",
        partial(gpt.make_texts, rows=rows, columns=columns),
        gpt.language_flop,
        make_models=gpt.make_models,
        setup=gpu_setup("base", **fields),
    )


GRAPHS = elmo.Loops(by_graphs=True)
GRAPHS_AND_CUDNN = elmo.Loops(by_graphs=True, by_cudnn=True)
FINETUNING, PRETRAINING, CAUSAL = "fine-tuning step", "masked LM step", "GPT, language modeling step"
ATTENTION, GENERATION = "attention of 12 heads, forward and backward", "GPT, greedy generation"
PLAIN = f"{FINETUNING} on batches without their packing"
ONE, BOTH = (OURS,), (OURS, STOCK)  # sides that torch compiles
CUDA_GRAPHS = {"compiled": ONE, "compile_mode": "reduce-overhead"}
CHECKPOINTING = f"{PRETRAINING} with gradient checkpointing"
# Rows of one size and head follow each other, because they share their models.
ROWS: dict[str, tuple[str, Build]] = {
    "gpu-attention-sst2": (ATTENTION, attend_packed("sst2-train")),
    "gpu-attention-squad": (ATTENTION, attend_packed("squad-dev")),
    "gpu-base-sst2": (f"BERT-base, {FINETUNING}", finetuning("base", "sst2-train")),
    "gpu-base-pairs": (f"BERT-base, {FINETUNING}", finetuning("base", "pairs")),
    "gpu-base-squad": (f"BERT-base, {FINETUNING}", finetuning("base", "squad-dev")),
    "gpu-base-sst2-plain": (f"BERT-base, {PLAIN}", finetuning("base", "sst2-train", packing=False)),
    "gpu-base-sst2-dropout": (f"BERT-base, dropout, {FINETUNING}", finetuning("base", "sst2-train", dropout=0.1)),
    "gpu-large-sst2": (f"BERT-large, {FINETUNING}", finetuning("large", "sst2-train")),
    "gpu-large-squad": (f"BERT-large, {FINETUNING}", finetuning("large", "squad-dev")),
    "gpu-base-mlm-128": (f"BERT-base, {PRETRAINING}", pretraining("base", 256, 128)),
    "gpu-base-mlm-512": (f"BERT-base, {PRETRAINING}", pretraining("base", 32, 512)),
    "gpu-large-mlm-128": (f"BERT-large, {PRETRAINING}", pretraining("large", 128, 128)),
    "gpu-gpt-512": (CAUSAL, language_modeling(32, 512)),
    "gpu-12m": (f"5 x 384, {PRETRAINING}", pretraining("12m", 512, 128)),
    "gpu-12m-muon": (f"5 x 384, {PRETRAINING} by Muon", pretraining("12m", 512, 128, optim="muon")),
    "gpu-gpt-greedy": (GENERATION, gpt.generate(rows=1, new_tokens=128)),
    "gpu-gpt-greedy-batch16": (GENERATION, gpt.generate(rows=16, new_tokens=128)),
    "gpu-elmo-graphs": ("ELMo, inference", elmo.embed_batches("full", loops=GRAPHS)),
    "gpu-elmo-training-graphs": ("ELMo, training step", elmo.train("full", loops=GRAPHS)),
    "gpu-elmo-cudnn": ("ELMo without clips, inference", elmo.embed_batches("full", loops=GRAPHS_AND_CUDNN)),
    "gpu-elmo-training-cudnn": ("ELMo without clips, training step", elmo.train("full", loops=GRAPHS_AND_CUDNN)),
    "gpu-base-checkpointing": (f"BERT-base, {CHECKPOINTING}", pretraining("base", 32, 512, checkpointing=True)),
    "gpu-large-checkpointing": (f"BERT-large, {CHECKPOINTING}", pretraining("large", 16, 512, checkpointing=True)),
    "gpu-base-sst2-compiled": (f"BERT-base, {FINETUNING}", finetuning("base", "sst2-train", compiled=ONE)),
    "gpu-base-mlm-128-compiled": (f"BERT-base, {PRETRAINING}", pretraining("base", 256, 128, compiled=ONE)),
    "gpu-gpt-512-compiled": (CAUSAL, language_modeling(32, 512, compiled=ONE)),
    "gpu-base-sst2-graphs-compiled": (f"BERT-base, {FINETUNING}", finetuning("base", "sst2-train", **CUDA_GRAPHS)),
    "gpu-gpt-greedy-static-compiled": (f"{GENERATION}, static cache", gpt.generate(1, 128, cache="static")),
    "gpu-base-mlm-128-both-compiled": (f"BERT-base, {PRETRAINING}", pretraining("base", 256, 128, compiled=BOTH)),
}
# Runs of run_glue.py, which only have to end well.
RUNS = {
    "gpu-run-fp16": Launch(precision="fp16"),
    "gpu-run-multi-gpu": Launch("multi_gpu.yaml"),
    "gpu-run-fsdp2": Launch("fsdp2.yaml"),
}
# torch compiles for longest, so a run that is cut loses those rows only.
COMPILED = [row for row in ROWS if row.endswith("-compiled")]
ORDER = [*(row for row in ROWS if row not in COMPILED), *RUNS, *COMPILED]


def expected_seconds(row: str) -> int:
    """How long a row may take on an H100: models, kernels of new shapes, comparison and turns.

    On an H200, 21 rows took 11 seconds each, with longer turns and with weights that were initialized before they were
    drawn. Four rows in which ours alone is compiled took less than 100 seconds together. The seconds of a run, of a
    row with CUDA graphs or a static cache, and of one with both sides compiled are estimated.
    """
    if row in RUNS:
        return 15
    return 30 if "both" in row else 15 if row in COMPILED else 10 if "large" in row else 8
