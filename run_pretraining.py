# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert==0.1.0"]
# ///
"""Pre-trains a language model on raw text: BERT's masked LM, GPT's left-to-right LM or ELMo's biLM.

    python run_pretraining.py --model_name_or_path configs/bert/mini.json --train_file 'books/*.txt' \\
        --validation_file valid.txt --max_seq_length 128 --max_steps 10000 --save_strategy steps --save_steps 1000 \\
        --resume --output_dir runs/bert
    python run_pretraining.py --model_name_or_path google-bert/bert-base-uncased --train_file reviews.jsonl \\
        --output_dir runs/reviews                                          # more text for a model that was trained

The model decides what it learns: masked words, the next word, or the next and the previous word; --objective chooses
where a model can do several. The text is files of plain text, JSON lines, csv or parquet, or a data set on the Hub. It
is converted to tokens once, in --corpus_dir, where later runs find them (docs/corpora.md). A configuration
without --tokenizer_name gets a tokenizer of its own size, made from the text.

The order of the text and all random choices are functions of the seed and of the number of the update. So a run that
was stopped continues exactly, with --resume. The number of processes may change if an update has as many samples as
before: --per_device_train_batch_size x --gradient_accumulation_steps x processes.
OUTPUT_DIR receives metrics.json, log.jsonl with the lines of the log, their curves, and the trained model with its
tokenizer and card.
"""

from __future__ import annotations

import elmo_gpt_bert.starting  # noqa: F401 - says so before the imports below, which take seconds


# isort: split

import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from accelerate import Accelerator
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForPreTraining

from elmo_gpt_bert.tasks.features import candidate_heads, reads_words
from elmo_gpt_bert.tasks.pretraining.bilm import BiLM
from elmo_gpt_bert.tasks.pretraining.causal import CausalLM, keeps_apart
from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.tasks.pretraining.masked import MaskedLM, Shares, Vocabulary
from elmo_gpt_bert.tasks.pretraining.objective import HeldOut, Objective, compute_losses, score
from elmo_gpt_bert.tasks.pretraining.plan import CorpusPlan, Phase
from elmo_gpt_bert.tasks.pretraining.preparing import PreparedText, prepare
from elmo_gpt_bert.tasks.pretraining.text import TextSource, find_files
from elmo_gpt_bert.tasks.pretraining.vocabulary import is_of_words, size_field, tokenizer_class
from elmo_gpt_bert.tasks.rows import hub_version
from elmo_gpt_bert.training.arguments import (
    PAIRS,
    NonNegativeFloat,
    NonNegativeInt,
    OneWay,
    Pair,
    PositiveInt,
    RunArguments,
    Share,
    flag,
)
from elmo_gpt_bert.training.batches import count_workers, padding_options
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.launching import make_accelerator
from elmo_gpt_bert.training.loading import check_length, has_head, load_config, load_model, load_tokenizer, positions
from elmo_gpt_bert.training.optimization import samples_of_update
from elmo_gpt_bert.training.results import Clock, count_samples, first_examples
from elmo_gpt_bert.training.runs import carry_out, command, repeat
from elmo_gpt_bert.training.task import Compute, Description, Outputs, Task


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


OBJECTIVES = {
    "masked_lm": AutoModelForMaskedLM,
    "causal_lm": AutoModelForCausalLM,
    "bilm": AutoModelForPreTraining,
}
TASK_TYPES = {"masked_lm": "fill-mask", "causal_lm": "text-generation", "bilm": "feature-extraction"}
MASKING = ("segments", "mlm_probability", "mask_share", "random_share", "whole_word_mask")  # flags of a masked LM
LENGTHS = {"masked_lm": 128, "causal_lm": 128, "bilm": 20}  # the default of --max_seq_length
HELD_OUT_ROWS = 32  # at most, of a biLM's held-out text: the loss depends on where its rows begin
MOST_LEFT_OUT = 0.05  # of that text, because it fills no rows
HELD_OUT_SEED = 42  # of the masks and pairs of held-out text: the same for every --seed, so that their runs compare


