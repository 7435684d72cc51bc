"""Answers against loops over all starts and all ends, and all of SQuAD's dev questions by an oracle."""

import dataclasses
import json
import math
import os
import string
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset
from transformers import BertTokenizer

from elmo_gpt_bert.metrics.squad_scores import best_thresholds, mark, squad1_scores, squad2_scores
from elmo_gpt_bert.tasks.squad import answering
from elmo_gpt_bert.tasks.squad.answering import find_answers, rank_answers
from elmo_gpt_bert.tasks.squad.data import read_folder
from elmo_gpt_bert.tasks.squad.features import Windows, make_windows
from modeling import ElmoTokenizer
from run_squad import Answering
from tests.conftest import ROOT
from tests.support.glue_sample import WORDS, write_vocabulary
from tests.tasks.test_windows import sentence_pieces


LOWEST = np.finfo(np.float32).min
Outputs = dict[str, list[np.ndarray]]
WITHOUT_A_SPAN = ("56dfa1d34a1a83140091ebd4", "5726ed6cf1498d1400e8f00d")  # all of those in SQuAD's dev questions


@pytest.fixture
def bert(tmp_path) -> BertTokenizer:
    return BertTokenizer(vocab=str(write_vocabulary(tmp_path)))


def questions(*contexts: str) -> Dataset:
    names = [f"q{number}" for number in range(len(contexts))]
    return Dataset.from_dict({"id": names, "context": list(contexts), "question": ["is it ?"] * len(contexts)})


def texts(number: int, longest: int = 40) -> list[str]:
    """Random words, of which many come more than once."""
    rng = np.random.default_rng(number)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest))) for _ in range(number)]


def random_outputs(windows: Windows, seed: int = 0, rounding: float | None = None) -> Outputs:
    """Scores for each row's tokens, and greater ones for columns after them, which padding has left there."""
    rng = np.random.default_rng(seed)
    lengths = [len(row) for row in windows.features["input_ids"][:]]

    def scores(length: int) -> np.ndarray:
        values = rng.normal(size=length).astype(np.float32) * 3
        values = np.round(values / rounding) * rounding if rounding else values
        return np.append(values, rng.uniform(50, 60, 5)).astype(np.float32)

    return {name: [scores(length) for length in lengths] for name in ("start_logits", "end_logits")}


@pytest.fixture
def sample(bert):
    """(examples, windows, outputs): 60 questions, most of them with several windows."""
    examples = questions(*texts(60))
    windows = make_windows(examples, bert, 20, 7)
    assert np.bincount(windows.question).max() > 3 and (np.bincount(windows.question) == 1).any()
    return examples, windows, random_outputs(windows)


# The slow way


def windows_of(number: int, windows: Windows, outputs: Outputs) -> Iterator[tuple]:
    """Of one question's windows the scores of the context's tokens, their characters, and the score of no answer."""
    for window in np.flatnonzero(windows.question == number):
        column, count, first = windows.column[window], windows.tokens[window], windows.first[window]
        starts, ends = (outputs[name][window] for name in ("start_logits", "end_logits"))
        null = (starts[windows.null[window]], ends[windows.null[window]])
        own = slice(column, column + count)
        yield starts[own], ends[own], windows.spans[first : first + count].tolist(), null


def slow_best(number: int, context: str, windows: Windows, outputs: Outputs, n: int, longest: int) -> list[dict]:
    """The best answers: of each window the `n` best pairs of all, then of all windows the `n` best texts."""
    found = []
    for starts, ends, places, _ in windows_of(number, windows, outputs):
        pairs = []
        for start in range(len(places)):
            for end in range(start, min(start + longest, len(places))):
                text = context[places[start][0] : places[end][1]]
                pairs.append({"text": text, "start_logit": starts[start], "end_logit": ends[end]})
        found += sorted(pairs, key=score, reverse=True)[:n]
    different = {}
    for pair in sorted(found, key=score, reverse=True):
        different.setdefault(pair["text"], pair)
    return list(different.values())[:n]


def slow_null(number: int, windows: Windows, outputs: Outputs) -> dict:
    nulls = [null for *_, null in windows_of(number, windows, outputs)]
    start, end = min(nulls, key=sum)
    return {"text": "", "start_logit": start, "end_logit": end}


def score(entry: dict) -> float:
    return float(entry["start_logit"]) + float(entry["end_logit"])


