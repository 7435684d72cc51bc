"""Named entities: words and their tags from CoNLL columns, from JSON lines, or from the Hub.

Every source gives splits with the columns words (a list of strings), tags (a list of strings; a test set may have
none), and, where the source marks its documents, document: a number that the sentences of one share.
Tags stay as the source has them, in one of the three schemes of tags.py. A mistake in the data is a ValueError that
names its place and the remedy.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from accelerate import PartialState
from datasets import ClassLabel, Dataset, DatasetDict

from tasks.columns import DOCUMENT, LABEL_COLUMN, TEXT_COLUMN, Sentence, read_columns
from tasks.ner.tags import SCHEMES, check_prefixes, check_scheme, detect_scheme
from tasks.rows import (
    DATA_DIR,
    check_folder,
    columns,
    load_hub,
    needed_files,
    note_total,
    read_json_lines,
    read_lines,
    split_file,
    unbroken,
)
from training.errors import InputError, MissingFileError
from training.files import shown


# The names of the files of a published folder: of most copies of CoNLL-2003, of its release, of WNUT-17.
FOLDERS = (
    {"train": "train.txt", "validation": "valid.txt", "test": "test.txt"},
    {"train": "eng.train", "validation": "eng.testa", "test": "eng.testb"},
    {"train": "train.conll", "validation": "dev.conll", "test": "test.conll"},
)
WORDS, TAGS = ("words", "tokens"), ("tags", "ner_tags")  # the names that are looked for
REMEDY = (": ", TEXT_COLUMN, " and ", LABEL_COLUMN, " name them otherwise")
OTHER_FILES = (split_file("train"), ", ", split_file("validation"), " and ", split_file("test"))


# Sources


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
    hub = load_hub(name, configuration, revision, OTHER_FILES)
    data = {}
    for split in splits:
        if split not in hub:
            there = f"{name} has no {split} split, but {', '.join(hub)}"
            raise InputError(there, ": give ", split_file(split), " and the others")
        found = _from_rows(_hub_rows(hub[split]), f"{name}, {split}", text_column, label_column, split != "test")
        data[split] = _number_documents(found, f"{name}, {split}", (limits or {}).get(split), whole_documents)
    return _check(data, scheme)


def read_folder(
    data_dir: Path,
    splits: Collection[str],
    text_column: str | None = None,
    label_column: str | None = None,
    scheme: str | None = None,
    limits: Mapping[str, int | None] | None = None,
    whole_documents: bool = False,
) -> tuple[str | None, DatasetDict]:
    """The splits from a folder with the names of one of `FOLDERS`, and the scheme of their tags; the rest is as in
    `read_files`. Raises FileNotFoundError where a split is missing.
    """
    check_folder(data_dir)
    for names in FOLDERS:
        files = {split: str(data_dir / names[split]) for split in splits}
        if all(Path(file).is_file() for file in files.values()):
            return read_files(files, text_column, label_column, scheme, limits, whole_documents)
    wanted = "; or ".join(", ".join(names[split] for split in splits) for names in FOLDERS)
    lacking = f" {data_dir} does not hold {wanted}: "
    raise MissingFileError(DATA_DIR, lacking, split_file("train"), " and so on take other names")


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
            raise InputError(f"{path}: csv has no place for sentences: give CoNLL columns, or JSON lines (.json)")
        if path.suffix.lower() in (".json", ".jsonl"):
            found = _from_rows(unbroken(read_json_lines(path), path), str(path), text_column, label_column, tagged)
        else:
            found = read_columns(read_lines(path), path, text_column, label_column, tagged)
        data[split] = _number_documents(found, str(path), (limits or {}).get(split), whole_documents)
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
                raise InputError(f"{source}:{line}: {name} must be a list of strings, but is {shown(values)}")
        words, tags = lists if label else (*lists, None)
        if label and len(tags) != len(words):
            raise InputError(f"{source}:{line}: {len(words)} {text}, but {len(tags)} {label}")
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
        raise InputError(f"{source} holds no sentences")
    if empty:
        PartialState().print(f"{source}: {empty} sentences without words left out")
    return sentences, is_all


# Examples


def _check(data: dict[str, tuple[list[Sentence], bool]], scheme: str | None) -> tuple[str | None, DatasetDict]:
    """The splits as data sets, and the scheme that all their tags keep to."""
    tagged = [sentence for sentences, _ in data.values() for sentence in sentences if sentence.tags is not None]
    check_prefixes(tagged, SCHEMES[scheme or "bioes"])
    if tagged:
        scheme = scheme or detect_scheme(sentence.tags for sentence in tagged)
        check_scheme(tagged, scheme)
    return scheme, DatasetDict({split: _to_dataset(*sentences) for split, sentences in data.items()})


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
