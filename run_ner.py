# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert==0.1.0"]
# ///
"""Fine-tunes and evaluates a tagger of named entities on CoNLL-2003 (Tjong Kim Sang and De Meulder) or your own data.

    python run_ner.py configs/bert/conll2003.yaml --data_dir conll2003  # the paper's recipe: whole documents
    python run_ner.py configs/bert/conll2003_features.yaml --features last  # BERT stays frozen
    python run_ner.py configs/elmo/wnut17.yaml --data_dir wnut17  # ELMo's tagger with a CRF
    python run_ner.py --model_name_or_path CHECKPOINT --dataset_name lhoestq/conll2003 --do_train --do_eval \\
        --output_dir runs/mine
    python run_ner.py --model_name_or_path runs/mine --test_file c.conll --do_predict --output_dir runs/predictions

The folder --data_dir holds train.txt, valid.txt and test.txt; or CoNLL-2003's eng.train, eng.testa and eng.testb; or
train.conll, dev.conll and test.conll; or, for Chinese, train.char.bmes and so on. Your own files hold CoNLL columns
too, the word in the first and its tag in the last, or JSON lines with the lists words and tags. The tags of the data
are IOB1, IOB2, BIOES, BMES or BILOU. The model learns --tag_scheme; its predictions are converted back to the scheme
of the data before they are scored and written.
The first sub-word of a word carries its tag. A word that the tokenizer drops is read as its unknown token, and a
sentence that is longer than --max_seq_length in several parts. Scores are those of conlleval, over all entities and
for each type.
OUTPUT_DIR receives metrics.json, predictions.conll, and the trained model with its model card.
"""

from __future__ import annotations

import elmo_gpt_bert.starting  # noqa: F401 - says so before the imports below, which take seconds


# isort: split

import dataclasses
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from accelerate import Accelerator, PartialState
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModel, AutoModelForTokenClassification

import modeling
from elmo_gpt_bert.metrics.entities import entity_scores
from elmo_gpt_bert.tasks.ner.data import count_entities, find_folder_files, read_files, read_hub
from elmo_gpt_bert.tasks.ner.features import (
    class_names,
    collate,
    conll_text,
    labels_of,
    make_features,
    predicted_tags,
    speaks_iob1,
)
from elmo_gpt_bert.tasks.ner.states import cache_states
from elmo_gpt_bert.tasks.rows import hub_version, listed
from elmo_gpt_bert.training.arguments import (
    DATA_PAIRS,
    OWN_DATA,
    DataArguments,
    ModelSource,
    OneWay,
    Pair,
    flag,
    parse_names,
    public_arguments,
)
from elmo_gpt_bert.training.batches import IGNORED
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.flags import parse_arguments
from elmo_gpt_bert.training.loading import check_length, load_config, load_model, load_tokenizer
from elmo_gpt_bert.training.results import PREDICTED_CLASSES, count_samples
from elmo_gpt_bert.training.runs import command, repeat, run_task
from elmo_gpt_bert.training.task import Description, Outputs, Task


if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


# The languages of data sets, by their names on the Hub or the names of their folders.
LANGUAGES = {"conll2003": "en", "lhoestq/conll2003": "en", "wnut17": "en", "wnut_17": "en", "msra_ner": "zh"}
LANGUAGES |= {"msra": "zh", "ontonotes4": "zh", "ResumeNER": "zh"}
COLUMNS = "text_column_name label_column_name data_scheme tag_names"  # flags that say how the data are written
TAGGER_FIELDS = ("rnn_size", "rnn_layers", "dropout", "freeze_encoder")  # of the tagger on --features