def run_qa(number: int, context: str, windows: Windows, outputs: Outputs, n: int, longest: int) -> list[dict]:
    """transformers' rule: of each window only the `n` best starts with the `n` best ends of all its columns."""
    found = []
    for window in np.flatnonzero(windows.question == number):
        starts, ends = (outputs[name][window] for name in ("start_logits", "end_logits"))
        column, count, first = windows.column[window], windows.tokens[window], windows.first[window]
        for start in np.argsort(starts)[: -n - 1 : -1].tolist():
            for end in np.argsort(ends)[: -n - 1 : -1].tolist():
                inside = column <= start and end < column + count
                if inside and start <= end < start + longest:
                    begin, stop = windows.spans[first + start - column, 0], windows.spans[first + end - column, 1]
                    pair = {"text": context[begin:stop], "start_logit": starts[start], "end_logit": ends[end]}
                    found.append(pair)
    return sorted(found, key=score, reverse=True)[:n]


def assert_entries(found: list[dict], expected: list[dict]) -> None:
    assert [entry["text"] for entry in found] == [entry["text"] for entry in expected]
    for name in ("start_logit", "end_logit"):
        np.testing.assert_allclose([e[name] for e in found], [e[name] for e in expected], atol=1e-6)
    weights = np.exp([score(entry) - max(map(score, expected)) for entry in expected])
    np.testing.assert_allclose([entry["probability"] for entry in found], weights / weights.sum(), atol=1e-6)


# Answers


@pytest.mark.parametrize(("n", "longest"), [(20, 30), (20, 4), (1, 30), (3, 1), (500, 30)])
def test_answers_are_those_of_a_loop_over_all_starts_and_all_ends(sample, monkeypatch, n, longest):
    monkeypatch.setattr(answering, "ROWS", 7)  # windows of one question are not always looked at together
    examples, windows, outputs = sample
    answers = find_answers(examples, windows, outputs, n, longest)
    assert list(answers.predictions) == list(answers.nbest) == examples["id"][:] and answers.null_odds == {}
    for number, example in enumerate(examples):
        expected = slow_best(number, example["context"], windows, outputs, n, longest)
        assert_entries(answers.nbest[example["id"]], expected)
        assert answers.predictions[example["id"]] == expected[0]["text"]


@pytest.mark.parametrize("threshold", [0.0, 4.0, -3.5, 1e9, -1e9])
def test_no_answer_competes_with_the_score_of_the_window_that_gives_it_the_lowest(sample, threshold):
    examples, windows, outputs = sample
    answers = find_answers(examples, windows, outputs, 20, 30, threshold)
    places = []
    for number, example in enumerate(examples):
        expected = slow_best(number, example["context"], windows, outputs, 20, 30)
        null, best = slow_null(number, windows, outputs), expected[0]
        odds = score(null) - score(best)
        assert answers.null_odds[example["id"]] == pytest.approx(odds, abs=1e-5)
        assert answers.predictions[example["id"]] == ("" if odds > threshold else best["text"])
        ranked = sorted([*expected, null], key=score, reverse=True)
        places.append(ranked.index(null))
        assert_entries(answers.nbest[example["id"]], ranked[:20] + [null] * (places[-1] == 20))
    assert 20 in places and 0 < min(set(places) - {0}) < 20  # beyond the n best, and among them


def test_an_answer_whose_odds_are_the_threshold_stays(sample):
    """The best threshold of a validation set is the odds of one of its questions, which has its answer then."""
    examples, windows, outputs = sample
    odds = find_answers(examples, windows, outputs, 20, 30, 0.0).null_odds
    for name in list(odds)[:5]:
        answers = find_answers(examples, windows, outputs, 20, 30, odds[name])
        assert answers.predictions[name] == answers.best[name] != ""


def official_files(examples: Dataset, windows: Windows, outputs: Outputs, threshold: float | None) -> list[str]:
    """The three files by the rules of the official n best: every answer is ranked before the best is taken."""
    predictions, nbest, odds = {}, {}, {}
    for number, example in enumerate(examples):
        ranked = slow_best(number, example["context"], windows, outputs, 20, 30)
        best = ranked[0]
        predictions[example["id"]] = best["text"]
        if threshold is not None:
            null = slow_null(number, windows, outputs)
            odds[example["id"]] = score32(null) - score32(best)
            if odds[example["id"]] > threshold:
                predictions[example["id"]] = ""
            places = sorted([*ranked, null], key=score32, reverse=True)
            ranked = places[:20] + [null] * (null in places[20:])
        highest = max(map(score32, ranked))
        weights = [math.exp(score32(entry) - highest) for entry in ranked]
        nbest[example["id"]] = [
            {"text": entry["text"], "probability": weight / sum(weights)}
            | {name: float(entry[name]) for name in ("start_logit", "end_logit")}
            for entry, weight in zip(ranked, weights, strict=True)
        ]
    return [json.dumps(content, indent=4, ensure_ascii=False) + "\n" for content in (predictions, nbest, odds)]


