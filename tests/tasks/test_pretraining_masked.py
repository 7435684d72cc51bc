"""Batches for masked language models: which tokens are chosen, and what they become."""

import pickle
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertTokenizer

from elmo_gpt_bert.tasks.pretraining import masked
from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.tasks.pretraining.masked import (
    MaskedLM,
    Segments,
    Shares,
    Vocabulary,
    choose_tokens,
    choose_words,
    draw_pairs,
    open_rows,
    target_lengths,
    truncate_pairs,
)
from elmo_gpt_bert.training.errors import UserError
from modeling import ZooBertConfig, ZooBertForMaskedLM, ZooBertForPreTraining
from tests.support.corpus_sample import random_documents, write_corpus
from tests.support.fake_corpus import FakeCorpus


SIZE = 97
PAD, UNKNOWN, CLS, SEP, MASK, FIRST = range(6)
CONTINUES = np.arange(SIZE) >= 60
VOCABULARY = Vocabulary(cls=CLS, sep=SEP, mask=MASK, pad=PAD, size=SIZE, continues=CONTINUES)
SIZES = {
    "vocab_size": SIZE,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 24,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,
}


@pytest.fixture(scope="module")
def documents():
    long = [[list(range(FIRST, 60))], [[9]]]
    return [*random_documents(60, SIZE, FIRST), *long, *random_documents(9, SIZE, FIRST, longest=15, seed=1)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, documents) -> Corpus:
    return write_corpus(tmp_path_factory.mktemp("corpus"), documents, SIZE)


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Corpus:
    """A million tokens."""
    tokens = np.random.default_rng(0).integers(FIRST, SIZE, (200, 250, 20))
    return write_corpus(tmp_path_factory.mktemp("large"), tokens.tolist(), SIZE)


def whole_epoch(objective: MaskedLM, epoch: int = 0) -> dict[str, np.ndarray]:
    batch = objective.batch(range(epoch * objective.size, (epoch + 1) * objective.size))
    return {name: tensor.numpy() for name, tensor in batch.items()}


def unmasked(batch) -> np.ndarray:
    """The tokens before they were masked."""
    return np.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])


def text_of(batch) -> list[list[int]]:
    """The tokens of each row without padding and [CLS]."""
    rows = zip(unmasked(batch).tolist(), batch["attention_mask"].sum(1).tolist(), strict=True)
    return [row[1:length] for row, length in rows]


def is_binomial(count: int, trials: int, probability: float) -> bool:
    return stats.binomtest(int(count), int(trials), probability).pvalue > 1e-4


# Which tokens are chosen, and what they become


@pytest.mark.parametrize("shares", [Shares(), Shares(0.3, 0.5, 0.2)])
def test_masking_a_million_tokens_has_the_shares_of_the_paper(large, shares):
    batch = whole_epoch(MaskedLM(large, VOCABULARY, 128, "full_sentences", seed=1, shares=shares))
    chosen = batch["labels"] != -100
    lengths = batch["attention_mask"].sum(1)
    text = unmasked(batch)[chosen]
    assert lengths.sum() > 1_000_000 and text.min() >= FIRST
    assert chosen.sum(1).tolist() == [round(length * shares.chosen) for length in lengths.tolist()]
    now = batch["input_ids"][chosen]
    same = 1 - shares.mask - shares.random
    assert is_binomial((now == MASK).sum(), len(now), shares.mask + shares.random / SIZE)
    assert is_binomial((now == text).sum(), len(now), same + shares.random / SIZE)
    others = now[(now != MASK) & (now != text)]
    assert is_binomial(len(others), len(now), shares.random * (SIZE - 2) / SIZE)
    assert stats.chisquare(np.delete(np.bincount(others, minlength=SIZE), MASK)).pvalue > 1e-4
    assert stats.chisquare(chosen[lengths == lengths.max(), 1:-1].sum(0)).pvalue > 1e-4  # no column is preferred


def test_a_row_has_one_prediction_at_least_and_its_text_at_most(corpus):
    for chosen in (0.01, 1.0):
        batch = whole_epoch(MaskedLM(corpus, VOCABULARY, 24, "document_sentences", shares=Shares(chosen)))
        text = batch["attention_mask"].sum(1) - 2
        assert text.min() == 1 and ((batch["labels"] != -100).sum(1) == (1 if chosen < 1 else text)).all()


