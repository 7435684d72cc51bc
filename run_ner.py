"""Fine-tunes and evaluates a tagger of named entities: CoNLL-2003 (Tjong Kim Sang and De Meulder 2003) and its like.

    python run_ner.py configs/bert/conll2003.yaml --data_dir conll2003       # the paper's recipe: whole documents
    python run_ner.py configs/bert/conll2003_features_last.yaml --state_cache /tmp/states   # BERT stays as it is
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
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import DatasetDict
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoModel,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.hf_argparser import HfArg

from metrics.entities.entities import scores_and_types
from modeling import FeatureTaggerForTokenClassification
from tasks.ner.data import read_files, read_folder, read_hub
from tasks.ner.decode import conll_text, predicted_tags
from tasks.ner.features import class_names, collate, make_features
from tasks.rows import total
from training.arguments import DataArguments, ModelSource, PathOrName, public_arguments
from training.batches import IGNORED
from training.clock import Clock
from training.errors import InputError
from training.flags import parse_arguments
from training.launching import make_accelerator
from training.loading import check_length, load_config, load_model, load_tokenizer
from training.prediction import Outputs
from training.results import Results, Scores
from training.runs import carry_out, command, repeat
from training.samples import count_samples, describe_samples
from training.state_cache import cache_states
from training.task import Description, Task


# Of the texts of data sets, by their names on the Hub or that of their folder.
LANGUAGES = {"conll2003": "en", "lhoestq/conll2003": "en", "wnut17": "en", "wnut_17": "en", "msra_ner": "zh"}
TRAINED = ("rnn_size", "rnn_layers", "dropout")  # fields of the tagger on --features


@dataclass(frozen=True, kw_only=True)
class NerArguments(DataArguments):
    """What this script adds."""

    dataset_name: PathOrName | None = HfArg(default=None, help="on the Hub, e.g. lhoestq/conll2003")
    dataset_config_name: PathOrName | None = HfArg(default=None, help="its configuration, where it has several")
    data_dir: PathOrName | None = HfArg(
        default=None, help="folder with train.txt, valid.txt, test.txt, or eng.train, ..."
    )
    train_file: PathOrName | None = HfArg(default=None, help="CoNLL columns, or json, of your own")
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
    state_cache: PathOrName | None = HfArg(
        default=None, aliases=["--feature_cache"], help="folder that keeps the states of a model that stays as it is"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        own = any([self.train_file, self.validation_file, self.test_file])
        if [self.dataset_name is not None, self.data_dir is not None, own].count(True) != 1:
            raise InputError(
                "give the data by one of --dataset_name, --data_dir, or --train_file, --validation_file, --test_file"
            )
        if self.dataset_config_name is not None and self.dataset_name is None:
            raise InputError("--dataset_config_name is for a --dataset_name")
        if self.features is not None and not self.do_train:
            raise InputError("--features says what to train on a model's states; a trained tagger knows its own")
        if self.text_column_name is not None and self.text_column_name == self.label_column_name:
            raise InputError(f"--text_column_name and --label_column_name are both {self.text_column_name}")


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


@dataclass
class Tagging(Task):
    """Sentences whose words have tags.

    names: the tags in the order of the model's outputs
    scheme: of the tags that are predicted, the data's
    """

    names: list[str]
    scheme: str

    def decode(self, split: str, outputs: Outputs) -> list[list[str]]:
        return predicted_tags(outputs, self.features[split], self.data[split], self.names, self.scheme)

    def score(self, split: str, outputs: Outputs, predictions: list[list[str]]) -> Scores | None:
        """conlleval's scores, and the mean loss of the words that the model sees."""
        if "labels" not in self.features[split].column_names:
            return None
        references = self.data[split]["tags"][: len(predictions)]
        values, types = scores_and_types(predictions, references)
        labels = self.features[split]["labels"][: len(predictions)]
        losses = [
            torch.nn.functional.cross_entropy(torch.from_numpy(rows), torch.tensor(row), reduction="sum").item()
            for rows, row in zip(outputs["logits"], labels, strict=True)
        ]
        words = sum(label != IGNORED for row in labels for label in row)
        tags = {*chain.from_iterable(predictions)}
        return Scores(values, types, predicted_classes=len(tags), loss=sum(losses) / max(words, 1))

    def write(self, split: str, predictions: list[list[str]]) -> dict[str, str]:
        """The file that conlleval reads."""
        columns = {name: self.data[split][name][: len(predictions)] for name in self.data[split].column_names}
        text = conll_text(columns["words"], predictions, columns.get("tags"), columns.get("document"))
        return {"predictions.conll": text}


