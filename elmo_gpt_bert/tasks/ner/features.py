"""Sentences -> the inputs of a tagger, which reads each sentence alone or in a window with the text around it; and its
outputs -> the tags of words, and the file that conlleval reads.

The first sub-word of a word carries its tag. A word that the tokenizer drops is read as its unknown token. A sentence
that is too long for a row becomes several rows. So every word has a token, unless the tokenizer has no unknown one.
"""

from __future__ import annotations

import inspect
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain, groupby, pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset, DatasetDict

from elmo_gpt_bert.metrics.entities import OUTSIDE, split_tag, starts
from elmo_gpt_bert.tasks.columns import BREAK, DOCUMENT
from elmo_gpt_bert.tasks.features import report_known_words
from elmo_gpt_bert.tasks.ner.data import convert_tags, count_entities, entity_types, label_names
from elmo_gpt_bert.training.batches import IGNORED, in_pieces
from elmo_gpt_bert.training.errors import InputError


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase


ROWS = 1000  # that are tokenised at a time

Span = tuple[int, int]  # the first word, and the first after it


# Classes


def class_names(
    data: DatasetDict, config: PreTrainedConfig, *, train: bool, tag_scheme: str, model_name: str
) -> tuple[list[str], str]:
    """The tags in the order of the model's outputs, and their scheme.

    A model that is to `train` gets the tags that the training data need in `tag_scheme`, in its own order if it has
    exactly these. Any other model keeps its tags. Errors call the model `model_name`.

    Raises:
        ValueError: when a model that is not to be trained has no tags, when the training data have no entity, and as
            `check_types` does.
    """
    names = [str(config.id2label.get(number)) for number in range(config.num_labels)]
    if train:
        types = entity_types(data["train"]["tags"])
        if not types:
            raise InputError(
                "the training data have no entity, all tags are O: choose the column of the tags with "
                "--label_column_name, or add examples with entities"
            )
        check_types(data, types, "the training data")
        wanted = label_names(types, tag_scheme)
        return (names if sorted(names) == sorted(wanted) else wanted), tag_scheme
    if not all(re.fullmatch("O|[BIES](-.+)?", name) for name in names):
        raise InputError(
            f"{model_name} tells {', '.join(names)} apart, which are not tags of entities: train it with --do_train, "
            "or name its tags in the id2label of its config.json"
        )
    check_types(data, entity_types([names]), model_name)
    return names, "bioes" if any(name[0] in "ES" for name in names) else "iob2"


