"""TriviaQA's release in miniature, and what its converter makes of it for SQuAD's readers."""

import json
import sys
import unicodedata
from pathlib import Path

import pytest

from elmo_gpt_bert.tasks.squad.data import read_files
from elmo_gpt_bert.training.errors import UserError
from examples.triviaqa import beginning, find_answers, fold, main


DOCUMENTS = {
    "Sinclair_Lewis.txt": "\n\nHarry Sinclair Lewis (1885) wrote novels.\n\nHe was AMERICAN , an American novelist.\n",
    "Caf\u00e9_M\u00fcller.txt": "Café Müller is a piece by Pina Bausch .",
    "Empty.txt": "\n",
    "Nothing.txt": "This one names nobody who was asked for.",
}
AMERICAN = {"Value": "American", "Aliases": ["American", "US"], "NormalizedAliases": ["american", "us"]}
PINA = {"Value": "Pina Bausch", "Aliases": ["Pina Bausch", "Bausch", "Philippine Bausch"], "HumanAnswers": ["pina"]}


def datum(number: int, answer: dict, *names: str, verified: bool | None = None) -> dict:
    """A question as the release has it, with what is not read, too."""
    marks = {} if verified is None else {"DocPartOfVerifiedEval": verified}
    pages = [{"DocSource": "TagMe", "Filename": name, "Title": name[:-4].replace("_", " "), **marks} for name in names]
    whole = {"Answer": answer, "EntityPages": pages, "Question": f"Question {number} ?", "QuestionId": f"tc_{number}"}
    whole |= {"QuestionSource": "http://www.triviacountry.com/", "SearchResults": [{"Filename": "0/0_1.txt"}]}
    return whole if verified is None else whole | {"QuestionPartOfVerifiedEval": verified}


def write_release(root: Path, data: list[dict], **changes: object) -> list[str]:
    """Writes the questions and the documents; gives the flags of the command."""
    evidence = root / "evidence"
    evidence.mkdir(exist_ok=True)
    for name, text in DOCUMENTS.items():
        (evidence / name).write_text(text, encoding="utf-8")
    whole = {"Data": data, "Domain": "Wikipedia", "Split": "train", "VerifiedEval": False, "Version": 1.0, **changes}
    (root / "questions.json").write_text(json.dumps(whole, ensure_ascii=True), encoding="utf-8")
    flags = {"--questions": "questions.json", "--evidence": "evidence", "--output": "squad.json"}
    return [word for flag, name in flags.items() for word in (flag, str(root / name))]


def converted(root: Path, flags: list[str]) -> list[dict]:
    main(flags)
    return read_files({"train": str(root / "squad.json")}, False)["train"].to_list()


def test_documents_with_an_answer_become_contexts_that_squads_reader_takes(tmp_path, capsys):
    names = ("Sinclair_Lewis.txt", "Nothing.txt", "Empty.txt", "Lost.txt")
    data = [datum(1, AMERICAN, *names), datum(2, PINA, "Caf\u00e9_M\u00fcller.txt"), datum(3, PINA, "Nothing.txt")]
    american, pina = converted(tmp_path, write_release(tmp_path, data))
    context = DOCUMENTS["Sinclair_Lewis.txt"].strip()
    assert american == {
        "id": "tc_1--Sinclair_Lewis.txt",
        "title": "Sinclair Lewis",
        "context": context,
        "question": "Question 1 ?",
        "answers": {"text": ["AMERICAN"], "answer_start": [context.index("AMERICAN")]},
    }
    assert pina["id"] == "tc_2--Caf\u00e9_M\u00fcller.txt"
    assert pina["answers"] == {"text": ["Pina Bausch", "Pina", "Bausch"], "answer_start": [26, 26, 31]}
    assert "squad.json: 2 of 5 documents have an answer, 1 files are missing" in capsys.readouterr().out


def test_questions_on_one_document_share_its_context(tmp_path):
    name = "Sinclair_Lewis.txt"
    data = [datum(1, AMERICAN, name, name), datum(2, {"Value": "lewis"}, name)]
    rows = converted(tmp_path, write_release(tmp_path, data))
    assert [row["id"] for row in rows] == [f"tc_1--{name}", f"tc_2--{name}"]
    official = json.loads((tmp_path / "squad.json").read_text(encoding="utf-8"))
    assert official["version"] == "1.1" and len(official["data"]) == len(official["data"][0]["paragraphs"]) == 1


def test_only_the_first_tokens_are_kept_and_searched(tmp_path):
    data = [datum(1, AMERICAN, "Sinclair_Lewis.txt"), datum(2, {"Value": "novels"}, "Sinclair_Lewis.txt")]
    (row,) = converted(tmp_path, [*write_release(tmp_path, data), "--max_tokens", "8"])
    assert row["id"].startswith("tc_2") and row["context"] == "Harry Sinclair Lewis (1885) wrote novels"


