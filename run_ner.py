"""Fine-tunes and evaluates a tagger of named entities: CoNLL-2003 (Tjong Kim Sang and De Meulder 2003) and its like.

    python run_ner.py configs/bert/conll2003.yaml --data_dir conll2003       # the paper's recipe: whole documents
    python run_ner.py configs/bert/conll2003_features_last.yaml --feature_cache /tmp/features   # BERT stays as it is
    python run_ner.py configs/elmo/wnut17.yaml --data_dir wnut17             # ELMo's tagger with a CRF
    python run_ner.py --model_name_or_path CHECKPOINT --dataset_name lhoestq/conll2003 --do_train --do_eval \\
        --output_dir runs/mine
    python run_ner.py --model_name_or_path runs/mine --test_file c.conll --do_predict --output_dir runs/predictions

A folder given as --data_dir holds train.txt, valid.txt and test.txt, or CoNLL-2003's eng.train, eng.testa and
eng.testb, or train.conll, dev.conll and test.conll. Files of your own are such columns too, the word in the first and
its tag in the last, or JSON lines with the lists words and tags. The data's tags are IOB1, IOB2 or BIOES; the model
learns --tag_scheme, scores and predictions are in the data's own again.
The first sub-word of a word carries its tag. A word without any, because the tokenizer drops it or the text is cut
before it, counts as tagged O. Scores are those of conlleval, over all entities and for each type.
OUTPUT_DIR receives metrics.json, predictions.conll, and the checkpoint with its model card.
"""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import Dataset, DatasetDict
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoModel,
    AutoModelForTokenClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.hf_argparser import HfArg

import metrics
from modeling import FeatureTaggerForTokenClassification
from tasks.ner.data import read_files, read_folder, read_hub
from tasks.ner.decode import predicted_tags, write_conll
from tasks.ner.features import class_names, collate, make_features
from tasks.rows import total
from training.arguments import DataArguments, public_arguments
from training.ensembles import check_ensemble
from training.features import cache_states
from training.flags import parse_arguments
from training.launching import start
from training.loading import check_length, load_config, load_model, load_tokenizer, parse_overrides
from training.loop import IGNORED, Outputs, evaluate, predict, train
from training.reporting import finish, remove_earlier_results
from training.runs import Stopwatch, command, repeat
from training.samples import count_samples, sizes


# Of the texts of data sets, by their names on the Hub or that of their folder.
LANGUAGES = {"conll2003": "en", "lhoestq/conll2003": "en", "wnut17": "en", "wnut_17": "en", "msra_ner": "zh"}
TRAINED = ("rnn_size", "rnn_layers", "dropout")  # fields of the tagger on --features


@dataclass(frozen=True, kw_only=True)
class NerArguments(DataArguments):
    """What this script adds."""

    dataset_name: str | None = HfArg(default=None, help="on the Hub, e.g. lhoestq/conll2003")
    dataset_config_name: str | None = HfArg(default=None, help="its configuration, where it has several")
    data_dir: str | None = HfArg(default=None, help="folder with train.txt, valid.txt, test.txt, or eng.train, ...")
    train_file: str | None = HfArg(default=None, help="CoNLL columns, or json, of your own")
    text_column_name: str | None = HfArg(
        default=None, help="of the words; of CoNLL columns the number, 1 for the first, -1 for the last"
    )
    label_column_name: str | None = HfArg(default=None, help="of their tags")
    data_scheme: Literal["iob1", "iob2", "bioes"] | None = HfArg(
        default=None, help="of the data's tags; default: the one they fit"
    )
    tag_scheme: Literal["iob2", "bioes"] = HfArg(default="iob2", help="of the tags that a model learns")
    document_context: bool = HfArg(
        default=False, help="fill --max_seq_length with the sentences around each one in its document"
    )
    features: (
        Literal[
            "embeddings", "second_to_last", "last", "weighted_sum_last_four", "concat_last_four", "weighted_sum_all"
        ]
        | None
    ) = HfArg(
        default=None,
        help="train a BiLSTM on these states of the model, which stays as it is; --config_overrides knows its "
        "rnn_size, rnn_layers and dropout",
    )
    feature_cache: str | None = HfArg(default=None, help="folder that keeps the states of a model that stays as it is")

    def __post_init__(self) -> None:
        super().__post_init__()
        own = any([self.train_file, self.validation_file, self.test_file])
        if [self.dataset_name is not None, self.data_dir is not None, own].count(True) != 1:
            raise ValueError(
                "give the data by one of --dataset_name, --data_dir, or --train_file, --validation_file, --test_file"
            )
        if self.dataset_config_name is not None and self.dataset_name is None:
            raise ValueError("--dataset_config_name is for a --dataset_name")
        if self.features is not None and not self.do_train:
            raise ValueError("--features says what to train on a model's states; a trained tagger knows its own")
        if self.text_column_name is not None and self.text_column_name == self.label_column_name:
            raise ValueError(f"--text_column_name and --label_column_name are both {self.text_column_name}")


