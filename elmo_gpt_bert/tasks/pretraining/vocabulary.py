"""A tokenizer made from the text, for a configuration that comes without one, and what a corpus needs of any.

The tokenizer class of the configuration, as the Auto classes know it, decides what is made: its kind of subwords,
trained by the library tokenizers, or, for a class with `word_targets`, the words of a language model by frequency.
Both depend on the text alone, not on the number of processes or threads.
"""

from __future__ import annotations

import copy
import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer
from transformers import TOKENIZER_MAPPING

from elmo_gpt_bert.tasks.features import reads_words
from elmo_gpt_bert.training.errors import InputError


if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


DISTINCT = 1 << 20  # strings that are in memory at once
READING = ("split_by", "full_width_to_ascii", "nfc", "do_lower_case")  # settings of tokenizers written in Python
SPECIAL_WORDS = ("<S>", "</S>", "<UNK>")  # the first lines of a vocabulary of words, as in the released ones


def tokenizer_class(config: PreTrainedConfig) -> type[PreTrainedTokenizerBase]:
    """The class of the configuration's tokenizer. Raises ValueError for a configuration without one."""
    kind = TOKENIZER_MAPPING.get(type(config), None)
    if kind is None:
        raise InputError(f"no tokenizer class belongs to {type(config).__name__}: give --tokenizer_name")
    return kind


def size_field(config: PreTrainedConfig) -> str:
    """The name of the configuration's field with the size of the vocabulary."""
    return "lm_vocab_size" if is_of_words(config) else "vocab_size"


def is_of_words(config: PreTrainedConfig) -> bool:
    """Whether the configuration's model reads words rather than subwords."""
    return reads_words(TOKENIZER_MAPPING.get(type(config), None))


def refuse_characters(tokenizer: PreTrainedTokenizerBase | None) -> None:
    """Raises ValueError for a tokenizer of words that spells them by the characters of a language.

    Rows of such a model do not fit a corpus, and its words no vocabulary of a language model.
    """
    if not getattr(tokenizer, "reads_bytes", True):
        raise InputError(
            f"--tokenizer_name {tokenizer.name_or_path!r} spells words by the characters of a language, but only a "
            "language model that reads bytes can be trained: begin with such a model, or fine-tune this one on a task"
        )


# Making


def train_subwords(
    config: PreTrainedConfig, texts: Callable[[], Iterator[list[str]]], do_lower_case: bool | None = None
) -> PreTrainedTokenizerBase:
    """A tokenizer of the configuration's class with the pieces of a text.

    It has `config.vocab_size` pieces, or fewer if the text has no more: the special tokens, then the characters as
    they are within and at the ends of words, then what the library merges.

    Args:
        texts: begins to read the text, as batches of documents; called twice

    Raises:
        ValueError: for text with more distinct characters than the vocabulary has room for.
    """
    kind, options = tokenizer_class(config), {} if do_lower_case is None else {"do_lower_case": do_lower_case}
    rules = json.loads(kind(**options).backend_tokenizer.to_str())
    special = [token["content"] for token in rules["added_tokens"]]

    # The library numbers characters in the order of a hash, and breaks ties by these numbers. They are fixed here:
    # the first training finds the characters, of strings without spaces, most of them once, and the second has them in
    # order.
    characters = {piece for words in _distinct(texts()) for piece in _train(rules, [words], 0, special)["vocab"]}
    characters = sorted(characters - {*special})
    if len(special) + len(characters) > config.vocab_size:
        raise InputError(
            f"the text needs {len(special) + len(characters)} pieces for its characters alone, but the configuration "
            f"has vocab_size {config.vocab_size}: raise it, or clean the text"
        )
    model = _train(rules, texts(), config.vocab_size, [*special, *characters])
    if "merges" in model:
        options["merges"] = [tuple(pair) for pair in model["merges"]]
    return kind(vocab=model["vocab"], **options)


def _distinct(texts: Iterable[list[str]]) -> Iterator[list[str]]:
    """The strings without spaces of a text: lists of `DISTINCT` or a few more, each time different ones."""
    distinct = set()
    for text in chain.from_iterable(texts):
        distinct.update(text.split())
        if len(distinct) >= DISTINCT:
            yield [*distinct]
            distinct = set()
    yield [*distinct]


def _train(rules: dict, texts: Iterable[list[str]], size: int, first: list[str]) -> dict:
    """The library's model after training, as in its JSON. `first` are the first pieces of the vocabulary.

    Words that the model replaces by its unknown token, because they are too long, teach it no pieces. The library
    would take minutes for one of 200,000 characters.
    """
    model = rules["model"]
    untrained = {name: type(model[name])() for name in ("vocab", "merges") if name in model}
    changes = {"model": model | untrained, "added_tokens": [], "post_processor": None}
    if longest := model.get("max_input_chars_per_word"):
        longer = {"pattern": {"Regex": f"^.{{{longest + 1},}}$"}, "behavior": "Removed", "invert": False}
        splits = [rules["pre_tokenizer"], {"type": "Split"} | longer]
        changes["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": splits}
    tokenizer = Tokenizer.from_str(json.dumps(rules | changes))
    trainer = tokenizer.model.get_trainer()
    trainer.vocab_size, trainer.special_tokens, trainer.show_progress = size, first, False
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(affix):
            setattr(trainer, affix, model[affix])
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())["model"]


