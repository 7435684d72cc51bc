"""The sentence that a user wrote, as words with their places in it."""

from elmo_gpt_bert.training.errors import InputError


LONGEST = 100  # words of a sentence
LETTERS = 2_000  # characters of a sentence

Span = tuple[int, int]  # the first character, and the first after it


def words_of(sentence: str, spans: list[Span]) -> list[str]:
    """The words of a sentence. Raises ValueError for a text without a word, and for one that is too long."""
    check_characters(sentence)
    if not spans:
        raise InputError("The sentence is empty: write a few words.")
    if len(spans) > LONGEST:
        raise InputError(f"The sentence has {len(spans):,} words: shorten it to {LONGEST} or fewer.")
    if len(sentence) > LETTERS:
        raise InputError(f"The sentence has {len(sentence):,} characters: shorten it to {LETTERS:,} or fewer.")
    return [sentence[begin:end] for begin, end in spans]


def check_characters(text: str) -> None:
    """Raises ValueError for half a surrogate pair, which tokenizers cannot read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"Character {error.start + 1} is half a surrogate pair: write the whole character."
        ) from error


def place_of(number: int | None, words: list[str]) -> int:
    """The place, from 0 on, of the word with this number, from 1 on. Raises ValueError for one that is not there."""
    if number is None:
        raise InputError("No word is chosen: choose one of the sentence.")
    if number not in range(1, len(words) + 1):
        raise InputError(f"The sentence has no word {number}: it has words 1 to {len(words)}.")
    return int(number) - 1