def load_data(args: NerArguments) -> tuple[str | None, DatasetDict]:
    """The scheme of the data's tags, None if they have none, and the splits that this run needs, as far as it does."""
    splits = [split for split, needed in args.parts.items() if needed]
    options = {
        "text_column": args.text_column_name,
        "label_column": args.label_column_name,
        "scheme": args.data_scheme,
        "limits": args.limits,
        "whole_documents": args.document_context,
    }
    if args.dataset_name is not None:
        return read_hub(args.dataset_name, splits, args.dataset_config_name, **options)
    if args.data_dir is not None:
        return read_folder(Path(args.data_dir), splits, **options)
    return read_files({split: getattr(args, f"{split}_file") for split in splits}, **options)


# Metrics and predictions


def compute_metrics(
    outputs: Outputs, data_set: Dataset, examples: Dataset, decode: Callable[..., list[list[str]]]
) -> dict[str, float]:
    """conlleval's scores, and the mean loss of the words that the model sees."""
    predictions = decode(outputs, data_set, examples)
    references = examples["tags"][: len(predictions)]
    scores = metrics.load("entities").compute(predictions=predictions, references=references)
    scores["predicted_classes"] = len({*chain.from_iterable(predictions)})  # 1: the model has collapsed
    losses = [
        torch.nn.functional.cross_entropy(torch.from_numpy(rows), torch.tensor(labels), reduction="sum").item()
        for rows, labels in zip(outputs["logits"], data_set["labels"], strict=True)
    ]
    words = sum(label != IGNORED for labels in data_set["labels"] for label in labels)
    return {**scores, "loss": sum(losses) / max(words, 1)}


def write_predictions(predictions: list[list[str]], examples: Dataset, args: NerArguments) -> None:
    columns = {name: examples[name][: len(predictions)] for name in examples.column_names}
    path = Path(args.output_dir) / "predictions.conll"
    write_conll(path, columns["words"], predictions, columns.get("tags"), columns.get("document"))


def main(argv: list[str] | None = None) -> dict[str, float]:
    """From the command line or `argv`, one run or several; returns what metrics.json says of them."""
    return repeat(run, parse_arguments(NerArguments, argv))


