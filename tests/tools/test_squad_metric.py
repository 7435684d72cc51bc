"""SQuAD's scores against the papers' definitions written out slowly, scikit-learn and torchmetrics."""

import json
from itertools import groupby

import numpy as np
import pytest
import torchmetrics.text

from elmo_gpt_bert.metrics import squad_scores as squad


ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
PIECES = ["the", "a", "An", "Theatre", "U.S.", "O'Neil", "café", "cafe\u0301", "İstanbul", "“the”", "–", "...", "a-n"]
PIECES += ["🙂", "العربية", "1,000", "the_end", "a\u0301", "\u200bthe\u200b", "ß", "12th", "in", "of", "dull", "good"]
SPACES = [" ", "  ", "\u00a0", "\u2003", "\t", "\n", "\u3000"]
FIRST, SECOND = "56be4db0", "56be4db1"


def slow_words(text: str) -> list[str]:
    """Letter by letter: an article is one where no letter or digit is next to it."""
    kept = "".join(letter for letter in text.lower() if letter not in ASCII_PUNCTUATION)
    runs = ("".join(letters) for _, letters in groupby(kept, key=str.isalnum))
    kept = "".join(" " if run in ("a", "an", "the") else run for run in runs)
    return ["".join(letters) for space, letters in groupby(kept, key=str.isspace) if not space]


def slow_f1(prediction: str, reference: str) -> float:
    """Twice the shared words over all words, each word of the reference found once."""
    words, left = slow_words(prediction), slow_words(reference)
    total, shared = len(words) + len(left), 0
    for word in words:
        if word in left:
            left.remove(word)
            shared += 1
    return 2 * shared / total if total else 0.0


def slow_scores(predictions: dict[str, str], references: dict[str, list[str]]) -> tuple[dict, dict]:
    """Exact match and F1 of each question that has a prediction, in SQuAD 1.1."""
    exact, f1 = {}, {}
    for name in predictions:
        exact[name] = any(slow_words(predictions[name]) == slow_words(text) for text in references[name])
        f1[name] = max(slow_f1(predictions[name], text) for text in references[name])
    return exact, f1


def slow_scores_2(predictions: dict[str, str], references: dict[str, list[str]]) -> tuple[dict, dict]:
    exact, f1 = {}, {}
    for name, prediction in predictions.items():
        texts = [text for text in references[name] if slow_words(text)]
        if texts:
            exact[name] = any(slow_words(prediction) == slow_words(text) for text in texts)
            f1[name] = max(slow_f1(prediction, text) for text in texts)
        else:
            exact[name] = f1[name] = not slow_words(prediction)
    return exact, f1


def mean(scores: dict[str, float], names: list[str]) -> float:
    return 100 * float(np.mean([scores[name] for name in names]))


def draw_text(rng: np.random.Generator, most: int = 5) -> str:
    words = rng.choice(PIECES, rng.integers(0, most + 1))
    return "".join(f"{word}{rng.choice(SPACES)}" for word in words)


def draw(rng: np.random.Generator, number: int, impossible: float = 0.0) -> tuple[dict, dict]:
    """Predictions, half of them a reference with words lost or added, and references by id, in other orders."""
    references = {
        f"q{index}": [] if rng.random() < impossible else [draw_text(rng) for _ in range(rng.integers(1, 4))]
        for index in range(number)
    }
    predictions = {}
    for name in rng.permutation(list(references)).tolist():
        near = str(rng.choice(references[name] or [""]))
        predictions[name] = draw_text(rng) if rng.random() < 0.5 else near[rng.integers(0, 4) :] + draw_text(rng, 1)
    return predictions, references


def emptied(predictions: dict[str, str], no_answer: dict[str, float], threshold: float) -> dict[str, str]:
    return {name: "" if no_answer[name] > threshold else text for name, text in predictions.items()}