def score32(entry: dict) -> float:
    """The sum of the scores in their precision."""
    return float(entry["start_logit"] + entry["end_logit"])


@pytest.mark.parametrize("threshold", [None, 0.0, -1.0])
def test_the_files_are_to_the_byte_those_of_answers_that_are_all_ranked_first(sample, threshold):
    examples, windows, outputs = sample
    answers = find_answers(examples, windows, outputs, 20, 30, threshold)
    task = Answering(None, None, None, None)
    files = task.write("test", answers)
    expected = official_files(examples, windows, outputs, threshold)
    names = ["predictions.json", "nbest_predictions.json", "null_odds.json"]
    assert files == dict(zip(names[: 2 if threshold is None else 3], expected, strict=False))


def test_the_best_answer_is_that_of_transformers_rule_wherever_that_looks_at_it(sample):
    examples, windows, outputs = sample
    outputs = {name: [row[:-5] for row in rows] for name, rows in outputs.items()}
    answers = find_answers(examples, windows, outputs, 5, 6)
    looked_at = 0
    for number, example in enumerate(examples):
        (best, *_), theirs = answers.nbest[example["id"]], run_qa(number, example["context"], windows, outputs, 5, 6)
        assert not theirs or score(best) >= score(theirs[0]) - 1e-6
        every = run_qa(number, example["context"], windows, outputs, 1000, 6)
        assert best["text"] == every[0]["text"]
        if best["text"] in [entry["text"] for entry in theirs]:
            assert theirs[0]["text"] == best["text"]
            looked_at += 1
    assert 10 < looked_at < len(examples)


def test_an_answer_has_at_most_so_many_tokens(sample, bert):
    examples, windows, outputs = sample
    for longest in (1, 2, 5):
        nbest = find_answers(examples, windows, outputs, 20, longest).nbest.values()
        assert max(len(bert.tokenize(entry["text"])) for entries in nbest for entry in entries) == longest


def test_equal_texts_are_one_answer_with_the_best_of_their_scores(bert):
    examples = questions("good film good film")
    windows = make_windows(examples, bert, 20, 3)  # [CLS] is it ? [SEP] good film good film [SEP]
    starts, ends = np.zeros((2, 10), dtype=np.float32)
    starts[[5, 7]], ends[[6, 8]] = (3, 4), 2
    entries = find_answers(examples, windows, {"start_logits": [starts], "end_logits": [ends]}).nbest["q0"]
    assert len({entry["text"] for entry in entries}) == len(entries) == 8 - 1  # of 10 spans 3 are like another one
    assert (entries[0]["text"], entries[0]["start_logit"]) == ("good film", 4)


def test_a_context_of_one_token_is_the_answer(bert):
    examples = questions("good", "  film\n")
    windows = make_windows(examples, bert, 20, 3)
    answers = find_answers(examples, windows, random_outputs(windows))
    assert answers.predictions == {"q0": "good", "q1": "film"}
    assert [entry["probability"] for entry in answers.nbest["q0"]] == [1.0]


def test_tokens_without_a_character_are_an_answer_only_where_there_is_no_other(bert):
    examples = questions("good film")
    windows = make_windows(examples, bert, 20, 3)
    for ends, texts in (([0, 9], ["good film", "film"]), ([0, 0], [""])):
        empty = dataclasses.replace(windows, spans=np.array([[0, ends[0]], [min(5, ends[1]), ends[1]]]))
        entries = find_answers(examples, empty, random_outputs(empty)).nbest["q0"]
        assert sorted(entry["text"] for entry in entries) == sorted(texts)


def test_scores_that_are_equal_as_those_of_low_precision_give_one_of_the_best(bert):
    examples = questions(*texts(40))
    windows = make_windows(examples, bert, 20, 7)
    outputs = random_outputs(windows, rounding=2.0)
    answers = find_answers(examples, windows, outputs, 20, 30, 0.0)
    for number, example in enumerate(examples):
        expected = slow_best(number, example["context"], windows, outputs, 20, 30)
        entries = [entry for entry in answers.nbest[example["id"]] if entry["text"]]
        assert score(entries[0]) == score(expected[0])
        assert list(map(score, entries)) == sorted(map(score, entries), reverse=True)
        every = slow_best(number, example["context"], windows, outputs, 10**6, 30)
        known = {(entry["text"], score(entry)) for entry in every}
        assert all((entry["text"], score(entry)) in known for entry in entries)
        assert len({entry["text"] for entry in entries}) == len(entries)
    again = find_answers(examples, windows, outputs, 20, 30, 0.0)
    assert again == answers and again.nbest == answers.nbest


