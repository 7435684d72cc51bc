"""BERT, GPT and ELMo at their published sizes, on a GPU.

Ours of BERT and GPT attends by torch's flash attention without padding (`torch_varlen`), which has no dropout, so no
side has any. The baseline is transformers' class with SDPA attention on the padded batch, in some rows compiled by
torch. ELMo's loop over time is launched as CUDA graphs, against the plain loop and against cuDNN's without clips.
"""

from functools import partial

from . import elmo, gpt
from .bert import Setup, classifier_flop, make_batches, make_masked_batches, masked_lm_flop, train_step
from .measure import Build


def finetuning(size: str, lengths_name: str, attention: str = "torch_varlen", compiled: bool = False) -> Build:
    """A fine-tuning step on 32 sequences of these lengths."""
    return train_step(
        "ForSequenceClassification",
        partial(make_batches, lengths_name),
        classifier_flop,
        setup=Setup(size, dropout=0.0, attention=attention, compiled=compiled),
    )


def pretraining(size: str, rows: int, columns: int, compiled: bool = False) -> Build:
    """A step of masked language modeling on full rows."""
    return train_step(
        "ForMaskedLM",
        partial(make_masked_batches, rows=rows, columns=columns),
        masked_lm_flop,
        setup=Setup(size, dropout=0.0, attention="torch_varlen", compiled=compiled),
    )


def language_modeling(rows: int, columns: int) -> Build:
    """A step of GPT's language modeling on full rows."""
    return train_step(
        "LMLoss",
        partial(gpt.make_texts, rows=rows, columns=columns),
        gpt.language_flop,
        make_models=gpt.make_models,
        setup=Setup("base", dropout=0.0, attention="torch_varlen"),
    )


GRAPHS = elmo.Loops(by_graphs=True)
GRAPHS_AND_CUDNN = elmo.Loops(by_graphs=True, by_cudnn=True)
FINETUNING, PRETRAINING = "fine-tuning step", "masked LM step"
ROWS: dict[str, tuple[str, Build]] = {
    "gpu-base-sst2": (f"BERT-base, {FINETUNING}", finetuning("base", "sst2-train")),
    "gpu-base-sst2-sdpa": (f"BERT-base with sdpa, {FINETUNING}", finetuning("base", "sst2-train", attention="sdpa")),
    "gpu-base-sst2-compiled": (f"BERT-base, {FINETUNING}", finetuning("base", "sst2-train", compiled=True)),
    "gpu-base-pairs": (f"BERT-base, {FINETUNING}", finetuning("base", "pairs")),
    "gpu-base-squad": (f"BERT-base, {FINETUNING}", finetuning("base", "squad-dev")),
    "gpu-large-sst2": (f"BERT-large, {FINETUNING}", finetuning("large", "sst2-train")),
    "gpu-large-pairs": (f"BERT-large, {FINETUNING}", finetuning("large", "pairs")),
    "gpu-large-squad": (f"BERT-large, {FINETUNING}", finetuning("large", "squad-dev")),
    "gpu-base-mlm-128": (f"BERT-base, {PRETRAINING}", pretraining("base", rows=256, columns=128)),
    "gpu-base-mlm-512": (f"BERT-base, {PRETRAINING}", pretraining("base", rows=32, columns=512)),
    "gpu-large-mlm-128": (f"BERT-large, {PRETRAINING}", pretraining("large", rows=128, columns=128)),
    "gpu-large-mlm-512": (f"BERT-large, {PRETRAINING}", pretraining("large", rows=16, columns=512)),
    "gpu-large-mlm-512-compiled": (f"BERT-large, {PRETRAINING}", pretraining("large", 16, 512, compiled=True)),
    "gpu-gpt-512": ("GPT, language modeling step", language_modeling(rows=32, columns=512)),
    "gpu-elmo-graphs": ("ELMo, inference", elmo.embed_batches("full", loops=GRAPHS)),
    "gpu-elmo-cudnn": ("ELMo without clips, inference", elmo.embed_batches("full", loops=GRAPHS_AND_CUDNN)),
    "gpu-elmo-training-graphs": ("ELMo, training step", elmo.train("full", loops=GRAPHS)),
    "gpu-elmo-training-cudnn": ("ELMo without clips, training step", elmo.train("full", loops=GRAPHS_AND_CUDNN)),
}