def scores_of_version_2(
    predictions: dict[str, str], references: dict[str, list[str]], no_answer: dict[str, float]
) -> dict[str, float]:
    marks = squad.mark(predictions, references, {name: no_answer[name] for name in predictions})
    return squad.squad2_scores(marks) | squad.best_thresholds(marks)


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("The  Cat's\tpyjamas.", "cats pyjamas"),
        ("a an the", ""),
        ("A. theatre, another", "theatre another"),  # an article with a full stop is one, part of a word is none
        ("well-known / a_b", "wellknown ab"),
        ("“The End” – it’s", "“ end” – it’s"),  # typographic punctuation counts, and is no part of the word
        ("the\u00a0Loire\u2003Valley\n", "loire valley"),
        ("ÉCOLE İ", "école i̇"),
        ("", ""),
        ("\u200bthe", "\u200b"),  # a zero-width space is no space, but parts words
    ],
)
def test_what_is_ignored_of_an_answer(text, normalised):
    assert squad.normalize_answer(text) == normalised


def test_random_texts_are_normalised_as_letter_by_letter():
    rng = np.random.default_rng(0)
    for text in (draw_text(rng) for _ in range(2000)):
        assert squad.normalize_answer(text).split() == slow_words(text), text


@pytest.mark.parametrize(
    ("prediction", "references", "version_1", "version_2"),
    [
        ("Denver Broncos", ["the Denver Broncos"], (1, 1), (1, 1)),
        ("Denver", ["Denver Broncos"], (0, 2 / 3), (0, 2 / 3)),
        ("Carolina", ["Denver Broncos"], (0, 0), (0, 0)),
        ("Denver Broncos", ["Broncos Denver"], (0, 1), (0, 1)),  # the order of words is exact match's
        ("to be or not to be", ["to be to"], (0, 2 / 3), (0, 2 / 3)),  # each word once: 3 shared of 6 and 3
        ("gold", ["golden", "the gold."], (1, 1), (1, 1)),  # the best of several
        ("a b c", ["b d", "b c d e"], (0, 2 / 3), (0, 2 / 3)),
        ("", ["gold"], (0, 0), (0, 0)),
        ("the", ["A", "gold"], (1, 0), (0, 0)),  # 2.0 knows only "gold"
        ("the", ["A"], (1, 0), (1, 1)),  # 2.0 has no reference left
        ("", ["..."], (1, 0), (1, 1)),
        ("gold", ["..."], (0, 0), (0, 0)),
    ],
)
def test_questions_scored_by_hand(prediction, references, version_1, version_2):
    scores = squad.squad1_scores({FIRST: prediction}, {FIRST: references})
    assert (scores["exact_match"], scores["f1"]) == pytest.approx([100 * score for score in version_1])
    marks = squad.mark({FIRST: prediction}, {FIRST: references})
    assert (marks.exact[0], marks.f1[0]) == pytest.approx(version_2)


@pytest.mark.parametrize(("prediction", "right"), [("", 1), ("The.", 1), ("gold", 0)])
def test_without_answer_only_the_empty_prediction_is_right(prediction, right):
    marks = squad.mark({FIRST: prediction}, {FIRST: []})
    assert (marks.exact.tolist(), marks.f1.tolist(), marks.answerable.tolist()) == ([right], [right], [False])


def test_version_1_is_its_definition_on_random_answers():
    for seed in range(60):
        predictions, references = draw(np.random.default_rng(seed), 23)
        exact, f1 = slow_scores(predictions, references)
        expected = {"exact_match": mean(exact, references), "f1": mean(f1, references)}
        scores = squad.squad1_scores(predictions, references)
        assert scores == pytest.approx(expected) and list(scores) == list(expected), seed