def test_of_verified_files_only_what_is_verified_is_kept(tmp_path):
    good, bad = (datum(n, PINA, "Caf\u00e9_M\u00fcller.txt", verified=v) for n, v in ((1, True), (2, False)))
    other = datum(3, AMERICAN, "Sinclair_Lewis.txt", verified=False) | {"QuestionPartOfVerifiedEval": True}
    flags = write_release(tmp_path, [good, bad, other], VerifiedEval=True)
    assert [row["id"][:4] for row in converted(tmp_path, flags)] == ["tc_1"]
    assert len(converted(tmp_path, write_release(tmp_path, [good, bad, other]))) == 3


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_a_file_is_found_however_its_names_accents_are_written(tmp_path, form):
    name = unicodedata.normalize({"NFC": "NFD", "NFD": "NFC"}[form], "Caf\u00e9_M\u00fcller.txt")
    flags = write_release(tmp_path, [datum(1, PINA, name)])
    path = tmp_path / "evidence" / "Caf\u00e9_M\u00fcller.txt"
    path.rename(path.with_name(unicodedata.normalize(form, path.name)))
    (row,) = converted(tmp_path, flags)
    assert row["id"] == f"tc_1--{name}"


@pytest.mark.parametrize("name", ["x" * 300 + ".txt", "a/b/c.txt", "Sinclair_Lewis.txt/x.txt", "nul\0.txt"])
def test_a_name_that_no_file_can_have_is_a_file_that_is_missing(tmp_path, capsys, name):
    data = [datum(1, PINA, "Caf\u00e9_M\u00fcller.txt", name)]
    assert len(converted(tmp_path, write_release(tmp_path, data))) == 1
    assert "1 files are missing" in capsys.readouterr().out


def test_what_is_said_of_missing_files_is_one_short_line(tmp_path):
    names = ["two\nlines.txt", "x" * 9999]
    message = fails(write_release(tmp_path, [datum(1, PINA, *names)]))
    assert "'two\\nlines.txt'" in message and len(message) < 999


@pytest.mark.parametrize("name", ["SECRET", "../secret.txt", "inside/../../secret.txt"])
def test_a_document_outside_the_evidence_folder_is_refused(tmp_path, name):
    """An index from elsewhere could otherwise put any file of the user's into data that are then published."""
    flags = write_release(tmp_path, [datum(1, PINA, str(tmp_path / "secret.txt") if name == "SECRET" else name)])
    (tmp_path / "evidence" / "inside").mkdir()
    (tmp_path / "secret.txt").write_text("Pina Bausch", encoding="utf-8")
    message = fails(flags)
    assert f"leads out of {tmp_path / 'evidence'}, to {tmp_path / 'secret.txt'}: only" in message


def test_a_link_out_of_the_evidence_folder_is_refused_and_one_within_it_or_to_it_is_not(tmp_path):
    flags = write_release(tmp_path, [datum(1, PINA, "Link.txt")])
    secret, link = tmp_path / "secret.txt", tmp_path / "evidence" / "Link.txt"
    secret.write_text("Pina Bausch", encoding="utf-8")
    link.symlink_to(secret)
    assert f"'Link.txt' leads out of {link.parent}, to {secret}: only" in fails(flags)
    link.unlink()
    link.symlink_to("Caf\u00e9_M\u00fcller.txt")
    (tmp_path / "elsewhere").symlink_to(link.parent)
    flags[3] = str(tmp_path / "elsewhere")
    assert len(converted(tmp_path, flags)) == 1


# Tokens and answers


def test_tokens_are_words_and_punctuation_marks_and_the_text_between_stays():
    text = '  The "e\u0301tude",\n\n 12.5% \N{CLAPPER BOARD}  good'
    tokens = ['"', "e\u0301tude", '"', ",", "12", ".", "5", "%", "\N{CLAPPER BOARD}", "good"]
    for count, token in enumerate(tokens, start=2):
        kept = beginning(text, count)
        assert text[2:].startswith(kept) and kept.endswith(token)
    assert beginning(text, 400) == text[2:] and beginning(" \n", 400) == ""


def test_folding_moves_no_character():
    assert all(len(fold(chr(code))) == 1 for code in range(sys.maxunicode + 1))
    assert fold("İSTANBUL") == "istanbul"


