"""Scores language models without fine-tuning, over pre-training (Radford et al. 2018, section 5 and figure 2, right).

    python -m elmo_gpt_bert.analysis.zero_shot runs/gpt --sst2 glue/SST-2 --cola glue/CoLA --blimp blimp/data \\
        --output_dir runs/zero_shot
    python -m elmo_gpt_bert.analysis.zero_shot runs/mlm/checkpoint-{500,1000,2000} \\
        runs/ltr/checkpoint-{500,1000,2000} --cola glue/CoLA --max_samples 1000 --output_dir runs/mlm_ltr

A MODEL is a model folder, or the folder of a run: then each of its checkpoint-N is scored, and its final model. The
models may be causal, masked (BERT) or biLMs (ELMo). Nothing is trained. docs/analysis.md says what the scores are.
OUTPUT_DIR receives zero_shot.json and zero_shot.png.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator
from datasets import Dataset
from sklearn.metrics import matthews_corrcoef, roc_auc_score

from elmo_gpt_bert.analysis import frame
from elmo_gpt_bert.tasks.features import choose_head, reads_words
from elmo_gpt_bert.tasks.glue import EVERY_TASK
from elmo_gpt_bert.tasks.glue import read_folder as read_glue
from elmo_gpt_bert.tasks.minimal_pairs import (
    REMEDY,
    SPECIAL,
    MaskedScorer,
    Row,
    Scorer,
    make_features,
    make_scorer,
    read_file,
    read_folder,
)
from elmo_gpt_bert.tasks.pretraining.plan import Ramp
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.files import read_json_object, shown
from elmo_gpt_bert.training.identity import EPOCH_SAMPLES, FINAL_LENGTH, SAMPLES
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer, positions
from elmo_gpt_bert.training.log import read_log
from elmo_gpt_bert.training.output_folder import CHECKPOINT, METRICS, matching_folders
from elmo_gpt_bert.training.task import predict


BATCH = 32  # sentences
PROMPT = " very"  # the paper's
VERBALIZERS = ("negative", "positive")  # of the labels in their order
PLACES = ("updates", "tokens", "epochs")
CHANCE = {"accuracy": 0.5, "auc": 0.5, "matthews": 0.0}  # scores of a model that knows nothing

Scores = dict[str, float]


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = frame.make_parser(__doc__)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="model folder, or run with checkpoints")
    parser.add_argument("--sst2", type=Path, metavar="DIR", help="GLUE's folder of SST-2")
    parser.add_argument("--cola", type=Path, metavar="DIR", help="GLUE's folder of CoLA")
    parser.add_argument("--blimp", type=Path, metavar="PATH", help="BLiMP's folder, or a file of minimal pairs")
    words = "words for the labels of SST-2, single tokens if possible; default: negative positive"
    parser.add_argument("--verbalizers", nargs=2, default=VERBALIZERS, metavar=("NEGATIVE", "POSITIVE"), help=words)
    spread = "score at most N examples of each file, spread evenly over it"
    parser.add_argument("--max_samples", type=int, metavar="N", help=spread)
    masked = "what is masked while a masked model predicts a token of a sentence, as for run_blimp.py"
    parser.add_argument("--pll", choices=("original", "within_word_l2r"), default="original", help=masked)
    axis = "what the plot's logarithmic axis counts; epochs compare models with different tokenizers on the same text"
    parser.add_argument("--against", choices=PLACES, default=PLACES[0], help=axis)
    args = frame.parse(parser, argv, max_samples=2)
    if not (args.sst2 or args.cola or args.blimp):
        raise InputError("nothing to score: give at least one of --sst2, --cola, --blimp")
    return args


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Carries out what `argv`, by default the command line, asks for; returns the table's rows."""
    args = parse(argv)
    checkpoints = [checkpoint for model in args.models for checkpoint in checkpoints_of(model)]
    runs = list(dict.fromkeys(run for run, _ in checkpoints))
    names = dict(zip(runs, frame.short_names(runs), strict=True))
    data = read_data(args)
    rows: list[dict[str, Any]] = []
    for run, folder in checkpoints:
        rows.append({"run": names[run], **describe(run, folder), **score(folder, data, args.pll)})
        frame.write_numbers(args.output_dir, "zero_shot", rows)  # a long command may be stopped
        print(", ".join(f"{name} {frame.cell(value)}" for name, value in rows[-1].items()), file=sys.stderr)
    print(frame.table(rows))
    scores = list(dict.fromkeys(name for row in rows for name in row if name not in ("run", *PLACES)))
    scores = [name for name in scores if any(row.get(args.against) and name in row for row in rows)]
    if scores:
        frame.write_picture(args.output_dir, "zero_shot", draw, rows, scores, args.against)
    else:
        print(f"no zero_shot.png: nothing says after how many {args.against} the models were saved")
    return rows