def test_masks_are_drawn_anew_in_each_epoch_and_for_each_seed(corpus):
    masks = {}
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        batch = whole_epoch(MaskedLM(corpus, VOCABULARY, 24, "full_sentences", seed, pad_to_max_length=True), epoch)
        order = np.lexsort(unmasked(batch).T)
        masks[seed, epoch] = unmasked(batch)[order], (batch["labels"] != -100)[order]
    rows, chosen = zip(*masks.values(), strict=True)
    assert all(np.array_equal(rows[0], each) for each in rows)
    assert not any(np.array_equal(chosen[0], each) for each in chosen[1:])


def test_held_out_text_has_its_order_and_the_same_masks_each_time(corpus, documents):
    objective = MaskedLM(corpus, VOCABULARY, 24, "full_sentences", seed=2, shuffle=False)
    first, later = whole_epoch(objective), whole_epoch(objective, 5)
    assert all(np.array_equal(first[name], later[name]) for name in first)
    row = [token for text in text_of(first) for token in text if token != SEP]
    assert row == [token for document in documents for sentence in document for token in sentence]
    assert objective.predictions == len(row)


def test_whole_words_are_chosen_or_left_as_by_the_released_loop():
    rng = np.random.default_rng(3)
    is_text = np.arange(40) < rng.integers(2, 41, (300, 1))
    is_text[:, 0] = is_text[:, 7] = False
    is_text[:, 1] = True
    continues = rng.random((300, 40)) < 0.4
    counts = np.clip(rng.integers(1, 9, 300), 1, is_text.sum(1))
    order = rng.random((300, 40))
    chosen = choose_words(order, is_text, continues, counts)
    for row in range(300):
        words = []
        for column in np.flatnonzero(is_text[row]):
            if continues[row, column] and is_text[row, column - 1]:
                words[-1].append(column)
            else:
                words.append([column])
        words.sort(key=lambda word: order[row, word[0]])
        expected = []
        for word in words:
            if len(expected) + len(word) <= counts[row]:
                expected += word
        assert np.flatnonzero(chosen[row]).tolist() == sorted(expected or words[0])


def test_words_of_one_token_are_chosen_as_single_tokens_are():
    rng = np.random.default_rng(3)
    is_text, order = rng.random((50, 30)) < 0.8, rng.random((50, 30))
    counts = rng.integers(1, 12, 50)
    words = choose_words(order, is_text, np.zeros_like(is_text), counts)
    assert np.array_equal(words, choose_tokens(order, is_text, counts)) and words.sum(1).tolist() == counts.tolist()


def test_whole_words_are_never_split(large):
    batch = whole_epoch(MaskedLM(large, VOCABULARY, 128, "full_sentences", whole_words=True))
    chosen, text = batch["labels"] != -100, unmasked(batch)
    continues = CONTINUES[text[:, 1:]] & (text[:, :-1] >= FIRST)
    assert np.array_equal(chosen[:, 1:][continues], chosen[:, :-1][continues]) and continues.any()
    counts = np.rint(batch["attention_mask"].sum(1) * 0.15)
    assert (chosen.sum(1) <= counts).all() and (chosen.sum(1) == counts).mean() > 0.9


# What rows hold


def test_no_token_is_lost_or_doubled_and_documents_are_separated(corpus, documents):
    texts = [[token for sentence in document for token in sentence] for document in documents]
    batch = whole_epoch(MaskedLM(corpus, VOCABULARY, 24, "full_sentences", shuffle=False))
    assert all(row[-1] == SEP for row in text_of(batch)) and (batch["input_ids"][:, 0] == CLS).all()
    assert join([piece for row in text_of(batch) for piece in split(row)], texts) == texts
    single = whole_epoch(MaskedLM(corpus, VOCABULARY, 24, "document_sentences", seed=4))
    pieces = [split(row) for row in text_of(single)]
    assert all(len(row) == 1 for row in pieces)
    assert sorted(token for (piece,) in pieces for token in piece) == sorted(sum(texts, []))
    ordered = whole_epoch(MaskedLM(corpus, VOCABULARY, 24, "document_sentences", shuffle=False))
    assert join([piece for row in text_of(ordered) for piece in split(row)], texts) == texts


def split(row: list[int]) -> list[list[int]]:
    """The segments of a row, each of which ends with [SEP]."""
    pieces = [[]]
    for token in row:
        if token == SEP:
            pieces.append([])
        else:
            pieces[-1].append(token)
    assert pieces[-1] == []
    return pieces[:-1]


