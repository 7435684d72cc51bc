"""The demo's sample is what it says, and the demo shows what its models have learned."""

import re

import pytest

from demo import __main__ as demo
from demo import sample
from elmo_gpt_bert.training.errors import MissingFileError
from tests.conftest import ROOT
from tests.project.test_house import blocks


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


def comparable(text: str) -> list[str]:
    """The lines of a text without the scores of fine-tuned models, whose last digits depend on the processor."""
    return re.sub(r"\d+\.\d+(?=%|\)$)", "#", text, flags=re.MULTILINE).splitlines()


@pytest.mark.slow
def test_the_demo_shows_what_each_model_has_learned_and_what_pre_training_is_worth(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    demo.main(str(tmp_path))
    assert demo.accuracy(tmp_path / "pretrained") > 0.8 and demo.accuracy(tmp_path / "random") < 0.65
    assert not {*demo.SENTENCES} & {sentence for sentence, _ in sample.split_rows("train")}
    shown = capsys.readouterr().out
    assert re.findall(r"-> (\w+) \(", shown) == ["positive", "negative", "positive", "negative"]
    nearest = re.findall(r"^    0\.\d\d  (.* \.)$", shown, flags=re.MULTILINE)
    assert {*nearest[:2]} == {*demo.OCCURRENCES[::2]} and {*nearest[4:6]} == {*demo.OCCURRENCES[1::2]}
    assert len(re.findall(r"^    0\.\d\d  \w+$", shown, flags=re.MULTILINE)) == 5  # words for the blank
    assert len(re.search(rf"^    {demo.BEGINNING} (.+)$", shown, flags=re.MULTILINE).group(1).split()) > 10
    for guide in ("README.md", "README.zh.md"):
        promised = comparable(blocks(guide, "text")[0])
        assert len(promised) >= 12 and [line for line in promised if line not in comparable(shown)] == [], guide


def test_the_demo_takes_one_folder_and_runs_from_the_root_of_the_repository(tmp_path, monkeypatch, capsys):
    assert demo.parse([]).output_dir == "demo/output" and demo.parse(["out"]).output_dir == "out"
    for words in (["--help"], ["out", "another"]):
        with pytest.raises(SystemExit):
            demo.parse(words)
    assert "usage: python -m demo [-h] [OUTPUT_DIR]" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFileError, match="Run the demo from the root of the repository"):
        demo.main(str(tmp_path))
    assert not [*tmp_path.iterdir()]
