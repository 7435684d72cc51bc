"""Named entities: words and their tags from CoNLL columns, from JSON lines, or from the Hub; and written back.

Every source gives splits with the columns words (a list of strings), tags (a list of strings; a test set may have
none), and, where the source marks its documents, document: a number that the sentences of one share.
Tags stay as the source has them, in one of three schemes. In IOB1, of CoNLL-2003's own files, B only parts an entity
from one of its type right before it; in IOB2 B begins every entity; in BIOES moreover E ends it, and S is one of a
single word. A mistake in the data is a ValueError that names its place and the remedy.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from pathlib import Path

from accelerate import PartialState
from datasets import ClassLabel, Dataset, DatasetDict

from metrics.entities.entities import OUTSIDE, ends, split_tag, starts
from tasks.columns import BREAK, DOCUMENT, Sentence, read_columns
from tasks.rows import columns, load_hub, needed_files, note_total, plain, read_json_lines, read_lines, unbroken
from training.files import shown, write_atomically


SCHEMES = {"iob1": "BI", "iob2": "BI", "bioes": "BIES"}  # the prefixes that each has beside O
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags")  # the names that are looked for
REMEDY = ": --text_column_name and --label_column_name name them otherwise"


# Sources


def read_files(
    files: Mapping[str, str | None],
    text_column: str | None = None,
    label_column: str | None = None,
    scheme: str | None = None,
    limits: Mapping[str, int | None] | None = None,
    whole_documents: bool = False,
) -> tuple[str | None, DatasetDict]:
    """`files` of the splits that a run needs, and the scheme of their tags, None where there are none.

    `.json` and `.jsonl` hold one object a line: the lists words or tokens, and tags or ner_tags, and perhaps document,
    its name. Any other file holds CoNLL columns: tabs or spaces between them, the word in the first, its tag in the
    last, blank lines between sentences, a line with -DOCSTART- or -X- before each document. `text_column` and
    `label_column` name other columns; CoNLL's have numbers, 1 for the first, -1 for the last.
    `scheme` is found out unless it is given; iob1 reads malformed IOB too, as conlleval does.
    Of a split with one of `limits` only so many sentences are read or, with `whole_documents`, those up to the end of
    the last one's document. What comes after them is not looked at; `total` tells whether there is more.
    """
    data = {}
    for split, path in needed_files(files):
        tagged = split != "test"
        if path.suffix.lower() == ".csv":
            raise ValueError(f"{path}: csv has no place for sentences: give CoNLL columns, or JSON lines (.json)")
        if path.suffix.lower() in (".json", ".jsonl"):
            found = _from_rows(unbroken(read_json_lines(path), path), str(path), text_column, label_column, tagged)
        else:
            found = read_columns(read_lines(path), path, text_column, label_column, tagged)
        data[split] = _number_documents(found, str(path), (limits or {}).get(split), whole_documents)
    return _check(data, scheme)


def read_hub(
    name: str,
    splits: Iterable[str],
    configuration: str | None = None,
    revision: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    scheme: str | None = None,
    limits: Mapping[str, int | None] | None = None,
    whole_documents: bool = False,
) -> tuple[str | None, DatasetDict]:
    """The splits of a data set on the Hub, and the scheme of their tags; the rest is as in `read_files`.

    Tags are names, or numbers that the data set's features name. Raises OSError where the Hub is out of reach.
    """
    hub = load_hub(name, configuration, revision, "--train_file, --validation_file and --test_file")
    data = {}
    for split in splits:
        if split not in hub:
            raise ValueError(f"{name} has no {split} split, but {', '.join(hub)}: give --{split}_file and the others")
        found = _from_rows(_hub_rows(hub[split]), f"{name}, {split}", text_column, label_column, split != "test")
        data[split] = _number_documents(found, f"{name}, {split}", (limits or {}).get(split), whole_documents)
    return _check(data, scheme)


def _hub_rows(rows: Dataset) -> Iterator[tuple[int, dict]]:
    """Yields numbers and rows, classes with their names."""
    names = {}
    for column, feature in rows.features.items():
        if isinstance(getattr(feature, "feature", None), ClassLabel):
            names[column] = feature.feature.names
    for number, row in enumerate(rows):
        for column in names:
            row[column] = [names[column][tag] if tag >= 0 else None for tag in row[column]]
        yield number, row


def _from_rows(
    rows: Iterable[tuple[int, dict]], source: str, text: str | None, label: str | None, tagged: bool
) -> Iterator[Sentence | None]:
    """Yields the sentences of rows that hold lists of words and tags, and None where a document begins."""
    wanted, document = None, None
    for line, row in rows:
        if wanted is None:
            text = text or next((name for name in WORDS if name in row), WORDS[0])
            label = label or next((name for name in TAGS if name in row), TAGS[0] if tagged else None)
            wanted = (text, label) if label else (text,)
        lists = columns(row, wanted, source, line, REMEDY)
        for name, values in zip(wanted, lists, strict=True):
            if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                raise ValueError(f"{source}:{line}: {name} must be a list of strings, but is {shown(values)}")
        words, tags = lists if label else (*lists, None)
        if label and len(tags) != len(words):
            raise ValueError(f"{source}:{line}: {len(words)} {text}, but {len(tags)} {label}")
        if words == [DOCUMENT] or row.get("document") != document:
            yield None
        document = row.get("document")
        if words != [DOCUMENT]:
            yield Sentence(words, tags, f"{source}:", line)


def _number_documents(
    found: Iterable[Sentence | None], source: str, limit: int | None, whole_documents: bool
) -> tuple[list[Sentence], bool]:
    """The sentences, but for those without words, each with the number of its document; and whether these are all."""
    sentences, document, empty, is_all = [], 0, 0, True
    for sentence in found:
        if sentence is None:
            document += 1
            continue
        if not sentence.words:
            empty += 1
            continue
        sentence.document = document
        enough = limit is not None and len(sentences) >= limit
        if enough and not (whole_documents and document == sentences[-1].document):
            is_all = False
            break
        sentences.append(sentence)
    if not sentences:
        raise ValueError(f"{source} holds no sentences")
    if empty:
        PartialState().print(f"{source}: {empty} sentences without words left out")
    return sentences, is_all


# Tags


def _check(data: dict[str, tuple[list[Sentence], bool]], scheme: str | None) -> tuple[str | None, DatasetDict]:
    """The splits as data sets, and the scheme that all their tags keep to."""
    tagged = [sentence for sentences, _ in data.values() for sentence in sentences if sentence.tags is not None]
    _check_prefixes(tagged, SCHEMES[scheme or "bioes"])
    if tagged:
        scheme = scheme or detect_scheme(sentence.tags for sentence in tagged)
        _check_scheme(tagged, scheme)
    return scheme, DatasetDict({split: _to_dataset(*sentences) for split, sentences in data.items()})


def _check_prefixes(sentences: list[Sentence], prefixes: str) -> None:
    known = re.compile(f"O|[{prefixes}](-.+)?")
    if found := _first(sentences, lambda previous, tag: known.fullmatch(tag) is None):
        sentence, word = found
        names = ", ".join(f"{prefix}-TYPE" for prefix in prefixes)
        raise ValueError(
            f"{sentence.place(word)}: {shown(sentence.tags[word])}, the tag of {shown(sentence.words[word])}, is none "
            f"of O, {names}: correct it, or let --label_column_name name the column of the tags"
        )


def _check_scheme(sentences: list[Sentence], scheme: str) -> None:
    if found := _first(sentences, lambda previous, tag: not _may_follow(previous, tag, scheme)):
        sentence, word = found
        place = sentence.place(min(word, len(sentence.words) - 1))
        around = ["the sentence's start", *map(plain, sentence.tags), "the sentence's end"]
        remedy = ", or give --data_scheme iob1, which lets an entity begin with I" if scheme == "iob2" else ""
        raise ValueError(
            f"{place}: {around[word + 1]} after {around[word]} is a mistake in {scheme.upper()}: correct it{remedy}"
        )


def _first(sentences: Iterable[Sentence], wrong: Callable[[str, str], bool]) -> tuple[Sentence, int] | None:
    """The first tag that is wrong after the one before it, as its sentence and word; around sentences there is O."""
    wrong = cache(wrong)
    for sentence in sentences:
        for word, (previous, tag) in enumerate(pairwise(["O", *sentence.tags, "O"])):
            if wrong(previous, tag):
                return sentence, word
    return None


def _may_follow(previous: str, tag: str, scheme: str) -> bool:
    (before, old), (after, new) = split_tag(previous), split_tag(tag)
    continues = before in "BI" and after in "IE" and old == new
    if scheme == "bioes":
        return (before in "BI") == continues == (after in "IE")
    return scheme == "iob1" or after != "I" or continues  # B where IOB1 has I is no mistake that matters


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme of tagged sentences; of those without entities, IOB2."""
    pairs = {pair for tags in sentences for pair in pairwise(["O", *tags])}
    if any(tag[0] in "ES" for _, tag in pairs):
        return "bioes"
    begun = {tag[0] for previous, tag in pairs if split_tag(previous)[1] != split_tag(tag)[1] or previous == "O"}
    return "iob1" if "I" in begun and "B" not in begun else "iob2"