@dataclass(frozen=True, kw_only=True)
class PretrainingArguments(RunArguments):
    """The arguments of this script, in addition to those of every run."""

    makes_tokenizer: ClassVar[bool] = True
    without_flag: ClassVar[frozenset[str]] = frozenset({"do_predict", "ensemble", "save_outputs", "group_by_length"})
    pairs: ClassVar[tuple[Pair, ...]] = (
        *PAIRS,
        Pair("train_file", "dataset_name dataset_config_name", about="text_column"),
        Pair("validation_split_percentage", "validation_file"),
        OneWay("final_seq_length", "final_share", lambda args: args.final_seq_length is None),
    )
    next_command: ClassVar[str] = (
        "{vectors} --model_name_or_path {output} --text_file FILE --output_dir {output}-vectors"
    )

    tokenizer_name: str | None = flag(
        None, "folder, Hub id or vocab.txt; default: the model's, or one made from the text"
    )
    do_lower_case: bool = flag(True, "convert text to lower case, for a vocab.txt or a new tokenizer")
    do_train: bool = flag(True, "train on the text; false only evaluates the model")
    report_to: str = flag("curves", "trackers that draw curves, as in the other scripts")
    do_eval: bool = flag(True, "measure the perplexity of held-out text")
    train_file: str | None = flag(None, "files of text to train on, as in a.txt,b.jsonl or 'books/*.txt.xz'")
    validation_file: str | None = flag(None, "files of held-out text")
    dataset_name: str | None = flag(None, "a data set on the Hub to train on, instead of files")
    dataset_config_name: str | None = flag(None, "its configuration")
    text_column: str = flag("text", "column with the text, of JSON lines, csv, parquet and data sets")
    documents: Literal["blank_lines", "files"] = flag("blank_lines", "what separates the documents of plain text")
    sentences: Literal["split", "lines"] = flag("split", "whether lines are split into sentences, or each line is one")
    validation_split_percentage: NonNegativeFloat | None = flag(
        None, "percentage of held-out documents; 1 without --validation_file"
    )
    corpus_dir: str | None = flag(None, "folder of the text's tokens, old or new; default: OUTPUT_DIR/corpus")
    preprocessing_num_workers: PositiveInt | None = flag(
        None, "processes that read text; default: one a processor core"
    )
    objective: Literal["masked_lm", "causal_lm", "bilm"] | None = flag(None, "default: what the model has a head for")
    max_seq_length: PositiveInt | None = flag(None, "tokens of a row, or steps of a biLM; default: 128, or 20")
    final_seq_length: PositiveInt | None = flag(None, "tokens of a row in the last updates; 512 in BERT's paper")
    final_share: Share = flag(0.1, "share of the updates that read rows of --final_seq_length")
    segments: Literal["full_sentences", "document_sentences", "next_sentence"] = flag(
        "full_sentences",
        "a masked LM's rows: sentences of any documents, or of one, or pairs for BERT's second objective",
    )
    mlm_probability: Share = flag(0.15, "share of the tokens that a masked LM predicts")
    mask_share: Share = flag(0.8, "share of the predicted tokens that [MASK] replaces")
    random_share: Share = flag(0.1, "share of the predicted tokens that random ones replace; others stay")
    whole_word_mask: bool = flag(False, "predict all tokens of a word or none")
    batch_ramp_steps: NonNegativeInt = flag(0, "number of updates over which the batch rises to its full size")
    max_eval_samples: PositiveInt | None = flag(None, "evaluate on the first rows only, this many")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_length_of_run()
        _ = self.text, self.shares  # which check their flags

    @property
    def text(self) -> TextSource:
        """The text and how to read it."""
        return TextSource(**{field.name: getattr(self, field.name) for field in fields(TextSource)})

    def data_sources(self) -> dict[str, list[Path] | str]:
        """The files of the text, or a data set of the Hub."""
        if self.dataset_name is None:
            sources = {"train": find_files(self.train_file, "--train_file")}
        else:
            sources = {"train": hub_version(self.dataset_name, self.dataset_config_name, None)}
        if self.do_eval and self.validation_file is not None:
            sources["validation"] = find_files(self.validation_file, "--validation_file")
        return sources

    @property
    def shares(self) -> Shares:
        """How many tokens a masked LM masks, and how."""
        return Shares(self.mlm_probability, self.mask_share, self.random_share)

    def _check_length_of_run(self) -> None:
        if self.final_seq_length is not None and self.max_steps <= 0:
            raise InputError("--final_seq_length begins after a share of the updates: give their number, --max_steps")
        if self.final_seq_length is not None and self.final_share == 0:
            raise InputError(
                "--final_share 0 leaves no update for --final_seq_length: leave both out or, where a recipe has them, "
                "give --final_seq_length the length of --max_seq_length"
            )