@dataclass(frozen=True, kw_only=True)
class NerArguments(DataArguments):
    """The arguments of this script, in addition to those of every run on texts."""

    pairs: ClassVar[tuple[Pair, ...]] = (
        *DATA_PAIRS,
        Pair("data_dir", "dataset_name dataset_config_name", about=COLUMNS),
        Pair(OWN_DATA, "data_dir dataset_name dataset_config_name", about=COLUMNS),
        OneWay("data_dir", "tag_names", lambda args: args.data_dir is not None),
        OneWay("dataset_name", "tag_names", lambda args: args.dataset_name is not None),
        OneWay("do_train", "tag_scheme features", lambda args: not args.do_train),
    )

    flags_of_use: ClassVar[tuple[str, ...]] = (*DataArguments.flags_of_use, "document_context", *COLUMNS.split())

    dataset_name: str | None = flag(None, "data set on the Hub, e.g. lhoestq/conll2003")
    dataset_config_name: str | None = flag(None, "its configuration, where it has several")
    text_column_name: str | None = flag(None, "column of the words; a number for CoNLL columns, -1 for the last")
    label_column_name: str | None = flag(None, "column of the tags")
    tag_names: str | None = flag(None, "names of tags that are numbers, in their order, as in O,B-PER,I-PER")
    data_scheme: Literal["iob1", "iob2", "bioes"] | None = flag(
        None, "of the data's tags; default: the one that they fit"
    )
    tag_scheme: Literal["iob2", "bioes"] = flag("iob2", "scheme of the tags that the model learns")
    document_context: bool = flag(False, "fill --max_seq_length with the sentences around each one in its document")
    features: (
        Literal[
            "embeddings", "second_to_last", "last", "weighted_sum_last_four", "concat_last_four", "weighted_sum_all"
        ]
        | None
    ) = flag(
        None,
        "train a BiLSTM on these states of the frozen model; --config_overrides sets rnn_size, rnn_layers, dropout",
    )
    state_cache: str | None = flag(None, "folder that keeps a frozen model's states for later runs")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text_column_name is not None and self.text_column_name == self.label_column_name:
            raise InputError(f"--text_column_name and --label_column_name are both {self.text_column_name}")
        _ = self.names  # which checks its flag

    @property
    def names(self) -> list[str] | None:
        """The names of --tag_names."""
        return None if self.tag_names is None else parse_names("tag_names", self.tag_names)

    def data_sources(self) -> dict[str, list[Path] | str]:
        if self.dataset_name is not None:
            return dict.fromkeys(self.splits, hub_version(self.dataset_name, self.dataset_config_name, None))
        return super().data_sources()

    @property
    def files(self) -> dict[str, str | None]:
        """The user's own files, or those in --data_dir."""
        return super().files if self.data_dir is None else find_folder_files(Path(self.data_dir), self.splits)


def load_data(args: NerArguments) -> tuple[str | None, DatasetDict]:
    """The scheme of the data's tags, None if there are no tags, and the splits that this run needs."""
    options = {
        "text_column": args.text_column_name,
        "label_column": args.label_column_name,
        "scheme": args.data_scheme,
    }
    if args.dataset_name is not None:
        return read_hub(args.dataset_name, args.splits, args.dataset_config_name, **options)
    return read_files(args.files, **options, tag_names=args.names, held_out=args.validation_split_percentage)


@dataclass
class Tagging(Task):
    """Sentences whose words have tags.

    names: the tags in the order of the model's outputs
    scheme: the scheme of the data's tags, to which predictions are converted
    model_scheme: the scheme of the model's tags
    trains: whether the model learns that scheme in this run
    """

    names: list[str]
    scheme: str
    model_scheme: str
    trains: bool

    unit: ClassVar[str] = "sentences"

    def describe(self) -> str:
        return f"{super().describe()}\n{len(self.names)} tags: {listed(self.names)}"

    def featurize(self, args: NerArguments) -> None:
        options = {"length": args.max_seq_length, "limits": args.limits, "document_context": args.document_context}
        self.features = make_features(self.data, self.tokenizer, self.model, self.names, self.model_scheme, **options)
        for split, rows in self.features.items():
            PartialState().print(f"{split}: {describe_words(self.data[split], rows)}")
            if split != "train" and has_no_entities(self.data[split], rows):
                nought = "precision, recall and F1 are 0 whatever the model predicts"
                PartialState().print(f"{split}: all tags are O, so {nought}")
        self.collate = partial(collate, tokenizer=self.tokenizer, **args.padding)

    def keep_states(self, args: NerArguments, accelerator: Accelerator) -> bool:
        if args.state_cache is not None:
            folder, batch_size = Path(args.state_cache), args.per_device_eval_batch_size
            kept = cache_states(self.model, self.features, self.collate, folder, batch_size, accelerator)
            self.features, self.collate = kept
        return args.state_cache is not None

    def decode(self, split: str, outputs: Outputs) -> list[list[str]]:
        """The tags of all words of each sentence."""
        return predicted_tags(outputs, self.features[split], self.data[split], self.names, self.scheme)

    def score(self, split: str, outputs: Outputs, predictions: list[list[str]]) -> dict[str, float]:
        """The scores of conlleval, and the mean loss of the words that have a token."""
        if "labels" not in self.features[split].column_names:
            return {}
        features, examples = self.features[split], self.data[split]
        references = examples["tags"][: len(predictions)]
        scores = entity_scores(predictions, references)
        labels = features["labels"]
        if not self.trains:
            as_named = predicted_tags(outputs, features, examples, self.names, None)
            if speaks_iob1(as_named, references):
                PartialState().print(f"{split}: the model's entities begin with I, so the loss is measured in IOB1")
                labels = labels_of(features, examples, self.names, "iob1")
        labels = labels[: len(outputs["logits"])]
        losses = [
            torch.nn.functional.cross_entropy(torch.from_numpy(logits), torch.tensor(row), reduction="sum").item()
            for logits, row in zip(outputs["logits"], labels, strict=True)
        ]
        labelled = sum(label != IGNORED for row in labels for label in row)
        predicted = {*chain.from_iterable(predictions)}
        return scores | {PREDICTED_CLASSES: len(predicted), "loss": sum(losses) / max(labelled, 1)}

    def write(self, split: str, predictions: list[list[str]]) -> dict[str, str]:
        """The words with their tags and predictions, in the format that conlleval reads."""
        columns = {name: self.data[split][name][: len(predictions)] for name in self.data[split].column_names}
        text = conll_text(columns["words"], predictions, columns.get("tags"), columns.get("document"))
        return {"predictions.conll": text}


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Carries out what `argv`, by default the command line, asks for; returns metrics.json's numbers."""
    return repeat(partial(run_task, load), parse_arguments(NerArguments, argv))


