"""BLiMP (Warstadt et al. 2020) by phenomenon, beside what other models of little text get."""

from ..rows import Cell, Published, Row, Table, data, model


TERMS = ("anaphor_agreement", "argument_structure", "binding", "control_raising", "determiner_noun_agreement")
TERMS += ("ellipsis", "filler_gap_dependency", "irregular_forms", "island_effects", "npi_licensing", "quantifiers")
TERMS += ("s-selection", "subject_verb_agreement")
COLUMNS = {"all pairs": "eval_accuracy"}
COLUMNS |= {term.replace("_", " "): f"eval_accuracy_{term}" for term in TERMS}
MODELS = {  # row -> its model, and the line's name
    "bert": ("bert", "BERT, 12 million parameters"),
    "bert_within_word": ("bert", "BERT, 12 million, --pll within_word_l2r"),
    "gpt": ("gpt", "GPT, 12 million"),
    "elmo": ("elmo", "biLM, 12 million"),
    "bert_small": ("bert-small", "BERT, 5 million"),
    "gpt_small": ("gpt-small", "GPT, 5 million"),
    "elmo_small": ("elmo-small", "biLM, 5 million"),
}
FLAGS = {"bert_within_word": {"pll": "within_word_l2r"}}  # of single rows
NGRAM = "n-gram, Gigaword: Warstadt et al. 2020, corrected table"
LSTM = "LSTM, 83 million tokens of Wikipedia: Warstadt et al. 2020, corrected table"
GPT2 = "GPT-2, {} million words: BabyLM's baseline and pipeline of 2025"
ROBERTA = "RoBERTa, {} million words: BabyLM's baseline and pipeline of 2023"
# Of all pairs, and of the terms but s-selection, which BabyLM counts as argument structure.
PUBLISHED = {
    NGRAM: (61.2,),
    LSTM: (69.8,),
    GPT2.format(10): (67.3,),
    GPT2.format(100): (75.1,),
    ROBERTA.format(10): (69.5, 81.5, 67.1, 67.3, 67.9, 90.8, 76.4, 63.5, 87.4, 39.9, 55.9, 70.5, 65.4),
    ROBERTA.format(100): (75.1, 89.5, 71.3, 71.0, 67.1, 93.1, 83.8, 68.0, 89.6, 54.5, 66.3, 70.3, 76.2),
}

BLIMP_SMALL = Table(
    name="blimp",
    title="BLiMP, accuracy by phenomenon",
    heads=("model",),
    columns=tuple(COLUMNS),
    rows=tuple(
        Row(
            name,
            "run_blimp",
            flags={
                "model_name_or_path": model(model_name),
                "data_file": data("blimp/blimp.jsonl.xz"),
                "mixed_precision": "bf16",
            }
            | FLAGS.get(name, {}),
            task="blimp",
            family=model_name.partition("-")[0],
            cells=tuple(Cell((line,), column, metric) for column, metric in COLUMNS.items()),
            seeded=False,
        )
        for name, (model_name, line) in MODELS.items()
    ),
    published=tuple(
        Published((line,), column, value)
        for line, values in PUBLISHED.items()
        for column, value in zip((column for column in COLUMNS if column != "s-selection"), values, strict=False)
    ),
    notes=(
        "Lines that name a publication are its figures, not ours. Their models have read other texts. "
        "BabyLM scores those pairs whose words occur in its own text; its number for all pairs is a mean of parts "
        "that count alike. Guessing gives 50. Where BERT scores a piece of a word, "
        "--pll within_word_l2r masks the later pieces of that word, too.",
    ),
)