def check_types(data: DatasetDict, types: list[str], source: str) -> None:
    """Prints which entities a model cannot find because their types are not the `types` of `source`.

    Raises ValueError if no entity of a split has one of the types.
    """
    for split, examples in data.items():
        counts = count_entities(examples["tags"]) if "tags" in examples.column_names else {}
        unknown = {name or "no type": counts[name] for name in sorted(counts) if name not in types}
        if unknown and len(unknown) == len(counts):
            entities = f"only entities of {', '.join(types)}" if types else "no entities"
            raise InputError(
                f"{source}: there are {entities}, but the {split} data have {', '.join(unknown)}: train on such data, "
                "or correct the tags"
            )
        if unknown:
            missed = ", ".join(f"{count:,} of {name}" for name, count in unknown.items())
            PartialState().print(
                f"{split}: {sum(unknown.values()):,} entities are of types unknown to {source} ({missed}); they count "
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
    """The features, of at most `length` tokens each, of the first examples of each split, up to its limit.

    The column `example` has the number of each row's example: a sentence that is too long for a row has several rows.
    `names` are the model's tags, of `scheme`. With `document_context`, each sentence is read together with the
    sentences around it in its document; a model whose forward takes a `sentence_mask` is told where the sentence is,
    and one that takes `cut`, where a sentence has several rows, whether more of it is before a row, and after it.
    Raises ValueError when no word of the training data has a token, and as `place_windows` does.
    """
    room = length - tokenizer.num_special_tokens_to_add()
    inputs = inspect.signature(model.forward).parameters
    masked = document_context and "sentence_mask" in inputs
    features = DatasetDict()
    for split, examples in data.items():
        words, tokens = count_tokens(examples["words"], tokenizer)
        report_known_words(split, [words], tokenizer)
        columns: dict[str, list] = defaultdict(list)
        windows = place_windows(examples, tokens, room, limits[split], document_context)
        for rows in in_pieces(windows, ROWS):
            for name, values in featurize(rows, words, tokenizer, masked, length).items():
                columns[name] += values
        if "cut" in inputs and any(row.part != row.sentence for row in windows):
            ends = [(row.window, row.sentence) for row in windows]
            columns["cut"] = [[window[0] > whole[0], window[1] < whole[1]] for window, whole in ends]
        if "tags" in examples.column_names:
            columns["labels"] = labels_of(columns, examples, names, scheme)
        features[split] = Dataset.from_dict(columns)
    if "train" in features:
        features["train"] = _labelled(features["train"], length)
    return features


def _labelled(features: Dataset, length: int) -> Dataset:
    """The features with a labelled token; nothing is learned from the others. Raises ValueError if there are none."""
    is_labelled = [max(labels, default=IGNORED) >= 0 for labels in features["labels"]]
    if not any(is_labelled):
        raise InputError(f"no word of the training data has a token: --max_seq_length is {length}")
    return features.select(np.flatnonzero(is_labelled))


class Row(NamedTuple):
    """What a row reads. All ranges are of the words of all sentences.

    example: the number of its sentence
    sentence: where that begins and ends
    part: the words of the sentence that the row labels
    window: the words that the model reads: the part, or more of the document
    """

    example: int
    sentence: Span
    part: Span
    window: Span


def place_windows(
    examples: Dataset, tokens: list[int], room: int, limit: int | None, document_context: bool
) -> list[Row]:
    """The rows of the first examples, up to the limit.

    A part has up to `room` tokens; `tokens` has the number of tokens before each word. Raises ValueError when a window
    is to be filled from its document, and the data do not tell their documents apart.
    """
    sentences = list(pairwise([0, *accumulate(map(len, examples["words"]))]))
    documents = sentences
    if document_context:
        if "document" not in examples.column_names:
            raise InputError(
                "--document_context needs documents: lines with -DOCSTART-, or a column document; "
                "the data have neither"
            )
        documents = []
        for _, rows in groupby(zip(examples["document"], sentences, strict=True), key=itemgetter(0)):
            of_document = [sentence for _, sentence in rows]
            documents += [(of_document[0][0], of_document[-1][1])] * len(of_document)
    return [
        Row(number, sentence, part, widen(part, documents[number], tokens, room) if document_context else part)
        for number, sentence in enumerate(sentences[:limit])
        for part in cut(sentence, tokens, room)
    ]


def cut(sentence: Span, tokens: list[int], room: int) -> Iterator[Span]:
    """Yields the parts of a sentence: as many whole words as have up to `room` tokens, or a single longer word."""
    begin, end = sentence
    while begin < end:
        stop = max(bisect_right(tokens, tokens[begin] + room, begin, end + 1) - 1, begin + 1)
        yield begin, stop
        begin = stop


def widen(sentence: Span, document: Span, tokens: list[int], room: int) -> Span:
    """The window of a sentence: the sentence, and whole words around it, up to `room` tokens in all.

    There are as many tokens before the sentence as after it, unless its document ends on one side: then the other side
    gets more. `tokens` has the number of tokens before each word.
    """
    (begin, end), (document_begin, document_end) = sentence, document
    length = tokens[end] - tokens[begin]
    rest = max(room - length, 0)
    left = bisect_left(tokens, tokens[begin] - rest // 2, document_begin, begin)
    right = bisect_right(tokens, tokens[left] + rest + length, end, document_end + 1) - 1
    left = bisect_left(tokens, tokens[right] - rest - length, document_begin, left)
    return left, right


def count_tokens(sentences: Iterable[list[str]], tokenizer: PreTrainedTokenizerBase) -> tuple[list[str], list[int]]:
    """The words of all sentences as the tokenizer reads them, and the number of tokens before each word and the end.

    A word without tokens, such as a character of control, is read as the tokenizer's unknown token, if it has one.
    """
    space = space_before_words(tokenizer)
    words = [space + word for sentence in sentences for word in sentence]
    counts = tokens_of_words(words, tokenizer)
    if unknown := tokenizer.unk_token:
        words = [word if counts[word] else unknown for word in words]
        counts |= tokens_of_words([unknown], tokenizer)
    return words, [0, *accumulate(counts[word] for word in words)]


def tokens_of_words(words: list[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The number of tokens of each word."""
    distinct = list(dict.fromkeys(words))
    encoded = tokenizer([[word] for word in distinct], is_split_into_words=True, add_special_tokens=False)
    return dict(zip(distinct, map(len, encoded["input_ids"]), strict=True))


def space_before_words(tokenizer: PreTrainedTokenizerBase) -> str:
    """What each word begins with: byte-level BPE has other tokens for a word after a space than at a text's begin."""
    return "" if tokenizer.tokenize("a a") == 2 * tokenizer.tokenize("a") else " "


def encode(
    sentences: list[list[str]], tokenizer: PreTrainedTokenizerBase, length: int
) -> tuple[dict[str, list], list[list[int | None]]]:
    """The model's inputs, cut to `length` tokens, and for each token the number of its word; None: a special token.

    A sentence without any token, not even a special one, gets a single padding token, because a model cannot read an
    empty row.
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
    counts = tokens_of_words(list(chain.from_iterable(sentences)), tokenizer)
    numbers = []
    for words, mask in zip(sentences, special, strict=True):
        of_tokens = [number for number, word in enumerate(words) for _ in range(counts[word])]
        kept = mask.count(0)
        of_kept = iter(of_tokens[:kept] if tokenizer.truncation_side == "right" else of_tokens[-kept:])
        numbers.append([None if is_special else next(of_kept) for is_special in mask] or [None])
    return inputs, numbers


def featurize(
    rows: Sequence[Row], words: list[str], tokenizer: PreTrainedTokenizerBase, masked: bool, length: int
) -> dict[str, list]:
    """The model's inputs for the windows, their `example`, and `word`: for each token the number of the sentence's
    word that begins there, or -1 also if it is not in the row's part.

    With `masked`, `sentence_mask` is 1 at all tokens of the part. `words` are those of all sentences.
    """
    inputs, words_of_tokens = encode([words[slice(*row.window)] for row in rows], tokenizer, length)
    features, masks = {"example": [row.example for row in rows], **inputs, "word": []}, []
    for row, of_window in zip(rows, words_of_tokens, strict=True):
        shift = row.window[0] - row.sentence[0]  # from a word's number in the window to its number in the sentence
        part = range(*(word - row.sentence[0] for word in row.part))
        of_sentence = [-1 if n is None or n + shift not in part else n + shift for n in of_window]
        features["word"].append([-1 if word == before else word for before, word in pairwise([-1, *of_sentence])])
        mask = [int(word >= 0) for word in of_sentence]
        masks.append(mask if any(mask) else [1, *mask[1:]])  # a model cannot read an empty sentence
    return features | ({"sentence_mask": masks} if masked else {})


def labels_of(features: Mapping[str, Sequence], examples: Dataset, names: list[str], scheme: str) -> list[list[int]]:
    """The classes of rows at the first tokens of words whose tags, in this scheme, are among `names`."""
    numbers = {name: number for number, name in enumerate(names)}
    classes = [[numbers.get(tag, IGNORED) for tag in convert_tags(tags, scheme)] for tags in examples["tags"]]
    return [
        [IGNORED if word < 0 else classes[example][word] for word in of_tokens]
        for of_tokens, example in zip(features["word"], features["example"], strict=True)
    ]


def collate(examples: list[dict], tokenizer: PreTrainedTokenizerBase, **padding: object) -> dict[str, torch.Tensor]:
    """A batch for the model: the tokenizer pads its inputs; `labels` and `sentence_mask` are padded to match them."""
    blanks = {"labels": IGNORED, "sentence_mask": 0}
    others = ("example", "word", "cut", *blanks)
    inputs = [{name: example[name] for name in example if name not in others} for example in examples]
    batch = tokenizer.pad(inputs, return_tensors="pt", **padding)
    tokens = batch["attention_mask"].bool()  # (B, T)
    for name in blanks.keys() & examples[0].keys():
        batch[name] = torch.full(tokens.shape, blanks[name])
        batch[name][tokens] = torch.tensor(list(chain.from_iterable(example[name] for example in examples)))
    if "cut" in examples[0]:
        batch["cut"] = torch.tensor([example["cut"] for example in examples])
    return dict(batch)


# Predictions


def predicted_tags(
    outputs: dict[str, list[np.ndarray]], features: Dataset, examples: Dataset, names: list[str], scheme: str | None
) -> list[list[str]]:
    """The predicted tags of all words of each example that has rows in `features`, in `scheme`, or if it is None as
    the model names them; a word without a token is O.

    `outputs` are those of the first rows. `names` are the tags in the order of the model's outputs.
    """
    numbers = features["example"][: len(outputs["logits"])]
    predictions = [["O"] * len(words) for words in examples["words"][: numbers[-1] + 1]]
    for logits, word_of_token, number in zip(outputs["logits"], features["word"], numbers, strict=False):
        for word, best in zip(word_of_token, logits.argmax(-1), strict=True):
            if word >= 0:
                predictions[number][word] = names[best]
    return predictions if scheme is None else [convert_tags(tags, scheme) for tags in predictions]


def speaks_iob1(predictions: list[list[str]], references: list[list[str]]) -> bool:
    """Whether most entities that begin where one of their type does begin with I.

    Names of tags do not tell: many checkpoints that learned the IOB1 of CoNLL-2003 have B and I for each type. Other
    predictions do not tell either: a model that has learned little begins entities anyhow.
    """
    first = Counter()
    for tags, right in zip(predictions, references, strict=True):
        for tag, (before, wanted) in zip(tags, pairwise(["O", *right]), strict=True):
            (prefix, kind), (_, wanted_kind) = split_tag(tag), split_tag(wanted)
            if starts(before, wanted) and prefix not in OUTSIDE and kind == wanted_kind:
                first[prefix] += 1
    return first["I"] > first["B"] and first.keys() <= {"B", "I"}


def conll_text(
    sentences: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]] | None = None,
    documents: Sequence[int] | None = None,
) -> str:
    """One line for each word, as conlleval reads it: the word, its tag if there are `references`, the predicted tag.

    A blank line ends each sentence. If `documents` has the number of each sentence's document, a line with -X- begins
    each document. conlleval does not count such a line, whereas it counts -DOCSTART- as a word outside entities.
    An underscore replaces white space within a word or tag, and a word that is one of these two marks. Raises
    ValueError if a sentence does not have as many tags as words.
    """
    tags = [] if references is None else [references]
    documents = [0] * len(sentences) if documents is None else documents
    lines, previous = [], 0
    for document, *columns in zip(documents, sentences, *tags, predictions, strict=True):
        if document != previous:
            lines += [" ".join([BREAK, *("O" for _ in columns[1:])]), ""]
            previous = document
        lines += [" ".join(map(_column, row)) for row in zip(*columns, strict=True)]
        lines.append("")
    return "\n".join(lines) + "\n"


def _column(text: str) -> str:
    """The word or tag without white space, and an underscore for an empty word or a mark."""
    return "_" if text in ("", BREAK, DOCUMENT) else re.sub(r"[ \t\r\n]", "_", text)
