"""BERTs of other sizes (Devlin et al. 2018, table 6), pre-trained here."""

from ..rows import Comparison, Row, Table, published_in_lines
from .paper_runs import BASE_PRETRAINING, after, bert_glue, bert_pretraining, glue_cells, with_cells


PAPER = "BERT's paper, table 6: dev"
TITLES = ("MNLI-m", "MRPC accuracy", "SST-2")
PERPLEXITY = "perplexity of masked words"
# (layers, width, heads) -> perplexity and the scores of `TITLES`
SIZES = {
    (3, 768, 12): (5.84, 77.9, 79.8, 88.4),
    (6, 768, 3): (5.24, 80.6, 82.2, 90.7),
    (6, 768, 12): (4.68, 81.9, 84.8, 91.3),
    (12, 768, 12): (3.99, 84.4, 86.7, 92.9),
    (12, 1024, 16): (3.54, 85.7, 86.9, 93.3),
    (24, 1024, 16): (3.23, 86.6, 87.8, 93.7),
}


def line(layers: int, width: int, heads: int) -> str:
    return f"{layers} layers of {width}, {heads} heads"


def pretraining(layers: int, width: int, heads: int) -> Row:
    """The recipe's is BERT-base, which prepares the text for the others."""
    if (layers, width, heads) == (12, 768, 12):
        return BASE_PRETRAINING
    overrides = f"num_hidden_layers={layers},hidden_size={width},num_attention_heads={heads}"
    overrides += f",intermediate_size={4 * width}"
    return bert_pretraining(f"size_{layers}_{width}_{heads}", None, overrides, text="base")


def rows() -> tuple[Row, ...]:
    first = sorted(SIZES, key=lambda size: pretraining(*size).name != BASE_PRETRAINING.name)
    every = [with_cells(pretraining(*size), ((line(*size), PERPLEXITY), "dev", "eval_perplexity")) for size in first]
    for size in SIZES:
        for task in ("mnli", "mrpc", "sst2"):
            every.append(glue_cells(after(pretraining(*size), bert_glue(task)), line(*size), titles=TITLES))
    return tuple(every)


MODEL_SIZES = Table(
    name="model_sizes",
    title="BERTs of other sizes, pre-trained and fine-tuned",
    heads=("size", "score"),
    columns=("dev",),
    rows=rows(),
    published=published_in_lines(
        {line(*size): values for size, values in SIZES.items()}, (PERPLEXITY, *TITLES), PAPER
    ),
    notes=("The paper's text is BooksCorpus and Wikipedia, ours Wikipedia alone.",),
    budget="paper",
    comparisons=(Comparison("dev", PAPER),),
)