# Checkpoints


def checkpoints_of(model: Path) -> list[tuple[Path, Path]]:
    """(run, model folder) of each checkpoint of a run, in their order, and of its final model if it is another one."""
    folder = model.resolve()
    if CHECKPOINT.fullmatch(folder.name):
        return [(folder.parent, folder)]
    if not folder.is_dir():
        raise MissingFileError(f"{model}: no such folder")
    numbers = sorted(int(CHECKPOINT.fullmatch(path.name)[1]) for path in matching_folders(folder, CHECKPOINT))
    folders = [folder / f"checkpoint-{number}" for number in numbers]
    is_last = numbers and numbers[-1] == updates_of(folder)
    if (folder / "config.json").is_file() and not is_last:
        folders.append(folder)
    if not folders:
        raise MissingFileError(f"{model} is no model folder and holds no checkpoint-N")
    return [(folder, each) for each in folders]


def updates_of(folder: Path) -> int | None:
    """The updates after which the model of a folder was saved; None if nothing says so."""
    if checkpoint := CHECKPOINT.fullmatch(folder.name):
        return int(checkpoint[1])
    return read_json_object(folder / METRICS).get("train_updates") if (folder / METRICS).is_file() else None


def describe(run: Path, folder: Path) -> dict[str, float]:
    """How far the pre-training of a checkpoint had come: updates, tokens, epochs and the loss on held-out text.

    What is not recorded is left out.
    """
    updates = updates_of(folder)
    if updates is None:
        return {}
    values = {"updates": updates}
    saved = [folder, *matching_folders(run, CHECKPOINT)]  # a final model has no record of its own
    records = [path / "progress.json" for path in saved if (path / "progress.json").is_file()]
    identity = read_json_object(records[0])["identity"] if records else {}
    if EPOCH_SAMPLES in identity:
        values |= read_text_of(identity, updates)
    for line in read_log(run):
        if line["update"] == updates and "eval_loss" in line:
            values["eval_loss"] = line["eval_loss"]
    return values


def read_text_of(identity: dict[str, Any], updates: int) -> dict[str, float]:
    """How many tokens a run of run_pretraining.py has read after that many updates, and how many epochs they are.

    A run without --max_seq_length does not say how long its rows are, so only the epochs are known, and of a run with
    --final_seq_length neither.
    """
    ramp = Ramp(identity[SAMPLES], identity.get("batch_ramp_steps", 0))
    longer, first = identity.get("final_seq_length"), identity.get(FINAL_LENGTH, 0)
    change = min(first, updates) if longer else updates
    before, samples = ramp.samples(change), ramp.samples(updates)
    length, epoch = identity["max_seq_length"], identity[EPOCH_SAMPLES]
    if length is None:
        return {} if longer else {"epochs": samples / epoch}
    tokens = before * length + (samples - before) * (longer or 0)
    return {"tokens": tokens, "epochs": tokens / (epoch * length)}


# Data


def read_data(args: argparse.Namespace) -> list[Callable[[Scorer], Scores]]:
    """The functions that score a model on what the command line names."""
    scorings = []
    if args.sst2:
        examples = read_glue(args.sst2, EVERY_TASK["sst2"], ["validation"])["validation"]
        examples = spread(examples, args.max_samples)
        scorings.append(partial(score_sst2, examples=examples, verbalizers=args.verbalizers))
    if args.cola:
        splits = read_glue(args.cola, EVERY_TASK["cola"], ["train", "validation"])
        splits = {name: spread(examples, args.max_samples) for name, examples in splits.items()}
        scorings.append(partial(score_cola, **splits))
    if args.blimp:
        if not args.blimp.exists():
            raise MissingFileError(f"--blimp {args.blimp}: no such file or folder")
        pairs = read_folder(args.blimp) if args.blimp.is_dir() else read_file(args.blimp)
        scorings.append(partial(score_pairs, pairs=spread(pairs, args.max_samples)))
    return scorings


