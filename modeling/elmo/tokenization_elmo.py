# Copyright 2026 the authors of this model zoo.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""ELMo's tokenizer: a word is a row of ids, of its letters, as tokenization_elmo_spelling.py writes it.

A row of zeros is padding. The model, not the tokenizer, adds the marks of a sentence's begin and end.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from transformers import BatchEncoding, PreTrainedTokenizer
from transformers.tokenization_utils_base import TruncationStrategy
from transformers.utils import PaddingStrategy, is_numpy_array, is_torch_tensor, to_numpy, to_py_obj

from .tokenization_elmo_spelling import UNKNOWN_WORD, ByteSpelling, CharacterSpelling, check_words


# Below this share of words with a vector, text is probably split or written in another way than that of the training.
FEWEST_KNOWN = 0.8

SPECIAL_WORDS = ("<S>", "</S>", "<UNK>")  # the language model's words 0, 1 and 2

# The words of a text, similar to those of the news text that the published models read ("don 't", "U.S.", "68.88").
_CLITIC = r"['’](?:[sSmMdDtT]|ll|LL|re|RE|ve|VE)\b"
WORD = re.compile(
    rf"""
    (?i:-[lr][rcs]b-)                                       # a treebank's bracket: -LRB-
  | (?:[^\W\d_]\.){{2,}}(?!\w)                              # letters with periods: U.S., e.g.
  | (?i:(?:mr|mrs|ms|dr|prof|st|jr|sr|vs|inc|corp|co|ltd)\.)(?!\w)
  | (?i:n['’]t)\b                                           # a treebank's word by itself: did n't
  | {_CLITIC}                                               # it 's, don 't
  | \w+(?:(?!{_CLITIC})(?:[-'’./&]|(?<=\d)[,:](?=\d))\w+)*  # O'Neil, e-mail, AT&T, 1,000.50, 10:30
  | \.{{2,}} | -{{2,}} | `` | ''
  | [^\w\s]                                                 # any other character except spaces is a word
    """,
    re.VERBOSE,
)

# Chinese characters: the blocks of Unicode that BERT's tokenizer takes for them.
CHINESE = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    "\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)
# The full-width forms of ASCII's characters, which are 0xFEE0 further on.
FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}

# The values at positions without a word. Columns with other names do not hold one entry per word.
PADDING = dict.fromkeys(("input_ids", "token_type_ids", "attention_mask", "vector_ids", "offset_mapping"), 0)
PADDING["special_tokens_mask"] = 1


def split_words(text: str) -> list[tuple[int, int]]:
    """The begin and end of each word of `text`, by `WORD`. Combining accents count as letters."""
    if not text.isascii():
        text = "".join("a" if unicodedata.category(character)[0] == "M" else character for character in text)
    return [match.span() for match in WORD.finditer(text)]


def split_at_spaces(text: str) -> list[tuple[int, int]]:
    """The begin and end of each word of `text` between white space."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def split_characters(text: str) -> list[tuple[int, int]]:
    """As `split_words`, but each Chinese character is a word, as in BERT's tokenizer."""
    spans = []
    for match in re.finditer(f"{CHINESE}|(?:(?!{CHINESE}).)+", text, flags=re.DOTALL):
        begin, end = match.span()
        inner = [(0, 1)] if re.match(CHINESE, match[0]) else split_words(match[0])
        spans += [(begin + first, begin + last) for first, last in inner]
    return spans


# A word, its number in its sentence, the number of the sentence, and its begin and end in the text.
Row = tuple[str, int, int, tuple[int, int]]

SPLITS = {"rules": split_words, "spaces": split_at_spaces, "characters": split_characters}


