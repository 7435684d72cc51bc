"""Readers of sentences whose words have tags: from CoNLL columns, from JSON lines, or from the Hub.

Every reader returns splits with the columns words (a list of strings), tags (a list of strings; a test set may have
none) and, if the source marks its documents, document: a number that the sentences of a document share. A mistake in
the data is a ValueError that names its place and the remedy.

Tags stay in the source's scheme, one of three. In IOB1, the scheme of CoNLL-2003's release, B only separates an entity
from one of the same type right before it. In IOB2, B begins every entity. In BIOES, E also ends every entity of
several words, and S tags an entity of one word. BMES, the BIOES of Chinese data sets, has M for I; BILOU, also called
BILUO or BIOUL, has L for E and U for S; both are read as BIOES.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from accelerate import PartialState
from datasets import ClassLabel, Dataset, DatasetDict

from elmo_gpt_bert.metrics.entities import OUTSIDE, ends, split_tag, starts
from elmo_gpt_bert.tasks.columns import DOCUMENT, Sentence, read_columns
from elmo_gpt_bert.tasks.rows import (
    JSON_LINES,
    check_folder,
    columns,
    ending,
    hub_splits,
    needed_files,
    part_of,
    read_json_lines,
    read_lines,
)
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.files import plain, shown


# The file names in published folders: those of most copies of CoNLL-2003, of its release, of WNUT-17, and of the
# Chinese data sets with a character a line.
FOLDERS = (
    {"train": "train.txt", "validation": "valid.txt", "test": "test.txt"},
    {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"},
    {"train": "train.conll", "validation": "dev.conll", "test": "test.conll"},
    {"train": "train.char.bmes", "validation": "dev.char.bmes", "test": "test.char.bmes"},
)
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags")  # the default columns, the first that exists
NUMBERS = ": give --tag_names, the names of 0, 1 and so on, which the features of a data set list"
NO_NAMES = ": give all of them, or leave it out where tags are no numbers"
REMEDY = ": --text_column_name and --label_column_name choose other columns"
OTHER_FILES = "--train_file, --validation_file and --test_file"
SCHEMES = {"iob1": "BI", "iob2": "BI", "bioes": "BIES"}  # the prefixes of tags other than O
BIOES = {"M": "I", "L": "E", "U": "S"}  # prefixes of BMES and BILOU -> those of BIOES
TAG = re.compile("O|[BIESMLU](-.+)?")
OTHER_ORDER = re.compile("([BIESLUM])[_:](.+)|(.+)[-_:]([BIESLUM])")  # as in B_PER and PER-B


# Sources


def read_hub(
    name: str,
    splits: Iterable[str],
    configuration: str | None = None,
    revision: str | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    scheme: str | None = None,
) -> tuple[str | None, DatasetDict]:
    """The scheme of the tags, and the splits of a data set on the Hub. Other parameters are those of `read_files`.

    Tags are names, or numbers that the data set's features name. Raises OSError when the Hub is out of reach.
    """
    data = {}
    for split, rows in hub_splits(name, splits, configuration, revision, OTHER_FILES):
        sentences = _from_rows(_hub_rows(rows), f"{name}, {split}", text_column, label_column, split != "test")
        data[split] = _number_documents(sentences, f"{name}, {split}")
    return _check(data, scheme)


def find_folder_files(data_dir: Path, splits: Collection[str]) -> dict[str, str]:
    """The file of each split in the folder.

    The layout is the one whose train file is there, so that runs which need other splits read the same data; in a
    folder without a train file, the one that has all `splits`. Raises FileNotFoundError if a file is missing, and
    ValueError where two layouts fit.
    """
    check_folder(data_dir)
    first = "train"  # the split that tells layouts apart
    layouts = [names for names in FOLDERS if (data_dir / names[first]).is_file()]
    if not layouts:
        first = next(iter(splits))
        layouts = [names for names in FOLDERS if all((data_dir / names[split]).is_file() for split in splits)]
    if not layouts:
        wanted = "; or ".join(", ".join(names[split] for split in splits) for names in FOLDERS)
        raise MissingFileError(
            f"--data_dir {data_dir} does not hold {wanted}: --train_file and so on take other names"
        )
    if len(layouts) > 1:
        both = f"{layouts[0][first]} and {layouts[1][first]}"
        raise InputError(f"--data_dir {data_dir} holds both {both}: move one data set away, or give {OTHER_FILES}")
    files = {split: data_dir / layouts[0][split] for split in splits}
    if missing := [file.name for file in files.values() if not file.is_file()]:
        problem = f"--data_dir {data_dir} holds {layouts[0][first]}, but no {', '.join(missing)}"
        raise MissingFileError(f"{problem}: put it there, or give {OTHER_FILES}")
    return {split: str(file) for split, file in files.items()}


def read_files(
    files: Mapping[str, str | None],
    text_column: str | None = None,
    label_column: str | None = None,
    scheme: str | None = None,
    tag_names: Sequence[str] | None = None,
    held_out: float | None = None,
) -> tuple[str | None, DatasetDict]:
    """The scheme of the tags, None if there are no tags, and the splits that a run needs, each from its file.

    A `.json`, `.jsonl` or `.ndjson` file holds one object a line, with the list words or tokens, the list tags or
    ner_tags, and optionally document, a name that the sentences of a document share. Any other file holds CoNLL
    columns: tabs or spaces between columns, the word in the first, its tag in the last, blank lines between sentences,
    and a line with -DOCSTART- or -X- before each document. Files may be compressed.

    Args:
        text_column, label_column: other columns of words and tags; the columns of CoNLL have numbers, 1 for the first,
            -1 for the last.
        scheme: the scheme of the tags, by default detected. As in conlleval, iob1 reads malformed IOB2 too; iob2 is
            then returned.
        held_out: the percentage of the train file's documents, or of its sentences if it has no two documents, that
            is the validation split, as in `part_of`.
        tag_names: the names of tags that are numbers, as `Dataset.to_json` writes them: of 0, of 1 and so on.
    """
    data = {}
    for split, path in needed_files(files):
        tagged = split != "test"
        if ending(path) == ".csv":
            raise InputError(f"{path}: csv has no place for sentences: give CoNLL columns, or JSON lines (.json)")
        if ending(path) in JSON_LINES:
            sentences = _from_rows(read_json_lines(path), str(path), text_column, label_column, tagged, tag_names)
        elif tag_names is not None:
            raise InputError(f"--tag_names are those of tags that are numbers, in JSON lines, but {path} is none")
        else:
            sentences = read_columns(read_lines(path), path, text_column, label_column, tagged)
        if held_out is not None and split != "test":
            sentences = _divide(sentences, split, held_out, path)
        data[split] = _number_documents(sentences, str(path))
    return _check(data, scheme)


def _divide(
    sentences: Iterable[Sentence | None], split: str, held_out: float, path: Path
) -> Iterator[Sentence | None]:
    """The sentences of the documents that are of the split, with None where a document begins.

    Without two documents, each sentence may be of another split than its neighbours.
    """
    documents: list[list[Sentence]] = [[]]
    for sentence in sentences:
        if sentence is None:
            documents.append([])
        else:
            documents[-1].append(sentence)
    documents, kind = [document for document in documents if document], "documents"
    if len(documents) < 2:
        documents, kind = [[sentence] for document in documents for sentence in document], "sentences"
    words = ([sentence.words for sentence in document] for document in documents)
    for number, _ in part_of(enumerate(words), split, held_out, path, key=list, kind=kind):
        if kind == "documents":
            yield None
        yield from documents[number]


def _hub_rows(rows: Dataset) -> Iterator[tuple[int, dict]]:
    """Yields the rows of a data set with their numbers. Tags that are numbers get the names of their classes."""
    names = {}
    for column, feature in rows.features.items():
        if isinstance(getattr(feature, "feature", None), ClassLabel):
            names[column] = feature.feature.names
    for number, row in enumerate(rows):
        for column in names:
            row[column] = [names[column][tag] if tag >= 0 else None for tag in row[column]]
        yield number, row


def _from_rows(
    rows: Iterable[tuple[int, dict]],
    source: str,
    text: str | None,
    label: str | None,
    tagged: bool,
    tag_names: Sequence[str] | None = None,
) -> Iterator[Sentence | None]:
    """Yields the sentences of rows with lists of words and tags, and None where a document begins.

    `text` and `label` are the columns, by default those that the first row has. Without `tagged`, a source may lack
    tags, but then all its rows do.
    """
    names, document = None, None
    for line, row in rows:
        if names is None:
            first = row, f"{source}:{line}"
            text = text or next((name for name in WORDS if name in row), WORDS[0])
            label = label or next((name for name in TAGS if name in row), TAGS[0] if tagged else None)
            names = (text, label) if label else (text,)
        if not label and (tags := [name for name in TAGS if name in row]):
            columns(first[0], tags[:1], first[1], REMEDY)  # which the first row lacks
        lists = columns(row, names, f"{source}:{line}", REMEDY)
        if label and tag_names is not None:
            lists[1] = _named(lists[1], tag_names, f"{source}:{line}: {label}")
        for name, values in zip(names, lists, strict=True):
            if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
                are_numbers = isinstance(values, list) and all(isinstance(value, int) for value in values)
                problem = f"{source}:{line}: {name} must be a list of strings, but is {shown(values)}"
                raise InputError(f"{problem}{NUMBERS if are_numbers else ''}")
        words, tags = lists if label else (*lists, None)
        if label and len(tags) != len(words):
            raise InputError(f"{source}:{line}: {len(words)} {text}, but {len(tags)} {label}")
        if words == [DOCUMENT] or row.get("document") != document:
            yield None
        document = row.get("document")
        if words != [DOCUMENT]:
            yield Sentence(words, tags, f"{source}:", line)


def _named(tags: Any, names: Sequence[str], where: str) -> Any:
    """The names of tags if these are numbers; otherwise the tags, whatever they are.

    Raises ValueError for a number without a name, for a name that is no tag, and for a tag that is none of the names.
    """
    if not isinstance(tags, list) or not all(type(tag) is int for tag in tags):
        if other := [tag for tag in tags if isinstance(tag, str) and tag not in names]:
            raise InputError(f"{where} has the tag {shown(other[0])}, which is none of --tag_names{NO_NAMES}")
        return tags
    for tag in tags:
        if not 0 <= tag < len(names):
            names_of = f"{len(names)} names, of 0 to {len(names) - 1}"
            raise InputError(f"{where} has the number {tag}, but --tag_names has {names_of}")
        if not TAG.fullmatch(names[tag]):
            raise InputError(
                f"{where}: --tag_names calls the number {tag} {shown(names[tag])}, which is none of {_forms('BIES')}: "
                f"{_correction(names[tag])}"
            )
    return [names[tag] for tag in tags]


def _number_documents(sentences: Iterable[Sentence | None], source: str) -> list[Sentence]:
    """The sentences, each with the number of its document.

    `sentences` has None where a document begins. Sentences without words are left out.
    """
    numbered, document, empty = [], 0, 0
    for sentence in sentences:
        if sentence is None:
            document += 1
        elif sentence.words:
            sentence.document = document
            numbered.append(sentence)
        else:
            empty += 1
    if not numbered:
        raise InputError(f"{source} holds no sentences")
    if empty:
        PartialState().print(f"{source}: {empty} sentences without words left out")
    return numbered


# Examples


def _check(data: dict[str, list[Sentence]], scheme: str | None) -> tuple[str | None, DatasetDict]:
    """The scheme of most tags, and the splits as data sets. Raises ValueError for a tag that breaks `scheme`."""
    tagged = [sentence for sentences in data.values() for sentence in sentences if sentence.tags is not None]
    if scheme in (None, "bioes"):
        for sentence in tagged:
            sentence.tags = [re.sub("^[MLU](?=-|$)", lambda prefix: BIOES[prefix[0]], tag) for tag in sentence.tags]
    check_prefixes(tagged, SCHEMES[scheme or "bioes"])
    if tagged:
        tags = [sentence.tags for sentence in tagged]
        scheme = scheme or detect_scheme(tags)
        check_scheme(tagged, scheme)
        if scheme == "iob1" and (first := first_prefixes(tags))["B"] > first["I"]:
            PartialState().print("--data_scheme iob1: most entities begin with B, so predictions are written in IOB2")
            scheme = "iob2"
    return scheme, DatasetDict({split: _to_dataset(sentences) for split, sentences in data.items()})


def _to_dataset(sentences: list[Sentence]) -> Dataset:
    values = {"words": [sentence.words for sentence in sentences]}
    if sentences[0].tags is not None:
        values["tags"] = [sentence.tags for sentence in sentences]
    if sentences[-1].document:
        values["document"] = [sentence.document for sentence in sentences]
    return Dataset.from_dict(values)


# Tags


def check_prefixes(sentences: list[Sentence], prefixes: str) -> None:
    """Raises ValueError for the first tag that is neither O nor one of the prefixes with a type."""
    valid = re.compile(f"O|[{prefixes}](-.+)?")
    if mistake := _first(sentences, lambda previous, tag: valid.fullmatch(tag) is None):
        sentence, word = mistake
        raise InputError(
            f"{sentence.place(word)}: {shown(sentence.tags[word])}, the tag of {shown(sentence.words[word])}, is none "
            f"of {_forms(prefixes)}: {_correction(sentence.tags[word])}, or let --label_column_name name the column "
            "of the tags"
        )


def _forms(prefixes: str) -> str:
    """As in "O, B-TYPE, I-TYPE"."""
    return ", ".join(["O", *(f"{prefix}-TYPE" for prefix in prefixes)])


def _correction(tag: str) -> str:
    """How to correct a tag without a prefix, or with one that is written otherwise."""
    if tag == "o" or tag.removeprefix("-").isdecimal():
        return "write it as O" if tag == "o" else "write the name of each tag, not its number"
    if match := OTHER_ORDER.fullmatch(tag):
        prefix, entity_type = match[1] or match[4], match[2] or match[3]
        return f"write it as {plain(f'{prefix}-{entity_type}')}"
    if "-" in tag or not 0 < len(tag) < 30:  # a longer one is no name of a type
        return "correct it"
    return f"write {plain(f'B-{tag}')} where an entity begins, and then {plain(f'I-{tag}')}"


def check_scheme(sentences: list[Sentence], scheme: str) -> None:
    """Raises ValueError for the first tag that may not follow the tag before it in this scheme."""
    if mistake := _first(sentences, lambda previous, tag: not _may_follow(previous, tag, scheme)):
        sentence, word = mistake
        place = sentence.place(min(word, len(sentence.words) - 1))
        around = ["the sentence's start", *map(plain, sentence.tags), "the sentence's end"]
        other = ", or give --data_scheme iob1, which lets an entity begin with I" if scheme == "iob2" else ""
        raise InputError(
            f"{place}: {around[word + 1]} after {around[word]} is a mistake in {scheme.upper()}: correct it{other}"
        )


def _first(sentences: Iterable[Sentence], wrong: Callable[[str, str], bool]) -> tuple[Sentence, int] | None:
    """The sentence and the number of the word whose tag is the first with `wrong(previous tag, tag)`, or None.

    An O stands before and after each sentence, so the number may be that of the sentence's end.
    """
    wrong = cache(wrong)
    for sentence in sentences:
        for word, (previous, tag) in enumerate(pairwise(["O", *sentence.tags, "O"])):
            if wrong(previous, tag):
                return sentence, word
    return None


def _may_follow(previous: str, tag: str, scheme: str) -> bool:
    """Whether `tag` may follow `previous` in the scheme. In IOB1 any may: B for I means the same entity."""
    (before, previous_type), (after, new_type) = split_tag(previous), split_tag(tag)
    continues = before in "BI" and after in "IE" and previous_type == new_type
    if scheme == "bioes":
        return (before in "BI") == continues == (after in "IE")
    return scheme == "iob1" or after != "I" or continues


def detect_scheme(sentences: Collection[Sequence[str]]) -> str:
    """The scheme of tagged sentences; IOB2 if they have no entities."""
    if any(tag[0] in "ES" for tag in set(chain.from_iterable(sentences))):
        return "bioes"
    first = first_prefixes(sentences)
    return "iob1" if first["I"] and not first["B"] else "iob2"


def first_prefixes(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    """How often each prefix is that of a word behind none of the same type, where IOB1 has I and IOB2 has B."""
    first = Counter()
    for (previous, tag), count in Counter(chain.from_iterable(pairwise(["O", *tags]) for tags in sentences)).items():
        if split_tag(previous)[1] != split_tag(tag)[1] or previous == "O":
            first[tag[0]] += count
    return first


def entity_types(sentences: Iterable[Sequence[str]]) -> list[str]:
    """The types of the entities in tagged sentences, in alphabetical order."""
    tags = set(chain.from_iterable(sentences))
    return sorted({split_tag(tag)[1] for tag in tags if tag[0] not in OUTSIDE})


def count_entities(sentences: Iterable[Sequence[str]]) -> Counter[str]:
    """The number of entities of each type in tagged sentences."""
    pairs = Counter(chain.from_iterable(pairwise(["O", *tags]) for tags in sentences))
    counts = Counter()
    for (previous, tag), count in pairs.items():
        if starts(previous, tag):
            counts[split_tag(tag)[1]] += count
    return counts


def label_names(types: Iterable[str], scheme: str) -> list[str]:
    """All tags that entities of these types can have in the scheme, O first."""
    return ["O", *(_join_tag(prefix, entity_type) for entity_type in types for prefix in SCHEMES[scheme])]


def convert_tags(tags: Sequence[str], scheme: str) -> list[str]:
    """The tags of one sentence in `scheme`, with the entities that conlleval finds in `tags`.

    `tags` may be in any scheme, or in none, as a model's predictions may be: I-LOC after O then begins an entity.
    """
    converted = []
    padded = ["O", *tags, "O"]
    for previous, tag, following in zip(padded, tags, padded[2:], strict=False):
        (previous_prefix, previous_type), (prefix, entity_type) = split_tag(previous), split_tag(tag)
        if prefix in OUTSIDE:
            converted.append("O")
            continue
        is_first, is_last = starts(previous, tag), ends(tag, following)
        if scheme == "bioes":
            prefix = ("S" if is_last else "B") if is_first else ("E" if is_last else "I")
        else:
            follows_same_type = previous_prefix not in OUTSIDE and previous_type == entity_type
            prefix = "B" if is_first and (scheme == "iob2" or follows_same_type) else "I"
        converted.append(_join_tag(prefix, entity_type))
    return converted


def _join_tag(prefix: str, entity_type: str) -> str:
    return f"{prefix}-{entity_type}" if entity_type else prefix
