"""Pre-training as in transformers' examples run_mlm.py and run_clm.py: the baseline for the zoo's.

It takes the same steps, but is not their code. Each document is tokenized, with [CLS] and [SEP] around it if the
tokenizer adds them. The tokens of a thousand documents are concatenated and cut into rows of one length. The rest,
less than a row, is left out. Trainer loads the rows from datasets' Arrow files in random order.
"""

import contextlib
import io
from pathlib import Path

import torch
from datasets import Dataset, load_from_disk
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    default_data_collator,
)
from transformers.data.data_collator import DataCollator

from elmo_gpt_bert.tasks.pretraining.text import read_documents

from .measure import timed


DOCUMENTS = 1000  # in a call of datasets.map
LEARNING_RATE, LOGGED = 1e-4, 10  # updates between two lines of the log
Columns = dict[str, list]


def make_rows(text: Path, tokenizer: PreTrainedTokenizerBase, masked: bool, length: int) -> Dataset:
    """The rows of a masked or of a left-to-right language model."""

    def tokenize(documents: Columns) -> Columns:
        return dict(tokenizer(documents["text"], return_special_tokens_mask=masked))

    def group(documents: Columns) -> Columns:
        columns = {name: [token for row in rows for token in row] for name, rows in documents.items()}
        stop = len(columns["input_ids"]) // length * length
        rows = {
            name: [values[start : start + length] for start in range(0, stop, length)]
            for name, values in columns.items()
        }
        return rows if masked else rows | {"labels": [*rows["input_ids"]]}

    tokenizer.model_max_length = int(1e9)  # the rows are shorter, so its warning means nothing
    documents = Dataset.from_dict({"text": [*read_documents(text)]})
    tokenized = documents.map(tokenize, batched=True, batch_size=DOCUMENTS, remove_columns=["text"])
    return tokenized.map(group, batched=True, batch_size=DOCUMENTS)


def make_collator(tokenizer: PreTrainedTokenizerBase, masked: bool) -> DataCollator:
    return DataCollatorForLanguageModeling(tokenizer) if masked else default_data_collator


def train(model: Path, rows: Path, masked: bool, batch_size: int, updates: int, output: Path) -> tuple[float, float]:
    """(CPU seconds, wall seconds) of Trainer's loop.

    Args:
        model: a folder with a configuration, for a new model of transformers' class, and a tokenizer.
        rows: what `make_rows` made, saved to disk.
        output: a folder for what Trainer writes.
    """
    torch.manual_seed(0)
    auto_class = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    arguments = TrainingArguments(
        str(output),
        max_steps=updates,
        per_device_train_batch_size=batch_size,
        learning_rate=LEARNING_RATE,
        logging_steps=LOGGED,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    trainer = Trainer(
        auto_class.from_config(AutoConfig.from_pretrained(model)),
        arguments,
        train_dataset=load_from_disk(rows),
        data_collator=make_collator(AutoTokenizer.from_pretrained(model), masked),
    )
    with contextlib.redirect_stdout(io.StringIO()):
        return timed(trainer.train)
