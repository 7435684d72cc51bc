"""Entity scores against seqeval, and against conlleval's own rules written out."""

import warnings
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from seqeval.metrics import accuracy_score, classification_report

from elmo_gpt_bert.metrics.entities import entity_scores


Tags = list[list[str]]

# The pairs of neighbouring tags of one type between which conlleval, or its copies for BIOES, ends or starts a chunk.
ENDING = "BB BO BS IB IO IS EB EE EI EO ES SB SE SI SO SS"
STARTING = "BB IB OB EB SB BS IS OS ES SS OI EI SI OE EE SE"


def draw(rng: np.random.Generator, alphabet: str, types: tuple[str, ...]) -> tuple[Tags, Tags]:
    """Random sentences, seldom well-formed, and copies of them with a third of the tags drawn again."""
    tags = [tag for tag in alphabet if tag in "O."]
    tags += [f"{prefix}-{name}" if name else prefix for prefix in alphabet if prefix not in "O." for name in types]
    gold = [rng.choice(tags, size).tolist() for size in rng.integers(1, 12, 7)]
    guess = [[tag if rng.random() < 0.67 else str(rng.choice(tags)) for tag in sentence] for sentence in gold]
    return guess, gold


def slow_conlleval(guess: Tags, gold: Tags) -> dict[str, float]:
    """The scores as the script finds them: word by word, with O after each sentence, and one flag."""
    right, found, present = Counter(), Counter(), Counter()
    inside_right = False
    last_guess = last_gold = ("O", "")
    for guess_tag, gold_tag in chain.from_iterable(
        [*zip(*sentences, strict=True), ("O", "O")] for sentences in zip(guess, gold, strict=True)
    ):
        new_guess, new_gold = ((*tag.split("-", 1), "")[:2] for tag in (guess_tag, gold_tag))
        guess_ends, gold_ends = slow_ends(last_guess, new_guess), slow_ends(last_gold, new_gold)
        if inside_right:
            if guess_ends and gold_ends and last_guess[1] == last_gold[1]:
                inside_right = False
                right[last_gold[1]] += 1
            elif guess_ends != gold_ends or new_guess[1] != new_gold[1]:
                inside_right = False
        guess_starts, gold_starts = slow_starts(last_guess, new_guess), slow_starts(last_gold, new_gold)
        if guess_starts and gold_starts and new_guess[1] == new_gold[1]:
            inside_right = True
        found[new_guess[1]] += guess_starts
        present[new_gold[1]] += gold_starts
        last_guess, last_gold = new_guess, new_gold
    equal = [a == b for pair in zip(guess, gold, strict=True) for a, b in zip(*pair, strict=True)]
    scores = slow_ratios("", right.total(), found.total(), present.total()) | {"accuracy": np.mean(equal)}
    for name in {*(+found), *(+present)} - {""}:
        scores |= slow_ratios(f"_{name}", right[name], found[name], present[name]) | {f"number_{name}": present[name]}
    return scores


def slow_ends(last: tuple[str, str], new: tuple[str, str]) -> bool:
    if last[0] in ("[", "]") or last[0] + new[0] in ENDING.split():
        return True
    return last[0] != "O" and last[0] != "." and last[1] != new[1]


def slow_starts(last: tuple[str, str], new: tuple[str, str]) -> bool:
    if new[0] in ("[", "]") or last[0] + new[0] in STARTING.split():
        return True
    return new[0] != "O" and new[0] != "." and last[1] != new[1]


def slow_ratios(suffix: str, right: int, found: int, present: int) -> dict[str, float]:
    precision, recall = right / max(found, 1), right / max(present, 1)
    f1 = 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0
    return {f"precision{suffix}": precision, f"recall{suffix}": recall, f"f1{suffix}": f1}


def seqeval_scores(guess: Tags, gold: Tags) -> dict[str, float]:
    report = classification_report(gold, guess, output_dict=True, zero_division=0)
    scores = {"accuracy": accuracy_score(gold, guess)}
    for name, values in report.items():
        if name not in ("macro avg", "weighted avg"):
            suffix = "" if name == "micro avg" else f"_{name}"
            scores |= {f"f1{suffix}": values["f1-score"], f"number{suffix}": values["support"]}
            scores |= {f"{score}{suffix}": values[score] for score in ("precision", "recall")}
    del scores["number"]
    return scores


@pytest.mark.parametrize("alphabet", ["OBI", "OI", "OBIES", "OES"])
def test_the_scores_are_seqevals(alphabet):
    for seed in range(60):
        guess, gold = draw(np.random.default_rng(seed), alphabet, ("PER", "LOC", "creative-work")[: 1 + seed % 3])
        assert entity_scores(guess, gold) == pytest.approx(seqeval_scores(guess, gold)), seed