def main(argv: list[str] | None = None) -> dict[str, float]:
    """From the command line or `argv`, one run or several; returns what metrics.json says of them."""
    return repeat(run, parse_arguments(NerArguments, argv))


def run(args: NerArguments) -> Results:
    """One run."""
    clock = Clock()
    accelerator = make_accelerator(args)
    clock.lap("start")
    config = load_config(split_overrides(args)[0])
    tokenizer = load_tokenizer(args.source)
    data_scheme, data = load_data(args)
    names, scheme = class_names(
        data, config, train=args.do_train, tag_scheme=args.tag_scheme, model_name=args.model_name_or_path
    )
    model = build_model(config, names, tokenizer, args)
    check_length(args.max_seq_length, model, tokenizer)
    samples = count_samples(data, args.limits, {split: total(examples) for split, examples in data.items()})
    size = f"{model.num_parameters():,} parameters; {describe_samples(samples)} sentences"
    accelerator.print(f"load: {type(model).__name__}, {size}")
    clock.lap("load")
    shape = {"length": args.max_seq_length, "limits": args.limits, "document_context": args.document_context}
    features = make_features(data, tokenizer, model, names, scheme, **shape)
    clock.lap("tokenize")
    batch = partial(collate, tokenizer=tokenizer, **args.padding)
    if args.state_cache is not None:
        folder, size = Path(args.state_cache), args.per_device_eval_batch_size
        features, batch = cache_states(model, features, batch, folder, size, accelerator)
        clock.lap("features")
    task = Tagging(data, features, batch, samples, describe_data(args), names, data_scheme or scheme)
    return carry_out(task, model, tokenizer, args, accelerator, clock)


def build_model(
    config: PreTrainedConfig, names: list[str], tokenizer: PreTrainedTokenizerBase, args: NerArguments
) -> PreTrainedModel:
    """A tagger of `names`: --model_name_or_path itself or, with --features, a new one on its states."""
    head = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    source, tagger_fields = split_overrides(args)
    if args.features is None:
        config.update(head)
        return load_model(AutoModelForTokenClassification, source, config, tokenizer, train=args.do_train)
    encoder = load_model(AutoModel, source, config, tokenizer, train=args.do_train)
    try:
        return FeatureTaggerForTokenClassification.from_encoder(
            encoder, features=args.features, **tagger_fields, **head
        )
    except StrictDataclassError as error:
        raise InputError(f"--features {args.features}: {error.__cause__}") from error


def split_overrides(args: NerArguments) -> tuple[ModelSource, dict[str, Any]]:
    """--model_name_or_path with the --config_overrides that are for it, and the others, for the tagger on it.

    Without --features all are for the model. With them, a field that model and tagger have, as DistilBERT's dropout,
    is the tagger's: the model is not trained.
    """
    overrides = dict(args.source.config_overrides)
    fields = {name: overrides.pop(name) for name in TRAINED if args.features is not None and name in overrides}
    return dataclasses.replace(args.source, config_overrides=overrides), fields


def describe_data(args: NerArguments) -> Description:
    """What the model card says the scores were measured on: a --data_dir has the name of its folder."""
    if args.dataset_name is None and args.data_dir is None:
        return Description("token-classification")
    name = public_arguments(args)["dataset_name" if args.data_dir is None else "data_dir"]
    configuration = args.dataset_config_name
    return Description("token-classification", name, name, configuration, "validation", LANGUAGES.get(name))


if __name__ == "__main__":
    command(main)