@dataclass
class LanguageModelling(Task):
    """Raw text: a corpus to train on, and held-out text for perplexity."""

    phases: Sequence[Phase]

    def build_plan(self, args: PretrainingArguments, accelerator: Accelerator) -> CorpusPlan:
        return CorpusPlan(self.phases, args, accelerator, args.batch_ramp_steps)

    def build_compute(self, args: PretrainingArguments, accelerator: Accelerator) -> Compute:
        return partial(
            compute_losses,
            model=self.model,
            accelerator=accelerator,
            batch_size=args.per_device_eval_batch_size,
            options=padding_options(self.model, args.pad_to_max_length),
            workers=count_workers(args.dataloader_num_workers, accelerator.device),
        )

    def score(self, split: str, outputs: Outputs, predictions: Outputs) -> dict[str, float]:
        return score(self.features[split], outputs)

    def write(self, split: str, predictions: Outputs) -> dict[str, str]:
        return {}

    def finish(self) -> None:
        self.phases[0].objective.finish(self.model)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Carries out what `argv`, by default the command line, asks for; returns metrics.json's numbers."""
    args = parse_arguments(PretrainingArguments, argv)
    corpus = Path(args.corpus_dir or Path(args.output_dir, "corpus"))  # of all seeds
    return repeat(partial(run, corpus=corpus), args)


def run(args: PretrainingArguments, corpus: Path) -> dict[str, float]:
    """One run: prepares the corpus in its folder, loads the model, trains it and evaluates it on held-out text."""
    clock = Clock()
    accelerator = make_accelerator(args)
    clock.lap("start")
    config = load_config(args.source)
    kind = choose_objective(config, args)
    check_flags(kind, args)
    text = prepare_text(corpus, config, args, accelerator)
    clock.lap("tokenize")
    model = load_language_model(kind, text, config, args)
    if (longest := positions(model)) is not None:
        text.tokenizer.model_max_length = min(text.tokenizer.model_max_length, longest)
    accelerator.print(f"load: {type(model).__name__}, {model.num_parameters():,} parameters; {describe_text(text)}")
    clock.lap("load")
    task = build_task(kind, text, model, args, accelerator)
    return carry_out(task, args, accelerator, clock)


