"""Runs of every script, each on its data in miniature and a tiny model without dropout."""

from collections.abc import Callable
from pathlib import Path

import run_glue
import run_ner
import run_pretraining
import run_squad
import run_swag
from modeling import (
    ElmoConfig,
    ElmoForMultipleChoice,
    ElmoForQuestionAnswering,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
    ElmoTokenizer,
)
from tests.support import choices_sample, glue_sample, gpt_sample, ner_sample, pretraining_sample, squad_sample


SIZES = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "num_highway_layers": 1, "hidden_size": 6}
SIZES |= {"cell_size": 7, "rnn_size": 5, "rnn_layers": 1, "classifier_size": 6, "word_vector_size": 3}
SIZES |= {"num_word_vectors": len(glue_sample.WORDS) + 2, "mix_dropout": 0.0, "task_dropout": 0.0}
NETWORKS = {
    "glue": ElmoForSequenceClassification,
    "ner": ElmoForTokenClassification,
    "squad": ElmoForQuestionAnswering,
    "swag": ElmoForMultipleChoice,
}
MAINS = {"glue": run_glue.main, "ner": run_ner.main, "squad": run_squad.main, "swag": run_swag.main}
OBJECTIVES = dict.fromkeys(("masked_lm", "next_sentence"), ("hidden_dropout_prob", "attention_probs_dropout_prob"))
OBJECTIVES |= {"causal_lm": ("embd_pdrop", "attn_pdrop", "resid_pdrop"), "bilm": ("hidden_dropout_prob",)}


def data(folder: Path, script: str) -> list[str]:
    """Nine to twelve examples to learn from, or windows of as many questions."""
    if script == "glue":
        glue_sample.write_task(folder, "RTE")
        return ["--task_name", "rte", "--data_dir", str(folder)]
    if script == "swag":
        return ["--task_name", "swag", "--data_dir", str(choices_sample.write_task(folder, "swag"))]
    write = {"ner": ner_sample.write_folder, "squad": squad_sample.write_folder}[script]
    # BERT's loss of an answer depends on the padding of its batch.
    shape = ["--doc_stride", "8", "--max_query_length", "10", "--pad_to_max_length"] if script == "squad" else []
    return ["--data_dir", str(write(folder / script)), *shape]


def bert(folder: Path) -> list[str]:
    model, vocabulary = glue_sample.write_model(folder), glue_sample.write_vocabulary(folder)
    return ["--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary)]


def gpt(folder: Path) -> list[str]:
    return ["--model_name_or_path", str(gpt_sample.write_gpt_model(folder))]


def elmo(folder: Path, script: str) -> list[str]:
    """The task network of the script, over word vectors and a frozen biLM."""
    NETWORKS[script](ElmoConfig(**SIZES)).save_pretrained(folder / "elmo")
    (folder / "words.txt").write_text("\n".join(glue_sample.WORDS), encoding="utf-8")
    ElmoTokenizer(words_file=str(folder / "words.txt")).save_pretrained(folder / "elmo")
    return ["--model_name_or_path", str(folder / "elmo")]


def make_run(folder: Path, name: str) -> tuple[Callable[[list[str]], object], list[str]]:
    """(main, flags without those of batch, length and output), as in "bert glue", "elmo ner", "masked_lm"."""
    # Where a gradient is nothing but rounding, Adam's small epsilon would make it a whole step.
    common = ["--do_train", "--lr_scheduler_type", "constant", "--save_strategy", "steps"]
    common += [] if name == "bilm" else ["--adam_epsilon", "0.001"]  # which learns by Adagrad
    if name in OBJECTIVES:
        config = dict.fromkeys(OBJECTIVES[name], 0)
        common += ["--report_to", "none"]  # drawing takes longer than the run
        return run_pretraining.main, [*pretraining_sample.flags(folder, name, **config), *common, "--do_eval", "false"]
    family, script = name.split()
    model = elmo(folder, script) if family == "elmo" else {"bert": bert, "gpt": gpt}[family](folder)
    return MAINS[script], [*model, *data(folder, script), *common, "--learning_rate", "0.01", "--max_seq_length", "32"]