def load(args: NerArguments) -> Tagging:
    """The task, whose tags are those of the data or of the model, and a tagger for them."""
    config, tokenizer = load_config(split_overrides(args)[0]), load_tokenizer(args.source)
    data_scheme, data = load_data(args)
    names, scheme = class_names(
        data, config, train=args.do_train, tag_scheme=args.tag_scheme, model_name=args.model_name_or_path
    )
    model = build_model(config, names, tokenizer, args)
    check_length(args.max_seq_length, model, tokenizer)
    samples = count_samples(data, args.limits)
    decoding = names, data_scheme or scheme, scheme, args.do_train
    return Tagging(data, samples, describe_data(args), *decoding, model=model, tokenizer=tokenizer)


def describe_words(examples: Dataset, rows: Dataset) -> str:
    """For the console: how many words of the sentences have a token, and in how many rows they are."""
    sentences = list(dict.fromkeys(rows["example"]))
    words = sum(map(len, examples.select(sentences)["words"]))
    labelled = sum(word >= 0 for of_tokens in rows["word"] for word in of_tokens)
    return f"{labelled:,} of {words:,} words have a token; {len(sentences):,} sentences in {len(rows):,} rows"


def has_no_entities(examples: Dataset, rows: Dataset) -> bool:
    """Whether the sentences of the rows have tags, and all are O."""
    if "tags" not in examples.column_names:
        return False
    return not count_entities(examples.select(list(dict.fromkeys(rows["example"])))["tags"])


def build_model(
    config: PreTrainedConfig, names: list[str], tokenizer: PreTrainedTokenizerBase, args: NerArguments
) -> PreTrainedModel:
    """A tagger of `names`: --model_name_or_path itself or, with --features, a new tagger on its states."""
    labels = {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}
    source, tagger_fields = split_overrides(args)
    if args.features is None:
        renamed = config.num_labels == len(names) and {*config.id2label.values()} != {*names}
        config.update(labels)
        options = {"train": args.do_train, "new_labels": renamed}
        return load_model(AutoModelForTokenClassification, source, config, tokenizer, **options)
    encoder = load_model(AutoModel, source, config, tokenizer, train=args.do_train)
    try:
        return modeling.FeatureTaggerForTokenClassification.from_encoder(
            encoder, features=args.features, **tagger_fields, **labels
        )
    except StrictDataclassError as error:
        raise InputError(f"--features {args.features}: {error.__cause__}") from error


def split_overrides(args: NerArguments) -> tuple[ModelSource, dict[str, Any]]:
    """The model's source with the --config_overrides of the model, and the overrides of the tagger on its states.

    Without --features, all overrides are the model's. With it, a field that both have, such as DistilBERT's dropout,
    is the tagger's.
    """
    overrides = dict(args.source.config_overrides)
    fields = {name: overrides.pop(name) for name in TAGGER_FIELDS if args.features is not None and name in overrides}
    return dataclasses.replace(args.source, config_overrides=overrides), fields


def describe_data(args: NerArguments) -> Description:
    """What the model card says the scores were measured on. The data of a --data_dir have the name of the folder."""
    if args.dataset_name is None and args.data_dir is None:
        return Description("token-classification")
    name = public_arguments(args)["dataset_name" if args.data_dir is None else "data_dir"]
    return Description(
        "token-classification",
        dataset_type=name,
        dataset_name=name,
        dataset_config=args.dataset_config_name,
        dataset_split="validation",
        language=LANGUAGES.get(name),
    )


if __name__ == "__main__":
    command(main)