@dataclass(frozen=True)
class WordAlignment:
    """The word in each row of an example, for the methods of `BatchEncoding` that fast tokenizers have, too.

    A row is a token of its own, so each word has one. At padding, `word_ids` and `sequence_ids` are None. Words are
    numbered from 0 in each sentence. Characters count from the begin of their sentence or, for text that is already
    split, of their word. What is not there is None.
    """

    tokens: list[str]
    word_ids: list[int | None]
    sequence_ids: list[int | None]
    offsets: list[tuple[int, int]]
    n_sequences: int

    def token_to_sequence(self, token: int) -> int | None:
        return self.sequence_ids[token]

    def token_to_word(self, token: int) -> int | None:
        return self.word_ids[token]

    def token_to_chars(self, token: int) -> tuple[int, int] | None:
        return None if self.word_ids[token] is None else self.offsets[token]

    def word_to_tokens(self, word: int, sequence: int = 0) -> tuple[int, int] | None:
        places = zip(self.sequence_ids, self.word_ids, strict=True)
        return next(((token, token + 1) for token, place in enumerate(places) if place == (sequence, word)), None)

    def word_to_chars(self, word: int, sequence: int = 0) -> tuple[int, int] | None:
        tokens = self.word_to_tokens(word, sequence)
        return None if tokens is None else self.offsets[tokens[0]]

    def char_to_token(self, char: int, sequence: int = 0) -> int | None:
        spans = enumerate(zip(self.sequence_ids, self.offsets, strict=True))
        return next(
            (token for token, (which, (begin, end)) in spans if which == sequence and begin <= char < end), None
        )

    def char_to_word(self, char: int, sequence: int = 0) -> int | None:
        token = self.char_to_token(char, sequence)
        return None if token is None else self.word_ids[token]