def prepare_text(
    corpus: Path, config: PreTrainedConfig, args: PretrainingArguments, accelerator: Accelerator
) -> PreparedText:
    """The text as tokens, and the tokenizer: the model's, the one of --tokenizer_name, or one made from the text."""
    tokenizer, of_words, is_new = None, is_of_words(config), args.model_name_or_path.endswith(".json")
    if args.tokenizer_name is not None or not is_new:
        tokenizer = load_tokenizer(args.source, for_task=False)
        if reads_words(tokenizer) != of_words:
            raise InputError(
                f"{type(config).__name__} does not read the tokens of {type(tokenizer).__name__}: give another "
                "--tokenizer_name, or leave it out for one that is made from the text"
            )
        words = getattr(tokenizer, "targets", None) or ()
        if is_new and len(words) > (size := getattr(config, size_field(config))):
            raise InputError(
                f"--tokenizer_name {args.tokenizer_name} has {len(words)} words, the model {args.model_name_or_path} "
                f"only {size}: choose another tokenizer, or give --config_overrides {size_field(config)}={len(words)}"
            )
        if of_words and not is_new and args.tokenizer_name is not None:
            former = load_tokenizer(replace(args.source, tokenizer_name=None), for_task=False)
            if former.targets and former.targets != tokenizer.targets:
                raise InputError(
                    f"--tokenizer_name {args.tokenizer_name} has other words than the softmax of "
                    f"{args.model_name_or_path}: leave it out, or begin with a configuration"
                )
    lower_case = None
    if tokenizer is None:
        kind = tokenizer_class(config)
        has_case = "do_lower_case" in inspect.signature(kind).parameters
        if not (args.do_lower_case or has_case or of_words):
            raise InputError(
                f"--do_lower_case false: {kind.__name__} always converts text to lower case, leave it out"
            )
        lower_case = args.do_lower_case if has_case else None
    processes = args.preprocessing_num_workers or os.cpu_count() or 1
    with accelerator.main_process_first():
        return prepare(corpus, args.text, config, tokenizer, lower_case, processes=processes, evaluates=args.do_eval)


def load_language_model(
    kind: str, text: PreparedText, config: PreTrainedConfig, args: PretrainingArguments
) -> PreTrainedModel:
    """The model with the head of its objective, for the vocabulary of the text."""
    size = text.train.vocab_size
    is_new = args.model_name_or_path.endswith(".json")
    if is_new:
        size = min(getattr(config, size_field(config)), size)  # a text may have fewer words or pieces
    if is_new or kind == "bilm":  # a biLM without a softmax gets one
        config.update({size_field(config): size})
    with_pairs = kind == "masked_lm" and args.segments == "next_sentence"
    head = AutoModelForPreTraining if with_pairs else OBJECTIVES[kind]
    return load_model(head, args.source, config, text.tokenizer, train=args.do_train)


def describe_text(text: PreparedText) -> str:
    """The sizes of the text, for the console."""
    splits = {"training": text.train, "held-out": text.validation}
    return ", ".join(
        f"no {split} text"
        if corpus is None
        else f"{split} {corpus.num_tokens:,} tokens in {len(corpus.documents):,} documents"
        for split, corpus in splits.items()
    )


def choose_objective(config: PreTrainedConfig, args: PretrainingArguments) -> str:
    """What the model learns: --objective, or the likeliest that it has a head for.

    Raises ValueError for an objective that the model has no head for.
    """
    heads = candidate_heads(config, is_of_words(config))
    kinds = {head: kind for kind, head in OBJECTIVES.items()}
    possible = [kinds[head] for head in heads if has_head(head, config, args.source)]
    if not possible:
        raise InputError(f"{type(config).__name__} has no head for a language model: choose another model")
    if args.objective is not None and args.objective not in possible:
        raise InputError(f"--objective {args.objective}: {type(config).__name__} learns {' or '.join(possible)}")
    if args.objective == "causal_lm" and "masked_lm" in possible and not getattr(config, "is_decoder", True):
        raise InputError(
            "--objective causal_lm: the model sees the next words: add --config_overrides is_decoder=true"
        )
    return args.objective or possible[0]


def check_flags(kind: str, args: PretrainingArguments) -> None:
    """Raises ValueError for flags that mean nothing for the objective."""
    if kind == "bilm" and (args.batch_ramp_steps or args.final_seq_length):
        raise InputError("each row of a biLM continues: leave out --batch_ramp_steps and --final_seq_length")
    size = args.per_device_eval_batch_size
    if kind == "bilm" and size != PretrainingArguments.per_device_eval_batch_size:
        raise InputError(
            f"--per_device_eval_batch_size {size} has no effect: a biLM reads held-out text in {HELD_OUT_ROWS} rows "
            "at most: leave it out"
        )
    for name in MASKING if kind != "masked_lm" else ():
        value = getattr(args, name)
        if value != getattr(PretrainingArguments, name):
            raise InputError(f"--{name} {value} is of a masked_lm, but this model learns {kind}: leave it out")


