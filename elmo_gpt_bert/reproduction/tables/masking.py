"""What becomes of the predicted tokens (Devlin et al. 2018, table 8), with BERTs that are pre-trained here."""

from ..rows import Comparison, Row, Table, hub_model, published_in_lines
from .paper_runs import after, bert_conll, bert_features, bert_glue, bert_pretraining, glue_cells, with_cells


PAPER = "BERT's paper, table 8: dev"
NER, FEATURES = "NER F1, fine-tuned", "NER F1, as features"
TITLES = ("MNLI-m", NER, FEATURES)
# Percentages of the predicted tokens that become [MASK], stay, or become a random token -> the scores of `TITLES`
SHARES = {
    (80, 10, 10): (84.2, 95.4, 94.9),
    (100, 0, 0): (84.3, 94.9, 94.0),
    (80, 0, 20): (84.1, 95.2, 94.6),
    (80, 20, 0): (84.4, 95.2, 94.7),
    (0, 20, 80): (83.7, 94.8, 94.6),
    (0, 0, 100): (83.6, 94.9, 94.6),
}
CASED = {"model_name_or_path": "configs/bert/base_cased.json", "tokenizer_name": hub_model("bert-base-cased")}
FIRST = "masks_80_10_10"  # prepares the text for the others


def line(mask: int, same: int, random: int) -> str:
    return f"masked {mask}, same {same}, random {random} %"


def rows() -> tuple[Row, ...]:
    every = []
    for mask, same, random in SHARES:
        name, text = f"masks_{mask}_{same}_{random}", line(mask, same, random)
        flags = CASED | {"mask_share": mask / 100, "random_share": random / 100}
        trained = bert_pretraining(name, flags, text="" if name == FIRST else FIRST)
        every += [
            trained,
            glue_cells(after(trained, bert_glue("mnli")), text, titles=TITLES),
            with_cells(after(trained, bert_conll()), ((text, NER), "dev", "eval_f1")),
            with_cells(after(trained, bert_features("concat_last_four")), ((text, FEATURES), "dev", "eval_f1")),
        ]
    return tuple(every)


MASKING = Table(
    name="masking",
    title="BERTs with other shares of masks, pre-trained, and fine-tuned or read as features",
    heads=("pre-training", "score"),
    columns=("dev",),
    rows=rows(),
    published=published_in_lines({line(*shares): values for shares, values in SHARES.items()}, TITLES, PAPER),
    notes=(
        "The paper's text is BooksCorpus and Wikipedia, ours Wikipedia alone. Features are the last four layers, "
        "concatenated. All models here are cased, as entities need it; the paper does not say.",
    ),
    budget="paper",
    comparisons=(Comparison("dev", PAPER),),
)