def join(pieces: list[list[int]], texts: list[list[int]]) -> list[list[int]]:
    """The documents that pieces of them make, if no piece reaches over the end of a document."""
    pieces, documents = iter(pieces), []
    for text in texts:
        document = []
        while len(document) < len(text):
            document += next(pieces)
        documents.append(document)
    assert not any(pieces)
    return documents


@pytest.mark.parametrize("segments", Segments)
def test_processes_workers_and_accumulated_batches_share_the_same_rows(corpus, segments):
    objective = MaskedLM(corpus, VOCABULARY, 24, segments, seed=1, whole_words=True)
    first = objective.size - 7  # across the end of an epoch
    whole = objective.batch(range(first, first + 24))
    copy = pickle.loads(pickle.dumps(objective))
    for processes in (1, 2, 4):
        pieces = [range(24)[step : step + 8][rank::processes] for step in (0, 8, 16) for rank in range(processes)]
        for piece in pieces:
            batch = copy.batch([first + number for number in piece])
            for name, tensor in batch.items():
                rows = whole[name][list(piece)]
                width = tensor.shape[-1] if tensor.dim() == 2 else None
                assert torch.equal(tensor, rows[:, :width] if width else rows), name
                assert width is None or name == "labels" or not rows[:, width:].any()


def test_batches_are_as_long_as_their_longest_row_or_of_a_fixed_length(corpus):
    short = MaskedLM(corpus, VOCABULARY, 200, "document_sentences").batch([0, 1])
    fixed = MaskedLM(corpus, VOCABULARY, 200, "document_sentences", pad_to_max_length=True).batch([0, 1])
    width = int(short["attention_mask"].sum(1).max())
    assert short["input_ids"].shape == (2, width) and fixed["input_ids"].shape == (2, 200)
    for name, padding in (("input_ids", PAD), ("labels", -100), ("attention_mask", 0)):
        assert torch.equal(fixed[name][:, :width], short[name]) and (fixed[name][:, width:] == padding).all()


# Next sentence prediction


@pytest.fixture(scope="module")
def pairs(large) -> SimpleNamespace:
    """Two segments of each of 40,000 samples, in the tokens of a corpus of 200 documents of 250 sentences."""
    rows = open_rows(large, Segments.NEXT_SENTENCE, 64)
    samples = np.arange(40_000)
    starts, stops = rows.bounds(samples % len(rows))
    segments, is_random = draw_pairs(large, samples, starts, stops, capacity=61, seed=2)
    return SimpleNamespace(
        starts=starts, stops=stops, first=segments[:, 0], second=segments[:, 1], is_random=is_random
    )


def test_the_second_segment_follows_in_half_of_the_rows_and_is_of_another_document_in_the_others(pairs):
    several = pairs.stops - pairs.starts > 20  # sentences have 20 tokens
    assert pairs.is_random[~several].all()
    assert is_binomial(pairs.is_random[several].sum(), several.sum(), 0.5)
    first, second = pairs.first // 5000, (pairs.second - [0, 1]) // 5000  # documents have 5000
    assert (second[:, 0] == second[:, 1]).all()
    assert np.array_equal(first[:, 0] != second[:, 0], pairs.is_random)
    distance = (second - first)[pairs.is_random, 0] % 200
    assert stats.chisquare(np.bincount(distance, minlength=200)[1:]).pvalue > 1e-4
    follows = ~pairs.is_random
    assert (pairs.second[follows, 0] >= pairs.first[follows, 1]).all()
    assert (pairs.second[follows, 1] <= pairs.stops[follows]).all()