def word_vocabulary(counts: Counter[str], size: int) -> list[str]:
    """The words of a language model: <S>, </S>, <UNK>, and the most frequent others, `size` in all if there are.

    Words of equal frequency are in the order of their characters. Words with the count 0, those of held-out text, stay
    out. So does a word that could not be read back from a file: one with white space, or bilm-tf's marker.
    """
    return [*SPECIAL_WORDS, *(word for word in by_frequency(counts) if counts[word] and _is_line(word))][:size]


def by_frequency(counts: Counter[str]) -> list[str]:
    """The words, the most frequent first, those of equal frequency in the order of their characters."""
    return sorted(counts, key=lambda word: (-counts[word], word))


def _is_line(word: str) -> bool:
    return word not in (*SPECIAL_WORDS, "!!!MAXTERMID") and word == word.strip() and len(word.splitlines()) == 1


def word_tokenizer(
    config: PreTrainedConfig, words: Sequence[str], reader: PreTrainedTokenizerBase
) -> PreTrainedTokenizerBase:
    """A tokenizer of the configuration's class with this vocabulary, which reads text as the `reader` does."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "vocab.txt")
        file.write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        width = config.max_characters_per_token
        return tokenizer_class(config)(vocab_file=str(file), max_characters_per_token=width, **reading_rules(reader))


def reading_rules(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """How a tokenizer of words splits text, and which characters it changes."""
    return {name: getattr(tokenizer, name) for name in READING if hasattr(tokenizer, name)}


# Using


def digest(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of what decides the tokens of a text: equal for equal tokenizers, wherever they were loaded from."""
    if not tokenizer.is_fast:
        return hashlib.sha256(json.dumps(_word_rules(tokenizer)).encode()).hexdigest()
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    for setting in ("truncation", "padding", "post_processor", "decoder"):  # they change no token of a document
        rules.pop(setting, None)
    rules["added_tokens"] = [token for token in rules["added_tokens"] if not token["special"]]
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()


def _word_rules(tokenizer: PreTrainedTokenizerBase) -> list:
    """The class, how it reads text, the files of the vocabulary, and the number of ids of a word."""
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(map(Path, tokenizer.save_vocabulary(folder)))
        content = [(file.name, file.read_text(encoding="utf-8")) for file in files]
    rules = [type(tokenizer).__name__, reading_rules(tokenizer)]
    return [*rules, content, np.shape(tokenizer.convert_tokens_to_ids("a"))]


class Encoder:
    """Turns sentences into numbers: those of subwords by the tokenizer, those of words by a table.

    Names of special tokens in a text are read as text.

    Attributes:
        separator: what goes before each sentence of a document but the first: a space for tokenizers whose tokens tell
            whether a word follows white space, such as byte-level BPE, and nothing for the others.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, words: Sequence[str] | None = None):
        """`words` are all distinct words of the text, each at the place of its number."""
        self.tokenizer, self.backend, self.words = tokenizer, None, None
        if words is not None:
            self.words = {word: number for number, word in enumerate(words)}
        elif tokenizer.is_fast:
            self.backend = copy.deepcopy(tokenizer.backend_tokenizer)  # whose settings change here only
            self.backend.encode_special_tokens = True
            self.backend.no_truncation()
            self.backend.no_padding()
        self.separator = " " if words is None and self._sees_spaces() else ""

    def _sees_spaces(self) -> bool:
        whole, first, second = self.encode(["a. B", "a.", "B"])
        return whole != first + second

    def encode(self, sentences: Sequence[str]) -> list[list[int]]:
        """The numbers of each sentence. Raises KeyError for a word that is not in the table."""
        if self.words is not None:
            return [[self.words[word] for word in self.tokenizer.tokenize(sentence)] for sentence in sentences]
        if self.backend is not None:
            return [each.ids for each in self.backend.encode_batch_fast(sentences, add_special_tokens=False)]
        tokens = [self.tokenizer.tokenize(sentence, split_special_tokens=True) for sentence in sentences]
        return [self.tokenizer.convert_tokens_to_ids(each) for each in tokens]


def number_words(tokenizer: PreTrainedTokenizerBase, counts: Counter[str]) -> list[str]:
    """The distinct words, each at the place of its number: those of the tokenizer's vocabulary, which the language
    model predicts, then the others of the text by frequency."""
    return [*tokenizer.targets, *(word for word in by_frequency(counts) if word not in tokenizer.targets)]


def rows_of_characters(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> np.ndarray:
    """(W, max_characters_per_token) uint16: the row of each word."""
    width = len(tokenizer.convert_tokens_to_ids("a"))
    rows = np.empty((len(words), width), np.uint16)
    for begin in range(0, len(words), 10_000):
        rows[begin : begin + 10_000] = tokenizer.convert_tokens_to_ids(words[begin : begin + 10_000])
    return rows
