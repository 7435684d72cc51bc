"""The scores of answers to Chinese questions, computed from plain texts as by CMRC 2018's official scorer, version 5.

This module needs nothing but Python. squad.py is the `evaluate` metric that uses it and describes the scores.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain


# Signs that do not count. The ellipsis … does; the official list holds two of them, which no single character equals.
SIGNS = frozenset("-:_*^/\\~`+=，。：？！“”；’《》·、「」（）－～『』")
CHINESE = re.compile("[\u4e00-\u9fa5]")  # each a segment; rare characters outside this range are parts of words

# What is cut off from the words between Chinese characters, as by NLTK's word_tokenize: signs that stand alone, ...
ALONE = re.compile(r"(\.{2,}|``|''|[«»‘„;@#$%&?!()\[\]{}<>‒–—―]|,(?!\d)|(?<!\w)'(?!(?:re|ve|ll|m|t|s|d|n)\b)(?=\w))")
# ... quotes, which become `` where they open and '' elsewhere, ...
QUOTE = re.compile("\"|''")
OPENING = re.compile(r"""(?:^|(?<=[([{<«‘„]))(?:"|'')+""")
# ... the ends of English words: it's, we'll, don't, the dogs', ...
ENDING = re.compile(r"(?<=[^'])(?:'(?:s|m|d|ll|re|ve)?|n't)$")
# ... and the period at the end of a sentence, behind which brackets and quotes may close.
PERIOD = re.compile(r"(?<=[^.])\.(?=[])}>']*$)")
# Words whose period ends no sentence: initials, numbers, and the commonest abbreviations.
NO_END = re.compile(r"(?:\w|\d+|a\.m|p\.m|u\.s|u\.k|co|corp|dr|inc|jr|ltd|mr|mrs|ms|prof|sr|st|vs)\.")


def without_signs(text: str) -> str:
    """The part of an answer that counts for exact match: lower case, without `SIGNS`; spaces within it stay."""
    return "".join(character for character in text.lower().strip() if character not in SIGNS)


def segments(text: str) -> list[str]:
    """The units of which F1 counts the overlap: each Chinese character, and the words between them."""
    parts = re.split(f"({CHINESE.pattern})", without_signs(text))
    return [segment for part in parts for segment in ([part] if CHINESE.match(part) else _words(part))]


def _words(text: str) -> Iterator[str]:
    """The words and signs of text without Chinese characters."""
    chunks = text.split()
    for number, chunk in enumerate(chunks, start=1):
        chunk = OPENING.sub(lambda quotes: "``" * len(QUOTE.findall(quotes.group())), chunk)
        chunk = QUOTE.sub("''", chunk)
        if number == len(chunks) or (chunk.endswith(".") and not NO_END.fullmatch(chunk.lstrip("`'([{<"))):
            chunk = PERIOD.sub(" . ", chunk)
        for piece in filter(None, chain.from_iterable(map(ALONE.split, chunk.split()))):
            ending = None if ALONE.fullmatch(piece) else ENDING.search(piece)
            yield from filter(None, (piece[: ending.start()], ending.group()) if ending else (piece,))


def longest_shared_run(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest run of segments, one right after the other, that both hold."""
    longest, row = 0, [0] * (len(other) + 1)  # row[i + 1]: the length of the shared run that ends with other[i]
    for segment in one:
        row = [0] + [row[place] + 1 if segment == match else 0 for place, match in enumerate(other)]
        longest = max(longest, *row)
    return longest


def run_f1(prediction: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of two lists of segments, of which the longest shared run is right; 0 if there is none."""
    shared = longest_shared_run(prediction, reference)
    return 2 * shared / (len(prediction) + len(reference)) if shared else 0.0


def cmrc2018_scores(predictions: Mapping[str, str], references: Mapping[str, Collection[str]]) -> dict[str, float]:
    """exact_match, f1 and their mean `average`, in per cent, of predictions and reference texts by question id.

    A question without a prediction counts 0. Predictions for other questions are ignored.
    """
    exact = f1 = 0.0
    for name, texts in references.items():
        if not texts:
            raise ValueError(f"question {name} has no answers, which CMRC 2018 does not know: score as SQuAD 2.0")
        if name in predictions:
            prediction = predictions[name]
            exact += without_signs(prediction) in map(without_signs, texts)
            answers = dict.fromkeys(tuple(segments(text)) for text in texts)
            f1 += max(run_f1(segments(prediction), answer) for answer in answers)
    if not references:
        raise ValueError("there are no questions to score")
    exact, f1 = 100 * exact / len(references), 100 * f1 / len(references)
    return {"exact_match": exact, "f1": f1, "average": (exact + f1) / 2}