class ElmoTokenizer(PreTrainedTokenizer):
    """Converts words or text to ids (words, columns), with padding and truncation by words.

    Models were trained on text that was already split into words, so words (`is_split_into_words=True`) that are split
    in the same way give the best results. `split_by` says how text is split; `tokenize` returns these words. Case is
    kept. Text may have any length; an empty text has no words.

    In a pair, the words of the second sentence follow those of the first, with `token_type_ids` 0 and 1. Nothing is
    added between them. `get_vocab` returns the vocabulary of letters. Words need no vocabulary, so no token can be
    added.

    Args:
        vocab_file (`str`, *optional*):
            The language model's words, one per line as released (vocab.txt), for `word_targets`. <S>, </S> and <UNK>
            get the numbers 0, 1 and 2, wherever they are in the file.
        words_file (`str`, *optional*):
            The words of a task network's word vectors, one per line (words.txt). The first has row 2; row 0 is for
            padding, row 1 for all other words. With this file, the tokenizer also returns `vector_ids`: the row of the
            word, else of the word in lower case, else 1.
        characters_file (`str`, *optional*):
            The characters of a language, a JSON list (characters.json). Words are then spelled by these characters
            instead of the bytes of UTF-8.
        lexicon_file (`str`, *optional*):
            The words that the biLM has vectors of, a JSON list (lexicon.json). Rows then have one more id.
        max_characters_per_token (`int`, *optional*, defaults to 50):
            Number of letters of a word, with its begin and end marks.
        split_by (`str`, *optional*):
            How text is split into words. `"spaces"`: at white space, for text whose words a tool has put apart.
            `"rules"`, which are for English: at spaces and around punctuation, "don't" into "don 't", while "U.S." and
            "68.88" stay whole. `"characters"`: as by the rules, but each Chinese character is a word. Defaults to
            `"spaces"` for models with characters.json, else to `"rules"`.
        full_width_to_ascii (`bool`, *optional*, defaults to `False`):
            Whether the model reads ASCII's characters instead of their full-width forms (U+FF01 to U+FF5E).
        nfc (`bool`, *optional*, defaults to `False`):
            Whether the model reads words in Unicode's normal form NFC, with accents and letters composed.

    Raises:
        ValueError: for a file that is not UTF-8 or repeats a word, and for a vocab.txt without <S>, </S> or <UNK>.
    """

    vocab_files_names = {
        "vocab_file": "vocab.txt",
        "words_file": "words.txt",
        "characters_file": "characters.json",
        "lexicon_file": "lexicon.json",
    }
    model_input_names = ["input_ids", "token_type_ids", "attention_mask"]

    def __init__(
        self,
        vocab_file: str | None = None,
        words_file: str | None = None,
        characters_file: str | None = None,
        lexicon_file: str | None = None,
        max_characters_per_token: int = 50,
        split_by: Literal["rules", "spaces", "characters"] | None = None,
        full_width_to_ascii: bool = False,
        nfc: bool = False,
        pad_token: str = ByteSpelling.names[0],
        **kwargs,
    ):
        if max_characters_per_token < 3:
            raise ValueError(f"max_characters_per_token={max_characters_per_token}: a character, begin and end need 3")
        if split_by is not None and split_by not in SPLITS:
            raise ValueError(f"split_by={split_by!r}: choose one of {', '.join(SPLITS)}")
        self.max_characters_per_token = max_characters_per_token
        self.spelling = _read_spelling(characters_file, lexicon_file, max_characters_per_token)
        self.split_by = split_by or ("rules" if characters_file is None else "spaces")
        self.full_width_to_ascii, self.nfc = full_width_to_ascii, nfc
        self.targets = number_targets(read_targets(Path(vocab_file))) if vocab_file else None
        self.vectors = number_vectors(Path(words_file)) if words_file else None
        super().__init__(
            vocab_file=vocab_file,
            words_file=words_file,
            characters_file=characters_file,
            lexicon_file=lexicon_file,
            max_characters_per_token=max_characters_per_token,
            split_by=split_by,
            full_width_to_ascii=full_width_to_ascii,
            nfc=nfc,
            pad_token=pad_token,
            **kwargs,
        )
        if self.vectors is not None and "vector_ids" not in self.model_input_names:
            self.model_input_names.append("vector_ids")

    # Letters

    @property
    def vocab_size(self) -> int:
        return len(self.spelling.names)

    def get_vocab(self) -> dict[str, int]:
        """The names of the ids; that of a byte is written as <0x41>."""
        return {name: number for number, name in enumerate(self.spelling.names)}

    def _add_tokens(self, new_tokens, special_tokens: bool = False) -> int:
        self._check_tokens(new_tokens)
        return super()._add_tokens(new_tokens, special_tokens=special_tokens)

    def _check_tokens(self, tokens: Iterable) -> None:
        words = [str(token) for token in tokens if str(token) not in self.spelling.names]
        if words:
            raise ValueError(f"{', '.join(words)}: no token can be added, since ELMo reads the characters of any word")

    def __setattr__(self, name: str, value: Any) -> None:
        if value and name in (*self.SPECIAL_TOKENS_ATTRIBUTES, "_extra_special_tokens"):
            self._check_tokens(value if isinstance(value, list) else [value])
        super().__setattr__(name, value)

    @property
    def pad_token_id(self) -> int:
        """The id that fills the row of a position without a word."""
        return 0

    @property
    def all_special_ids(self) -> list[int]:
        return [self.pad_token_id]

    # Words

    def split(self, text: str) -> list[tuple[int, int]]:
        """The begin and end of each word of `text`, as `split_by` says."""
        return SPLITS[self.split_by](text)

    def tokenize(self, text: str, **kwargs) -> list[str]:
        """The words of `text`, as `split_by` says."""
        return [text[begin:end] for begin, end in self.split(text)]

    def rows(self, words: Sequence[str]) -> np.ndarray:
        """(n, columns) int64: the rows of n words. Raises ValueError for words that are not strings."""
        check_words(words)
        return self.spelling.rows([self._normalise(word) for word in words])

    def _normalise(self, word: str) -> str:
        if self.full_width_to_ascii:
            word = word.translate(FULL_WIDTH)
        return unicodedata.normalize("NFC", word) if self.nfc else word

    @property
    def reads_bytes(self) -> bool:
        """Whether words are spelled by the bytes of UTF-8, as in the released ELMo."""
        return isinstance(self.spelling, ByteSpelling)

    @property
    def has_lexicon(self) -> bool:
        """Whether the model has vectors of whole words."""
        return getattr(self.spelling, "lexicon", None) is not None

    def known_words(self, words: Iterable[str]) -> tuple[float, str]:
        """The share of a text's words that the model has vectors of, and a line that says it.

        If the share is below FEWEST_KNOWN, the line names the words without a vector that are most frequent. Raises
        ValueError for models that have no vectors of whole words.
        """
        if not self.has_lexicon:
            raise ValueError("this model has no vectors of whole words to count: it reads any word by its letters")
        counts = Counter(words)
        is_unknown = self.rows([*counts])[:, -1] == UNKNOWN_WORD
        unknown = Counter(dict(compress(counts.items(), is_unknown)))
        share = 1 - unknown.total() / max(1, counts.total())
        line = f"the model has vectors of {share:.1%} of {counts.total():,} words"
        if share >= FEWEST_KNOWN:
            return share, line
        most = ", ".join(f"{word!r:.80}" for word, _ in unknown.most_common(3))
        return share, (
            f"{line}, but not of {most}: below {FEWEST_KNOWN:.0%}, the text is probably split into words, or written, "
            "in another way than the model's training text"
        )

    def convert_tokens_to_ids(self, tokens: str | list[str]) -> list[int] | list[list[int]]:
        """The row of a word, or the rows of words."""
        if isinstance(tokens, str):
            return self.convert_tokens_to_ids([tokens])[0]
        return self.rows(tokens).tolist()

    def convert_ids_to_tokens(self, ids, skip_special_tokens: bool = False) -> str | list[str]:
        """The word of a row, the words of several rows, or, for a single id, the name of the letter.

        `skip_special_tokens` leaves out padding, and the begin and end of a sentence. Raises ValueError for rows
        of a wrong width.
        """
        ids = to_py_obj(ids)
        if isinstance(ids, int):
            return self.spelling.names[ids]
        if len(ids) > 0 and isinstance(ids[0], int):
            return self.spelling.word(ids)
        width = self.spelling.columns
        wrong_width = next((len(row) for row in ids if len(row) != width), None)
        if wrong_width is not None:
            raise ValueError(f"a row of {wrong_width} ids is no word of this tokenizer, whose words have {width}")
        special = (0, *self.spelling.marks[:2]) if skip_special_tokens else ()
        return [self.spelling.word(row) for row in ids if row[1] not in special]

    def decode(self, token_ids, skip_special_tokens: bool = False, **kwargs) -> str | list[str]:
        """The text of an example (words, columns), or of each example of a batch."""
        ids = to_py_obj(token_ids)
        if not isinstance(ids, int) and _is_batch_of_ids(ids):
            return [self.decode(example, skip_special_tokens) for example in ids]
        words = self.convert_ids_to_tokens(ids, skip_special_tokens)
        return words if isinstance(words, str) else self.convert_tokens_to_string(words)

    def get_special_tokens_mask(self, token_ids_0, token_ids_1=None, already_has_special_tokens=False) -> list[int]:
        """1 for padding, 0 for words. transformers' own asks each row for one number."""
        return [int(not any(row)) for row in [*to_py_obj(token_ids_0), *to_py_obj(token_ids_1 or [])]]

    def word_targets(self, words: Sequence[str]) -> list[int]:
        """The labels of the language model: each word's number in vocab.txt, or that of <UNK>."""
        if self.targets is None:
            raise ValueError("this tokenizer has no vocab.txt, the words that the language model predicts")
        unknown = self.targets["<UNK>"]
        return [self.targets.get(word, unknown) for word in words]

    def word_vector_ids(self, words: Sequence[str]) -> list[int]:
        """The row of each word in the word vectors: that of the word, else of the word in lower case, else 1."""
        if self.vectors is None:
            raise ValueError("this tokenizer has no words.txt, the words of a task network's word vectors")
        rows = self.vectors
        return [rows[word] if word in rows else rows.get(word.lower(), 1) for word in words]

    def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
        """Writes the files of `vocab_files_names`, as far as the tokenizer has them, and returns their paths."""
        names, texts = self.vocab_files_names, {}
        for argument, words in (("vocab_file", self.targets), ("words_file", self.vectors)):
            if words is not None:
                texts[names[argument]] = "".join(f"{word}\n" for word in words)
        texts |= {names[argument]: json.dumps(words) for argument, words in self.spelling.saved().items()}
        saved = []
        for name, text in texts.items():
            path = Path(save_directory, f"{filename_prefix}-{name}" if filename_prefix else name)
            path.write_bytes(text.encode())
            saved.append(str(path))
        return tuple(saved)

    # Examples

    def _encode_plus(
        self,
        text,
        text_pair=None,
        padding_strategy: PaddingStrategy = PaddingStrategy.DO_NOT_PAD,
        truncation_strategy: TruncationStrategy = TruncationStrategy.DO_NOT_TRUNCATE,
        max_length: int | None = None,
        is_split_into_words: bool = False,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_tensors: str | None = None,
        return_overflowing_tokens: bool = False,
        return_length: bool = False,
        **kwargs,  # the columns to return; options for special tokens and strides, which ELMo does not have
    ) -> BatchEncoding:
        """Computes `tokenizer(...)` and `encode`; transformers has resolved the padding and truncation strategies."""
        if return_overflowing_tokens:
            raise ValueError("return_overflowing_tokens: ELMo reads text of any length, so nothing needs to overflow")
        batch = _is_batch(text, is_split_into_words)
        pairs = _pairs(text, text_pair, is_split_into_words) if batch else [(text, text_pair)]
        examples = [self._read(*pair, is_split_into_words) for pair in pairs]
        counts = [len(sentences) for sentences in examples]
        if truncation_strategy != TruncationStrategy.DO_NOT_TRUNCATE:
            cut_side = self.truncation_side
            examples = [_truncate(sentences, max_length, truncation_strategy, cut_side) for sentences in examples]
        examples = [[row for sentence in sentences for row in sentence] for sentences in examples]
        side = padding_side or self.padding_side
        length = _padded_length(examples, padding_strategy, max_length, pad_to_multiple_of)
        data = self._pad_all(self._columns(examples, kwargs), length, side, return_tensors)
        lengths = [len(ids) for ids in data["input_ids"]]
        alignments = list(map(_align, examples, lengths, [side] * len(examples), counts))
        if return_length:
            data["length"] = lengths
        if not batch and return_tensors is None:
            data = {name: values[0] for name, values in data.items()}
        return BatchEncoding(data, alignments, tensor_type=return_tensors)

    def _read(self, first, second, is_split_into_words: bool) -> list[list[Row]]:
        """The words of each sentence of an example."""
        sentences = []
        for which, text in enumerate((first,) if second is None else (first, second)):
            if is_split_into_words and isinstance(text, (list, tuple)):
                check_words(text)
                words, spans = text, [(0, len(word)) for word in text]
            elif not is_split_into_words and isinstance(text, str):
                spans = self.split(text)
                words = [text[begin:end] for begin, end in spans]
            else:
                expected = "a string (is_split_into_words=True takes words)"
                expected = "a list of words" if is_split_into_words else expected
                raise ValueError(f"a text must be {expected}, but one is {text!r:.80}, of type {type(text).__name__}")
            rows = enumerate(zip(words, spans, strict=True))
            sentences.append([(word, number, which, span) for number, (word, span) in rows])
        return sentences

    def _columns(self, examples: list[list[Row]], flags: Mapping[str, Any]) -> dict[str, list[np.ndarray]]:
        """The columns of each example's words that `flags` (`return_...`) or the model request."""
        rows = [row for example in examples for row in example]
        words = [word for word, *_ in rows]
        columns = {"input_ids": self.rows(words)}
        for name, flag, values in (
            ("token_type_ids", "return_token_type_ids", [which for _, _, which, _ in rows]),
            ("attention_mask", "return_attention_mask", np.ones(len(rows))),
            ("special_tokens_mask", "return_special_tokens_mask", np.zeros(len(rows))),
            ("offset_mapping", "return_offsets_mapping", [span for *_, span in rows]),
        ):
            requested = flags.get(flag)
            if requested or (requested is None and name in self.model_input_names):
                columns[name] = self._array(name, values)
        if self.vectors is not None:
            columns["vector_ids"] = self._array("vector_ids", self.word_vector_ids(words))
        ends = np.cumsum([len(example) for example in examples], dtype=np.int64)
        starts = [0, *ends][:-1]
        return {
            name: [column[start:end] for start, end in zip(starts, ends, strict=True)]
            for name, column in columns.items()
        }

    def pad(
        self,
        encoded_inputs,
        padding: bool | str | PaddingStrategy = True,
        max_length: int | None = None,
        pad_to_multiple_of: int | None = None,
        padding_side: str | None = None,
        return_attention_mask: bool | None = None,
        return_tensors: str | None = None,
        verbose: bool = True,
    ) -> BatchEncoding:
        """Pads one example, a batch or a list of examples, as `PreTrainedTokenizerBase.pad` does.

        Columns with one entry per word (`PADDING`) are padded; other columns are returned as they are.
        """
        batch = isinstance(encoded_inputs, (list, tuple))
        if batch:
            names = encoded_inputs[0].keys() if encoded_inputs else ()
            encoded_inputs = {name: [example[name] for example in encoded_inputs] for name in names}
        if "input_ids" not in encoded_inputs:
            raise ValueError(f"pad needs examples with input_ids, but was given {list(encoded_inputs) or 'nothing'}")
        ids = encoded_inputs["input_ids"]
        batch = batch or _is_batch_of_ids(ids)
        columns = {
            name: [self._array(name, values) for values in (column if batch else [column])]
            for name, column in encoded_inputs.items()
            if name in PADDING
        }
        if "attention_mask" not in columns and return_attention_mask is not False:
            columns["attention_mask"] = [np.ones(len(rows), dtype=np.int64) for rows in columns["input_ids"]]
        strategy, _, max_length, _ = self._get_padding_truncation_strategies(
            padding=padding, max_length=max_length, verbose=verbose
        )
        length = _padded_length(columns["input_ids"], strategy, max_length, pad_to_multiple_of)
        return_tensors = return_tensors or _tensor_type(ids)
        data = self._pad_all(columns, length, padding_side or self.padding_side, return_tensors)
        if not batch:
            data = {name: values[0] for name, values in data.items()}
        others = {name: column for name, column in encoded_inputs.items() if name not in columns}
        return BatchEncoding(data | others, tensor_type=return_tensors)

    def _array(self, name: str, values) -> np.ndarray:
        """A column of one example as int64: (words,), or (words, n) for columns with n numbers per word."""
        width = {"input_ids": (self.spelling.columns,), "offset_mapping": (2,)}.get(name, ())
        array = np.asarray(to_numpy(values))
        if array.size == 0:
            return np.zeros((0, *width), dtype=np.int64)
        if array.shape[1:] != width:
            raise ValueError(f"{name} of an example has the shape {array.shape}, not {('words', *width)}")
        return array.astype(np.int64, copy=False)

    def _pad_all(
        self, columns: dict[str, list[np.ndarray]], length: int, side: str, return_tensors: str | None
    ) -> dict[str, Any]:
        """Pads examples that are shorter than `length`. Lists without `return_tensors`, else one array per column."""
        if side not in ("left", "right"):
            raise ValueError(f"padding_side={side!r} is neither left nor right")

        def fill(array: np.ndarray, value: int) -> np.ndarray:
            if len(array) >= length:
                return array
            padding = np.full((length - len(array), *array.shape[1:]), value, dtype=array.dtype)
            return np.concatenate([array, padding] if side == "right" else [padding, array])

        columns = {name: [fill(array, PADDING[name]) for array in arrays] for name, arrays in columns.items()}
        if return_tensors is None:
            data = {name: [array.tolist() for array in arrays] for name, arrays in columns.items()}
            if "offset_mapping" in data:
                data["offset_mapping"] = [list(map(tuple, spans)) for spans in data["offset_mapping"]]
            return data
        if len({len(array) for array in columns["input_ids"]}) > 1:
            raise ValueError("a tensor needs examples of equal length: set padding=True, or truncation as well")
        return {
            name: np.stack(arrays) if arrays else self._array(name, [])[None][:0] for name, arrays in columns.items()
        }


