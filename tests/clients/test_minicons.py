"""minicons' scores of sentences and their words, those of transformers' class."""

import pytest
from minicons.scorer import IncrementalLMScorer, MaskedLMScorer

from tests.clients.tiny_models import SENTENCES, bert_pair, gpt_pair


@pytest.mark.parametrize("metric", ["original", "within_word_l2r"])
def test_sentences_score_as_with_the_stock_masked_language_model(metric, tmp_path):
    *models, tokenizer = bert_pair("ForMaskedLM", tmp_path)
    batch = tokenizer(SENTENCES, padding=True)  # minicons' own call is one that transformers 5 no longer has
    stock, ours = (
        MaskedLMScorer(model, "cpu", tokenizer=tokenizer).sequence_score(batch, PLL_metric=metric) for model in models
    )
    assert len({round(score, 3) for score in stock}) == len(SENTENCES)
    assert ours == pytest.approx(stock, abs=1e-4)


def test_sentences_and_their_tokens_score_as_with_the_stock_language_model(tmp_path):
    *models, tokenizer = gpt_pair("LMHeadModel", tmp_path)
    stock, ours = (IncrementalLMScorer(model, "cpu", tokenizer=tokenizer) for model in models)
    expected = stock.sequence_score(SENTENCES)
    assert len({round(score, 3) for score in expected}) == len(SENTENCES)
    assert ours.sequence_score(SENTENCES) == pytest.approx(expected, abs=1e-4)
    for mine, theirs in zip(ours.token_score(SENTENCES), stock.token_score(SENTENCES), strict=True):
        assert [token for token, _ in mine] == [token for token, _ in theirs]
        assert [score for _, score in mine] == pytest.approx([score for _, score in theirs], abs=1e-4)


def test_a_continuation_scores_as_with_the_stock_model(tmp_path):
    *models, tokenizer = gpt_pair("LMHeadModel", tmp_path)
    stock, ours = (IncrementalLMScorer(model, "cpu", tokenizer=tokenizer) for model in models)
    prefixes, endings = ["the film", "a very dull film", "not"], ["is good .", "bad", "the plot is good"]
    expected = stock.conditional_score(prefixes, endings)
    assert ours.conditional_score(prefixes, endings) == pytest.approx(expected, abs=1e-4)
