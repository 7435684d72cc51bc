"""The same fine-tuning with and without pre-training, on six tasks: what all three papers claim."""

from ..rows import Cell, Comparison, Flag, Gap, Published, Row, Table, data, model, output, published_in_columns
from .paper_runs import (
    CONLL_GLOVE,
    CONLL_WORDS,
    ELMO_CONLL,
    ELMO_CONLL_BASELINE,
    ELMO_SQUAD,
    ELMO_SQUAD_BASELINE,
    ELMO_SWAG,
    ELMO_SWAG_BASELINE,
    SQUAD_GLOVE,
    SQUAD_WORDS,
    SWAG_GLOVE,
    elmo_words,
    with_cells,
)
from .tasks import SMALL_TASKS, WNUT17, SmallTask


WITHOUT, WITH = "without pre-training", "with pre-training"
ALONG = "ELMo, fine-tuned"  # a biLM that is trained along with the network on it
STATIC, FROZEN, BOTH = "skip-gram vectors", "ELMo, features", "ELMo, features, and skip-gram vectors"
# (task, model, without, with), in percent: Radford et al. 2018, table 5; Devlin et al. 2018, tables 1 and 2; ELMo's
# GLUE scores as Devlin et al. have them, and Peters et al. 2018, table 1.
FIGURES = (
    ("sst2", "GPT, fine-tuned", 84.0, 91.3),
    ("cola", "GPT, fine-tuned", 18.9, 45.4),
    ("rte", "GPT, fine-tuned", 53.8, 56.0),
    ("sst2", "BERT, fine-tuned", None, 93.5),
    ("cola", "BERT, fine-tuned", None, 52.1),
    ("rte", "BERT, fine-tuned", None, 66.4),
    ("squad", "BERT, fine-tuned", None, 88.5),
    ("sst2", "ELMo, features", None, 90.4),
    ("cola", "ELMo, features", None, 36.0),
    ("rte", "ELMo, features", None, 56.8),
    ("squad", "ELMo, features", 81.1, 85.8),
)
TITLES = {task.name: task.title for task in SMALL_TASKS}


def cells(task: SmallTask, column: str, *labels: str) -> tuple[Cell, ...]:
    return tuple(Cell((task.title, label), column, task.metric) for label in labels)


def transformer_rows(family: str, task: SmallTask) -> list[Row]:
    """Fine-tuning of the checkpoint, and of its architecture with random weights."""
    recipe = f"configs/{family}/{task.name}_small.yaml"
    return without_and_with(family, task, recipe, f"{family.upper()}, fine-tuned", ("random", "fine_tuned"), {})


def bert_feature_rows(task: SmallTask) -> list[Row]:
    """What is trained on the frozen checkpoint, and on its frozen architecture with random weights.

    For named entities, it is a BiLSTM (Devlin et al. 2018, section 5.3); for the other tasks, the head of fine-tuning.
    """
    recipe, flags = f"configs/bert/{task.name}_small.yaml", {"freeze_layers": 5, "learning_rate": 1e-3}
    if task is WNUT17:
        recipe, flags = "configs/bert/wnut17_features_concat_last_four.yaml", {}
    return without_and_with("bert", task, recipe, "BERT, features", ("random_features", "features"), flags)


def without_and_with(
    family: str, task: SmallTask, recipe: str, label: str, names: tuple[str, str], flags: dict[str, Flag]
) -> list[Row]:
    """A line of the table: the runs, with these names, of random weights of a BERT or GPT, and of the checkpoint."""
    random = {"model_name_or_path": model(family, "config.json"), "tokenizer_name": model(family)}
    pretrained = {"model_name_or_path": model(family)}
    return [
        Row(
            f"{task.name}/{family}_{name}",
            task.script,
            recipe,
            task.flags | weights | flags,
            task=task.name,
            family=family,
            cells=cells(task, column, label),
        )
        for name, column, weights in zip(names, (WITHOUT, WITH), (random, pretrained), strict=True)
    ]


# What came before ELMo: a vector for each word, trained on as many words of the same books as the biLM (18.7 million
# between spaces, of which punctuation marks are split off). It is made anew if it was stopped. Of the two skip-grams
# that examples/word2vec.py trains, the recorded runs have read gensim's.
SKIPGRAM = Row(
    "vectors/skipgram",
    "elmo_gpt_bert.scripts.word2vec",
    flags={"train_file": data("books/train-*.txt.xz"), "max_train_words": 22_700_000, "compare": "gensim"},
    family="elmo",
    seeded=False,
)


OF_SKIPGRAM = {"vectors": output(SKIPGRAM.name, "gensim.txt")}
SKIPGRAM_ALONE = elmo_words("vectors/words", "", {"model": "configs/elmo/words.json"} | OF_SKIPGRAM)
SKIPGRAM_AND_ELMO = elmo_words("vectors/elmo_words", "", {"model": model("elmo")} | OF_SKIPGRAM)


