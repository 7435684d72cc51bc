"""The runs of the papers' tables: which recipe each has, on which model and data. A table adds the cells.

Several tables show the same run. It then has the same name in all of them, and is carried out once.
"""

from dataclasses import dataclass
from dataclasses import replace as changed

from elmo_gpt_bert.tasks.glue.table import TASKS

from ..rows import Cell, Flag, Line, Place, Row, data, data_or_hub, hub_model, model, output


BASE, LARGE, GPT, ELMO = "bert-base", "bert-large", "gpt", "elmo"  # the names for --model
# The batch of the recipes, 32 or 16, in parts that fit the memory of a GPU with the large model.
LARGE_BATCHES: dict[str, dict[str, Flag]] = {
    "run_glue": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4},
    "run_ner": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4},
}
CONLL = {"data_dir": data("conll2003")}
SQUAD = {"data_dir": data_or_hub("squad", "train-v1.1.json")}
SQUAD_2 = {"data_dir": data_or_hub("squad", "train-v2.0.json")}
SWAG = {"data_dir": data_or_hub("swagaf/data", "train.csv")}
SNLI = {"data_dir": data_or_hub("snli_1.0", "snli_1.0_train.jsonl")}
SCITAIL = {"data_dir": data_or_hub("SciTailV1.1/tsv_format", "scitail_1.0_train.tsv")}
RACE = {"data_dir": data_or_hub("RACE", "train")}
STORY_CLOZE = {"data_dir": data("storycloze")}


def glue(task: str) -> dict[str, Flag]:
    """The folder of the GLUE zip, if it is there."""
    return {"data_dir": data_or_hub("glue", TASKS[task].folder)}


@dataclass(frozen=True)
class Score:
    """A score of a task: its title in a table, and its entry of metrics.json."""

    task: str
    title: str
    metric: str


GLUE_SCORES = (
    Score("mnli", "MNLI-m", "eval_accuracy"),
    Score("mnli", "MNLI-mm", "eval_accuracy_mm"),
    Score("qqp", "QQP F1", "eval_f1"),
    Score("qqp", "QQP accuracy", "eval_accuracy"),
    Score("qnli", "QNLI", "eval_accuracy"),
    Score("sst2", "SST-2", "eval_accuracy"),
    Score("cola", "CoLA Matthews", "eval_matthews_correlation"),
    Score("stsb", "STS-B Spearman", "eval_spearmanr"),
    Score("stsb", "STS-B Pearson", "eval_pearson"),
    Score("mrpc", "MRPC F1", "eval_f1"),
    Score("mrpc", "MRPC accuracy", "eval_accuracy"),
    Score("rte", "RTE", "eval_accuracy"),
)
GLUE_TASKS = tuple(dict.fromkeys(score.task for score in GLUE_SCORES))


def with_cells(row: Row, *cells: tuple[Line, str, str]) -> Row:
    """The row in a table: (line, column, metric) of each of its cells."""
    return changed(row, cells=tuple(Cell(*cell) for cell in cells))


def glue_cells(row: Row, first: str, column: str = "dev", titles: tuple[str, ...] | None = None) -> Row:
    """The row with a line for each score of its task, or for those of these titles, all of them in one column."""
    scores = [score for score in GLUE_SCORES if score.task == row.task and (titles is None or score.title in titles)]
    return with_cells(row, *(((first, score.title), column, score.metric) for score in scores))


def pretraining(folder: str, family: str, name: str, flags: dict[str, Flag], overrides: str = "") -> Row:
    """A run of weeks: once, and its model stays."""
    recipe = f"configs/{folder}/pretraining.yaml"
    row = Row(f"pretraining/{name}", "run_pretraining", recipe, flags, overrides, "pretraining", family)
    return changed(row, seeded=False, keeps_model=True)


# BERT


def bert_glue(task: str, size: str = BASE) -> Row:
    flags = {"model_name_or_path": hub_model(size)} | glue(task)
    flags |= LARGE_BATCHES["run_glue"] if size == LARGE else {}
    return Row(f"{_folder(size)}/{task}", "run_glue", f"configs/bert/{task}.yaml", flags, task=task, family=size)