def _read_spelling(
    characters_file: str | None, lexicon_file: str | None, max_characters: int
) -> ByteSpelling | CharacterSpelling:
    if characters_file is None and lexicon_file is None:
        return ByteSpelling(max_characters)
    if characters_file is None:
        raise ValueError(f"{lexicon_file} has the words of a model, but characters_file, its characters, is missing")
    characters = _read_list(Path(characters_file), CharacterSpelling.reserved_letters)
    lexicon = None if lexicon_file is None else _read_list(Path(lexicon_file), CharacterSpelling.reserved_words)
    return CharacterSpelling(max_characters, characters, lexicon)


def _read_list(path: Path, reserved: tuple[str, ...]) -> list[str]:
    """The JSON list of strings in a file, all different, also from those that the tokenizer adds."""
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error})") from error
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{path} must hold a JSON list of strings")
    _refuse_repeated(enumerate(values, start=1), path, "entry", reserved)
    return values


def _read_lines(path: Path) -> list[str]:
    """The lines of a file. Only a line feed ends a line, because words of the Web contain other line separators."""
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error})") from error
    if len(lines) == 1 and "\r" in lines[0].removesuffix("\r"):
        raise ValueError(f"{path}: no line of it ends with a line feed: convert it, e.g. with mac2unix")
    lines = [line.removesuffix("\r") for line in lines]
    return lines if lines[-1] else lines[:-1]


