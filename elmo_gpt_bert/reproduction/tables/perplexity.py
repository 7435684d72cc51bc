"""The perplexities that the papers' pre-training reaches, with the same recipes on today's text."""

from ..rows import Published, Table, data, hub_model
from .paper_runs import BASE_PRETRAINING, ELMO, GPT, pretraining, with_cells


COLUMN, PAPER = "perplexity", "the papers"
BENCHMARK = "1-billion-word-language-modeling-benchmark-r13output"
BILM = pretraining(
    "elmo",
    ELMO,
    "bilm",
    {
        "train_file": data(f"{BENCHMARK}/training-monolingual.tokenized.shuffled/news.en-*"),
        "validation_file": data(f"{BENCHMARK}/heldout-monolingual.tokenized.shuffled/news.en.heldout-00000-of-00050"),
    },
)
BOOKS = {
    "tokenizer_name": hub_model(GPT),
    "train_file": data("books/train-*.txt.xz"),
    "validation_file": data("books/valid.txt.xz"),
}
ROWS = {
    "biLM, mean of both directions": (BILM, 39.7),
    "GPT": (pretraining("gpt", GPT, "gpt", BOOKS), 18.4),
    "BERT-base, masked words": (BASE_PRETRAINING, 3.99),
}

PERPLEXITY = Table(
    name="perplexity",
    title="Perplexity of held-out text after the papers' pre-training",
    heads=("model",),
    columns=(COLUMN,),
    rows=tuple(with_cells(row, ((line,), COLUMN, "eval_perplexity")) for line, (row, _) in ROWS.items()),
    published=tuple(Published((line,), PAPER, value) for line, (_, value) in ROWS.items()),
    notes=(
        "The biLM reads the paper's text. BooksCorpus, which GPT and BERT have read, is no longer distributed: the "
        "recipes read other books, and Wikipedia.",
    ),
    budget="paper",
)
