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
import inspect
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict
from datasets.fingerprint import generate_random_fingerprint
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoModel,
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.hf_argparser import HfArg

import metrics
from modeling import FeatureTaggerForTokenClassification
from tasks.ner_data import (
    convert_tags,
    count_entities,
    entity_types,
    label_names,
    read_files,
    read_hub,
    write_conll,
)
from tasks.rows import total
from training.arguments import DataArguments, PathOrName, public_arguments
from training.ensembles import check_ensemble
from training.features import cache_states
from training.flags import parse_arguments
from training.launching import start
from training.loading import check_length, load_config, load_model, load_tokenizer, parse_overrides
from training.loop import IGNORED, Outputs, evaluate, predict, train
from training.reporting import finish, remove_earlier_results
from training.runs import Stopwatch, command, repeat
from training.samples import count_samples, sizes


# The names of the files in a --data_dir: of most copies of CoNLL-2003, of its release, of WNUT-17.
FOLDERS = (
    {"train": "train.txt", "validation": "valid.txt", "test": "test.txt"},
    {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"},
    {"train": "train.conll", "validation": "dev.conll", "test": "test.conll"},
)
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
        return read_files(find_files(Path(args.data_dir), splits), **options)
    return read_files({split: getattr(args, f"{split}_file") for split in splits}, **options)


def find_files(folder: Path, splits: list[str]) -> dict[str, str]:
    """Raises FileNotFoundError unless `folder` holds all `splits` under the names of one of `FOLDERS`."""
    if not folder.is_dir():
        raise FileNotFoundError(f"--data_dir {folder}: no such folder")
    for names in FOLDERS:
        files = {split: folder / names[split] for split in splits}
        if all(path.is_file() for path in files.values()):
            return {split: str(path) for split, path in files.items()}
    wanted = "; or ".join(", ".join(names[split] for split in splits) for names in FOLDERS)
    raise FileNotFoundError(f"--data_dir {folder} does not hold {wanted}: --train_file and so on take other names")


# Text -> features


def class_names(data: DatasetDict, config: PreTrainedConfig, args: NerArguments) -> tuple[list[str], str]:
    """The tags in the order of the model's outputs, and their scheme: a checkpoint's own, O first for a new model.

    Raises ValueError where the model is not to be trained and tells no tags apart, and as `check_types` does.
    """
    own = [str(config.id2label.get(number)) for number in range(config.num_labels)]
    if args.do_train:
        types = entity_types(data["train"]["tags"])
        check_types(data, types, "the training data")
        wanted = label_names(types, args.tag_scheme)
        return (own if sorted(own) == sorted(wanted) else wanted), args.tag_scheme
    if not all(re.fullmatch("O|[BIES](-.+)?", tag) for tag in own):
        raise ValueError(
            f"{args.model_name_or_path} tells {', '.join(own)} apart, which are no tags of entities: train it with "
            "--do_train, or name its tags in the id2label of its config.json"
        )
    check_types(data, entity_types([own]), args.model_name_or_path)
    return own, "bioes" if any(tag[0] in "ES" for tag in own) else "iob2"


def check_types(data: DatasetDict, known: list[str], source: str) -> None:
    """Says which entities are missed because `source`, which has only the types `known`, does not teach theirs.

    Raises ValueError where none of a split's entities is of a known type. Where --max_*_samples left out a part of
    the data, that may be chance.
    """
    whole = all(total(examples) is not None for examples in data.values())
    for split, examples in data.items():
        counts = count_entities(examples["tags"]) if "tags" in examples.column_names else {}
        lacking = {kind or "no type": counts[kind] for kind in sorted(counts) if kind not in known}
        if whole and lacking and len(lacking) == len(counts):
            types = f"only entities of {', '.join(known)}" if known else "no entities"
            raise ValueError(
                f"{source}: there are {types}, but the {split} data have {', '.join(lacking)}: train on such data, or "
                "correct the tags"
            )
        if lacking:
            types = ", ".join(f"{count:,} of {kind}" for kind, count in lacking.items())
            PartialState().print(
                f"{split}: {sum(lacking.values()):,} entities are of types unknown to {source} ({types}); they count "
                "as missed, and their words are not in the loss"
            )


def tokenize(
    data: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    names: list[str],
    scheme: str,
    args: NerArguments,
) -> DatasetDict:
    """The features of each split, cut to --max_*_samples; `names` are the model's tags, of `scheme`."""
    # Byte-level BPE tells a word from the beginning of a text.
    space = " " if tokenizer.tokenize(" a") != tokenizer.tokenize("a") else ""
    masked = args.document_context and "sentence_mask" in inspect.signature(model.forward).parameters
    features = DatasetDict()
    for split, examples in data.items():
        words = [space + word for sentence in examples["words"] for word in sentence]
        examples = place_windows(examples, words, tokenizer, args)
        convert = partial(
            featurize,
            words=words,
            tokenizer=tokenizer,
            numbers={name: number for number, name in enumerate(names)},
            scheme=scheme,
            masked=masked,
            length=args.max_seq_length,
        )
        limit = args.limits[split]
        chosen = examples if limit is None else examples.select(range(min(limit, len(examples))))
        features[split] = chosen.map(
            convert,
            batched=True,
            remove_columns=chosen.column_names,
            keep_in_memory=True,
            new_fingerprint=generate_random_fingerprint(),  # one of its own would take longer than the features
        )
    if "train" in features:
        labelled = [max(labels, default=IGNORED) >= 0 for labels in features["train"]["labels"]]
        if not any(labelled):
            raise ValueError(f"no word of the training data has a token: --max_seq_length is {args.max_seq_length}")
        features["train"] = features["train"].select(np.flatnonzero(labelled))  # the others teach nothing
    return features


def place_windows(
    examples: Dataset, words: list[str], tokenizer: PreTrainedTokenizerBase, args: NerArguments
) -> Dataset:
    """Adds the columns `own` and `window`: the first word, and the first word after them, of each sentence and of what
    the model reads with it, both in `words`, those of all sentences.

    Raises ValueError where --document_context is wanted and the data do not tell their documents apart.
    """
    ends = [0, *accumulate(map(len, examples["words"]))]
    own = windows = list(pairwise(ends))
    if args.document_context:
        if "document" not in examples.column_names:
            raise ValueError(
                "--document_context needs data that tell their documents apart, by lines with -DOCSTART- or a column "
                "document; these do not"
            )
        counts = count_tokens(words, tokenizer)
        tokens = [0, *accumulate(counts[word] for word in words)]
        room = args.max_seq_length - tokenizer.num_special_tokens_to_add()
        windows = []
        for _, sentences in groupby(zip(examples["document"], own, strict=True), key=itemgetter(0)):
            places = [place for _, place in sentences]
            document = places[0][0], places[-1][1]
            windows += [widen(place, document, tokens, room) for place in places]
    for name, places in (("own", own), ("window", windows)):
        # A fingerprint that `datasets` makes is a hash of all the values, one by one.
        column = [list(place) for place in places]
        examples = examples.add_column(name, column, new_fingerprint=generate_random_fingerprint())
    return examples


def widen(sentence: tuple[int, int], document: tuple[int, int], tokens: list[int], room: int) -> tuple[int, int]:
    """The words around a sentence that fit into `room` tokens with it, whole words, as many before as after it.

    Where its document has less on one side, the other gets more. `tokens` are those before each word.
    """
    (first, end), (begin, stop) = sentence, document
    rest = max(room - (tokens[end] - tokens[first]), 0)
    left = bisect_left(tokens, tokens[first] - rest // 2, begin, first)
    right = bisect_right(tokens, tokens[left] + rest + tokens[end] - tokens[first], end, stop + 1) - 1
    left = bisect_left(tokens, tokens[right] - rest - tokens[end] + tokens[first], begin, left)
    return left, right


def count_tokens(words: list[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    distinct = list(dict.fromkeys(words))
    encoded = tokenizer([[word] for word in distinct], is_split_into_words=True, add_special_tokens=False)
    return dict(zip(distinct, map(len, encoded["input_ids"]), strict=True))


def encode(
    sentences: list[list[str]], tokenizer: PreTrainedTokenizerBase, length: int
) -> tuple[dict[str, list], list[list[int | None]]]:
    """The model's inputs, cut to `length` tokens, and for each token the number of its word; None: a special token.

    A sentence whose words the tokenizer drops, where it adds nothing itself, is one token, its padding: a model must
    read something.
    """
    encoded = tokenizer(
        sentences,
        is_split_into_words=True,
        truncation=True,
        max_length=length,
        return_attention_mask=True,
        return_special_tokens_mask=True,
    )
    special = encoded.pop("special_tokens_mask")
    blank = {"input_ids": tokenizer.pad_token_id, "attention_mask": 1}
    inputs = {name: [row or [blank.get(name, 0)] for row in rows] for name, rows in encoded.items()}
    if tokenizer.is_fast:
        return inputs, [encoded.word_ids(row) or [None] for row in range(len(sentences))]
    counts = count_tokens(list(chain.from_iterable(sentences)), tokenizer)
    numbers = []
    for words, mask in zip(sentences, special, strict=True):
        of_tokens = [number for number, word in enumerate(words) for _ in range(counts[word])]
        kept = iter(
            of_tokens[: mask.count(0)] if tokenizer.truncation_side == "right" else of_tokens[-mask.count(0) :]
        )
        numbers.append([None if is_special else next(kept) for is_special in mask] or [None])
    return inputs, numbers


def featurize(
    batch: dict[str, list],
    words: list[str],
    tokenizer: PreTrainedTokenizerBase,
    numbers: dict[str, int],
    scheme: str,
    masked: bool,
    length: int,
) -> dict[str, list]:
    """The inputs of windows, and for each of their tokens `word`: which of the sentence's words begins there, or -1.

    With tags also `labels`, at these tokens their classes; `masked` adds `sentence_mask`, 1 for the sentence's tokens.
    """
    features, of_tokens = encode([words[begin:end] for begin, end in batch["window"]], tokenizer, length)
    features["word"], masks = [], []
    for (begin, _), (first, end), places in zip(batch["window"], batch["own"], of_tokens, strict=True):
        own = [-1 if place is None or not first <= begin + place < end else begin + place - first for place in places]
        features["word"].append([-1 if word == before else word for before, word in pairwise([-1, *own])])
        inside = [int(word >= 0) for word in own]
        masks.append(inside if any(inside) else [1, *inside[1:]])  # something must be read
    if masked:
        features["sentence_mask"] = masks
    if "tags" in batch:
        tags = [[numbers.get(tag, IGNORED) for tag in convert_tags(tags, scheme)] for tags in batch["tags"]]
        rows = zip(features["word"], tags, strict=True)
        features["labels"] = [[IGNORED if word < 0 else row[word] for word in places] for places, row in rows]
    return features


def collate(examples: list[dict], tokenizer: PreTrainedTokenizerBase, **padding: object) -> dict[str, torch.Tensor]:
    """A batch for the model: `tokenizer` pads its own inputs, and the rest is where the tokens are."""
    blanks = {"labels": IGNORED, "sentence_mask": 0}
    inputs = [{name: example[name] for name in example if name not in ("word", *blanks)} for example in examples]
    batch = tokenizer.pad(inputs, return_tensors="pt", **padding)
    tokens = batch["attention_mask"].bool()  # (B, T)
    for name in blanks.keys() & examples[0].keys():
        batch[name] = torch.full(tokens.shape, blanks[name])
        batch[name][tokens] = torch.tensor(list(chain.from_iterable(example[name] for example in examples)))
    return dict(batch)


# Metrics and predictions


def predicted_tags(
    outputs: Outputs, data_set: Dataset, examples: Dataset, names: list[str], scheme: str
) -> list[list[str]]:
    """The tags of all words of the first of the `examples`, as many as `data_set` has, in the data's `scheme`."""
    sentences = []
    rows = zip(outputs["logits"], data_set["word"], examples["words"], strict=False)
    for logits, places, words in rows:
        tags = ["O"] * len(words)
        for place, best in zip(places, logits.argmax(-1), strict=True):
            if place >= 0:
                tags[place] = names[best]
        sentences.append(convert_tags(tags, scheme))
    return sentences


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
    names, scheme = class_names(data, config, args)
    model = build_model(names, tokenizer, args)
    check_length(args.max_seq_length, model, tokenizer)
    samples = count_samples(data, args.limits, {split: total(examples) for split, examples in data.items()})
    size = f"{model.num_parameters():,} parameters; {sizes(samples, data)} sentences"
    accelerator.print(f"load: {type(model).__name__}, {size}")
    watch.lap("load")
    features = tokenize(data, tokenizer, model, names, scheme, args)
    watch.lap("tokenize")

    padding = {"padding": "max_length", "max_length": args.max_seq_length} if args.pad_to_max_length else {}
    batch = partial(collate, tokenizer=tokenizer, **padding)
    if args.state_cache is not None:
        features, batch = cache_states(model, features, batch, Path(args.state_cache), args, accelerator)
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