def _refuse_repeated(
    words: Iterable[tuple[int, str]], path: Path, place: str = "line", reserved: tuple[str, ...] = ()
) -> None:
    """Raises ValueError for a word that is there twice, or that is a reserved one. `words` are (place, word)."""
    seen = set(reserved)
    for number, word in words:
        if word in seen:
            raise ValueError(
                f"{path} has {word!r:.80} more than once, again in {place} {number}, but a word must have one number"
            )
        seen.add(word)


def read_targets(path: Path) -> list[str]:
    """The language model's words. As released, spaces around a word and the line !!!MAXTERMID are ignored."""
    lines = enumerate((line.strip() for line in _read_lines(path)), start=1)
    words = [(number, word) for number, word in lines if word != "!!!MAXTERMID"]
    _refuse_repeated(words, path)
    words = [word for _, word in words]
    missing = [word for word in SPECIAL_WORDS if word not in words]
    if missing:
        raise ValueError(f"{path} has no line {', '.join(missing)}, so it is not a vocabulary of the language model")
    return words


def number_vectors(path: Path) -> dict[str, int]:
    """The row of each word of words.txt in the word vectors. Rows 0 and 1 are for padding and for other words."""
    words = _read_lines(path)
    _refuse_repeated(enumerate(words, start=1), path)
    return {word: number for number, word in enumerate(words, start=2)}


