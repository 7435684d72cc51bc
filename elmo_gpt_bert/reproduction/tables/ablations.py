"""What BERT's objectives are worth (Devlin et al. 2018, table 5), with BERTs that are pre-trained here.

Of the small ones, which are after table 8 and figure 5, too, each variant is pre-trained on the same part of the
books, for as many updates, and then fine-tuned on three tasks.
"""

from dataclasses import dataclass, field
from dataclasses import replace as changed

from ..rows import Cell, Comparison, Flag, Gap, Published, Row, Table, data, output
from .paper_runs import BASE_PRETRAINING, after, bert_glue, bert_pretraining, bert_squad, glue_cells, with_cells
from .tasks import COLA, SST2, WNUT17, SmallTask


BASE = "pretraining/base"
UPDATES, STEPS = 1000, 250
COUNTS = range(STEPS, UPDATES, STEPS)
CURVES = ("base", "left_to_right")  # fine-tuned after each 250 updates, too (figure 5)


@dataclass(frozen=True)
class Variant:
    """A way of pre-training.

    published: column -> figure
    """

    name: str
    line: str
    flags: dict[str, Flag] = field(default_factory=dict)
    overrides: str = ""
    published: dict[str, float] = field(default_factory=dict)


SST2_PAPER, NER_PAPER = "BERT's paper, table 5: SST-2, dev", "BERT's paper, table 8: NER, dev"
BILSTM = "left to right, and a BiLSTM on top"
NO_BILSTM = "no recipe: of the task networks, only the tagger has a BiLSTM above an encoder"


def masks(mask: int, same: int, random: int, ner: float) -> Variant:
    """Percentages of the predicted tokens that become [MASK], stay, or become a random token."""
    flags = {"mask_share": mask / 100, "random_share": random / 100}
    name, line = f"masks_{mask}_{same}_{random}", f"masked {mask}, same {same}, random {random} %"
    return Variant(name, line, flags, published={NER_PAPER: ner})


VARIANTS = (
    # The first prepares the text for the others.
    Variant("base", "masked 80, same 10, random 10 %", published={SST2_PAPER: 92.6, NER_PAPER: 95.4}),
    Variant("next_sentence", "the same with next sentences", {"segments": "next_sentence"}, "", {SST2_PAPER: 92.7}),
    Variant("left_to_right", "left to right", {}, "is_decoder=true", {SST2_PAPER: 92.1}),
    masks(100, 0, 0, 94.9),
    masks(80, 0, 20, 95.2),
    masks(80, 20, 0, 95.2),
    masks(0, 20, 80, 94.8),
    masks(0, 0, 100, 94.9),
)
# A part of the training, so that a line costs minutes: one or two epochs of 10,000 phrases.
TASKS = (changed(SST2, flags=SST2.flags | {"max_train_samples": 10000, "num_train_epochs": 2}), COLA, WNUT17)


def pretraining_row(variant: Variant) -> Row:
    text = {"train_file": data("books/train-0[01].txt.xz"), "validation_file": data("books/valid.txt.xz")}
    length = {"max_steps": UPDATES, "save_steps": STEPS}
    corpus = {} if f"pretraining/{variant.name}" == BASE else {"corpus_dir": output(BASE, "corpus")}
    return Row(
        f"pretraining/{variant.name}",
        "run_pretraining",
        # Short rows and Muon: with 128 tokens a row, so short a training does not get beyond the words' frequencies.
        "configs/bert/pretraining_books.yaml",
        {"model_name_or_path": "configs/bert/mini.json"} | text | length | corpus | variant.flags,
        ",".join(filter(None, ["vocab_size=8000", variant.overrides])),
        family="bert",
        seeded=False,
    )


def task_row(variant: Variant, task: SmallTask, updates: int = UPDATES) -> Row:
    """Fine-tuning after so many updates of the pre-training."""
    is_last = updates == UPDATES
    start = output(f"pretraining/{variant.name}", "" if is_last else f"checkpoint-{updates}")
    return Row(
        f"{task.name}/{variant.name}" + ("" if is_last else f"_{updates}_updates"),
        task.script,
        f"configs/bert/{task.name}_small.yaml",
        task.flags | {"model_name_or_path": start},
        task=task.name,
        family="bert",
        cells=(Cell(line(variant, updates), task.title, task.metric),),
    )


