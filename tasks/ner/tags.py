"""Tags of entities in three schemes: checked, counted, and turned into each other.

In IOB1, of CoNLL-2003's own files, B only parts an entity from one of its type right before it; in IOB2 B begins every
entity; in BIOES moreover E ends it, and S is one of a single word.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, pairwise

from metrics.entities.entities import OUTSIDE, ends, split_tag, starts
from tasks.columns import LABEL_COLUMN, Sentence
from tasks.rows import plain
from training.errors import InputError, Parameter
from training.files import shown


SCHEME = Parameter("scheme", "data_scheme")
SCHEMES = {"iob1": "BI", "iob2": "BI", "bioes": "BIES"}  # the prefixes that each has beside O


def check_prefixes(sentences: list[Sentence], prefixes: str) -> None:
    """Raises ValueError for the first tag that is neither O nor one of these prefixes with a type."""
    known = re.compile(f"O|[{prefixes}](-.+)?")
    if found := _first(sentences, lambda previous, tag: known.fullmatch(tag) is None):
        sentence, word = found
        names = ", ".join(f"{prefix}-TYPE" for prefix in prefixes)
        raise InputError(
            f"{sentence.place(word)}: {shown(sentence.tags[word])}, the tag of {shown(sentence.words[word])}, is none "
            f"of O, {names}: correct it, or let ",
            LABEL_COLUMN,
            " name the column of the tags",
        )


def check_scheme(sentences: list[Sentence], scheme: str) -> None:
    """Raises ValueError for the first tag that may not follow the one before it in this scheme."""
    if found := _first(sentences, lambda previous, tag: not _may_follow(previous, tag, scheme)):
        sentence, word = found
        place = sentence.place(min(word, len(sentence.words) - 1))
        around = ["the sentence's start", *map(plain, sentence.tags), "the sentence's end"]
        remedy = (", or give ", SCHEME, " iob1, which lets an entity begin with I") if scheme == "iob2" else ""
        raise InputError(
            f"{place}: {around[word + 1]} after {around[word]} is a mistake in {scheme.upper()}: correct it",
            remedy,
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
