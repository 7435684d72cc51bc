"""The n best answers to a question about a text, by any model that run_squad.py trained."""

from dataclasses import dataclass
from functools import lru_cache

from transformers import AutoModelForQuestionAnswering

from elmo_gpt_bert.explorer.models import load_trained
from elmo_gpt_bert.explorer.sentences import Span, check_characters
from elmo_gpt_bert.tasks.squad.answering import N_BEST, Entry, QuestionAnswerer, probabilities, with_null
from elmo_gpt_bert.training.errors import InputError


LONGEST = 20_000  # characters of a text


@dataclass(frozen=True)
class Ranked:
    """The answers to a question, the best first, and "no answer"."""

    entries: list[Entry]
    null: Entry

    @property
    def null_odds(self) -> float:
        """The score of "no answer" less that of the best answer, as in null_odds.json."""
        return self.null.score - self.entries[0].score

    def predict(self, threshold: float | None) -> Entry:
        """The best answer, or "no answer" if it scores more than the threshold above it. None: always an answer."""
        return self.null if threshold is not None and self.null_odds > threshold else self.entries[0]

    def best(self, n: int, threshold: float | None) -> list[tuple[Entry, float]]:
        """The n best with probabilities, as in nbest_predictions.json. With a threshold, "no answer" is an entry."""
        entries = self.entries if threshold is None else with_null(self.entries, self.null, N_BEST)
        return list(zip(entries, probabilities(entries), strict=True))[:n]

    def span(self, threshold: float | None) -> Span | None:
        """The place of the predicted answer in the text; None for "no answer"."""
        entry = self.predict(threshold)
        return None if entry is self.null else (entry.begin, entry.end)


@lru_cache(maxsize=2)
def load_answerer(name: str) -> QuestionAnswerer:
    """Loads a fine-tuned folder. Raises ValueError for a model that does not answer questions."""
    return QuestionAnswerer(*load_trained(AutoModelForQuestionAnswering, name, "QuestionAnswering", "run_squad.py"))


def answer(answerer: QuestionAnswerer, question: str, context: str) -> Ranked:
    """The 20 best answers. Raises ValueError for an empty question, and for a text that is empty or too long."""
    for name, text in (("question", question), ("text", context)):
        check_characters(text)
        if not text.strip():
            raise InputError(f"The {name} is empty: write one.")
    if len(context) > LONGEST:
        raise InputError(f"The text has {len(context):,} characters: shorten it to {LONGEST:,} or fewer.")
    ((entries, null),) = answerer.rank([question], [context])
    return Ranked(entries, null)
