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
"""GPT's tokenizer: the released byte pairs, and the inputs of the paper's tasks (section 3.3, figure 1).

Released code: github.com/openai/finetune-transformer-lm, text_utils.py and train.py.

    tokenizer("He can't .")            he</w> can't</w> .</w>                       as transformers' OpenAIGPTTokenizer
    tokenizer.task_inputs = True       _start_ he</w> can't</w> .</w> _classify_
    tokenizer("He", "can't .")         _start_ he</w> _delimiter_ can't</w> .</w> _classify_
"""

import re
from collections.abc import Iterator

from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors
from transformers import BatchEncoding
from transformers.models.openai.tokenization_openai import OpenAIGPTTokenizer


# In the order in which the release appends them to the vocabulary.
TASK_TOKENS = {"bos_token": "_start_", "sep_token": "_delimiter_", "cls_token": "_classify_"}

# The released code finds words by ftfy.fix_text, its function text_standardize, and spaCy 2.0's English tokenizer.
# spaCy depends on the case of letters: the normalizer first inserts spaces between words, then lowers the letters.

FIXED = (  # ftfy: (pattern, replacement)
    *(("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&(?:apos|#39);", "'"), ("&nbsp;", " ")),
    *(("ﬀ", "ff"), ("ﬁ", "fi"), ("ﬂ", "fl"), ("ﬃ", "ffi"), ("ﬄ", "ffl"), ("[ﬅﬆ]", "st")),
    ("[\u02bc\u2018-\u201b]", "'"),
    ("[\u201c-\u201f]", '"'),
    ("\r\n?|[\u2028\u2029\x85]", "\n"),
    ("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc]", ""),
)
STANDARD = (("[—–―]", "-"), ("…", "..."), ("´", "'"), (r"(?<!\s)\s*\n\s*", " \n "))  # text_standardize

LOWER, UPPER = r"\p{Ll}\p{Lo}", r"\p{Lu}\p{Lo}"
APART = r'!";?+,)(*\[\]}{_'  # each of them is a word
RUNS = (r"\-", "~", "/", r"\|")  # each run of one of them is a word
MARKS = r":<>#&«»¿¡·؟،؛।。？！，、；：「」『』（）《》〈〉【】〔〕\p{So}"  # each is a word at another's begin or end
CURRENCY = "$£€¥฿﷼₠-₿"
UNITS = "km²|km³|km|m²|m³|m|dm²|dm³|dm|cm²|cm³|cm|mm²|mm³|mm|ha|µm|nm|yd|in|ft|kg|g|mg|µg|t|lb|oz|kmh|mph|hPa|Pa"
UNITS += "|mbar|mb|MB|kb|KB|gb|GB|tb|TB|T|G|M|K|%"
ABBREVIATIONS = (  # they keep the period at their end
    "Mt Adm Bros co Co Corp Dr Gen Gov Inc Jr Ltd Messrs Mr Mrs Ms Rep Rev Sen St vs a.m p.m Ph.D e.g E.g E.G i.e "
    "I.e I.E [a-zäöü] Jan Feb Mar Apr May Jun Jul Aug Sep Sept Oct Nov Dec D.C N.C N.D N.H N.J N.M N.Y S.C Ak Ala "
    "Ariz Ark Calif Colo Conn Del Fla Ga Ia Id Ill Ind Kan Kans Ky La Mass Md Mich Minn Miss Mo Mont Neb Nebr Nev "
    "Okla Ore Pa Tenn Va Wash Wis"
)
CLIPPED = "[DdGgLl]oin [Ll]ovin [Hh]avin [Nn]othin [Nn]uthin [Ss]omethin [Oo]l"  # they keep their last apostrophe
ALONE = (  # words, emoticons among them, that keep the mark at their begin
    "'(?:em|ll|nuff|s|S|re|d|bout|[Cc](?:ause|os|oz|uz))|''|[:=][DPpOo013Xx'>]|<3+"
)

PRONOUNS, ASKING = "i you he she it we they", "who what when where why how there that"
MODALS = "could might must should would"
CONTRACTIONS = (  # split between a word on the left, in lower case or capitalised, and an ending on the right
    ("i", "'?ma?"),
    (f"{PRONOUNS} {ASKING}", "'ll|'ll've|llve|'d|'d've|dve"),
    (f"you it they {ASKING}", "ll"),
    (f"i you he it we they {ASKING}", "d"),
    (f"i you we they {ASKING} {MODALS} not", "'?ve"),
    (f"you we they {ASKING}", "'re"),
    ("you they what when where why how there that", "re"),
    (f"he she it {ASKING} let", "'s"),
    (f"he she {ASKING}", "s"),
    (f"ca do does did had may need ought sha wo {MODALS}", "n't|n't've|nt|ntve"),
    ("ai are is was were have has dare", "n'?t"),
    *(("can", "not"), ("gon", "na"), ("got", "ta"), ("y", "all"), ("y'", "all"), ("how", "'d'y")),
    (" ".join(map(str, range(1, 13))), r"[ap](?:m|\.m\.)"),
)


