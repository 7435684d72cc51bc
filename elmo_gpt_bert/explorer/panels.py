"""What the page shows for what its user gave: HTML, in which a mistake is one sentence."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from threading import RLock
from typing import Any

import modeling
from elmo_gpt_bert.explorer import drawing
from elmo_gpt_bert.explorer.entities import entities_of, load_tagger, tag_words
from elmo_gpt_bert.explorer.language_models import (
    FAMILIES,
    LanguageModel,
    attend,
    load_language_model,
    words_of,
)
from elmo_gpt_bert.explorer.neighbours import find_neighbours, read_index, sense_accuracies
from elmo_gpt_bert.explorer.surprisal import score_sentence
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.errors import InputError, UserError
from elmo_gpt_bert.training.loading import load_config


PREDICTS = {  # column -> how its model predicts a word
    "ELMo": "Each word twice: given the words before it, and given those after it. The bits of both are added.",
    "GPT": "Each word given the words before it. Nothing is before the first piece, so it is not predicted.",
    "BERT": "Each word behind a mask, given all other words. Its pieces are uncovered from left to right.",
}
NO_ATTENTION = "ELMo's layers are LSTMs. They read word by word and have no attention."
FEWEST = 12  # layers and heads of the sliders for a model that cannot be read


Draw = Callable[[str, LanguageModel], str]  # the name of a column, and its model -> HTML


def shown(draw: Callable[..., str]) -> Callable[..., str]:
    """A method that shows one sentence in place of a mistake; an unforeseen error is printed on the terminal, too."""

    @wraps(draw)
    def draw_or_explain(panels: "Panels", *values: Any) -> str:
        with panels.lock:
            modeling.register()
            try:
                return draw(panels, *values)
            except UserError as mistake:
                return drawing.error(str(mistake))
            except Exception as unforeseen:
                traceback.print_exc()
                return drawing.error(f"This did not work ({type(unforeseen).__name__}); the terminal says more.")

    return draw_or_explain


@dataclass(frozen=True)
class Panels:
    """The parts of the page.

    Attributes:
        models: column -> a model folder, or a model of the Hub.
        readable: the paths and models that users may name in the page; None: all.
    """

    models: dict[str, str]
    readable: frozenset[str] | None
    lock: RLock = RLock()  # the models are used by one request at a time: `only_states` hooks into them

    def words(self, sentence: str) -> list[tuple[str, int]]:
        """The choices of the word: each with its number; none for a sentence that cannot be read."""
        try:
            return [(word, number) for number, word in enumerate(words_of(sentence), start=1)]
        except UserError:
            return []

    @shown
    def neighbours(self, sentence: str, number: int | None, same_word: bool, index_file: str) -> str:
        """The neighbours of the word with this number, in the columns of all models."""
        words = words_of(sentence)
        if number is None or number > len(words):  # the sentence may be shorter than when its words were listed
            raise InputError("No word is chosen: choose one of the sentence.")
        place, index = number - 1, read_index(self.readable_name(index_file) or None)
        size = f"The index has {sum(map(len, index.sentences)):,} words in {len(index.sentences):,} sentences"
        rest = "." if index.is_whole else ": long sentences, and what follows in the file, are left out."

        def draw(family: str, model: LanguageModel) -> str:
            layers = find_neighbours(model, index, words, place, same_word=same_word)
            return drawing.draw_neighbours(family, layers, sense_accuracies(model, index, words[place]))

        return drawing.note(size + rest) + self._in_columns(draw)

    @shown
    def scores(self, sentence: str, second: str) -> str:
        """The surprisal of each word and, if there is a second sentence, which one each model prefers."""
        words_of(sentence)

        def draw(family: str, model: LanguageModel) -> str:
            scored = [score_sentence(model, text) for text in (sentence, second) if text.strip()]
            return drawing.note(PREDICTS[family]) + drawing.draw_scores(scored)

        return self._in_columns(draw)

    @shown
    def entities(self, sentence: str, name: str) -> str:
        """The entities of the sentence."""
        words_of(sentence)
        words = tag_words(load_tagger(self.readable_name(name)), sentence)
        return drawing.draw_entities(sentence, words, entities_of(words))

    def attention(self, family: str, sentence: str, layer: int, head: int, with_ends: bool = True) -> str:
        """The attention of one model; head 0 is the mean of all heads."""

        def draw(family: str, model: LanguageModel) -> str:
            attention = attend(model, sentence, int(layer), int(head) or None)
            return drawing.draw_attention(attention if with_ends else attention.without_ends())

        return self._card(family, draw)

    def no_attention(self) -> str:
        return drawing.card("ELMo", self.models["ELMo"], drawing.note(NO_ATTENTION))

    def attention_sizes(self, family: str) -> tuple[int, int]:
        """The numbers of layers and heads of a model, which is not loaded for that."""
        modeling.register()
        try:
            config = load_config(ModelSource(self.models[family]))
            return config.num_hidden_layers, config.num_attention_heads
        except (UserError, AttributeError):  # the panel says what is wrong when it is used
            return FEWEST, FEWEST

    def readable_name(self, name: str) -> str:
        """The name of a file or model. Raises ValueError for one that users of this page may not name."""
        name = name.strip()
        if name and self.readable is not None and name not in self.readable:
            raise InputError("This page is open to other computers, so it reads only what its command line names.")
        return name

    # Frames

    def _in_columns(self, draw: Draw) -> str:
        return drawing.columns(self._card(family, draw) for family in FAMILIES)

    def _card(self, family: str, draw: Draw) -> str:
        """A column. A model that cannot be loaded leaves the other columns as they are."""
        return drawing.card(family, self.models[family], self._content(family, draw))

    @shown
    def _content(self, family: str, draw: Draw) -> str:
        return draw(family, load_language_model(family, self.models[family]))
