"""The demo's sample is what it says, and the demo learns it."""

import json
import re

import pytest

from demo import __main__ as demo
from demo import sample
from tests.conftest import ROOT


def clauses(sentence: str) -> list[str]:
    """The bare clauses of a review, its opening and conjunctions removed."""
    for opening in filter(None, sample.OPENINGS):
        sentence = sentence.removeprefix(opening)
    sentence = sentence.removeprefix("although ").removesuffix(" .")
    subjects = "|".join(" ".join(subject.split()) for subject in sample.SUBJECTS.split(","))
    return re.split(rf" , (?:and |but )?(?=(?:{subjects}) )", sentence)


def test_the_committed_sample_is_what_its_script_writes(tmp_path):
    sample.write_sample(tmp_path)
    for name in ["data/train.tsv", "data/dev.tsv", "vocab.txt"]:
        assert (tmp_path / name).read_text(encoding="utf-8") == (ROOT / "demo" / name).read_text(encoding="utf-8")


def test_dev_has_the_words_of_train_and_none_of_its_clauses():
    train, dev = ([sentence for sentence, _ in sample.split_rows(split)] for split in ("train", "dev"))
    assert {word for sentence in dev for word in sentence.split()} <= {word for line in train for word in line.split()}
    known, fresh = ({clause for sentence in rows for clause in clauses(sentence)} for rows in (train, dev))
    assert len(fresh) > 100 and not known & fresh


@pytest.mark.parametrize("split", ["train", "dev"])
def test_half_of_the_sample_is_positive(split):
    labels = [label for _, label in sample.split_rows(split)]
    assert sum(labels) * 2 == len(labels) == sample.ROWS[split]


def test_the_demo_learns_the_sample_and_classifies_new_sentences(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    demo.main(str(tmp_path))
    assert json.loads((tmp_path / "metrics.json").read_text())["eval_accuracy"] > 0.9
    assert not {*demo.SENTENCES} & {sentence for sentence, _ in sample.split_rows("train")}
    answers = re.findall(r"-> (\w+) \(", capsys.readouterr().out)
    assert answers == ["positive", "negative", "positive", "negative"]
