"""Sentences -> inputs of a tagger: each sentence alone, or in a window that is filled with its document.

The first sub-word of a word carries its tag. A word without any, because the tokenizer drops it or the text is cut
before it, has no label.
"""

import inspect
import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from functools import partial
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict
from datasets.fingerprint import generate_random_fingerprint
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from tasks.ner.tags import convert_tags, count_entities, entity_types, label_names
from tasks.rows import total
from training.batches import IGNORED
from training.errors import InputError, Parameter


# Classes


def class_names(
    data: DatasetDict, config: PreTrainedConfig, *, train: bool, tag_scheme: str, model_name: str
) -> tuple[list[str], str]:
    """The tags in the order of the model's outputs, and their scheme: the checkpoint's, or O first for a new model.

    A model that is to `train` learns tags of `tag_scheme`; `model_name` is what errors call it. Raises ValueError
    where it is not to be trained and tells no tags apart, and as `check_types` does.
    """
    names = [str(config.id2label.get(number)) for number in range(config.num_labels)]
    if train:
        types = entity_types(data["train"]["tags"])
        check_types(data, types, "the training data")
        wanted = label_names(types, tag_scheme)
        return (names if sorted(names) == sorted(wanted) else wanted), tag_scheme
    if not all(re.fullmatch("O|[BIES](-.+)?", name) for name in names):
        raise InputError(
            f"{model_name} tells {', '.join(names)} apart, which are no tags of entities: train it with ",
            Parameter("train=True", "do_train"),
            ", or name its tags in the id2label of its config.json",
        )
    check_types(data, entity_types([names]), model_name)
    return names, "bioes" if any(name[0] in "ES" for name in names) else "iob2"


def check_types(data: DatasetDict, types: list[str], source: str) -> None:
    """Says which entities are missed because `source`, which has only these `types`, does not teach theirs.

    Raises ValueError where none of a split's entities is of such a type. Where limits left out a part of the data,
    that may be chance.
    """
    whole = all(total(examples) is not None for examples in data.values())
    for split, examples in data.items():
        counts = count_entities(examples["tags"]) if "tags" in examples.column_names else {}
        lacking = {kind or "no type": counts[kind] for kind in sorted(counts) if kind not in types}
        if whole and lacking and len(lacking) == len(counts):
            there = f"only entities of {', '.join(types)}" if types else "no entities"
            raise InputError(
                f"{source}: there are {there}, but the {split} data have {', '.join(lacking)}: train on such data, or "
                "correct the tags"
            )
        if lacking:
            missed = ", ".join(f"{count:,} of {kind}" for kind, count in lacking.items())
            PartialState().print(
                f"{split}: {sum(lacking.values()):,} entities are of types unknown to {source} ({missed}); they count "
                "as missed, and their words are not in the loss"
            )


# Features


def make_features(
    data: DatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    model: PreTrainedModel,
    names: list[str],
    scheme: str,
    *,
    length: int,
    limits: Mapping[str, int | None],
    document_context: bool = False,
) -> DatasetDict:
    """The features of each split, of at most `length` tokens, for its first examples up to its limit.

    `names` are the model's tags, of `scheme`. With `document_context` each sentence is read with those around it in
    its document, and a model whose forward takes a `sentence_mask` is told where the sentence is. Raises ValueError
    where no word of the training data has a token, and as `place_windows` does.
    """
    # Byte-level BPE tells a word from the beginning of a text.
    space = " " if tokenizer.tokenize(" a") != tokenizer.tokenize("a") else ""
    room = length - tokenizer.num_special_tokens_to_add() if document_context else None
    masked = document_context and "sentence_mask" in inspect.signature(model.forward).parameters
    numbers = {name: number for number, name in enumerate(names)}
    convert = partial(featurize, tokenizer=tokenizer, numbers=numbers, scheme=scheme, masked=masked, length=length)
    features = DatasetDict()
    for split, examples in data.items():
        words = [space + word for sentence in examples["words"] for word in sentence]
        examples = place_windows(examples, words, tokenizer, room)
        limit = limits[split]
        chosen = examples if limit is None else examples.select(range(min(limit, len(examples))))
        features[split] = chosen.map(
            partial(convert, words=words),
            batched=True,
            remove_columns=chosen.column_names,
            keep_in_memory=True,
            new_fingerprint=generate_random_fingerprint(),  # one of its own would take longer than the features
        )
    if "train" in features:
        features["train"] = _labelled(features["train"], length)
    return features


def _labelled(rows: Dataset, length: int) -> Dataset:
    """Those with a labelled token: the others teach nothing."""
    labelled = [max(labels, default=IGNORED) >= 0 for labels in rows["labels"]]
    if not any(labelled):
        limit = Parameter("length", "max_seq_length")
        raise InputError("no word of the training data has a token: ", limit, f" is {length}")
    return rows.select(np.flatnonzero(labelled))


def place_windows(
    examples: Dataset, words: list[str], tokenizer: PreTrainedTokenizerBase, room: int | None
) -> Dataset:
    """Adds the columns `sentence` and `window`: the first word, and the first word after them, of each sentence and of
    what the model reads with it, both in `words`, those of all sentences.

    A window is filled with the sentence's document up to `room` tokens; None: it is the sentence alone. Raises
    ValueError where the data do not tell their documents apart.
    """
    sentences = windows = list(pairwise([0, *accumulate(map(len, examples["words"]))]))
    if room is not None:
        if "document" not in examples.column_names:
            raise InputError(
                Parameter("document_context"),
                " needs data that tell their documents apart, by lines with -DOCSTART- or a column document; these do "
                "not",
            )
        counts = count_tokens(words, tokenizer)
        tokens = [0, *accumulate(counts[word] for word in words)]
        windows = []
        for _, rows in groupby(zip(examples["document"], sentences, strict=True), key=itemgetter(0)):
            places = [place for _, place in rows]
            document = places[0][0], places[-1][1]
            windows += [widen(place, document, tokens, room) for place in places]
    for name, places in (("sentence", sentences), ("window", windows)):
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
    for (begin, _), (first, end), places in zip(batch["window"], batch["sentence"], of_tokens, strict=True):
        shift = begin - first  # from the numbers of the window's words to those of the sentence's
        of_sentence = [-1 if n is None or not 0 <= n + shift < end - first else n + shift for n in places]
        features["word"].append([-1 if word == before else word for before, word in pairwise([-1, *of_sentence])])
        inside = [int(word >= 0) for word in of_sentence]
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