def _after_word(words: str) -> str:
    """The content of a look-behind that matches after one of these words."""
    return "|".join(rf"^{word}|\s{word}" for word in words.replace(".", r"\.").split())


def _contraction(left: str, right: str) -> str:
    heads = "|".join(f"[{word[0].upper()}{word[0]}]{word[1:]}" if word.isalpha() else word for word in left.split())
    return rf"(?:{heads})\K(?=(?:{right})(?!\S))"


def _boundaries() -> tuple[str, ...]:
    """Patterns that match between two words without a space: text_standardize's, then those of spaCy in its order.

    None may match before the first character of a text, because the library then returns wrong offsets.
    """
    inside = r"(?<=\S)(?=\S)"
    run_ends = "|".join(f"(?<={mark})(?!{mark})|(?<!{mark})(?={mark})" for mark in RUNS)
    standard = f"{inside}(?:(?<=[{APART}])|(?=[{APART}])|{run_ends})"

    sentence_end = rf"(?<=[0-9{LOWER}%²:'`«»]|[{UPPER}][{UPPER}]|°[CFK])(?<!{_after_word(ABBREVIATIONS)})"
    quote = f"''|``|(?<!`)`|'[sS]|(?=')(?<!{_after_word(CLIPPED)}|')'"
    measure = rf"(?<=[0-9])(?:[{CURRENCY}]|{UNITS})"
    ending = rf"(?:[{MARKS}]|{quote}|(?=\.(?!\.)){sentence_end}\.|(?<!\.)\.\.+(?!\.)|{measure})"
    first = rf"(?:\G|(?<!\S))(?!(?:{ALONE}){ending}{{0,2}}(?!\S))"
    prefix = rf"{first}(?:[{MARKS}%=§']|(?>``?)|\.\.+(?!\.)|(?:US|[CA])?[{CURRENCY}])\K(?=\S)"
    suffix = rf"(?<=\S)(?=[{MARKS}'`.]|(?<=[0-9])[{CURRENCY}%µa-zA-Z])(?={ending}{{1,8}}(?!\S))"

    contraction = r"(?<!\S)(?:" + "|".join(_contraction(*row) for row in CONTRACTIONS) + ")"
    its_end = r"(?:'ll|n't|'d|ll|nt|d)\K(?='?ve(?!\S))|(?<=[Ii] )'?m\K(?=a(?!\S))|'d\K(?='y(?!\S))"

    halves = r"[.:<>=^\p{So}]"
    sentences = rf"(?<=[{LOWER}])(?<!^Ph|\sPh)(?=\.[{UPPER}])|(?<=[{LOWER}]\.)(?<!\bPh\.)(?=[{UPPER}])"
    symbols = r"(?<=\p{So})|(?=\p{So})|(?<!\.)(?=\.\.)|(?<=\.\.)(?!\.)|(?<=[0-9])(?=\^[0-9])|(?<=[0-9]\^)(?=[0-9])"
    signs = r"(?<=\p{L})(?=[:<>=]\p{L})|(?<=\p{L}[:<>=])(?=\p{L})"
    infix = f"{inside}(?:(?<={halves})|(?={halves}))(?:{sentences}|{symbols}|{signs})"
    return standard, prefix, suffix, contraction, rf"(?<!\S)(?:{its_end})", infix


def released_words() -> tuple[normalizers.Normalizer, pre_tokenizers.PreTokenizer]:
    """The normalizer that inserts spaces between the released code's words and lowers them, and the splitter."""

    def replace(rows):
        return [normalizers.Replace(Regex(pattern), content) for pattern, content in rows]

    steps = [*replace(FIXED), normalizers.NFC(), *replace(STANDARD), normalizers.Strip()]
    steps += [*replace((pattern, " ") for pattern in _boundaries()), normalizers.Lowercase()]
    return normalizers.Sequence(steps), pre_tokenizers.Split(Regex(r"[^\S\n]+"), "removed")


def bert_words() -> tuple[normalizers.Normalizer, pre_tokenizers.PreTokenizer]:
    """As in transformers' class: accents are removed, letters lowered, and words split at punctuation."""
    return normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()