def run(args: NerArguments) -> dict[str, float]:
    """One run."""
    watch = Stopwatch()
    accelerator = start(args)
    watch.lap("start")
    config = load_config(split_overrides(args)[0])
    tokenizer = load_tokenizer(args)
    data_scheme, data = load_data(args)
    names, scheme = class_names(
        data, config, train=args.do_train, tag_scheme=args.tag_scheme, model_name=args.model_name_or_path
    )
    model = build_model(names, tokenizer, args)
    check_length(args.max_seq_length, model, tokenizer)
    samples = count_samples(data, args.limits, {split: total(examples) for split, examples in data.items()})
    size = f"{model.num_parameters():,} parameters; {sizes(samples, data)} sentences"
    accelerator.print(f"load: {type(model).__name__}, {size}")
    watch.lap("load")
    features = make_features(
        data,
        tokenizer,
        model,
        names,
        scheme,
        length=args.max_seq_length,
        limits=args.limits,
        document_context=args.document_context,
    )
    watch.lap("tokenize")

    padding = {"padding": "max_length", "max_length": args.max_seq_length} if args.pad_to_max_length else {}
    batch = partial(collate, tokenizer=tokenizer, **padding)
    if args.feature_cache is not None:
        features, batch = cache_states(model, features, batch, Path(args.feature_cache), args, accelerator)
        watch.lap("features")
    check_ensemble(features.values(), model.config.id2label, args)
    remove_earlier_results(args, accelerator)
    decode = partial(predicted_tags, names=names, scheme=data_scheme or scheme)
    score = partial(compute_metrics, examples=data.get("validation"), decode=decode)
    eval_sets = {"": features["validation"]} if args.do_eval else {}
    results = {}
    if args.do_train:
        results = train(
            model, tokenizer, features["train"], eval_sets, batch, score, args, accelerator, data.get("validation")
        )
        watch.skip()
    elif args.do_eval:
        results = evaluate(model, eval_sets, batch, score, args, accelerator)
        watch.lap("eval")
    if args.do_predict:
        outputs = predict(model, features["test"], batch, args, accelerator)
        if "labels" in features["test"].column_names:
            scores = score(outputs, features["test"], examples=data["test"])
            results |= {f"test_{name}": value for name, value in scores.items()}
        if accelerator.is_main_process:
            write_predictions(decode(outputs, features["test"], data["test"]), data["test"], args)
        watch.lap("predict")
    results |= watch.runtimes() | samples
    finish(model, tokenizer, results, description(args), args, accelerator)
    return results


def build_model(names: list[str], tokenizer: PreTrainedTokenizerBase, args: NerArguments) -> PreTrainedModel:
    """A tagger of `names`: --model_name_or_path itself or, with --features, a new one on its states."""
    head = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    if args.features is None:
        return load_model(AutoModelForTokenClassification, args, tokenizer, **head)
    encoder_args, own = split_overrides(args)
    encoder = load_model(AutoModel, encoder_args, tokenizer)
    try:
        return FeatureTaggerForTokenClassification.from_encoder(encoder, features=args.features, **own, **head)
    except StrictDataclassError as error:
        raise ValueError(f"--features {args.features}: {error.__cause__}") from error


def split_overrides(args: NerArguments) -> tuple[NerArguments, dict[str, Any]]:
    """`args` with the --config_overrides that are for --model_name_or_path, and the others, for the tagger on it.

    Without --features all are for the model. With them, a field that model and tagger have, as DistilBERT's dropout,
    is the tagger's: the model is not trained.
    """
    overrides = parse_overrides(args.config_overrides)
    own = {name: overrides.pop(name) for name in TRAINED if args.features is not None and name in overrides}
    rest = ",".join(f"{name}={json.dumps(value)}" for name, value in overrides.items())
    return dataclasses.replace(args, config_overrides=rest or None), own


def description(args: NerArguments) -> dict[str, str]:
    """What the model card says the scores were measured on: a --data_dir has the name of its folder."""
    names = {"dataset_type": "text", "dataset_name": "files of our own"}
    if args.dataset_name is not None or args.data_dir is not None:
        name = public_arguments(args)["dataset_name" if args.data_dir is None else "data_dir"]
        names = {"dataset_type": name, "dataset_name": name, "dataset_split": "validation"}
        names |= {"language": LANGUAGES[name]} if name in LANGUAGES else {}
        if args.dataset_config_name is not None:
            names["dataset_config"] = args.dataset_config_name
    return {"task_type": "token-classification", **names}


if __name__ == "__main__":
    command(main)