def build_task(
    kind: str, text: PreparedText, model: PreTrainedModel, args: PretrainingArguments, accelerator: Accelerator
) -> LanguageModelling:
    """The training text in one phase, or two of different lengths, and the held-out text.

    Raises ValueError for text that does not do, and without held-out text where the run cannot do without.
    """
    if text.validation is None:
        _check_needs_no_evaluation(args)
    apart = kind != "causal_lm" or keeps_apart(model)
    build = partial(build_objective, kind, model=model, tokenizer=text.tokenizer, args=args, apart=apart)
    rows = samples_of_update(args, accelerator.num_processes)
    phases = [Phase(build(text.train, args.max_seq_length or LENGTHS[kind], rows))]
    if not apart:
        accelerator.print(f"{type(model).__name__} reads the documents of a row as one text")
    if args.final_seq_length is not None:
        first = min(round(args.max_steps * (1 - args.final_share)), args.max_steps - 1)
        phases.append(Phase(build(text.train, args.final_seq_length, rows), first))
    data, held_out, limits = {"train": text.train}, {}, {"validation": args.max_eval_samples}
    if args.do_eval and text.validation is not None:
        data["validation"] = text.validation
        training = phases[0].objective if args.do_train else None
        objective = build(text.validation, phases[-1].objective.length, rows=None, training=training)
        held_out["validation"] = HeldOut(objective, objective.size)
    parts = {"model": model, "tokenizer": text.tokenizer, "features": first_examples(held_out, limits)}
    return LanguageModelling(data, count_samples(held_out, limits), describe_data(kind, args), phases, **parts)


def _check_needs_no_evaluation(args: PretrainingArguments) -> None:
    """Raises ValueError for flags that need held-out text."""
    names = ("load_best_model_at_end", "early_stopping_patience", "seeds", "max_restarts")
    flags = [name for name in names if getattr(args, name) != getattr(PretrainingArguments, name)]
    if flags or not args.do_train:
        flags = [*flags, "do_train false"]
        remedy = "give --validation_file, or a larger --validation_split_percentage"
        raise InputError(f"--{flags[0]} needs held-out text, and no document is held out: {remedy}")


def build_objective(
    kind: str,
    corpus: Corpus,
    length: int,
    rows: int | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    args: PretrainingArguments,
    apart: bool = True,
    training: Objective | None = None,
) -> Objective:
    """The objective of training on updates of `rows` rows of `length`, or of evaluation where `rows` is None.

    apart: whether a causal model `keeps_apart` the documents of a row
    training: for an evaluation, the objective in training, if there is one
    """
    trains = rows is not None
    seed = args.seed if trains else HELD_OUT_SEED
    if kind == "bilm":
        rows = rows or max(1, min(HELD_OUT_ROWS, int(MOST_LEFT_OUT * corpus.num_tokens) // length))
        sampled = model.config.num_sampled if trains else 0
        return BiLM(corpus, rows, length, seed, sampled, shuffle=trains, training=training)
    check_length(length, model, tokenizer)
    if kind == "causal_lm":
        return CausalLM(corpus, length, seed, shuffle=trains, pad_token_id=tokenizer.pad_token_id, apart=apart)
    return MaskedLM(
        corpus,
        Vocabulary.of(tokenizer),
        length,
        args.segments,
        seed,
        shuffle=trains,
        whole_words=args.whole_word_mask,
        shares=args.shares,
        pad_to_max_length=args.pad_to_max_length,
    )


def describe_data(kind: str, args: PretrainingArguments) -> Description:
    """What the model card says the model was trained on, and the scores were measured on."""
    if args.dataset_name is None:
        return Description(TASK_TYPES[kind])
    if args.do_eval and args.validation_file is not None:
        return Description(TASK_TYPES[kind], trained_on=args.dataset_name if args.do_train else None)
    return Description(TASK_TYPES[kind], args.dataset_name, args.dataset_name, args.dataset_config_name)


if __name__ == "__main__":
    command(main)