WORDS = {"bert": bert_words, "released": released_words}


class ZooGPTTokenizer(OpenAIGPTTokenizer):
    r"""transformers' `OpenAIGPTTokenizer` with padding, the paper's task inputs and the released words.

    Args:
        vocab, merges:
            The byte pairs: a dictionary and a list, or the paths of vocab.json and merges.txt, or of the released
            files encoder_bpe_40000.json and vocab_40000.bpe.
        unk_token (`str`, *optional*, defaults to `"<unk>"`):
            The token for characters that the vocabulary lacks. It must be in the vocabulary.
        pad_token (`str`, *optional*, defaults to `unk_token`):
            The padding token. The released code pads with id 0, which is `unk_token`; the attention mask
            distinguishes padding from unknown characters.
        eos_token (`str`, *optional*):
            The token that ends a text. The released vocabulary has none, and so there is none by default. With task
            inputs, it is the last of their tokens, the paper's end token `"_classify_"`. For evaluation harnesses and
            supervised fine-tuning, `eos_token="\n</w>"` is the line break, which ends the paragraphs of books. As a
            special token, it is left out by `decode(..., skip_special_tokens=True)`. To make `generate` stop
            there, pass `eos_token_id=tokenizer.eos_token_id`. A token that the vocabulary lacks is added as a new one,
            for which the model's embeddings must be resized.
        words (`str`, *optional*, defaults to `"bert"`):
            How text is split into words before byte pairs are formed. `"bert"`, as in transformers: BERT's rules,
            accents removed. `"released"`, as the weights were trained: ftfy's repairs, the released code's spaces
            around punctuation, spaCy's English words ("do n't"), accents kept, line breaks as the token "\n</w>".
        task_inputs (`bool`, *optional*, defaults to `False`):
            Whether to add the tokens of the paper's task inputs to every example; also settable later, by
            `tokenizer.task_inputs = True`. The three tokens follow the vocabulary, and the model's embeddings must be
            resized for them. If set to `False` again, examples are plain text, and the tokens keep their ids.

    The name of a special token within a text is read as that token, as always in transformers. With
    `split_special_tokens=True`, it is read as text, as in the released code.

    Decoded text has one space between words, and after each special, added or unknown token. Capitals, the original
    spaces, and whether an unknown character ended its word cannot be recovered from the ids. Decoded text does not
    begin with a space. A pipeline appends it to the prompt, so end the prompt with a space.

    `"released"` needs neither ftfy nor spaCy. It was compared with ftfy 6.3.1 and a port of spaCy 2.0.13's rules on
    SST-2, CoLA, RTE, CODAH, SQuAD, WNUT-17 and books, on which its rules were also developed. In each of them, at
    least 99.99 % of the ids are the same, and at least 99.8 % of the texts have the same ids throughout. With
    `"bert"`, it is 92 % (WNUT-17) to 99 % of the ids and 19 % to 95 % of the texts. The remaining differences are text
    in a wrong encoding, which ftfy decodes, rare HTML entities, full-width letters, "o.O", and "Ph.D" without a period
    at the end. The byte pairs show that the released code used a spaCy of this age ("may.", "c'mon"). spaCy 3.8.18
    also treats "``" differently; compared with it, 99 % of SST-2's texts are the same, and 99.5 % or more of the
    others.

    Raises:
        ValueError: for a vocabulary without `unk_token`, two tokens with one id, merges of pieces that the vocabulary
            lacks, an unknown value of `words`, and a text with half a character (a lone surrogate).
    """

    def __init__(
        self,
        vocab: str | dict[str, int] | None = None,
        merges: str | list[str] | None = None,
        unk_token: str = "<unk>",
        pad_token: str | None = None,
        words: str = "bert",
        task_inputs: bool = False,
        **kwargs,
    ):
        if words not in WORDS:
            raise ValueError(f"words={words!r}: text is split into words by one of {', '.join(map(repr, WORDS))}")
        self._words, self._task_inputs = words, False
        kwargs |= {"unk_token": unk_token, "pad_token": pad_token or unk_token}
        kwargs |= {"words": words, "task_inputs": task_inputs}
        try:
            super().__init__(vocab=vocab, merges=merges, **kwargs)
        except Exception as error:
            if type(error) is not Exception:  # the library's errors have no class of their own
                raise
            raise ValueError(f"{error}: are vocab and merges of one tokenizer?") from error
        if self._tokenizer.model.token_to_id(str(unk_token)) is None:
            raise ValueError(f"the vocabulary lacks unk_token={str(unk_token)!r}: give its name there, or add it")
        self._tokenizer.normalizer, self._tokenizer.pre_tokenizer = WORDS[words]()
        self._update_decoder()
        saved_with_task_tokens = {self.bos_token, self.cls_token} <= set(self._tokenizer.encode("").tokens)
        if task_inputs or saved_with_task_tokens:
            self.task_inputs = task_inputs
        self._check_numbers()

    @property
    def words(self) -> str:
        """How text is split into words: "bert" or "released"."""
        return self._words

    @property
    def task_inputs(self) -> bool:
        """Whether examples have the tokens of the paper's task inputs."""
        return self._task_inputs

    @task_inputs.setter
    def task_inputs(self, value: bool) -> None:
        if value:
            self.add_special_tokens(
                {name: token for name, token in TASK_TOKENS.items() if getattr(self, name) is None}
            )
            if self.eos_token is None:
                self.eos_token = self.cls_token
        self._task_inputs = self.init_kwargs["task_inputs"] = bool(value)
        self.update_post_processor()

    def _task_tokens(self) -> list[str]:
        """The tokens before, between and after the texts of a task."""
        return [getattr(self, name) for name in TASK_TOKENS]

    def _add_tokens(self, new_tokens, special_tokens: bool = False) -> int:
        added = super()._add_tokens(new_tokens, special_tokens=special_tokens)
        self._update_decoder()
        if added:
            self._check_numbers()
        return added

    def _check_numbers(self) -> None:
        """Raises ValueError if two tokens have one id, as an added token gets one if the vocabulary leaves out ids."""
        tokens = {}
        for token, number in self.get_vocab().items():
            if tokens.setdefault(number, token) != token:
                raise ValueError(
                    f"the tokens {tokens[number]!r:.80} and {token!r:.80} have the same id, {number}: number the n "
                    "tokens of the vocabulary from 0 to n - 1, each once"
                )

    def _update_decoder(self) -> None:
        """Makes the library write a space after each added token, as after the byte pairs that end a word."""
        added = map(self._tokenizer.id_to_token, self._tokenizer.get_added_tokens_decoder())  # as they are decoded
        whole = "|".join(rf"\A{re.escape(token)}" for token in added if not token.endswith("</w>"))
        spaces = [decoders.Replace(Regex(rf"(?<={whole})\z"), "</w>")] if whole else []
        self._tokenizer.decoder = decoders.Sequence([*spaces, decoders.BPEDecoder(suffix="</w>")])

    def update_post_processor(self) -> None:
        """Makes the library add the task's tokens or, without `task_inputs`, those of transformers' class."""
        if not self.task_inputs:
            return super().update_post_processor()
        start, delimiter, extract = tokens = self._task_tokens()
        self._tokenizer.post_processor = processors.TemplateProcessing(
            single=[f"{start}:0", "$A:0", f"{extract}:0"],
            pair=[f"{start}:0", "$A:0", f"{delimiter}:0", "$B:1", f"{extract}:1"],
            special_tokens=list(zip(tokens, self.convert_tokens_to_ids(tokens), strict=True)),
        )

    def get_special_tokens_mask(
        self, token_ids_0: list[int], token_ids_1: list[int] | None = None, already_has_special_tokens: bool = False
    ) -> list[int]:
        """1 at special tokens, 0 elsewhere; for ids without them, the mask of the example with the tokens added."""
        if already_has_special_tokens:
            return super().get_special_tokens_mask(token_ids_0, token_ids_1, already_has_special_tokens=True)
        added = [1] * self.task_inputs
        second = [] if token_ids_1 is None else [*added, *[0] * len(token_ids_1)]
        return [*added, *[0] * len(token_ids_0), *second, *added]

    def _encode_plus(self, text, text_pair=None, **kwargs) -> BatchEncoding:
        try:
            return super()._encode_plus(text, text_pair, **kwargs)
        except TypeError:  # the library takes UTF-8, which cannot encode half a character
            for part in _strings([text, text_pair]):
                _check_characters(part)
            raise


def _strings(texts) -> Iterator[str]:
    if isinstance(texts, str):
        yield texts
    elif isinstance(texts, (list, tuple)):
        for part in texts:
            yield from _strings(part)


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text {text[max(0, error.start - 20) : error.end]!r} ends in half a character, a lone surrogate: "
            "text.encode('utf-8', 'ignore').decode() leaves it out"
        ) from None


ZooGPTTokenizer.register_for_auto_class("AutoTokenizer")  # save_pretrained then also copies this file

__all__ = ["ZooGPTTokenizer"]