def spread(examples: Dataset, most: int | None) -> Dataset:
    """At most `most` of the examples, at equal distances: files are often sorted."""
    if most is None or len(examples) <= most:
        return examples
    return examples.select(np.linspace(0, len(examples) - 1, most).round().astype(int))


# Scores


def score(folder: Path, scorings: Sequence[Callable[[Scorer], Scores]], pll: str) -> Scores:
    """The scores of one model."""
    source = ModelSource(str(folder), attn_implementation="eager")  # the fastest for short sentences
    config, tokenizer = load_config(source), load_tokenizer(source, for_task=False)
    head = choose_head(config, tokenizer, source)
    scorer = make_scorer(head, load_model(head, source, config, tokenizer, train=False, remedy=REMEDY), tokenizer, pll)
    scores: Scores = {}
    for scoring in scorings:
        scores |= scoring(scorer)
    return scores


def score_sst2(scorer: Scorer, examples: Dataset, verbalizers: Sequence[str]) -> Scores:
    """The accuracy of the more probable word, and the area under the ROC curve of the difference.

    A masked model reads a mask in the word's place. A causal model and a biLM compare the whole sentences, which also
    differ in what is predicted from the word.
    """
    check_words(scorer, verbalizers)
    prompts = [text.rstrip() + PROMPT for text in examples["text"]]
    rows = [row for word in verbalizers for row in verbalized_rows(scorer, prompts, word)]
    labels = is_second(examples, "sst2")
    scores = {}
    for direction, values in log_likelihoods(scorer, prompts * len(verbalizers), rows).items():
        negative, positive = values.reshape(2, -1)
        margin = positive - negative
        scores[f"{direction}sst2_accuracy"] = share_of_positive(np.where(labels, margin, -margin))
        scores[f"{direction}sst2_auc"] = float(roc_auc_score(labels, margin))
    return scores


def verbalized_rows(scorer: Scorer, prompts: list[str], word: str) -> list[Row]:
    """The rows of the prompts with the word behind them. Of a masked model, only the word's tokens are scored."""
    rows = scorer.encode([f"{prompt} {word}" for prompt in prompts])
    if not isinstance(scorer, MaskedScorer):
        return rows
    for row, prompt in zip(rows, scorer.encode(prompts), strict=True):
        places = [place for place, number in enumerate(row["words"]) if number != SPECIAL]
        places = places[scorer.count_scored(prompt) :]
        # One word: while one of its tokens is predicted, those after it are masked, too.
        row["words"] = [0 if place in places else SPECIAL for place in range(len(row["words"]))]
    return rows


def check_words(scorer: Scorer, words: Sequence[str]) -> None:
    """Raises ValueError if the model does not know one of the words, so that it cannot predict it."""
    tokenizer = scorer.tokenizer
    for word in words:
        if reads_words(tokenizer):
            is_unknown = tokenizer.word_targets([word]) == tokenizer.word_targets(["<UNK>"])
        else:
            ids = tokenizer(word, add_special_tokens=False)["input_ids"]
            is_unknown = not ids or tokenizer.unk_token_id in ids
        if is_unknown:
            raise InputError(f"the model does not know the word {word!r}: choose others with --verbalizers")


def score_cola(scorer: Scorer, train: Dataset, validation: Dataset) -> Scores:
    """Matthews' correlation at the threshold that is best for `train`, and the area under the ROC curve.

    A sentence has its log-probability, divided by the number of its tokens.
    """
    means = []
    for examples in (train, validation):
        texts = examples["text"][:]
        rows = scorer.encode(texts)
        counts = np.array([scorer.count_scored(row) for row in rows])
        means.append({name: values / counts for name, values in log_likelihoods(scorer, texts, rows).items()})
    labels, references = (is_second(examples, "cola") for examples in (train, validation))
    scores = {}
    for direction, of_validation in means[1].items():
        predictions = of_validation >= best_threshold(means[0][direction], labels)
        scores[f"{direction}cola_matthews"] = float(matthews_corrcoef(references, predictions))
        scores[f"{direction}cola_auc"] = float(roc_auc_score(references, of_validation))
    return scores