@pytest.mark.parametrize("alphabet", ["OBI", "OI", "OBIES", "OES", "O[]", ".[", "OBI[]", "O.BIES[]"])
def test_the_scores_are_those_of_conllevals_rules(alphabet):
    for seed in range(60):
        guess, gold = draw(np.random.default_rng(seed), alphabet, [("PER",), ("PER", "LOC"), ("", "a-b-c")][seed % 3])
        assert entity_scores(guess, gold) == pytest.approx(slow_conlleval(guess, gold)), seed


@pytest.mark.parametrize(
    ("gold", "guess", "right", "found", "present"),
    [
        ("B-PER I-PER O B-LOC", "B-PER I-PER O B-LOC", 2, 2, 2),
        ("B-PER I-PER O B-LOC", "B-PER O O B-LOC", 1, 2, 2),  # too short
        ("B-PER I-PER O B-LOC", "B-PER I-PER I-PER B-LOC", 1, 2, 2),  # too long
        ("B-PER I-PER", "B-LOC I-LOC", 0, 1, 1),  # of another type
        ("B-PER I-PER", "I-PER I-PER", 1, 1, 1),  # I after O begins one
        ("B-PER B-LOC", "I-PER I-LOC", 2, 2, 2),  # so does I after another type
        ("B-PER B-PER", "I-PER I-PER", 0, 1, 2),  # but not after its own
        ("I-PER B-PER", "B-PER B-PER", 2, 2, 2),  # IOB1 and IOB2
        ("B-PER I-PER E-PER S-LOC", "B-PER I-PER I-PER B-LOC", 2, 2, 2),  # BIOES and IOB2
        ("B-PER E-PER E-PER", "B-PER I-PER B-PER", 2, 2, 2),  # E after E begins one
        ("S-PER I-PER", "B-PER B-PER", 2, 2, 2),
        ("B-PER E-PER", "B-PER O", 0, 1, 1),
        ("B-PER O", "B-PER I-LOC", 1, 2, 1),
        ("[-PER ]-PER", "B-PER B-PER", 2, 2, 2),  # one word each
        ("B-creative-work I-creative-work", "B-creative-work I-creative-play", 0, 2, 1),
        ("B I O", "B I O", 1, 1, 1),  # without a type
    ],
)
def test_entities_counted_by_hand(gold, guess, right, found, present):
    scores = entity_scores([guess.split()], [gold.split()])
    counted = {"precision": right / found, "recall": right / present, "f1": 2 * right / (found + present)}
    assert {name: scores[name] for name in counted} == pytest.approx(counted)


def test_an_entity_ends_with_its_sentence():
    assert entity_scores([["B-PER"], ["I-PER"]], [["B-PER"], ["B-PER"]])["f1"] == 1
    assert entity_scores([["B-PER", "I-PER"]], [["B-PER", "B-PER"]])["f1"] == 0


def test_each_type_has_its_scores_and_the_number_of_its_entities():
    gold = [["B-PER", "O", "B-PER", "B-LOC"], ["O", "B-LOC"]]
    guess = [["B-PER", "O", "B-LOC", "B-LOC"], ["B-ORG", "B-LOC"]]
    scores = entity_scores(guess, gold)
    assert list(scores)[:4] == ["f1", "precision", "recall", "accuracy"]  # the first chooses the best model
    overall = {"f1": 6 / 9, "precision": 3 / 5, "recall": 3 / 4, "accuracy": 4 / 6}
    person = {"f1_PER": 2 / 3, "precision_PER": 1, "recall_PER": 1 / 2, "number_PER": 2}
    place = {"f1_LOC": 4 / 5, "precision_LOC": 2 / 3, "recall_LOC": 1, "number_LOC": 2}
    other = {"f1_ORG": 0, "precision_ORG": 0, "recall_ORG": 0, "number_ORG": 0}
    assert scores == pytest.approx(overall | person | place | other)


@pytest.mark.parametrize(("guess", "gold"), [("O O", "B-PER O"), ("B-PER O", "O O"), ("O O", "O O")])
def test_without_entities_on_a_side_the_scores_are_zero_and_no_warning(guess, gold):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = entity_scores([guess.split()], [gold.split()])
    assert scores["f1"] == scores["precision"] == scores["recall"] == 0
    assert scores["accuracy"] == (1 if guess == gold else 0.5)


@pytest.mark.parametrize("tag", ["PER", "U-PER", "BPER", "b-PER", "", "-PER", "BI-PER", "O-PER", "0"])
def test_what_is_no_tag_is_an_error(tag):
    with pytest.raises(ValueError, match=f"'{tag}' is no tag of an entity: it must be O, or begin with B-, I-"):
        entity_scores([["O", tag]], [["O", "O"]])


def test_a_sentence_with_too_few_predictions_is_an_error():
    with pytest.raises(ValueError, match="sentence 2 has 1 predictions for 2 words"):
        entity_scores([["O"], ["O"]], [["O"], ["O", "B-PER"]])