def bert_squad(size: str = BASE) -> Row:
    recipe = "configs/bert/squad_large.yaml" if size == LARGE else "configs/bert/squad.yaml"
    flags = {"model_name_or_path": hub_model(size)} | SQUAD
    return Row(f"{_folder(size)}/squad", "run_squad", recipe, flags, task="squad", family=size)


def bert_squad_2(size: str = BASE) -> Row:
    recipe = "configs/bert/squad_v2_large.yaml" if size == LARGE else "configs/bert/squad_v2.yaml"
    flags = {"model_name_or_path": hub_model(size)} | SQUAD_2
    return Row(f"{_folder(size)}/squad_v2", "run_squad", recipe, flags, task="squad_v2", family=size)


def bert_triviaqa() -> tuple[Row, Row]:
    """TriviaQA, as one file of SQuAD's form, and then SQuAD."""
    files = {"train_file": data("triviaqa-train.json"), "validation_file": data("squad/dev-v1.1.json")}
    first = Row(
        "bert_large/triviaqa",
        "run_squad",
        "configs/bert/triviaqa_large.yaml",
        {"model_name_or_path": hub_model(LARGE)} | files,
        task="squad",
        family=LARGE,
        seeded=False,
    )
    flags = {"model_name_or_path": output(first.name)} | SQUAD
    recipe = "configs/bert/squad_triviaqa_large.yaml"
    return first, Row("bert_large/squad_triviaqa", "run_squad", recipe, flags, task="squad", family=LARGE)


def bert_swag(size: str = BASE) -> Row:
    recipe = "configs/bert/swag_large.yaml" if size == LARGE else "configs/bert/swag.yaml"
    flags = {"model_name_or_path": hub_model(size)} | SWAG
    return Row(f"{_folder(size)}/swag", "run_swag", recipe, flags, task="swag", family=size)


def bert_conll(size: str = BASE) -> Row:
    flags = {"model_name_or_path": hub_model(f"{size}-cased")} | CONLL
    flags |= LARGE_BATCHES["run_ner"] if size == LARGE else {}
    recipe = "configs/bert/conll2003.yaml"
    return Row(f"{_folder(size)}/conll2003", "run_ner", recipe, flags, task="conll2003", family=size)


def bert_features(name: str) -> Row:
    """A BiLSTM on these states of the frozen model."""
    flags = {"model_name_or_path": hub_model("bert-base-cased")} | CONLL
    recipe = f"configs/bert/conll2003_features_{name}.yaml"
    return Row(f"bert_base/conll2003_features_{name}", "run_ner", recipe, flags, task="conll2003", family=BASE)


def bert_pretraining(name: str, flags: dict[str, Flag] | None = None, overrides: str = "", text: str = "") -> Row:
    """A BERT from random weights; `text` is the pre-training whose prepared text it reads, if not its own."""
    corpus = {"corpus_dir": output(f"pretraining/{text}", "corpus")} if text else {}
    return pretraining("bert", BASE, name, {"tokenizer_name": hub_model(BASE)} | (flags or {}) | corpus, overrides)


def after(pretraining: Row, row: Row) -> Row:
    """The fine-tuning `row` of BERT-base, of the model that is pre-trained here."""
    name = pretraining.name.removeprefix("pretraining/")
    flags = dict(row.flags) | {"model_name_or_path": output(pretraining.name)}
    return changed(row, name=f"after_{name}/{row.name.removeprefix('bert_base/')}", flags=flags)


# The same in the tables 5 and 6.
BASE_PRETRAINING = bert_pretraining("base")


# GPT


def gpt_glue(task: str) -> Row:
    """One of GLUE's tasks, or SNLI or SciTail."""
    return _gpt(task, "run_glue", {"snli": SNLI, "scitail": SCITAIL}.get(task) or glue(task))


def gpt_without_lm(task: str) -> Row:
    """Without the language model's loss."""
    return changed(gpt_glue(task), name=f"gpt_without_lm/{task}", overrides="lm_loss_weight=0")