def bilstm_row() -> Row:
    """The tagger from left to right, fine-tuned together with a BiLSTM above it."""
    row = task_row(next(variant for variant in VARIANTS if variant.name == "left_to_right"), WNUT17)
    return changed(
        row,
        name=f"{row.name}_bilstm",
        flags=dict(row.flags) | {"features": "last"},
        overrides="freeze_encoder=false,rnn_size=200",
        cells=(Cell((BILSTM,), WNUT17.title, WNUT17.metric),),
    )


def line(variant: Variant, updates: int = UPDATES) -> tuple[str]:
    return (variant.line if updates == UPDATES else f"{variant.line}, {updates} updates",)


def rows() -> tuple[Row, ...]:
    """Each variant is pre-trained and then fine-tuned before the next, so a table that was stopped has whole lines."""
    every = []
    for variant in VARIANTS:
        every += [pretraining_row(variant), *(task_row(variant, task) for task in TASKS)]
        every += [task_row(variant, TASKS[0], count) for count in COUNTS if variant.name in CURVES]
        every += [bilstm_row()] if variant.name == "left_to_right" else []
    return tuple(every)


ABLATIONS_SMALL = Table(
    name="ablations",
    title="Small BERTs with other ways of pre-training, fine-tuned, dev",
    heads=("pre-training",),
    columns=tuple(task.title for task in TASKS),
    rows=rows(),
    published=(
        *(Published(line(variant), *figure) for variant in VARIANTS for figure in variant.published.items()),
        Published((BILSTM,), SST2_PAPER, 91.6),
    ),
    gaps=(
        *(
            Gap(line(variant, count), task.title, "the curve over the updates is of SST-2 only")
            for variant in VARIANTS
            for count in COUNTS
            for task in TASKS[1:]
            if variant.name in CURVES
        ),
        *(Gap((BILSTM,), task.title, NO_BILSTM) for task in TASKS[:-1]),
    ),
    notes=(
        f"Each BERT has 4 layers, 256 states and {UPDATES:,} updates of 4,096 tokens, most of them in rows of 32. "
        "SST-2: the first 10,000 phrases. In the paper's table 5, the first line has no next sentences, as here; in "
        "its table 8, all lines have them, and NER is fine-tuned on CoNLL-2003.",
    ),
)


# As in the paper

DEV = "BERT's paper, table 5: dev"
FIRST_QNLI = "BERT's paper, table 5: dev of QNLI's first release"
TITLES = ("MNLI-m", "QNLI", "MRPC accuracy", "SST-2", "SQuAD F1")
FIGURES = {
    "masks and next sentences": (84.4, 88.4, 86.7, 92.7, 88.5),
    "masks": (83.9, 84.9, 86.5, 92.6, 87.9),
    "left to right": (82.1, 84.3, 77.5, 92.1, 77.8),
    BILSTM: (82.1, 84.1, 75.7, 91.6, 84.9),
}
WITHOUT_NEXT: dict[str, Flag] = {"segments": "full_sentences"}
PRETRAININGS = {
    "masks and next sentences": BASE_PRETRAINING,
    "masks": bert_pretraining("no_next_sentence", WITHOUT_NEXT, text="base"),
    "left to right": bert_pretraining("left_to_right", WITHOUT_NEXT, "is_decoder=true", text="base"),
}


def paper_rows() -> tuple[Row, ...]:
    every = []
    for line, trained in PRETRAININGS.items():
        every.append(trained)
        for task in ("mnli", "qnli", "mrpc", "sst2"):
            every.append(glue_cells(after(trained, bert_glue(task)), line, titles=TITLES))
        every.append(with_cells(after(trained, bert_squad()), ((line, "SQuAD F1"), "dev", "eval_f1")))
    return tuple(every)


ABLATIONS_PAPER = Table(
    name="ablations",
    title="BERT with other objectives, pre-trained and fine-tuned",
    heads=("pre-training", "score"),
    columns=("dev",),
    rows=paper_rows(),
    published=tuple(
        Published((line, title), FIRST_QNLI if title == "QNLI" else DEV, value)
        for line, values in FIGURES.items()
        for title, value in zip(TITLES, values, strict=True)
    ),
    gaps=tuple(Gap((BILSTM, title), "dev", NO_BILSTM) for title in TITLES),
    notes=("The paper's text is BooksCorpus and Wikipedia, ours Wikipedia alone.",),
    budget="paper",
    comparisons=(Comparison("dev", DEV),),
)