def number_targets(words: list[str]) -> dict[str, int]:
    """Numbers <S>, </S> and <UNK> first, because the model itself predicts boundaries, then the others in order."""
    ordered = (*SPECIAL_WORDS, *(word for word in words if word not in SPECIAL_WORDS))
    return {word: number for number, word in enumerate(ordered)}


def _is_batch(text, is_split_into_words: bool) -> bool:
    """As in transformers: a batch is a list of texts, or a list of lists of words."""
    if not isinstance(text, (list, tuple)):
        return False
    return not is_split_into_words or (len(text) > 0 and isinstance(text[0], (list, tuple)))


def _pairs(texts: Sequence, seconds: Sequence | None, is_split_into_words: bool) -> list[tuple]:
    """The first sentence and the second, or None, of each example.

    As in transformers, a pair is a list or tuple of two strings, or a tuple of two lists of words.
    """
    if seconds is not None:
        if not isinstance(seconds, (list, tuple)) or len(seconds) != len(texts):
            raise ValueError(f"there are {len(texts)} texts, but text_pair is not a list of as many")
        return list(zip(texts, seconds, strict=True))
    pair_types, part_types = ((tuple,), (list, tuple)) if is_split_into_words else ((list, tuple), (str,))
    pairs = []
    for text in texts:
        is_pair = isinstance(text, pair_types) and len(text) == 2 and all(isinstance(p, part_types) for p in text)
        pairs.append(tuple(text) if is_pair else (text, None))
    return pairs