def best_threshold(scores: np.ndarray, labels: np.ndarray) -> float:
    """The score from which on examples are predicted as positive, so that Matthews' correlation is highest."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.diff(scores[order]) != 0, True)  # equal scores are predicted alike
    positives = np.arange(1, len(scores) + 1)[ends]
    hits = np.cumsum(labels[order])[ends]
    total, true = len(scores), labels.sum()
    product = positives * (total - positives) * true * (total - true)
    correlation = (hits * total - positives * true) / np.sqrt(np.maximum(product, 1), dtype=np.float64)
    return float(scores[order][ends][np.argmax(correlation)])


def score_pairs(scorer: Scorer, pairs: Dataset) -> Scores:
    """The accuracy on minimal pairs."""
    features, rows = make_features(pairs, scorer, positions(scorer.model))
    scores = {}
    for direction, values in compute(scorer, features).items():
        good, bad = values[rows].T
        scores[f"{direction}blimp_accuracy"] = share_of_positive(good - bad)
    return scores


def share_of_positive(margins: np.ndarray) -> float:
    """The share of numbers above zero; zero counts half."""
    return float((np.sign(margins) + 1).mean() / 2)


def is_second(examples: Dataset, task: str) -> np.ndarray:
    """Whether each example has the task's second label. Raises ValueError unless both occur."""
    first, second = EVERY_TASK[task].labels
    labels = np.array(examples["label"][:]) == second
    if labels.all() or not labels.any():
        found = second if labels.all() else first
        raise InputError(f"all examples of {EVERY_TASK[task].folder} are {found}: take more")
    return labels


def log_likelihoods(scorer: Scorer, texts: list[str], rows: list[Row]) -> dict[str, np.ndarray]:
    """Those of the rows of texts. Raises ValueError for a row that is too long, or that has no token to score."""
    longest = positions(scorer.model)
    for text, row in zip(texts, rows, strict=True):
        length = len(next(iter(row.values())))
        if longest is not None and length > longest:
            raise InputError(f"{shown(text)} has {length} tokens, but the model reads at most {longest}: leave it out")
        if scorer.count_scored(row) < 1:
            raise InputError(f"{shown(text)} has no token that can be scored: leave it out")
    return compute(scorer, Dataset.from_dict({name: [row[name] for row in rows] for name in rows[0]}))


def compute(scorer: Scorer, features: Dataset) -> dict[str, np.ndarray]:
    """The log-likelihoods by direction: "" is their sum; of a biLM "forward_" and "backward_" are there, too."""
    outputs = predict(scorer, features, scorer.collate, Accelerator(), batch_size=BATCH)
    parts = {name.removesuffix("log_likelihoods"): np.array(values, np.float64) for name, values in outputs.items()}
    return {"": sum(parts.values())} | parts


# The picture


def draw(figure: frame.Figure, rows: Sequence[Mapping[str, Any]], scores: Sequence[str], against: str) -> None:
    """A panel for each score with a curve for each run, over the logarithm of the column `against`."""
    from matplotlib.ticker import LogLocator, NullFormatter

    width, height = min(len(scores), 2), -(-len(scores) // 2)
    figure.set_size_inches(5.5 * width, 3.5 * height)
    for number, score in enumerate(scores, start=1):
        axes = figure.add_subplot(height, width, number)
        for name in dict.fromkeys(row["run"] for row in rows):
            points = [row for row in rows if row["run"] == name and row.get(against) and score in row]
            axes.plot([row[against] for row in points], [row[score] for row in points], marker="o", label=name)
        for chance in [CHANCE[end] for end in CHANCE if score.endswith(end)][:1]:
            axes.axhline(chance, color="gray", linewidth=0.8, linestyle="dashed")
        axes.set(xscale="log", xlabel=f"{against} of pre-training", title=score.replace("_", " "))
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:,.12g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(alpha=0.3)
        axes.legend(fontsize=7)


if __name__ == "__main__":
    run_command(main)
