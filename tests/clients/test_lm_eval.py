"""lm-eval's three kinds of requests, answered as with transformers' class."""

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from tests.clients.tiny_models import SENTENCES, gpt_pair


@pytest.fixture
def harness(tmp_path):
    """lm-eval around transformers' GPT and around ours."""
    stock, ours, tokenizer = gpt_pair("LMHeadModel", tmp_path)
    return [HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4) for model in (stock, ours)]


def requests(kind, *arguments):
    return [Instance(kind, {}, row, number) for number, row in enumerate(arguments)]


def test_continuations_are_as_likely_as_in_the_stock_model(harness):
    pairs = [(text, ending) for text in SENTENCES for ending in (" is good", " not", " .")] + [("", "the film")]
    stock, ours = (model.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True) for model in harness)
    assert len({round(score, 3) for score, _ in stock}) > len(SENTENCES)
    assert [score for score, _ in ours] == pytest.approx([score for score, _ in stock], abs=1e-4)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in stock]


def test_whole_texts_are_as_likely_as_in_the_stock_model(harness):
    longer_than_the_model = " ".join(SENTENCES)
    texts = [(text,) for text in (*SENTENCES, longer_than_the_model)]
    stock, ours = (
        model.loglikelihood_rolling(requests("loglikelihood_rolling", *texts), disable_tqdm=True) for model in harness
    )
    assert ours == pytest.approx(stock, abs=1e-3)
    assert stock[-1] < min(stock[:-1])


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
def test_texts_are_continued_as_by_the_stock_model(options, harness):
    arguments = {"until": ["not"], "max_gen_toks": 9, "do_sample": False} | options
    asked = [(text, arguments) for text in SENTENCES]
    stock, ours = (model.generate_until(requests("generate_until", *asked), disable_tqdm=True) for model in harness)
    assert ours == stock and any(stock)


def test_a_folder_of_ours_is_evaluated_as_the_stock_model(tmp_path):
    stock, ours, tokenizer = gpt_pair("LMHeadModel", tmp_path)
    ours.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    folder = str(tmp_path / "ours")
    loaded = [HFLM(pretrained=folder, device="cpu", trust_remote_code=trust) for trust in (False, True)]
    assert [type(model.model).__name__ for model in loaded] == ["OpenAIGPTLMHeadModel", "ZooGPTLMHeadModel"]
    pairs = [(text, " is good") for text in SENTENCES]
    expected = HFLM(pretrained=stock, tokenizer=tokenizer).loglikelihood(requests("loglikelihood", *pairs))
    for model in loaded:
        scores = model.loglikelihood(requests("loglikelihood", *pairs), disable_tqdm=True)
        assert [score for score, _ in scores] == pytest.approx([score for score, _ in expected], abs=1e-4)
