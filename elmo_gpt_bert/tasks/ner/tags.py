"""Tags of entities in three schemes: how they are checked, counted, and converted into each other.

In IOB1, the scheme of CoNLL-2003's release, B only separates an entity from one of the same type right before it. In
IOB2, B begins every entity. In BIOES, E also ends every entity of several words, and S tags an entity of one word.
BMES is BIOES with M for I; BILOU, also called BILUO or BIOUL, is BIOES with L for E and U for S.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import chain, pairwise

from elmo_gpt_bert.metrics.entities.entities import OUTSIDE, ends, split_tag, starts
from elmo_gpt_bert.tasks.columns import LABEL_COLUMN, Sentence
from elmo_gpt_bert.training.errors import InputError, Parameter
from elmo_gpt_bert.training.files import plain, shown


SCHEME = Parameter("scheme", "data_scheme")
SCHEMES = {"iob1": "BI", "iob2": "BI", "bioes": "BIES"}  # the prefixes of tags other than O
BIOES = {"M": "I", "L": "E", "U": "S"}  # prefixes of BMES and BILOU -> those of BIOES
OTHER_ORDER = re.compile("([BIESLUM])[_:](.+)|(.+)[-_:]([BIESLUM])")  # as in B_PER and PER-B


def check_prefixes(sentences: list[Sentence], prefixes: str) -> None:
    """Raises ValueError for the first tag that is neither O nor one of the prefixes with a type."""
    valid = re.compile(f"O|[{prefixes}](-.+)?")
    if mistake := _first(sentences, lambda previous, tag: valid.fullmatch(tag) is None):
        sentence, word = mistake
        names = ", ".join(f"{prefix}-TYPE" for prefix in prefixes)
        raise InputError(
            f"{sentence.place(word)}: {shown(sentence.tags[word])}, the tag of {shown(sentence.words[word])}, is none "
            f"of O, {names}: {_correction(sentence.tags[word])}, or let ",
            LABEL_COLUMN,
            " name the column of the tags",
        )


def _correction(tag: str) -> str:
    """How to correct a tag without a prefix, or with one that is written otherwise."""
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
        remedy = (", or give ", SCHEME, " iob1, which lets an entity begin with I") if scheme == "iob2" else ""
        raise InputError(
            f"{place}: {around[word + 1]} after {around[word]} is a mistake in {scheme.upper()}: correct it",
            remedy,
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


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """The scheme of tagged sentences; IOB2 if they have no entities."""
    pairs = {pair for tags in sentences for pair in pairwise(["O", *tags])}
    if any(tag[0] in "ES" for _, tag in pairs):
        return "bioes"
    first_prefixes = {
        tag[0] for previous, tag in pairs if split_tag(previous)[1] != split_tag(tag)[1] or previous == "O"
    }
    return "iob1" if "I" in first_prefixes and "B" not in first_prefixes else "iob2"


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