def _truncate(example: list[list[Row]], limit: int, strategy: TruncationStrategy, side: str) -> list[list[Row]]:
    """Cuts an example to `limit` words. "longest_first" cuts the longer sentence, or the second of equal length."""
    if limit < 0:
        raise ValueError(f"max_length={limit}: an example has 0 words or more")
    counts = [len(sentence) for sentence in example]
    excess = sum(counts) - limit
    if excess <= 0:
        return example
    if strategy == TruncationStrategy.LONGEST_FIRST:
        if len(counts) == 2:
            counts[1] = min(counts[1], max(limit // 2, limit - counts[0]))
        counts[0] = limit - sum(counts[1:])
    else:
        chosen = int(strategy == TruncationStrategy.ONLY_SECOND)
        if chosen >= len(counts) or counts[chosen] < excess:
            lengths = " and ".join(map(str, counts))
            raise ValueError(f"truncation={strategy.value!r} cannot bring {lengths} words down to max_length={limit}")
        counts[chosen] -= excess
    firsts = [len(sentence) - count if side == "left" else 0 for sentence, count in zip(example, counts, strict=True)]
    return [rows[first : first + count] for rows, first, count in zip(example, firsts, counts, strict=True)]


def _padded_length(examples: Sequence, strategy: PaddingStrategy, max_length: int | None, multiple: int | None) -> int:
    """The number of words to which the strategy pads shorter examples."""
    if strategy == PaddingStrategy.DO_NOT_PAD:
        return 0
    length = max(map(len, examples), default=0) if strategy == PaddingStrategy.LONGEST else max_length
    return -(-length // multiple) * multiple if multiple else length


def _align(words: list[Row], length: int, side: str, sentences: int) -> WordAlignment:
    padding = [(ByteSpelling.names[0], None, None, (0, 0))] * (length - len(words))
    rows = words + padding if side == "right" else padding + words
    return WordAlignment(*([row[field] for row in rows] for field in range(4)), n_sequences=sentences)


def _is_batch_of_ids(ids) -> bool:
    """Whether these are examples, and not the rows of one. [[]] is a batch, since no row is empty."""
    if is_numpy_array(ids) or is_torch_tensor(ids):
        return ids.ndim == 3
    if len(ids) == 0 or isinstance(ids[0], int):
        return False
    rows = next((example for example in ids if len(example) > 0), None)
    return rows is None or not (isinstance(rows[0], int) or getattr(rows[0], "ndim", 1) == 0)


def _tensor_type(ids) -> str | None:
    """The tensor type of the examples, which is also that of the result."""
    first = ids[0] if isinstance(ids, (list, tuple)) and len(ids) > 0 else ids
    return "pt" if is_torch_tensor(first) else "np" if is_numpy_array(first) else None


ElmoTokenizer.register_for_auto_class("AutoTokenizer")  # save_pretrained then also copies this file

__all__ = ["ElmoTokenizer"]
