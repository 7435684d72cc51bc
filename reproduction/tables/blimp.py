"""BLiMP (Warstadt et al. 2020) by phenomenon, beside what other models of little text get."""

from ..rows import Cell, Published, Row, Table, data, model


TERMS = ("anaphor_agreement", "argument_structure", "binding", "control_raising", "determiner_noun_agreement")
TERMS += ("ellipsis", "filler_gap_dependency", "irregular_forms", "island_effects", "npi_licensing", "quantifiers")
TERMS += ("s-selection", "subject_verb_agreement")
COLUMNS = {"all pairs": "eval_accuracy"}
COLUMNS |= {term.replace("_", " "): f"eval_accuracy_{term}" for term in TERMS}
LINES = {
    "bert": "BERT, 12 million parameters",
    "gpt": "GPT, 12 million",
    "elmo": "biLM, 12 million",
    "bert-small": "BERT, 5 million",
    "gpt-small": "GPT, 5 million",
    "elmo-small": "biLM, 5 million",
}
PUBLISHED = {
    "n-gram, Gigaword: Warstadt et al. 2020, corrected table": 61.2,
    "LSTM, 83 million words of Wikipedia: Warstadt et al. 2020, corrected table": 69.8,
    "GPT-2, 10 million words: BabyLM baseline": 67.3,
    "GPT-2, 100 million words: BabyLM baseline": 75.1,
    "RoBERTa, 10 million words: BabyLM baseline": 69.5,
    "RoBERTa, 100 million words: BabyLM baseline": 75.1,
}

BLIMP = Table(
    name="blimp",
    title="BLiMP, accuracy by phenomenon",
    heads=("model",),
    columns=tuple(COLUMNS),
    rows=tuple(
        Row(
            name.replace("-", "_"),
            "run_blimp",
            flags={"model_name_or_path": model(name), "data_file": data("blimp/blimp.jsonl.xz")},
            task="blimp",
            family=name.partition("-")[0],
            cells=tuple(Cell((line,), column, metric) for column, metric in COLUMNS.items()),
            seeded=False,
        )
        for name, line in LINES.items()
    ),
    published=tuple(Published((line,), "all pairs", value) for line, value in PUBLISHED.items()),
    notes=(
        "Lines that name a publication are its figures, not ours, and of other texts than these books: the n-gram and "
        "LSTM language models as BLiMP's corrected table has them, and the baselines of the BabyLM challenge, scored "
        "by its evaluation pipeline on its own selection of texts. Guessing gives 50.",
    ),
)
