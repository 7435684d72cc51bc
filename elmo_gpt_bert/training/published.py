"""The papers' scores of papers.yaml, and those which a model card compares with its own."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from elmo_gpt_bert.training.files import read_text
from elmo_gpt_bert.training.results import markdown_table


LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the first, in C, takes a ninth of the time


def read_papers(path: Path) -> dict[str, dict[str, dict[str, float | None]]]:
    """entry -> system -> score -> the figure, in percent; None: not published."""
    return {
        name: {
            system: dict(zip(entry["scores"], figures, strict=True)) for system, figures in entry["systems"].items()
        }
        for name, entry in yaml.load(read_text(path), LOADER).items()
    }


PAPERS = read_papers(Path(__file__).with_name("papers.yaml"))
DEVLIN = "[Devlin et al. 2018](https://arxiv.org/abs/1810.04805)"
PETERS = "[Peters et al. 2018](https://arxiv.org/abs/1802.05365)"
RADFORD = "[Radford et al. 2018](https://cdn.openai.com/research-covers/language-unsupervised/language_understanding_paper.pdf)"


@dataclass(frozen=True)
class Published:
    """A table of a paper: metric -> the score of each system, times 100."""

    source: str
    systems: tuple[str, ...]  # the names of the columns: system and split
    scores: dict[str, tuple[float, ...]]
    percent: bool = False  # whether this project's scores are percent, too; otherwise they are fractions


def _column(entry: str, score: str, *systems: str) -> tuple[float, ...]:
    """The score of each of the systems."""
    return tuple(PAPERS[entry][system][score] for system in systems)


def _glue(**scores: str) -> Published:
    """metric -> the score's name in the paper."""
    systems = ("BiLSTM+ELMo+Attn", "OpenAI GPT", "BERT-base", "BERT-large")
    columns = {metric: _column("BERT table 1", score, *systems) for metric, score in scores.items()}
    return Published(f"{DEVLIN}, table 1", tuple(f"{system}, test" for system in systems), columns)


def _gpt(table: int, **scores: str) -> Published:
    """metric -> the score's name in the paper."""
    columns = {metric: _column("GPT tables 2 and 3", score, "GPT") for metric, score in scores.items()}
    return Published(f"{RADFORD}, table {table}", ("OpenAI GPT, test",), columns)


CONLL = Published(
    f"{DEVLIN}, table 7",
    (
        "BiLSTM-CRF+ELMo, validation",
        "BERT-base, validation",
        "BERT-large, validation",
        "BERT-base as features, last four layers, validation",
    ),
    {
        "f1": _column("BERT table 7", "F1, dev", "tagger with ELMo", "BERT-base", "BERT-large")
        + _column("BERT table 7, features", "F1", "concatenation, last four layers")
    },
)
SWAG = Published(
    f"{DEVLIN}, table 4",
    ("ESIM+GloVe, validation", "ESIM+ELMo, validation", "OpenAI GPT, test", "BERT-base, validation")
    + ("BERT-large, validation",),
    {
        "accuracy": _column("BERT table 4", "dev", "ESIM with GloVe", "ESIM with ELMo")
        + _column("BERT table 4", "test", "OpenAI GPT")
        + _column("BERT table 4", "dev", "BERT-base", "BERT-large")
    },
)
# For SQuAD 2.0 the paper reports F1 with the threshold that is best for F1 on the validation set: best_f1 here. Its
# exact match uses the same threshold. It is left out, because best_exact here uses the best threshold for exact match.
SQUAD_2 = Published(
    f"{DEVLIN}, table 3",
    ("BERT-large, validation",),
    {"best_f1": _column("BERT table 3", "F1, dev", "BERT-large")},
    percent=True,
)
_ON_SQUAD = ("BERT-base", "BERT-large", "seven of BERT-large", "BERT-large, TriviaQA first")
SQUAD = Published(
    f"{DEVLIN}, table 2, and {PETERS}, supplement A",
    ("BiDAF+ELMo, test", "BERT-base, validation", "BERT-large, validation", "BERT-large, seven of them, validation")
    + ("BERT-large after TriviaQA, validation",),
    {
        "exact_match": _column("ELMo supplement", "EM", "BiDAF with ELMo")
        + _column("BERT table 2", "EM, dev", *_ON_SQUAD),
        "f1": _column("ELMo table 1", "with ELMo", "SQuAD F1") + _column("BERT table 2", "F1, dev", *_ON_SQUAD),
    },
    percent=True,
)
# (data set, its configuration) -> the table of a paper. WNLI is not in the paper.
TABLES = {
    ("nyu-mll/glue", "mnli"): _glue(accuracy="MNLI-m", accuracy_mm="MNLI-mm"),
    ("nyu-mll/glue", "qqp"): _glue(f1="QQP F1"),
    ("nyu-mll/glue", "qnli"): _glue(accuracy="QNLI"),
    ("nyu-mll/glue", "sst2"): _glue(accuracy="SST-2"),
    ("nyu-mll/glue", "cola"): _glue(matthews_correlation="CoLA Matthews"),
    ("nyu-mll/glue", "stsb"): _glue(spearmanr="STS-B Spearman"),
    ("nyu-mll/glue", "mrpc"): _glue(f1="MRPC F1"),
    ("nyu-mll/glue", "rte"): _glue(accuracy="RTE"),
    ("conll2003", None): CONLL,  # a folder of the published files
    ("lhoestq/conll2003", None): CONLL,
    ("allenai/swag", "regular"): SWAG,
    ("ehovy/race", "all"): _gpt(
        3, accuracy="RACE", accuracy_middle="RACE, middle schools", accuracy_high="RACE, high schools"
    ),
    ("stanfordnlp/snli", "plain_text"): _gpt(2, accuracy="SNLI"),
    ("allenai/scitail", "snli_format"): _gpt(2, accuracy="SciTail"),
    ("rajpurkar/squad", None): SQUAD,
    ("rajpurkar/squad_v2", None): SQUAD_2,
    ("storycloze", None): _gpt(3, accuracy="Story Cloze"),
}


def comparison(scores: dict[str, float], data_set: str, configuration: str | None) -> str:
    """A Markdown table of `scores` and the papers' scores, on the papers' scale; empty if no paper has scores.

    The keys of `scores` are the metrics in `TABLES`. They are measured on the validation set; the papers often report
    the test set, so the table names the split of each column.
    """
    table = TABLES.get((data_set, configuration))
    if table is None or not scores.keys() & table.scores.keys():
        return ""
    unit, factor = ("percent", 1) if table.percent else ("times 100", 100)
    rows = [
        [metric, *(f"{score:.1f}" for score in (factor * scores[metric], *paper_scores))]
        for metric, paper_scores in table.scores.items()
        if metric in scores
    ]
    compared = markdown_table([unit, "this model, validation", *table.systems], rows)
    return f"\nCompared with the systems of {table.source}:\n\n{compared}\n"