@pytest.mark.parametrize(
    ("text", "answers", "found"),
    [
        ("The Beatles sang", ["beatles", "the beatles"], ["The Beatles", "Beatles"]),
        ("US, usage, us", ["us"], ["US"]),
        ("usage, bus, us_a", ["us"], []),
        ("usage of US", ["us"], ["US"]),
        ("İİ lived in İstanbul", ["istanbul"], ["İstanbul"]),
        ("a cafe\u0301 , a cafe", ["cafe"], ["cafe"]),
        ("C++ and C", ["c++", "c"], ["C++", "C"]),
        ("Yahoo! is", ["yahoo!"], ["Yahoo!"]),
        ("\N{CLAPPER BOARD}\N{CLAPPER BOARD}film", ["film"], ["film"]),
        ("הסרט טוב", ["טוב"], ["טוב"]),
        ("nothing", ["film"], []),
    ],
)
def test_answers_are_whole_words_in_any_case_at_their_place_in_the_original(text, answers, found):
    spans = find_answers(fold(text), answers)
    assert [text[start:end] for start, end in spans] == found
    assert spans == sorted(spans, key=lambda span: (span[0], -span[1]))


def test_an_answer_before_a_combining_mark_is_another_word():
    ((start, _),) = find_answers("a cafe\u0301 , a cafe", ["cafe"])
    assert start == 12


# Mistakes


def fails(flags: list[str]) -> str:
    with pytest.raises(UserError) as error:
        main(flags)
    assert not Path(flags[5]).is_file() and "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"Answer": None}, "questions.json, question 1: no Answer (the release's test questions come without answers"),
        ({"QuestionId": None}, "question 1: no QuestionId"),
        ({"QuestionId": 5}, "question 1: QuestionId is 5, not text"),
        ({"Question": " "}, "question 1: Question is empty"),
        ({"Answer": "film"}, "question 1, QuestionId 'tc_1': Answer is 'film', not an object with Value and Aliases"),
        ({"Answer": {"Aliases": "film"}}, "QuestionId 'tc_1': Aliases is 'film', not a list of texts"),
        ({"Answer": {"Value": 3}}, "QuestionId 'tc_1': the answer 3 is not text"),
        ({"Answer": {"Aliases": [" "]}}, "has neither Value nor Aliases: leave the question out"),
        ({"EntityPages": None}, "question 1: no list EntityPages in {"),
        ({"EntityPages": [{"Title": "a"}]}, "question 1, document 1: Filename is None, not text"),
        ({"EntityPages": []}, "questions.json names no document that could be read"),
        ({"Answer": {"Value": "Nobody"}}, "no answer occurs in the first 400 tokens of any document in "),
    ],
)
def test_a_broken_question_is_one_clear_error(tmp_path, changes, message):
    broken = {name: value for name, value in (datum(1, PINA, "Empty.txt") | changes).items() if value is not None}
    assert message in fails(write_release(tmp_path, [broken]))


def test_a_question_that_occurs_twice_is_an_error(tmp_path):
    flags = write_release(tmp_path, [datum(1, PINA, "Empty.txt"), datum(1, AMERICAN, "Nothing.txt")])
    message = fails(flags)
    assert "question 2: its QuestionId 'tc_1' is also that of " in message
    assert message.endswith("questions.json, question 1: drop one of them")


def test_evidence_that_is_not_there_at_all_is_an_error(tmp_path):
    flags = write_release(tmp_path, [datum(1, PINA, "Lost.txt", "Gone.txt")])
    assert "none of the 2 documents, such as Lost.txt, is in " in fails(flags)
    flags[3] = str(tmp_path / "nowhere")
    assert "nowhere: no such folder" in fails(flags)


def test_a_document_that_is_no_text_is_an_error_that_names_it(tmp_path):
    flags = write_release(tmp_path, [datum(1, PINA, "Empty.txt")])
    (tmp_path / "evidence" / "Empty.txt").write_bytes(b"\xff")
    assert "Empty.txt:1: not UTF-8" in fails(flags)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "questions.json: not JSON"),
        ("[" * 9999, "questions.json: not JSON (nested too deeply)"),
        ('{"Data": [], "Data": []}', "questions.json: not JSON (an object has the name 'Data' 2 times"),
        ("[]", "no list Data in []: a file of TriviaQA is one object with Data"),
    ],
)
def test_a_file_that_is_not_trivia_qas_is_an_error(tmp_path, content, message):
    flags = write_release(tmp_path, [])
    (tmp_path / "questions.json").write_text(content, encoding="utf-8")
    assert message in fails(flags)


def test_an_output_that_cannot_be_written_and_a_length_that_is_none_are_errors(tmp_path):
    flags = write_release(tmp_path, [datum(1, PINA, "Caf\u00e9_M\u00fcller.txt")])
    assert "--max_tokens must be positive, not 0" in fails([*flags, "--max_tokens", "0"])
    assert "cannot write" in fails([*flags, "--output", str(tmp_path / "nowhere" / "a.json")])


def test_what_was_there_stays_when_the_new_file_fails(tmp_path):
    flags = write_release(tmp_path, [datum(1, PINA, "Lost.txt")])
    (tmp_path / "squad.json").write_text("old", encoding="utf-8")
    with pytest.raises(UserError):
        main(flags)
    assert (tmp_path / "squad.json").read_text(encoding="utf-8") == "old"
