"""A model that run_squad.py has trained answers questions about texts."""

import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import BertTokenizer

from elmo_gpt_bert.tasks.squad.answering import QuestionAnswerer, find_answers
from elmo_gpt_bert.tasks.squad.features import make_windows
from modeling import (
    ElmoConfig,
    ElmoForQuestionAnswering,
    ElmoTokenizer,
    ZooBertConfig,
    ZooBertForQuestionAnswering,
    ZooGPTForQuestionAnswering,
    ZooGPTTokenizer,
)
from tests.support.glue_sample import VOCABULARY, write_vocabulary
from tests.support.gpt_sample import write_gpt_model


TEXT = "The  Film is bad. The plot is very GOOD, the cast is dull."


@pytest.fixture
def tokenizer(tmp_path):
    return BertTokenizer(vocab=str(write_vocabulary(tmp_path)))


def random_bert(positions: int = 64) -> ZooBertForQuestionAnswering:
    torch.manual_seed(3)
    config = ZooBertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=18,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=23,
        max_position_embeddings=positions,
        initializer_range=1.0,
    )
    return ZooBertForQuestionAnswering(config).eval()


class Finder(torch.nn.Module):
    """Finds the word of the question's end in the context; [CLS] scores `none`."""

    def __init__(self, none: float = 0.0):
        super().__init__()
        self.config = types.SimpleNamespace(max_position_embeddings=24)
        self.device, self.none = torch.device("cpu"), none

    @property
    def base_model(self) -> torch.nn.Module:
        return self

    def forward(self, input_ids, token_type_ids, attention_mask):
        separator = VOCABULARY.index("[SEP]")
        asked = torch.stack([row[(row == separator).nonzero()[0, 0] - 1] for row in input_ids])
        scores = 4.0 * ((input_ids == asked[:, None]) & (token_type_ids == 1))
        scores[:, 0] = self.none
        return {"start_logits": scores, "end_logits": scores}


def test_the_answer_is_cut_from_the_original_text(tokenizer):
    answer = QuestionAnswerer(Finder(), tokenizer)("is it good", TEXT)
    assert answer["answer"] == "GOOD" == TEXT[answer["start"] : answer["end"]]
    assert 0 < answer["score"] < 1


def test_a_text_longer_than_the_model_is_read_to_its_end(tokenizer):
    long = "the film is dull . " * 200 + TEXT
    answer = QuestionAnswerer(Finder(), tokenizer)("is it good", long)
    assert (answer["answer"], answer["start"]) == ("GOOD", long.index("GOOD"))


@pytest.mark.parametrize("batch_size", [1, 7])
def test_answers_are_those_of_the_script_for_the_same_model(tokenizer, batch_size):
    model = random_bert()
    contexts = [TEXT, TEXT * 9, "good"]
    questions = ["is it good ?", "not ?", "the film"]
    lengths = {"max_seq_length": 64, "doc_stride": 21, "max_query_length": 16}
    examples = Dataset.from_dict({"id": ["a", "b", "c"], "context": contexts, "question": questions})
    windows = make_windows(examples, tokenizer, **lengths)
    outputs = {"start_logits": [], "end_logits": []}
    for row in windows.features:
        with torch.no_grad():
            found = model(**{name: torch.tensor([values]) for name, values in row.items()})
        for name, values in outputs.items():
            values.append(found[name][0].numpy())
    expected = find_answers(examples, windows, outputs)
    tokenizer.padding_side = "left"  # the script pads on the right whatever the tokenizer says
    for top_k in (1, 4):
        answers = QuestionAnswerer(model, tokenizer, batch_size=batch_size)(questions, contexts, top_k=top_k)
        for name, found, context in zip("abc", answers, contexts, strict=True):
            found = [found] if top_k == 1 else found
            texts = [entry["text"] for entry in expected.nbest[name]][:top_k]
            assert [entry["answer"] for entry in found] == texts
            assert [context[entry["start"] : entry["end"]] for entry in found] == texts
            shares = [entry["probability"] for entry in expected.nbest[name]][:top_k]
            np.testing.assert_allclose([entry["score"] for entry in found], shares, rtol=1e-4)


def test_scores_that_are_no_numbers_are_one_clear_error(tokenizer):
    answer = QuestionAnswerer(Finder(none=float("nan")), tokenizer)
    with pytest.raises(
        FloatingPointError, match="the model's start_logits are not finite: its weights may be damaged"
    ):
        answer(["is it good", "is it bad"], TEXT)


def test_no_answer_is_given_only_above_the_threshold(tokenizer):
    ask = ("is it good", TEXT)
    assert QuestionAnswerer(Finder(none=9), tokenizer)(*ask)["answer"] == "GOOD"
    for threshold, text in ((9.9, ""), (10.0, "GOOD"), (10.1, "GOOD")):  # 2 * 9 - 2 * 4 is 10
        answers = QuestionAnswerer(Finder(none=9), tokenizer, null_threshold=threshold)(*ask, top_k=3)
        assert answers[0]["answer"] == text and len(answers) == 3
        assert sorted([answers[0]["answer"], answers[1]["answer"]]) == ["", "GOOD"]
    nothing = QuestionAnswerer(Finder(none=9), tokenizer, null_threshold=0.0)(*ask)
    assert (nothing["start"], nothing["end"]) == (0, 0)


