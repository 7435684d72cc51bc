"""Fine-tunes transformers' BERT by its Trainer, as its example run_glue.py does, until the first update is made.

    python -m benchmarks.plain_start CONFIG.json VOCABULARY.txt TRAIN.tsv OUTPUT_DIR

Prints `FIRST_UPDATE` then. The data are sentences and labels, separated by tabs.
"""

import csv
import sys

from datasets import load_dataset
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


FIRST_UPDATE = "first update"
BATCH, LENGTH = 32, 64


class Report(TrainerCallback):
    """Says when an update was made."""

    def on_step_end(self, *given, **others) -> None:
        print(FIRST_UPDATE, flush=True)


def main(config: str, vocabulary: str, train_file: str, output: str) -> None:
    tokenizer = BertTokenizer(vocab=vocabulary)
    options = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "cache_dir": f"{output}/cache"}
    data = load_dataset("csv", data_files=train_file, split="train", **options)
    data = data.map(lambda rows: tokenizer(rows["sentence"], truncation=True, max_length=LENGTH), batched=True)
    model = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(config))
    args = TrainingArguments(
        output, max_steps=1, per_device_train_batch_size=BATCH, save_strategy="no", report_to="none", use_cpu=True
    )
    collator = DataCollatorWithPadding(tokenizer)
    Trainer(model, args, data_collator=collator, train_dataset=data, callbacks=[Report()]).train()


if __name__ == "__main__":
    main(*sys.argv[1:])
