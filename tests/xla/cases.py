"""Runs of each script and each family, on tiny models without dropout: (name, script, flags in a folder)."""

from pathlib import Path

from modeling import ElmoConfig, ElmoForQuestionAnswering, ElmoForSequenceClassification, ElmoTokenizer
from tests.support import choices_sample, ner_sample, pretraining_sample, squad_sample
from tests.support.glue_sample import write_model, write_task, write_vocabulary
from tests.support.gpt_sample import write_gpt_model
from tests.support.ner_sample import write_elmo
from tests.tasks.test_run_swag import write_elmo as write_esim


OF_ALL = ["--do_train", "--do_eval", "--pad_to_max_length", "--learning_rate", "0.01", "--max_steps", "4"]
OF_ALL += ["--per_device_train_batch_size", "4", "--save_strategy", "no", "--logging_steps", "1"]
OF_ALL += ["--report_to", "curves", "--eval_strategy", "no"]
# Where a gradient is nothing but rounding, Adam's small epsilon would make it a whole step.
COMMON = [*OF_ALL, "--per_device_eval_batch_size", "4", "--adam_epsilon", "0.001"]

ELMO = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "num_highway_layers": 1, "hidden_size": 6}
ELMO |= {"cell_size": 7, "rnn_size": 5, "rnn_layers": 1, "classifier_size": 8, "task_dropout": 0.0, "mix_dropout": 0.0}


def bert(folder: Path, **changes: object) -> list[str]:
    model, vocabulary = write_model(folder, **changes), write_vocabulary(folder)
    return ["--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary), "--max_seq_length", "32"]


def gpt(folder: Path) -> list[str]:
    return ["--model_name_or_path", str(write_gpt_model(folder)), "--max_seq_length", "32"]


def elmo(folder: Path, model_class: type, words: int) -> list[str]:
    model_class(ElmoConfig(**ELMO)).save_pretrained(folder / "elmo")
    ElmoTokenizer().save_pretrained(folder / "elmo")
    return ["--model_name_or_path", str(folder / "elmo"), "--max_seq_length", str(words)]


def glue(folder: Path, task: str = "RTE") -> list[str]:
    write_task(folder, task)
    return ["--task_name", task.replace("-", "").lower(), "--data_dir", str(folder)]


def ner(folder: Path) -> list[str]:
    return ["--data_dir", str(ner_sample.write_folder(folder / "conll"))]


def squad(folder: Path) -> list[str]:
    windows = ["--max_query_length", "8", "--doc_stride", "6"]
    return ["--data_dir", str(squad_sample.write_folder(folder / "squad")), *windows]


def swag(folder: Path) -> list[str]:
    return ["--task_name", "swag", "--data_dir", str(choices_sample.write_task(folder, "swag"))]


def tagger(folder: Path, **options: str) -> list[str]:
    overrides = "task_dropout=0,mix_dropout=0,hidden_dropout_prob=0,freeze_bilm=false"
    flags = ["--model_name_or_path", write_elmo(folder / "elmo"), "--config_overrides", overrides]
    return [*flags, "--max_seq_length", "12", *ner(folder)]


def features(folder: Path) -> list[str]:
    overrides = ["--features", "weighted_sum_all", "--config_overrides", "rnn_size=5,dropout=0"]
    return [*bert(folder), *overrides, *ner(folder)]


def pretraining(folder: Path, kind: str) -> list[str]:
    without = {"causal_lm": ("resid_pdrop", "embd_pdrop", "attn_pdrop")}.get(kind, ("hidden_dropout_prob",))
    without += ("attention_probs_dropout_prob",) if kind in ("masked_lm", "next_sentence") else ()
    return pretraining_sample.flags(folder, kind, **dict.fromkeys(without, 0.0))


RUNS = {
    "BERT, GLUE": ("run_glue", lambda folder: [*bert(folder), *glue(folder)]),
    "BERT, GLUE, accumulation": (
        "run_glue",
        lambda folder: [*bert(folder), *glue(folder), "--gradient_accumulation_steps", "2"],
    ),
    "BERT, entities": ("run_ner", lambda folder: [*bert(folder), *ner(folder)]),
    "BERT's states, entities": ("run_ner", features),
    "BERT, SQuAD": ("run_squad", lambda folder: [*bert(folder), *squad(folder)]),
    "BERT, SWAG": ("run_swag", lambda folder: [*bert(folder), *swag(folder)]),
    "BERT, pre-training": ("run_pretraining", lambda folder: pretraining(folder, "next_sentence")),
    "GPT, GLUE, both orders": (
        "run_glue",
        lambda folder: [
            *gpt(folder),
            *glue(folder, "STS-B"),
            *("--config_overrides", "lm_loss_weight=0.5,both_orders=true"),
        ],
    ),
    "GPT, entities": ("run_ner", lambda folder: [*gpt(folder), *ner(folder)]),
    "GPT, SQuAD": ("run_squad", lambda folder: [*gpt(folder), *squad(folder)]),
    "GPT, SWAG": ("run_swag", lambda folder: [*gpt(folder), *swag(folder)]),
    "GPT, pre-training": ("run_pretraining", lambda folder: pretraining(folder, "causal_lm")),
    "ELMo, GLUE": (
        "run_glue",
        lambda folder: [*elmo(folder, ElmoForSequenceClassification, 16), *glue(folder)],
    ),
    "ELMo, entities": ("run_ner", tagger),
    "ELMo, SQuAD": (
        "run_squad",
        lambda folder: [*elmo(folder, ElmoForQuestionAnswering, 24), *squad(folder)],
    ),
    "ELMo, SWAG": (
        "run_swag",
        lambda folder: [
            *("--model_name_or_path", str(write_esim(folder)), "--max_seq_length", "12"),
            *swag(folder),
        ],
    ),
    "ELMo, pre-training": ("run_pretraining", lambda folder: pretraining(folder, "bilm")),
}