def test_an_answer_has_at_most_so_many_tokens(tokenizer):
    model = random_bert()
    for longest in (1, 3):
        answers = QuestionAnswerer(model, tokenizer, max_answer_length=longest)("is it ?", TEXT, top_k=20)
        assert max(len(tokenizer.tokenize(answer["answer"])) for answer in answers) == longest


def test_as_many_answers_come_as_are_asked_for(tokenizer):
    answers = QuestionAnswerer(random_bert(), tokenizer)("is it ?", TEXT * 9, top_k=33)
    assert len(answers) == 33 and sum(answer["score"] for answer in answers) == pytest.approx(1)


def test_one_text_serves_several_questions_and_none_is_an_empty_list(tokenizer):
    answer = QuestionAnswerer(Finder(), tokenizer)
    assert [found["answer"] for found in answer(["what is dull", "what is bad"], TEXT)] == ["dull", "bad"]
    assert answer([], []) == []


@pytest.mark.parametrize(("positions", "tokens", "read"), [(64, 10**30, 64), (64, 24, 24), (640, 10**30, 384)])
def test_windows_are_as_long_as_model_and_tokenizer_allow(tokenizer, positions, tokens, read, monkeypatch):
    tokenizer.model_max_length, seen = tokens, []
    model = random_bert(positions)
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda **batch: seen.append(batch["input_ids"].shape[1]) or forward(**batch))
    answer = QuestionAnswerer(model, tokenizer)
    assert answer("is it good", TEXT * 60)["answer"] and max(seen) == read
    for longest in (positions + 1, tokens + 1):
        with pytest.raises(ValueError, match=f"^--max_seq_length {longest} is more than the "):
            QuestionAnswerer(model, tokenizer, max_seq_length=longest)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_half_precision_answers(tokenizer, dtype):
    answers = QuestionAnswerer(random_bert().to(dtype), tokenizer)("is it good", TEXT * 9, top_k=5)
    assert all(answer["answer"] == (TEXT * 9)[answer["start"] : answer["end"]] for answer in answers)
    assert 0 < answers[4]["score"] <= answers[0]["score"] < 1


def test_gpt_answers_too(tmp_path):
    folder = write_gpt_model(tmp_path)
    tokenizer = ZooGPTTokenizer.from_pretrained(folder, task_inputs=True)
    model = ZooGPTForQuestionAnswering.from_pretrained(folder)
    model.resize_token_embeddings(len(tokenizer))
    answer = QuestionAnswerer(model, tokenizer)("is it good", TEXT * 9)
    assert answer["answer"] and answer["answer"] == (TEXT * 9)[answer["start"] : answer["end"]]


@pytest.mark.parametrize("placement", [None, "both"])
def test_an_answer_does_not_depend_on_what_else_is_asked(tokenizer, placement):
    """Nor on what was asked before: ELMo's state between texts is not to be seen."""
    torch.manual_seed(0)
    sizes = {"filters": [[1, 4], [2, 5]], "char_embedding_size": 3, "hidden_size": 6, "cell_size": 7, "num_mixes": 2}
    config = ElmoConfig(**sizes, elmo_placement=placement or "input", rnn_size=5, classifier_size=6)
    model = ElmoForQuestionAnswering(config) if placement else random_bert()
    asked = QuestionAnswerer(model, ElmoTokenizer() if placement else tokenizer, batch_size=3)
    contexts = ["good", TEXT, TEXT * 9, "the film is bad", "dull is the cast and good the plot"]
    together = asked(["is it good"] * 5, contexts, top_k=3)
    for found, context in zip(together, contexts, strict=True):
        for ours, alone in zip(found, asked("is it good", context, top_k=3), strict=True):
            assert ours == {**alone, "score": pytest.approx(alone["score"], abs=1e-5)}


def test_threads_may_ask_at_the_same_time(tokenizer):
    answer = QuestionAnswerer(random_bert(), tokenizer)
    contexts = [TEXT[number:] * number for number in range(1, 9)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(answer, ["is it good"] * 40, contexts * 5))
    assert found == [answer("is it good", context) for context in contexts] * 5


def test_elmo_answers_too():
    torch.manual_seed(0)
    config = ElmoConfig(use_elmo=False, task_char_filters=7, rnn_size=5, classifier_size=3)
    answer = QuestionAnswerer(ElmoForQuestionAnswering(config), ElmoTokenizer())("Is it good?", TEXT)
    assert answer["answer"] and answer["answer"] == TEXT[answer["start"] : answer["end"]]


@pytest.mark.parametrize(
    ("question", "context", "options", "message"),
    [
        ("", TEXT, {}, "question 0 is empty \\(''\\)"),
        (["is it ?", " "], TEXT, {}, "question 1 is empty \\(' '\\)"),
        ("is it ?", "\n", {}, "context 0 is empty"),
        ("is it ?", None, {}, "context 0 is None, not text"),
        ("is it ?", "good \ud800", {}, "surrogates not allowed"),
        (["is it ?", "is it ?"], [TEXT], {}, "2 questions but 1 contexts"),
        ("is it ?", TEXT, {"top_k": 0}, "top_k=0"),
    ],
)
def test_bad_input_is_one_clear_error(tokenizer, question, context, options, message):
    with pytest.raises(ValueError, match=message):
        QuestionAnswerer(Finder(), tokenizer)(question, context, **options)