def elmo_rows(task: SmallTask) -> list[Row]:
    """ELMo's network for the task: without the biLM and on it, then with a biLM that is trained along.

    The network has vectors of words, which are learned. They begin with random values for the words of the training
    data, or with skip-gram's for the words of the books.
    """
    of_texts = {"texts": data(task.texts), "min_count": task.min_count}
    words = elmo_words(f"{task.name}/elmo_words", task.name, {"model": model("elmo")} | of_texts)
    pretrained = {"model_name_or_path": output(words.name)}
    random = {"model_name_or_path": output(words.name, "config.json"), "tokenizer_name": output(words.name)}
    skipgram = {"model_name_or_path": output(SKIPGRAM_ALONE.name)}
    both = {"model_name_or_path": output(SKIPGRAM_AND_ELMO.name)}
    trained_along = {"learning_rate": 5e-4}
    kinds = (
        ("no_bilm", (STATIC, FROZEN, BOTH), WITHOUT, random, "use_elmo=false"),
        ("skipgram", (STATIC,), WITH, skipgram, ""),
        ("features", (FROZEN,), WITH, pretrained, ""),
        ("features_skipgram", (BOTH,), WITH, both, ""),
        ("random", (ALONG,), WITHOUT, random | trained_along, "freeze_bilm=false"),
        ("fine_tuned", (ALONG,), WITH, pretrained | trained_along, "freeze_bilm=false"),
    )
    rows = [
        Row(
            f"{task.name}/elmo_{name}",
            task.script,
            f"configs/elmo/{task.name}_small.yaml",
            task.flags | flags,
            overrides,
            task.name,
            "elmo",
            cells(task, column, *labels),
            keeps_model=name == "features",  # analysis reads the weights of its layers
        )
        for name, labels, column, flags, overrides in kinds
    ]
    return [words, *rows]


def rows() -> tuple[Row, ...]:
    every = [SKIPGRAM, SKIPGRAM_ALONE, SKIPGRAM_AND_ELMO]
    for task in SMALL_TASKS:
        every += transformer_rows("bert", task) + bert_feature_rows(task)
        every += transformer_rows("gpt", task) + elmo_rows(task)
    return tuple(every)


PRETRAINING_PAYS_SMALL = Table(
    name="pretraining_pays",
    title="The same fine-tuning without and with pre-training, dev",
    heads=("task", "model"),
    columns=(WITHOUT, WITH),
    rows=rows(),
    published=published_in_columns(
        {(TITLES[task], label): values for task, label, *values in FIGURES},
        [f"{column}, in its paper" for column in (WITHOUT, WITH)],
    ),
    notes=(
        "Without pre-training, weights are random: those of the same architecture or, for ELMo's features, those of "
        "the task's network, which then reads no biLM. SQuAD: the first 20,000 questions of train and 2,000 of dev.",
        "On BERT's features, a BiLSTM is trained for WNUT-17, as in its paper, and for the other tasks the head of "
        "fine-tuning alone.",
        "Skip-gram vectors have read as many words of the same books as the biLM. By themselves, they are what that "
        "network reads in its place.",
        "The papers' models are about ten times as large. Their scores are of the test sets, but BERT's on SQuAD "
        "of dev, and ELMo's on GLUE are those that BERT's paper reports.",
    ),
)


# ELMo's own table 1, and SWAG of BERT's table 4. GPT's part is the table gpt_ablations.

THEIRS = {column: f"{column}, in the papers" for column in (WITHOUT, WITH)}
# line -> the runs without and with ELMo, the entry of metrics.json, and the figures: of SQuAD ELMo's tables 2 and 3
ELMO_ROWS = {
    ("SQuAD F1, dev", "BiDAF"): (ELMO_SQUAD_BASELINE, ELMO_SQUAD, "eval_f1", 80.8, 85.6),
    ("CoNLL-2003 F1, test", "BiLSTM and CRF"): (ELMO_CONLL_BASELINE, ELMO_CONLL, "test_f1", 90.15, 92.22),
    ("SWAG accuracy, dev", "ESIM"): (ELMO_SWAG_BASELINE, ELMO_SWAG, "eval_accuracy", 51.9, 59.1),
}
# Peters et al. 2018, table 1: on test
ELMO_ELSEWHERE = {
    ("SNLI accuracy, test", "ESIM"): (88.0, 88.7),
    ("semantic roles F1, test", "deep BiLSTM"): (81.4, 84.6),
    ("coreference F1, test", "end to end"): (67.2, 70.4),
    ("SST-5 accuracy, test", "BCN"): (51.4, 54.7),
}


def elmo_published() -> tuple[Published, ...]:
    figures = {line: tuple(values) for line, (_, _, _, *values) in ELMO_ROWS.items()} | ELMO_ELSEWHERE
    return published_in_columns(figures, (THEIRS[WITHOUT], THEIRS[WITH]))


PRETRAINING_PAYS_PAPER = Table(
    name="pretraining_pays",
    title="Task networks without and with ELMo",
    heads=("score", "network"),
    columns=(WITHOUT, WITH),
    rows=(
        *(SQUAD_GLOVE, SQUAD_WORDS, CONLL_GLOVE, CONLL_WORDS, SWAG_GLOVE),
        *(
            with_cells(row, (line, column, metric))
            for line, (without, with_elmo, metric, *_) in ELMO_ROWS.items()
            for row, column in ((without, WITHOUT), (with_elmo, WITH))
        ),
    ),
    published=elmo_published(),
    gaps=tuple(
        Gap(line, column, "no recipe: the scripts do not have this network or this task")
        for line in ELMO_ELSEWHERE
        for column in (WITHOUT, WITH)
    ),
    notes=(
        "Without pre-training there is no ELMo. All networks but that of SWAG with ELMo have GloVe's vectors. The "
        "paper gives standard deviations with ELMo: 0.17 for SNLI, 0.10 for CoNLL-2003, 0.5 for SST-5.",
    ),
    budget="paper",
    comparisons=tuple(Comparison(column, THEIRS[column]) for column in (WITHOUT, WITH)),
)
