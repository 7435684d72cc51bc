"""The tagger's conditional random field against all sequences of tags, written out one by one."""

import itertools
import re

import pytest
import torch

from modeling.elmo.modeling_elmo_crf import LOWEST, ConditionalRandomField, forbidden_transitions


UNKNOWN = -100
LETTERS = ["A", "B", "C"]  # tags of no scheme
IOB2 = ["O", "B-X", "I-X", "B-Y", "I-Y"]
BIOES = ["I-X", "E-X", "O", "S-X", "B-X", "S-Y"]
BIOUL = ["B-X", "U-X", "L-X", "I-X", "O"]
# What the schemes allow, as a language: entities one after the other, and words outside of them.
LANGUAGES = {
    "iob2": (IOB2, r"(O |B-X (I-X )*|B-Y (I-Y )*)*"),
    "bioes": (BIOES, r"(O |S-X |S-Y |B-X (I-X )*E-X )*"),
    "bioul": (BIOUL, r"(O |U-X |B-X (I-X )*L-X )*"),
}
# Rows of words (1) and padding on either side, on both, in between; a row without words.
MASK = torch.tensor(
    [[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 1, 1, 1], [0, 1, 0, 1, 0], [0] * 5, [0, 0, 1, 0, 0]]
).bool()


def make_crf(names: list[str], constrained: bool = True) -> ConditionalRandomField:
    crf = ConditionalRandomField(len(names), names if constrained else None)
    for scores in crf.parameters():
        torch.nn.init.normal_(scores)
    return crf


def all_sequences(tags: int, words: int) -> torch.Tensor:
    """(tags ** words, words)"""
    return torch.tensor(list(itertools.product(range(tags), repeat=words)), dtype=torch.long).view(tags**words, words)


def scores_of(crf: ConditionalRandomField, emissions: torch.Tensor, sequences: torch.Tensor) -> torch.Tensor:
    """The score of each sequence (n, words) of tags for the words of `emissions` (words, tags)."""
    total = emissions[range(len(emissions)), sequences].sum(1)
    if len(emissions):
        total = total + crf.start[sequences[:, 0]] + crf.end[sequences[:, -1]]
        total = total + crf.transitions[sequences[:, :-1], sequences[:, 1:]].sum(1)
    return total


def is_lawful(sequences: torch.Tensor, names: list[str], language: str) -> torch.Tensor:
    texts = ["".join(f"{names[tag]} " for tag in sequence) for sequence in sequences.tolist()]
    return torch.tensor([re.fullmatch(language, text) is not None for text in texts])


def slow_loss(crf, emissions, labels, names=None, language=None) -> torch.Tensor:
    """-log of the share that the sequences which agree with the labels have of the lawful ones."""
    sequences = all_sequences(emissions.shape[1], len(emissions))
    if language is not None:
        sequences = sequences[is_lawful(sequences, names, language)]
    agree = ((sequences == labels) | (labels == UNKNOWN)).all(1)
    scores = scores_of(crf, emissions, sequences)
    return scores.logsumexp(0) - scores[agree].logsumexp(0)


def slow_max_marginals(crf, emissions, names=None, language=None) -> torch.Tensor:
    sequences = all_sequences(emissions.shape[1], len(emissions))
    if language is not None:
        sequences = sequences[is_lawful(sequences, names, language)]
    scores = scores_of(crf, emissions, sequences)
    found = torch.full_like(emissions, LOWEST)
    for word, tag in itertools.product(range(len(emissions)), range(emissions.shape[1])):
        through = scores[sequences[:, word] == tag]
        if len(through):
            found[word, tag] = through.max() - scores.max()
    return found


def lawful_labels(names: list[str], language: str) -> torch.Tensor:
    """A lawful sequence for the words of each row of MASK, anything at padding."""
    labels = torch.randint(len(names), MASK.shape)
    for row, mask in zip(labels, MASK, strict=True):
        sequences = all_sequences(len(names), int(mask.sum()))
        sequences = sequences[is_lawful(sequences, names, language)]
        row[mask] = sequences[torch.randint(len(sequences), ())]
    return labels