def entity_types(sentences: Iterable[Sequence[str]]) -> list[str]:
    """The types of the entities in tagged sentences, sorted."""
    tags = set(chain.from_iterable(sentences))
    return sorted({split_tag(tag)[1] for tag in tags if tag[0] not in OUTSIDE})


def count_entities(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    """How many entities of each type tagged sentences have."""
    pairs = Counter(chain.from_iterable(pairwise(["O", *tags]) for tags in sentences))
    counts = Counter()
    for (previous, tag), count in pairs.items():
        if starts(previous, tag):
            counts[split_tag(tag)[1]] += count
    return counts


def label_names(types: Iterable[str], scheme: str) -> list[str]:
    """All tags of these types, O first, whether or not the data use each."""
    return ["O", *(_join_tag(prefix, kind) for kind in types for prefix in SCHEMES[scheme])]


def convert_tags(tags: Sequence[str], scheme: str) -> list[str]:
    """The tags of one sentence in another scheme, with the same entities as conlleval finds in them.

    Whatever scheme `tags` are in, or none, as a model's may be: I-LOC after O then begins an entity.
    """
    converted = []
    around = ["O", *tags, "O"]
    for previous, tag, following in zip(around, tags, around[2:], strict=False):
        (before, old), (prefix, kind) = split_tag(previous), split_tag(tag)
        if prefix in OUTSIDE:
            converted.append("O")
            continue
        first, last = starts(previous, tag), ends(tag, following)
        if scheme == "bioes":
            prefix = ("S" if last else "B") if first else ("E" if last else "I")
        else:
            parted = first and (scheme == "iob2" or (before not in OUTSIDE and old == kind))
            prefix = "B" if parted else "I"
        converted.append(_join_tag(prefix, kind))
    return converted


def _join_tag(prefix: str, kind: str) -> str:
    return f"{prefix}-{kind}" if kind else prefix


def _to_dataset(sentences: list[Sentence], is_all: bool) -> Dataset:
    values = {"words": [sentence.words for sentence in sentences]}
    if sentences[0].tags is not None:
        values["tags"] = [sentence.tags for sentence in sentences]
    if sentences[-1].document:
        values["document"] = [sentence.document for sentence in sentences]
    data = Dataset.from_dict(values)
    if is_all:
        note_total(data, len(data))
    return data


# Predictions


def write_conll(
    path: Path,
    sentences: Sequence[Sequence[str]],
    predictions: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]] | None = None,
    documents: Sequence[int] | None = None,
) -> None:
    """Writes a line a word, as conlleval reads it: the word, its tag if `references` has it, the predicted tag.

    A blank line ends each sentence. Where `documents` numbers the sentences as `read_files` does, -X- begins each
    document, which conlleval does not count; -DOCSTART- would be a word outside entities to it. White space in a word
    or tag would part it, so an underscore takes its place, and that of a word that is one of these marks. Raises
    ValueError where a sentence has not as many tags as words.
    """
    known = [] if references is None else [references]
    documents = [0] * len(sentences) if documents is None else documents
    lines, last = [], 0
    for document, *values in zip(documents, sentences, *known, predictions, strict=True):
        if document != last:
            lines += [" ".join([BREAK, *("O" for _ in values[1:])]), ""]
            last = document
        lines += [" ".join(map(_column, row)) for row in zip(*values, strict=True)]
        lines.append("")
    write_atomically(path, "\n".join(lines) + "\n")


def _column(text: str) -> str:
    return "_" if text in ("", BREAK, DOCUMENT) else re.sub(r"[ \t\r\n]", "_", text)