def test_version_1_is_torchmetrics():
    for seed in range(20):
        predictions, references = draw(np.random.default_rng(seed), 23)
        # Where both sides are empty it has the F1 of 2.0.
        references = {
            name: [text for text in texts if slow_words(text)] or ["é"] for name, texts in references.items()
        }
        rows = [{"id": name, "prediction_text": text} for name, text in predictions.items()]
        answers = {name: {"text": texts, "answer_start": [0] * len(texts)} for name, texts in references.items()}
        expected = torchmetrics.text.SQuAD()(rows, [{"id": name, "answers": answers[name]} for name in references])
        scores = squad.squad1_scores(predictions, references)
        assert scores == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-5), seed


def test_version_2_is_its_definition_on_random_answers():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        predictions, references = draw(rng, 23, impossible=0.4)
        no_answer = {name: float(rng.random()) for name in predictions}
        exact, f1 = slow_scores_2(predictions, references)
        scores = scores_of_version_2(predictions, references, no_answer)
        has = [name for name in references if references[name]]
        for prefix, names in (("", references), ("HasAns_", has), ("NoAns_", references.keys() - has)):
            expected = {f"{prefix}exact": mean(exact, names), f"{prefix}f1": mean(f1, names)}
            assert {name: scores[name] for name in expected} == pytest.approx(expected), seed
            assert scores[f"{prefix}total"] == len(names)


def test_the_best_threshold_is_the_lowest_of_all_that_score_best():
    rng = np.random.default_rng(1)
    for _ in range(30):
        predictions, references = draw(rng, 17, impossible=0.5)
        references = {name: [text for text in texts if slow_words(text)] for name, texts in references.items()}
        predictions = {name: text if slow_words(text) else "" for name, text in predictions.items()}
        no_answer = dict(zip(predictions, rng.permutation(17) / 16 + 0.01, strict=True))
        candidates = [0.0, *sorted(no_answer.values())]
        all_scores = [slow_scores_2(emptied(predictions, no_answer, value), references) for value in candidates]
        scores = scores_of_version_2(predictions, references, no_answer)
        for kind, name in enumerate(("exact", "f1")):
            means = [mean(pair[kind], references) for pair in all_scores]
            assert scores[f"best_{name}"] == pytest.approx(max(means))
            best = next(place for place, value in enumerate(means) if value > max(means) - 1e-9)
            assert scores[f"best_{name}_thresh"] == candidates[best]


@pytest.mark.parametrize(("answerable_first", "best"), [(True, 40 + 14), (False, 40 - 13 + 14)])
def test_questions_of_equal_probability_are_taken_in_the_order_of_the_predictions(answerable_first, best):
    """The official script's doing: the first of these scores no threshold gives.

    "" everywhere is right 40 times. The lowest third is 14 questions with an answer, and 13 without one.
    """
    references = {f"q{number}": ["gold"] if number < 40 else [] for number in range(80)}
    no_answer = {name: 0.25 + 0.25 * (number % 3) for number, name in enumerate(references)}
    predictions = dict.fromkeys(references if answerable_first else reversed(references), "gold")
    scores = scores_of_version_2(predictions, references, no_answer)
    assert (scores["best_exact"], scores["best_exact_thresh"]) == (100 * best / 80, 0.25)


def test_a_missing_prediction_counts_as_wrong_in_version_1_and_not_at_all_in_version_2():
    predictions, references = {FIRST: "gold"}, {FIRST: ["gold"], SECOND: ["silver"]}
    assert squad.squad1_scores(predictions, references) == {"exact_match": 50, "f1": 50}
    scores = squad.squad2_scores(squad.mark(predictions, references))
    assert scores == {"exact": 100, "f1": 100, "total": 1, "HasAns_exact": 100, "HasAns_f1": 100, "HasAns_total": 1}