def test_segments_are_whole_sentences_up_to_the_target_unless_they_are_cut(pairs):
    first, second = np.diff(pairs.first)[:, 0], np.diff(pairs.second)[:, 0]
    assert first.min() >= 1 and second.min() >= 1 and (first + second).max() == 61
    whole = first + second < 61
    assert np.array_equal(pairs.first[whole, 0], pairs.starts[whole])
    for bounds in (pairs.first[whole, 1], pairs.second[whole, 0], pairs.second[whole, 1]):
        assert (bounds % 20 == 0).all()
    filled = whole & pairs.is_random & (pairs.second[:, 1] % 5000 != 0)
    wanted = (target_lengths(pairs.starts, 61) - first)[filled]
    assert filled.sum() > 100 and np.array_equal(second[filled], np.maximum(-(-wanted // 20), 1) * 20)


def test_batches_hold_the_pairs_that_were_drawn(corpus):
    objective = MaskedLM(corpus, VOCABULARY, 24, "next_sentence", seed=3, shuffle=False)
    batch = whole_epoch(objective)
    samples = np.arange(objective.size)
    segments, is_random = draw_pairs(corpus, samples, *objective.rows.bounds(samples), capacity=21, seed=3)
    assert batch["next_sentence_label"].tolist() == is_random.tolist()
    for text, bounds in zip(text_of(batch), segments, strict=True):
        assert split(text) == [corpus.read(*segment).tolist() for segment in bounds]


def test_types_and_separators_tell_the_segments_apart(corpus):
    batch = whole_epoch(MaskedLM(corpus, VOCABULARY, 24, "next_sentence"))
    for row, types, mask in zip(unmasked(batch), batch["token_type_ids"], batch["attention_mask"], strict=True):
        first_end, second_end = np.flatnonzero(row == SEP)
        assert second_end + 1 == mask.sum() and first_end > 1 and second_end > first_end + 1
        assert types.tolist() == [int(first_end < column <= second_end) for column in range(len(row))]


def test_long_pairs_are_cut_by_the_released_rule():
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, 50, (20_000, 2))
    starts = np.broadcast_to([1000, 5000], lengths.shape)
    segments = np.stack([starts, starts + lengths], axis=-1)
    cut = truncate_pairs(segments, 37, np.arange(20_000), seed=0)
    fronts = cut[..., 0] - segments[..., 0]
    backs = segments[..., 1] - cut[..., 1]
    assert fronts.min() >= 0 and backs.min() >= 0
    excess = fronts + backs
    for (first, second), removed in zip(lengths[:2000].tolist(), excess.tolist(), strict=False):
        kept = [first, second]
        while sum(kept) > 37:
            kept[0 if kept[0] > kept[1] else 1] -= 1
        assert [first - kept[0], second - kept[1]] == removed
    assert is_binomial(fronts.sum(), excess.sum(), 0.5)
    both = (excess > 0).all(1)
    first, second = (fronts - excess / 2)[both].T
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / both.sum() ** 0.5  # each segment is cut by draws of its own
    fours = fronts[excess == 4]
    assert stats.chisquare(np.bincount(fours), len(fours) / 16 * np.array([1, 4, 6, 4, 1])).pvalue > 1e-4


# Losses


def models(zoo_class, stock_class):
    torch.manual_seed(0)
    stock = stock_class(BertConfig(**SIZES))
    ours = zoo_class(ZooBertConfig(**SIZES))
    ours.load_state_dict(stock.state_dict())
    return ours.train(), stock.train()


@pytest.mark.parametrize(
    ("segments", "zoo_class", "stock_class"),
    [
        ("full_sentences", ZooBertForMaskedLM, BertForMaskedLM),
        ("next_sentence", ZooBertForPreTraining, BertForPreTraining),
    ],
)
def test_twenty_steps_equal_a_plain_loop_with_the_bert_of_transformers(corpus, segments, zoo_class, stock_class):
    objective = MaskedLM(corpus, VOCABULARY, 24, segments, seed=5)
    ours, stock = models(zoo_class, stock_class)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in (ours, stock)]
    for step in range(20):
        batch = objective.batch(range(step * 4, step * 4 + 4))
        weights = torch.tensor(objective.weights)
        losses = [objective.compute(ours, batch, {}) @ weights, stock(**batch).loss]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    for name, weight in ours.state_dict().items():
        torch.testing.assert_close(weight, stock.state_dict()[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", [0, 1])
def test_both_losses_of_pairs_have_gradients_of_their_own(corpus, number):
    objective = MaskedLM(corpus, VOCABULARY, 24, "next_sentence")
    batch = objective.batch(range(9))
    model = models(ZooBertForPreTraining, BertForPreTraining)[number]
    losses = objective.compute(model, batch, {})
    outputs = model.eval()(batch["input_ids"], batch["attention_mask"], batch["token_type_ids"])
    expected = [
        torch.nn.functional.cross_entropy(outputs.prediction_logits.flatten(0, 1), batch["labels"].flatten()),
        torch.nn.functional.cross_entropy(outputs.seq_relationship_logits, batch["next_sentence_label"]),
    ]
    assert objective.count(batch) == [int((batch["labels"] != -100).sum()), 9]
    weights = model.cls.seq_relationship.weight, model.bert.embeddings.word_embeddings.weight
    for loss, reference in zip(losses, expected, strict=True):
        torch.testing.assert_close(loss, reference, rtol=1e-5, atol=1e-5)
        gradients, expected_gradients = (
            torch.autograd.grad(each, weights, retain_graph=True, allow_unused=True) for each in (loss, reference)
        )
        for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
            expected_gradient = torch.zeros_like(gradient) if expected_gradient is None else expected_gradient
            torch.testing.assert_close(gradient, expected_gradient, rtol=1e-4, atol=1e-5)


# Size, and errors


class FakeRows:
    """10^9 rows of 100 tokens."""

    def __len__(self):
        return 10**9

    def bounds(self, numbers):
        return numbers * 100, numbers * 100 + 100


@pytest.mark.parametrize("segments", Segments)
def test_a_billion_samples_start_at_once_and_resume_anywhere(monkeypatch, segments):
    monkeypatch.setattr(masked, "open_rows", lambda *arguments: FakeRows())
    begin = time.process_time()
    objective = MaskedLM(FakeCorpus(10**11), VOCABULARY, 128, segments)
    batch = objective.batch([7 * 10**9 + 123_456_789, 0, 10**9 - 1])
    assert time.process_time() - begin < 0.5 and objective.size == 10**9
    assert len(batch["input_ids"]) == 3


def test_impossible_shares_are_refused():
    for chosen in (0.0, 1.5):
        with pytest.raises(UserError, match="--mlm_probability .*: above 0, and at most 1"):
            Shares(chosen)
    for mask, random in ((0.8, 0.3), (-0.1, 0.1), (0.5, -0.1)):
        with pytest.raises(
            UserError, match=f"--mask_share and --random_share are {mask} and {random}: at most 1 in all"
        ):
            Shares(0.15, mask, random)
    assert Shares(mask=0.8, random=1 - 0.8 + 1e-16)


def test_of_half_of_the_rows_with_two_sentences_the_second_segment_follows(corpus):
    objective = MaskedLM(corpus, VOCABULARY, 30, Segments.NEXT_SENTENCE)
    starts, stops = objective.rows.bounds(np.arange(objective.size))
    has_two = np.subtract(*corpus.sentences.find(np.stack([stops - 1, starts]))) > 0
    follows = np.mean([whole_epoch(objective, epoch)["next_sentence_label"] == 0 for epoch in range(100)])
    assert 0 < has_two.mean() / 2 == pytest.approx(follows, abs=0.02)


def test_without_a_row_of_two_sentences_there_is_no_second_objective(tmp_path):
    single = write_corpus(tmp_path / "single", [[[FIRST, FIRST]], [[FIRST]]], SIZE)
    with pytest.raises(UserError, match="^--segments=next_sentence predicts .*, but no row of the training text"):
        MaskedLM(single, VOCABULARY, 30, Segments.NEXT_SENTENCE)
    MaskedLM(single, VOCABULARY, 30, Segments.NEXT_SENTENCE, shuffle=False)


def test_whole_words_need_marked_continuations(corpus):
    plain = Vocabulary(CLS, SEP, MASK, PAD, SIZE, np.zeros(SIZE, bool))
    with pytest.raises(
        UserError, match="--whole_word_mask needs a vocabulary that marks the continuation of words by ##"
    ):
        MaskedLM(corpus, plain, 24, "full_sentences", whole_words=True)


def test_the_vocabulary_is_the_tokenizers(tmp_path):
    tokens = ["the", "##s", "[PAD]", "[CLS]", "[MASK]", "##ing", "[SEP]", "[UNK]"]
    tokenizer = BertTokenizer({token: number for number, token in enumerate(tokens)})
    vocabulary = Vocabulary.of(tokenizer)
    assert [vocabulary.pad, vocabulary.cls, vocabulary.mask, vocabulary.sep, vocabulary.size] == [2, 3, 4, 6, 8]
    assert np.flatnonzero(vocabulary.continues).tolist() == [1, 5]
    tokenizer.mask_token = None
    with pytest.raises(UserError, match="has no mask_token, which a masked language model needs"):
        Vocabulary.of(tokenizer)
