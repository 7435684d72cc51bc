"""run_blimp.py's scores of sentences, those of minicons on the same models."""

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from minicons.scorer import IncrementalLMScorer, MaskedLMScorer
from tokenizers import processors
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertForMaskedLM,
    BertTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
)

from elmo_gpt_bert.tasks.minimal_pairs import make_features, make_scorer, read_file
from elmo_gpt_bert.training.task import predict
from modeling import ZooBertForMaskedLM, ZooGPTTokenizer
from tests.clients.tiny_models import gpt_pair
from tests.support.gpt_sample import merges, vocabulary
from tests.support.pairs_sample import PAIRS, write_bert, write_pairs


SENTENCES = [sentence for pair in PAIRS for sentence in pair[:2]]


def scores_of(head: type, model, tokenizer, folder: Path, pll: str = "original") -> list[float]:
    """Each sentence's score as a run computes it."""
    scorer = make_scorer(head, model, tokenizer, pll)
    features, rows = make_features(read_file(write_pairs(folder / "pairs.jsonl")), scorer, None)
    outputs = predict(scorer, features, scorer.collate, Accelerator(cpu=True), batch_size=5)
    return [float(outputs["log_likelihoods"][row]) for row in rows.flatten()]


def total(scores: torch.Tensor) -> float:
    """minicons' default is the mean."""
    return scores.sum(0).item()


def minicons_scores(model, tokenizer) -> list[float]:
    return IncrementalLMScorer(model, "cpu", tokenizer=tokenizer).sequence_score(SENTENCES, reduction=total)


def test_causal_models_score_as_in_minicons(tmp_path):
    stock, ours, tokenizer = gpt_pair("LMHeadModel", tmp_path)
    torch.manual_seed(0)
    sizes = {"n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 40, "vocab_size": len(tokenizer)}
    gpt2 = GPT2LMHeadModel(GPT2Config(**sizes, initializer_range=0.5)).eval()
    for model in (stock, ours, gpt2):
        expected = minicons_scores(model, tokenizer)
        assert len({round(score, 3) for score in expected}) == len(expected) - 1  # those that differ in case only
        assert scores_of(AutoModelForCausalLM, model, tokenizer, tmp_path) == pytest.approx(expected, abs=1e-4)


def test_a_tokenizer_that_begins_each_text_with_a_token_has_the_first_word_scored_as_in_minicons(tmp_path):
    """As minicons does without its option `bos_token`: what the tokenizer adds by itself is read."""
    words = vocabulary() | {"<s>": len(vocabulary())}
    stock, ours, _ = gpt_pair("LMHeadModel", tmp_path)
    tokenizer = ZooGPTTokenizer(vocab=words, merges=merges(), bos_token="<s>")
    plain = scores_of(AutoModelForCausalLM, ours, tokenizer, tmp_path)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", words["<s>"])]
    )
    expected = minicons_scores(stock, tokenizer)
    assert len(tokenizer("the film")["input_ids"]) == 3
    scores = scores_of(AutoModelForCausalLM, ours, tokenizer, tmp_path)
    assert scores == pytest.approx(expected, abs=1e-4) and scores != pytest.approx(plain, abs=1e-1)


@pytest.mark.parametrize("pll", ["original", "within_word_l2r"])
def test_masked_models_score_as_in_minicons(pll, tmp_path):
    folder = write_bert(tmp_path)
    tokenizer = BertTokenizer.from_pretrained(folder)
    # minicons' own call of the tokenizer is one that transformers 5 no longer has: it gets the result of today's.
    batch = tokenizer(SENTENCES, padding=True)
    for model in (model_class.from_pretrained(folder) for model_class in (BertForMaskedLM, ZooBertForMaskedLM)):
        scorer = MaskedLMScorer(model, "cpu", tokenizer=tokenizer)
        expected = scorer.sequence_score(batch, PLL_metric=pll, reduction=total)
        assert len({round(score, 3) for score in expected}) == len(expected) - 1
        assert scores_of(AutoModelForMaskedLM, model, tokenizer, tmp_path, pll) == pytest.approx(expected, abs=1e-4)