def test_random_missing_predictions_count_as_in_the_official_scorers():
    """1.1 divides by the number of questions, 2.0 scores those that have predictions."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        predictions, references = draw(rng, 23)
        predictions = {name: text for name, text in predictions.items() if rng.random() < 0.6}
        exact, f1 = slow_scores(predictions, references)
        missing = dict.fromkeys(references, 0.0)
        expected = {"exact_match": mean(missing | exact, references), "f1": mean(missing | f1, references)}
        assert squad.squad1_scores(predictions, references) == pytest.approx(expected), seed
        exact, f1 = slow_scores_2(predictions, references)
        scores = squad.squad2_scores(squad.mark(predictions, references))
        expected = {"exact": mean(exact, predictions), "f1": mean(f1, predictions), "total": len(predictions)}
        assert {name: scores[name] for name in expected} == pytest.approx(expected), seed


def test_the_scores_of_version_2_have_the_official_names():
    scores = scores_of_version_2({FIRST: "gold", SECOND: ""}, {SECOND: [], FIRST: ["gold"]}, {FIRST: 0.1, SECOND: 0.9})
    groups = [f"{prefix}{name}" for prefix in ("", "HasAns_", "NoAns_") for name in ("exact", "f1", "total")]
    assert list(scores) == [*groups, "best_exact", "best_exact_thresh", "best_f1", "best_f1_thresh"]
    assert scores["best_exact_thresh"] == 0.1  # in double precision


def test_each_text_is_normalised_once(monkeypatch):
    seen, normalize = [], squad.normalize_answer
    monkeypatch.setattr(squad, "normalize_answer", lambda text: seen.append(text) or normalize(text))
    references = {FIRST: ["gold", "the gold", "golden"], SECOND: ["silver"]}
    squad.squad1_scores({FIRST: "a", SECOND: "b"}, references)
    assert sorted(seen) == ["a", "b", "gold", "golden", "silver", "the gold"]
    seen.clear()
    marks = squad.mark({FIRST: "a", SECOND: "b"}, references)
    squad.squad2_scores(marks), squad.best_thresholds(marks)
    assert sorted(seen) == ["a", "b", "gold", "golden", "silver", "the gold"]


def test_without_questions_there_is_nothing_to_score():
    with pytest.raises(ValueError, match="there are no questions to score"):
        squad.squad1_scores({}, {})
    with pytest.raises(ValueError, match="there is nothing to score"):
        squad.mark({FIRST: "gold"}, {SECOND: ["silver"]})


def test_a_question_without_answers_is_not_of_version_1():
    with pytest.raises(ValueError, match=f"question {SECOND} has no answers, which SQuAD 1.1 does not know: score as"):
        squad.squad1_scores({FIRST: "gold", SECOND: ""}, {FIRST: ["gold"], SECOND: []})


def test_a_probability_that_is_missing_or_no_number_is_refused():
    predictions, references = {FIRST: "gold", SECOND: ""}, {FIRST: ["gold"], SECOND: []}
    with pytest.raises(ValueError, match=f"the no-answer probability of question {SECOND} is NaN"):
        scores_of_version_2(predictions, references, {FIRST: 0.5, SECOND: float("nan")})
    with pytest.raises(ValueError, match=f"1 predictions have no no-answer probability, the first is {SECOND}"):
        squad.mark(predictions, references, {FIRST: 0.5})


@pytest.mark.slow
def test_the_last_reference_of_each_published_question_is_all_right(data):
    """But in F1 of 1.1 where it is nothing but an article."""
    articles = json.loads((data / "squad" / "dev-v1.1.json").read_text(encoding="utf-8"))["data"]
    questions = [question for article in articles for part in article["paragraphs"] for question in part["qas"]]
    references = {question["id"]: [answer["text"] for answer in question["answers"]] for question in questions}
    predictions = {name: texts[-1] for name, texts in references.items()}
    empty = sum(not slow_words(text) for text in predictions.values())
    assert len(references) == 10570 and empty == 1
    scores = squad.squad1_scores(predictions, references)
    assert scores == {"exact_match": 100, "f1": pytest.approx(100 * (10570 - empty) / 10570)}