def test_the_lowest_possible_scores_of_elmos_questions_disturb_nothing():
    examples, tokenizer = questions(*texts(20)), ElmoTokenizer()
    windows = make_windows(examples, tokenizer, 16, 5)
    outputs = random_outputs(windows)
    plain = find_answers(examples, windows, outputs, 20, 30, 0.0)
    for rows in outputs.values():
        for row in rows:
            row[1:3] = LOWEST  # the question's words after the first, whose score is that of no answer
    with np.errstate(all="raise", under="ignore"):
        answers = find_answers(examples, windows, outputs, 20, 30, 0.0)
        assert answers == plain and answers.nbest == plain.nbest


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        ("the cafe\u0301 is good", "cafe\u0301"),
        ("שָׁלוֹם", "שָׁלוֹם"),
        ("is ❤\ufe0f good", "❤\ufe0f"),
        ("the 👩\u200d👩\u200d👧 film", "👩\u200d👩\u200d👧"),
    ],
)
def test_an_answer_keeps_the_marks_on_its_last_letter_that_the_tokenizer_drops(bert, context, answer):
    examples = questions(context)
    windows = make_windows(examples, bert, 30, 3)
    begins, ends = windows.spans.T
    rows = np.zeros((2, 30), dtype=np.float32)
    start = windows.column[0] + np.flatnonzero(begins <= context.index(answer))[-1]
    end = windows.column[0] + np.flatnonzero(begins < context.index(answer) + len(answer))[-1]
    rows[0, start] = rows[1, end] = 9
    answers = find_answers(examples, windows, {"start_logits": [rows[0]], "end_logits": [rows[1]]})
    assert answers.predictions == {"q0": answer}


def test_an_answer_has_no_space_around_it_though_the_tokens_do():
    context = " good  film\nis good "
    tokenizer = sentence_pieces([context, "the good film is it ?"] * 9, "[CLS] $A [SEP] $B [SEP]")
    examples = questions(context, context)
    windows = make_windows(examples, tokenizer, 60, 3)
    assert any(context[begin:end] == " film" for begin, end in windows.spans.tolist())
    nbest = find_answers(examples, windows, random_outputs(windows), 1000).nbest
    texts = [entry["text"] for entry in nbest["q0"]]
    assert all(text == text.strip() != "" for text in texts) and len(set(texts)) == len(texts) and "film" in texts
    entries, _ = next(rank_answers([context], windows, random_outputs(windows), 1000, 30))
    assert [context[entry.begin : entry.end] for entry in entries] == texts


# An oracle


@pytest.fixture(scope="module")
def squad() -> tuple[Dataset, Dataset, Windows, list[int]]:
    """Every fourth of SQuAD's dev questions and those that no span answers, each of the different answers to each as
    a question of its own, the windows of these, and the number of the dev question.
    """
    folder = Path(os.environ.get("ZOO_DATA", ROOT.parent / "shared" / "data"))
    if not (folder / "squad" / "dev-v1.1.json").is_file():
        pytest.skip(f"no SQuAD at {folder}; set ZOO_DATA to the folder that holds squad/, vocab/, ...")
    dev = read_folder(folder / "squad", ["validation"], False)["validation"]
    chosen = [number for number, name in enumerate(dev["id"]) if number % 4 == 0 or name in WITHOUT_A_SPAN]
    dev = dev.select(chosen)
    rows, numbers = [], []
    for number, row in enumerate(dev.to_list()):
        for text, start in dict.fromkeys(zip(row["answers"]["text"], row["answers"]["answer_start"], strict=True)):
            answers = {"text": [text], "answer_start": [start]}
            rows.append({**row, "id": str(len(rows)), "answers": answers})
            numbers.append(number)
    examples = Dataset.from_list(rows)
    tokenizer = BertTokenizer(vocab=str(folder / "vocab" / "bert-base-uncased-vocab.txt"))
    return dev, examples, make_windows(examples, tokenizer, train=True), numbers