def test_the_loss_and_its_gradients_are_those_of_all_sequences():
    crf = make_crf(LETTERS)
    emissions = torch.randn(*MASK.shape, 3, requires_grad=True)
    labels = torch.randint(3, MASK.shape)
    weights = torch.rand(len(MASK))  # each row has a gradient of its own

    losses = crf.negative_log_likelihood(emissions, labels, MASK)
    slow = torch.stack(
        [slow_loss(crf, row[mask], tags[mask]) for row, tags, mask in zip(emissions, labels, MASK, strict=True)]
    )
    torch.testing.assert_close(losses, slow, atol=1e-5, rtol=0)
    parts = [emissions, *crf.parameters()]
    found = torch.autograd.grad((losses * weights).sum(), parts)
    for one, other in zip(found, torch.autograd.grad((slow * weights).sum(), parts), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert all(gradient.abs().max() > 0.01 for gradient in found)


def test_the_sum_over_all_labels_of_their_likelihoods_is_one():
    crf = make_crf(LETTERS)
    sequences = all_sequences(3, 4)
    emissions = torch.randn(4, 3).expand(len(sequences), -1, -1)
    losses = crf.negative_log_likelihood(emissions, sequences, torch.ones_like(sequences).bool())
    torch.testing.assert_close((-losses).exp().sum(), torch.tensor(1.0))


def test_at_first_all_lawful_sequences_are_alike():
    crf = make_crf(IOB2)
    crf.reset()
    losses = crf.negative_log_likelihood(torch.zeros(*MASK.shape, 5), torch.zeros(MASK.shape, dtype=torch.long), MASK)
    lawful = [is_lawful(all_sequences(5, int(words)), *LANGUAGES["iob2"]).sum() for words in MASK.sum(1)]
    torch.testing.assert_close(losses, torch.stack(lawful).log())


def test_an_unlabelled_word_may_have_any_tag():
    crf = make_crf(LETTERS)
    emissions = torch.randn(*MASK.shape, 3, requires_grad=True)
    labels = torch.randint(3, MASK.shape)
    labels[:, 1:4:2] = UNKNOWN
    labels[2] = UNKNOWN
    losses = crf.negative_log_likelihood(emissions, labels, MASK)
    slow = [slow_loss(crf, row[mask], tags[mask]) for row, tags, mask in zip(emissions, labels, MASK, strict=True)]
    torch.testing.assert_close(losses, torch.stack(slow), atol=1e-5, rtol=0)
    assert losses[2] == 0
    parts = [emissions, *crf.parameters()]
    found = torch.autograd.grad(losses.sum(), parts)
    for one, other in zip(found, torch.autograd.grad(sum(slow), parts), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert not found[0][2].any()  # a row without labels teaches nothing


@pytest.mark.parametrize("scheme", LANGUAGES)
def test_sequences_that_break_the_scheme_have_no_part_in_the_loss(scheme):
    names, language = LANGUAGES[scheme]
    crf = make_crf(names)
    emissions, labels = torch.randn(*MASK.shape, len(names)), lawful_labels(names, language)
    labels[0, 2] = UNKNOWN
    losses = crf.negative_log_likelihood(emissions, labels, MASK)
    for loss, row, tags, mask in zip(losses, emissions, labels, MASK, strict=True):
        slow = slow_loss(crf, row[mask], tags[mask], names, language)
        torch.testing.assert_close(loss, slow, atol=1e-5, rtol=0)
    losses.sum().backward()
    assert crf.forbidden.any() and not crf.transitions.grad[crf.forbidden[:-1, :-1]].any()


@pytest.mark.parametrize("labels", [["O", "I-X", "O"], ["O", "B-X", "I-Y"], ["I-X", UNKNOWN, "O"]])
def test_a_row_whose_labels_break_the_scheme_is_scored_among_all_sequences(labels):
    crf = make_crf(IOB2)
    broken = torch.tensor([IOB2.index(label) if label in IOB2 else UNKNOWN for label in labels])
    whole = torch.tensor([1, 2, 0])
    emissions = torch.randn(2, 3, 5, requires_grad=True)
    losses = crf.negative_log_likelihood(emissions, torch.stack([broken, whole]), torch.ones(2, 3).bool())
    torch.testing.assert_close(losses[0], slow_loss(crf, emissions[0], broken), atol=1e-5, rtol=0)
    torch.testing.assert_close(losses[1], slow_loss(crf, emissions[1], whole, *LANGUAGES["iob2"]), atol=1e-5, rtol=0)
    losses[0].backward()
    assert emissions.grad[0].abs().max() < 1 and emissions.grad[0].any()


def test_labels_around_an_unlabelled_word_may_break_the_scheme_too():
    names = ["O", "B-X", "I-X", "E-X", "B-Y", "I-Y", "E-Y"]
    crf = make_crf(names)
    labels = torch.tensor([[names.index("B-X"), UNKNOWN, names.index("E-Y")]])  # no tag fits in between
    emissions = torch.randn(1, 3, 7)
    loss = crf.negative_log_likelihood(emissions, labels, torch.ones(1, 3).bool())
    torch.testing.assert_close(loss[0], slow_loss(crf, emissions[0], labels[0]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("scheme", [None, *LANGUAGES])
def test_the_logits_are_the_best_scores_through_each_tag_and_show_the_best_sequence(scheme):
    names, language = LANGUAGES.get(scheme, (LETTERS, None))
    crf = make_crf(names)
    emissions = 2 * torch.randn(*MASK.shape, len(names))
    logits = crf.max_marginals(emissions, MASK)
    assert not logits[~MASK].any()
    for found, row, mask in zip(logits, emissions, MASK, strict=True):
        slow = slow_max_marginals(crf, row[mask], names, language)
        torch.testing.assert_close(found[mask], slow, atol=1e-5, rtol=0)
        sequences = all_sequences(len(names), int(mask.sum()))
        if language is not None:
            sequences = sequences[is_lawful(sequences, names, language)]
        best = sequences[scores_of(crf, row[mask], sequences).argmax()]
        assert found[mask].argmax(-1).tolist() == best.tolist()
        assert ((found[mask] == 0).sum(-1) == 1).all()  # no tag is as good as the chosen one


@pytest.mark.parametrize("scheme", LANGUAGES)
def test_where_its_sentence_is_cut_a_row_may_begin_and_end_within_an_entity(scheme):
    names, language = LANGUAGES[scheme]
    crf, emissions = make_crf(names), 2 * torch.randn(4, 3, len(names))
    cut, words = torch.tensor([[False, False], [True, False], [False, True], [True, True]]), torch.ones(4, 3).bool()
    logits = crf.max_marginals(emissions, words, cut)
    assert torch.equal(logits[0], crf.max_marginals(emissions, words)[0])
    sequences = all_sequences(len(names), 3)
    more = [torch.empty(len(sequences), 0, dtype=torch.long), *(torch.full((len(sequences), 1), n) for n in range(6))]
    more = more[: len(names) + 1]  # no tag, or any tag, of a word beyond the row
    for found, row, (before, behind) in zip(logits, emissions, cut.tolist(), strict=True):
        lawful = torch.zeros(len(sequences)).bool()
        for left, right in itertools.product(more if before else more[:1], more if behind else more[:1]):
            lawful |= is_lawful(torch.cat([left, sequences, right], 1), names, language)
        best = sequences[lawful][scores_of(crf, row, sequences[lawful]).argmax()]
        assert found.argmax(-1).tolist() == best.tolist()
        possible = [[(sequences[lawful][:, word] == tag).any() for tag in range(len(names))] for word in range(3)]
        assert torch.equal(found > LOWEST, torch.tensor(possible))


def test_the_best_tags_are_one_sequence_where_several_are_equally_good():
    crf = ConditionalRandomField(2)
    with torch.no_grad():
        crf.transitions.fill_diagonal_(-5.0)  # A B A and B A B are the best
    tags = crf.max_marginals(torch.zeros(1, 3, 2), torch.ones(1, 3).bool()).argmax(-1)
    assert tags.tolist() in ([[0, 1, 0]], [[1, 0, 1]])


def test_no_decoded_sequence_breaks_the_scheme():
    crf = make_crf(BIOES)
    mask = torch.rand(300, 9) < 0.7
    tags = crf.max_marginals(5 * torch.randn(300, 9, len(BIOES)), mask).argmax(-1)
    for row, here in zip(tags, mask, strict=True):
        assert is_lawful(row[here].unsqueeze(0), BIOES, LANGUAGES["bioes"][1]).all()


@pytest.mark.parametrize("scheme", LANGUAGES)
def test_what_is_ruled_out_is_what_no_sequence_of_the_scheme_has(scheme):
    names, language = LANGUAGES[scheme]
    sequences = all_sequences(len(names), 4)
    outside = len(names)
    seen = torch.zeros(outside + 1, outside + 1, dtype=torch.bool)
    for sequence in sequences[is_lawful(sequences, names, language)].tolist():
        for pair in itertools.pairwise([outside, *sequence, outside]):
            seen[pair] = True
    seen[outside, outside] = True  # a sentence without words
    assert torch.equal(forbidden_transitions(names), ~seen)


@pytest.mark.parametrize(
    "names",
    [
        ["O", "I-X", "I-Y"],  # IO
        ["O", "I-X", "I-Y", "B-Y"],  # IOB1: I-X has no B-X, so it may begin an entity
        ["LABEL_0", "LABEL_1", "LABEL_2"],
        ["NOUN", "VERB", "X"],
        ["O", "B-X", "I-X", "E-X", "B-Y"],  # BIOES in part: a Y has a beginning and no end
        ["B-X", "I-X", "E-X"],  # no tag for a sentence of one word
        ["O", "B-X", "B-Y"],  # nothing to rule out
        ["O-X", "B-X", "I-X"],
    ],
)
def test_names_of_no_scheme_rule_nothing_out(names):
    assert forbidden_transitions(names) is None
    crf = make_crf(names)
    emissions, labels = torch.randn(1, 2, len(names)), torch.tensor([[1, 2]])
    loss = crf.negative_log_likelihood(emissions, labels, torch.ones(1, 2).bool())
    torch.testing.assert_close(loss[0], slow_loss(crf, emissions[0], labels[0]), atol=1e-5, rtol=0)


def test_tags_without_a_type_have_a_scheme_too():
    assert forbidden_transitions(["B", "I", "O"]).nonzero().tolist() == [[2, 1], [3, 1]]


def test_scores_far_apart_stay_exact():
    crf = make_crf(BIOES)
    emissions = (300 * torch.randn(1, 4, len(BIOES))).requires_grad_()
    labels = torch.tensor([[BIOES.index("B-X"), BIOES.index("E-X"), BIOES.index("O"), BIOES.index("S-Y")]])
    (loss,) = crf.negative_log_likelihood(emissions, labels, torch.ones(1, 4).bool())
    slow = slow_loss(crf.double(), emissions[0].double(), labels[0], *LANGUAGES["bioes"])
    torch.testing.assert_close(loss.double(), slow, rtol=1e-6, atol=0)
    (gradient,) = torch.autograd.grad(loss, emissions)
    torch.testing.assert_close(gradient, torch.autograd.grad(slow, emissions)[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    crf, emissions, labels = make_crf(IOB2).to(dtype), torch.randn(6, 5, 5, dtype=dtype), torch.randint(5, (6, 5))
    whole = make_crf(IOB2)
    whole.load_state_dict(crf.state_dict())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses, logits = crf.negative_log_likelihood(emissions, labels, MASK), crf.max_marginals(emissions, MASK)
    assert losses.dtype == logits.dtype == torch.float32
    torch.testing.assert_close(losses, whole.negative_log_likelihood(emissions.float(), labels, MASK), rtol=0, atol=0)
    torch.testing.assert_close(logits, whole.max_marginals(emissions.float(), MASK), rtol=0, atol=0)
    assert logits.half().isfinite().all()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_an_empty_batch_has_losses_and_logits_of_its_shape(shape):
    crf = make_crf(IOB2)
    emissions, nothing = torch.randn(*shape, 5), torch.zeros(shape, dtype=torch.long)
    losses = crf.negative_log_likelihood(emissions, nothing, nothing.bool())
    assert losses.shape == shape[:1] and not losses.any()
    assert crf.max_marginals(emissions, nothing.bool()).shape == (*shape, 5)