def gpt_random(task: str) -> Row:
    """Without pre-training."""
    row = gpt_glue(task)
    flags = {"model_name_or_path": "configs/gpt/base.json", "tokenizer_name": hub_model(GPT)}
    return changed(row, name=f"gpt_random/{task}", flags=dict(row.flags) | flags)


def gpt_choices(task: str) -> Row:
    return _gpt(task, "run_swag", {"race": RACE, "storycloze": STORY_CLOZE, "swag": SWAG}[task])


def _gpt(task: str, script: str, flags: dict[str, Flag]) -> Row:
    every = {"model_name_or_path": hub_model(GPT)} | flags
    return Row(f"gpt/{task}", script, f"configs/gpt/{task}.yaml", every, task=task, family=GPT)


# ELMo


def elmo_words(name: str, task: str, flags: dict[str, Flag]) -> Row:
    """A model for a task's network: vectors of words, and the biLM of the flag `model` or none."""
    return Row(name, "elmo_gpt_bert.convert.vectors", "", flags, task=task, family=ELMO, seeded=False)


GLOVE_50 = {"vectors": data("glove/glove.6B.50d.txt")}
GLOVE_300 = {"vectors": data("glove/glove.840B.300d.txt")}
SQUAD_FILES = (data("squad/train-v1.1.json"), data("squad/dev-v1.1.json"))
SWAG_FILES: tuple[Place, ...] = tuple(data(f"swagaf/data/{split}.csv") for split in ("train", "val", "test"))
CONLL_WORDS = elmo_words("elmo/conll2003_words", "conll2003", {"model": model(ELMO)} | GLOVE_50)
CONLL_GLOVE = elmo_words("elmo/conll2003_glove", "conll2003", {"model": "configs/elmo/tagger.json"} | GLOVE_50)
SQUAD_WORDS = elmo_words("elmo/squad_words", "squad", {"model": model(ELMO)} | GLOVE_300 | {"texts": SQUAD_FILES})
SQUAD_GLOVE = elmo_words(
    "elmo/squad_glove", "squad", {"model": "configs/elmo/bidaf.json"} | GLOVE_300 | {"texts": SQUAD_FILES}
)
SWAG_GLOVE = elmo_words(
    "elmo/swag_glove", "swag", {"model": "configs/elmo/esim.json"} | GLOVE_300 | {"texts": SWAG_FILES}
)


def _elmo(recipe: str, script: str, task: str, words: Row | None, flags: dict[str, Flag], overrides: str = "") -> Row:
    source = model(ELMO) if words is None else output(words.name)
    every = {"model_name_or_path": source} | flags
    return Row(f"elmo/{recipe}", script, f"configs/elmo/{recipe}.yaml", every, overrides, task, ELMO)


ELMO_CONLL = _elmo("conll2003", "run_ner", "conll2003", CONLL_WORDS, CONLL)
ELMO_CONLL_BASELINE = _elmo("conll2003_baseline", "run_ner", "conll2003", CONLL_GLOVE, CONLL)
ELMO_CONLL_TAGLM = _elmo("conll2003_taglm", "run_ner", "conll2003", CONLL_WORDS, CONLL)
ELMO_SQUAD = _elmo("squad", "run_squad", "squad", SQUAD_WORDS, {"data_dir": data("squad")})
ELMO_SQUAD_BASELINE = _elmo("squad_baseline", "run_squad", "squad", SQUAD_GLOVE, {"data_dir": data("squad")})
ELMO_SWAG = _elmo("swag", "run_swag", "swag", None, SWAG)
ELMO_SWAG_BASELINE = _elmo("swag_baseline", "run_swag", "swag", SWAG_GLOVE, {"data_dir": data("swagaf/data")})


def elmo_squad_variant(name: str, overrides: str) -> Row:
    """ELMo's network for SQuAD with other fields of its configuration."""
    return changed(ELMO_SQUAD, name=f"elmo/squad_{name}", overrides=overrides)


def _folder(name: str) -> str:
    return name.replace("-", "_")