def why_not(example: dict, windows: Windows, mine: range, longest: int = 30) -> str:
    """Why no span of whole tokens in one of the question's windows, `mine`, is its answer; empty where one is."""
    (text,), (begin,) = example["answers"]["text"], example["answers"]["answer_start"]
    end, base = begin + len(text), windows.first[mine[0]]
    tokens = windows.spans[base : windows.first[mine[-1]] + windows.tokens[mine[-1]]].tolist()
    inside = [place for place, (a, b) in enumerate(tokens) if a < end and b > begin]
    if len(inside) > longest:
        return "too long"
    if normalized(example["context"][tokens[inside[0]][0] : tokens[inside[-1]][1]]) != normalized(text):
        return "cut inside a token"
    firsts = [(windows.first[window] - base, windows.tokens[window]) for window in mine]
    return "" if any(a <= inside[0] and inside[-1] < a + n for a, n in firsts) else "in no single window"


def normalized(text: str) -> list[str]:
    words = "".join(letter for letter in text.lower() if letter not in string.punctuation).split()
    return [word for word in words if word not in ("a", "an", "the")]


@pytest.fixture(scope="module")
def possible(squad) -> tuple[dict[int, int], dict[int, str]]:
    """By the number of the dev question: its first answer that can be given, or else why the first one cannot."""
    _, examples, windows, numbers = squad
    begins = np.searchsorted(windows.question, np.arange(len(examples) + 1)).tolist()
    rows, reasons = {}, {}
    for row, example in enumerate(examples.to_list()):
        if reason := why_not(example, windows, range(begins[row], begins[row + 1])):
            reasons.setdefault(numbers[row], reason)
        else:
            rows.setdefault(numbers[row], row)
    return rows, {number: reason for number, reason in reasons.items() if number not in rows}


def oracle(windows: Windows, unanswerable: np.ndarray | None = None) -> Outputs:
    """All mass on the windows' labels; on no answer where the mask (questions,) says so."""
    outputs = {}
    for logits, label in (("start_logits", "start_positions"), ("end_logits", "end_positions")):
        columns = np.array(windows.features[label][:])
        if unanswerable is not None:
            columns = np.where(unanswerable[windows.question], windows.null, columns)
        rows = [np.zeros(width, dtype=np.float32) for width in (windows.column + windows.tokens + 1).tolist()]
        for row, column in zip(rows, columns.tolist(), strict=True):
            row[column] = 10
        outputs[logits] = rows
    return outputs


def references(dev: Dataset, numbers: Iterable[int], unanswerable: int = 0) -> dict[int, list[str]]:
    """The answers to these questions; where wanted, each of so many has none."""
    texts = [answers["text"] for answers in dev["answers"]]
    return {n: [] if unanswerable and n % unanswerable == 0 else texts[n] for n in numbers}


@pytest.mark.slow
def test_an_oracle_has_every_question_right_whose_answer_whole_tokens_of_one_window_can_give(squad, possible):
    dev, examples, windows, numbers = squad
    rows, impossible = possible
    assert len(rows) + len(impossible) == len(dev) == 2645
    found = find_answers(examples, windows, oracle(windows), 1).predictions
    given = {number: found[str(row)] for number, row in rows.items()}
    given |= {number: found[str(numbers.index(number))] for number in impossible}

    def scores(chosen) -> dict[str, float]:
        return squad1_scores({number: given[number] for number in chosen}, references(dev, chosen))

    assert scores(rows) == {"exact_match": 100, "f1": 100}
    assert scores(impossible)["exact_match"] == 0
    kinds = Counter(impossible.values())
    assert kinds == {"too long": 1, "cut inside a token": 1}, f"no span answers {len(impossible)} of 2,645: {kinds}"


@pytest.mark.slow
def test_an_oracle_of_squad_2_has_every_question_right_with_and_without_an_answer(squad, possible):
    dev, examples, windows, numbers = squad
    rows, _ = possible
    found = find_answers(examples, windows, oracle(windows, np.array(numbers) % 3 == 0), 1, 30, null_threshold=0.0)
    ids = {number: str(rows.get(number, numbers.index(number))) for number in range(0, len(dev), 3)}
    ids |= {number: str(row) for number, row in rows.items()}
    predictions, odds = (
        {number: texts[name] for number, name in ids.items()} for texts in (found.predictions, found.null_odds)
    )
    marks = mark(predictions, references(dev, ids, 3), odds)
    scores = squad2_scores(marks) | best_thresholds(marks)
    assert scores["NoAns_total"] == 882 and scores["HasAns_total"] > 1700
    names = ("exact", "f1", "HasAns_exact", "HasAns_f1", "NoAns_exact", "NoAns_f1", "best_exact", "best_f1")
    assert {name: scores[name] for name in names} == dict.fromkeys(names, 100)
