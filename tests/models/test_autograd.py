"""Derivatives of every kind are those of ordinary operations, or one error says which there are."""

import pytest
import torch
import torch.nn as nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap
from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

from modeling import (
    ElmoConfig,
    ElmoForPreTraining,
    ElmoForTokenClassification,
    ElmoModel,
    ZooBertConfig,
    ZooBertForMaskedLM,
    ZooBertForSequenceClassification,
    ZooGPTConfig,
    ZooGPTForSequenceClassification,
    ZooGPTLMHeadModel,
)
from modeling.elmo.modeling_elmo_crf import ConditionalRandomField
from modeling.shared import modeling_onednn as onednn
from modeling.shared.modeling_heads import word_loss


SIZES = {"vocab_size": 41, "n_embd": 15, "n_layer": 2, "n_head": 3, "n_positions": 13, "initializer_range": 0.3}
SMALL = {  # without dropout
    ZooBertConfig: {
        "vocab_size": 41, "hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 14,
        "initializer_range": 0.3, "attention_probs_dropout_prob": 0, "hidden_dropout_prob": 0,
    },
    ZooGPTConfig: SIZES | {
        "attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0, "summary_first_dropout": 0, "lm_loss_weight": 0.5
    },
}  # fmt: skip
EXACT = {"atol": 1e-5, "rtol": 1e-4}


@pytest.fixture
def models() -> list[nn.Module]:
    """GPT here and in transformers, the same weights; the fast products have been used."""
    ours = ZooGPTLMHeadModel(ZooGPTConfig(**SIZES, attn_implementation="eager")).eval()
    stock = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**SIZES, attn_implementation="eager")).eval()
    stock.load_state_dict(ours.state_dict())
    ours(torch.tensor([[1, 2, 3]]))
    assert onednn.is_faster(torch.ones(2, 2), torch.ones(2, 2)), "this build of torch has no oneDNN"
    return [ours, stock]


IDS = torch.tensor([[1, 2, 3, 4, 40], [7, 5, 9, 9, 2]])


def loss_of(model: nn.Module, embeddings: torch.Tensor) -> torch.Tensor:
    return model(inputs_embeds=embeddings, labels=IDS).loss


def embeddings_of(model: nn.Module) -> torch.Tensor:
    return model.transformer.tokens_embed(IDS).detach()


def direction(*shape: int) -> torch.Tensor:
    return torch.randn(shape or (*IDS.shape, SIZES["n_embd"]), generator=torch.Generator().manual_seed(1))


def forward_derivative(model: nn.Module) -> torch.Tensor:
    model.requires_grad_(False)
    return jvp(lambda embeddings: loss_of(model, embeddings), (embeddings_of(model),), (direction(),))[1]


def forward_derivative_of_a_dual_number(model: nn.Module) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(loss_of(model, forward_ad.make_dual(embeddings_of(model), direction()))).tangent


def functional_gradient(model: nn.Module) -> torch.Tensor:
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict) -> torch.Tensor:
        return functional_call(model, weights, (IDS,), {"labels": IDS}).loss

    return grad(loss)(weights)["transformer.h.0.attn.c_attn.weight"]


def gradients_of_each_row(model: nn.Module) -> torch.Tensor:
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def loss(weights: dict, ids: torch.Tensor) -> torch.Tensor:
        return functional_call(model, weights, (ids[None],), {"labels": ids[None]}).loss

    return vmap(grad(loss), in_dims=(None, 0))(weights, IDS)["transformer.h.1.mlp.c_fc.weight"]


def gradient_of_a_gradient_penalty(model: nn.Module) -> torch.Tensor:
    embeddings = embeddings_of(model).requires_grad_()
    (first,) = torch.autograd.grad(loss_of(model, embeddings), embeddings, create_graph=True)
    return torch.autograd.grad(first.square().sum(), embeddings)[0]


def hessian_vector_product(model: nn.Module) -> torch.Tensor:
    weight = model.transformer.h[0].mlp.c_proj.weight
    (first,) = torch.autograd.grad(loss_of(model, embeddings_of(model)), weight, create_graph=True)
    return torch.autograd.grad(first, weight, direction(*weight.shape))[0]


def many_gradients_at_once(model: nn.Module) -> torch.Tensor:
    embeddings = embeddings_of(model).requires_grad_()
    logits = model(inputs_embeds=embeddings).logits[:, -1, :3].flatten()
    return torch.autograd.grad(logits, embeddings, torch.eye(len(logits)), is_grads_batched=True)[0]


def steered_by_a_hook_that_writes_in_place(model: nn.Module) -> torch.Tensor:
    embeddings = embeddings_of(model).requires_grad_()
    hook = model.transformer.h[1].mlp.register_forward_hook(lambda module, inputs, output: output.add_(0.5))
    loss = loss_of(model, embeddings)
    hook.remove()
    return torch.autograd.grad(loss, embeddings)[0]


DERIVATIVES = [
    forward_derivative,
    forward_derivative_of_a_dual_number,
    functional_gradient,
    gradients_of_each_row,
    gradient_of_a_gradient_penalty,
    hessian_vector_product,
    many_gradients_at_once,
    steered_by_a_hook_that_writes_in_place,
]


@pytest.mark.parametrize("derivative", DERIVATIVES, ids=lambda function: function.__name__)
def test_derivatives_of_gpt_are_those_of_transformers(derivative, models):
    ours, stock = (derivative(model) for model in models)
    assert stock.abs().max() > 1e-4
    torch.testing.assert_close(ours, stock, **EXACT)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("left", [False, True], ids=["padded right", "padded left"])
@pytest.mark.parametrize(
    "model_class, training",
    [
        (ZooBertForSequenceClassification, False),
        (ZooBertForMaskedLM, True),
        (ZooGPTLMHeadModel, False),
        (ZooGPTForSequenceClassification, True),
    ],
)
def test_vmap_gives_the_gradients_of_each_row_of_a_padded_batch(model_class, training, left, implementation):
    torch.manual_seed(0)
    config = model_class.config_class(**SMALL[model_class.config_class], attn_implementation=implementation)
    model = model_class(config).train(training)
    ids, mask = torch.tensor([[2, 5, 3, 6, 4], [2, 6, 7, 1, 1]]), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    ids, mask = (ids.flip(-1), mask.flip(-1)) if left else (ids, mask)
    labels = torch.tensor([0, 1]) if "Sequence" in model_class.__name__ else ids.masked_fill(mask == 0, -100)

    def loss(parameters, *row):
        ids, mask, labels = (part[None] for part in row)
        return functional_call(model, parameters, (ids,), {"attention_mask": mask, "labels": labels})["loss"]

    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
    found = vmap(grad(loss), (None, 0, 0, 0))(parameters, ids, mask, labels)
    for row in range(2):
        model.zero_grad()
        one = slice(row, row + 1)
        model(ids[one], attention_mask=mask[one], labels=labels[one]).loss.backward()
        for name, parameter in model.named_parameters():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(found[name][row], expected, **EXACT, msg=name)


def test_whether_onednn_works_does_not_depend_on_where_that_is_first_asked():
    """The first product of all is one inside vmap, on another device, or in inference mode."""
    weight, rows = torch.randn(6, 5), torch.randn(3, 7, 5)
    onednn._works.cache_clear()
    vmap(lambda each: onednn.linear(each, weight))(rows)
    try:
        with torch.device("meta"), torch.inference_mode():
            torch.set_default_dtype(torch.float64)
            assert onednn.is_faster(rows, weight)
    finally:
        torch.set_default_dtype(torch.float32)
    assert onednn.is_faster(rows, weight)


@pytest.mark.parametrize("second", [False, True], ids=["first derivatives", "second derivatives"])
def test_the_loss_over_words_has_the_derivatives_of_cross_entropy(second):
    states, words = torch.randn(7, 5, dtype=torch.float64), torch.randn(11, 5, dtype=torch.float64)
    targets, weights = torch.randint(11, (7,)), torch.rand(7)

    def at_once(states: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        losses = nn.functional.cross_entropy((states @ words.T).float(), targets, reduction="none")
        return (losses * weights).sum()

    def ours(states: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return word_loss(states, words, targets, weights)

    found, wanted = [], []
    for loss, results in ((ours, found), (at_once, wanted)):
        leaves = [states.clone().requires_grad_(), words.clone().requires_grad_()]
        gradients = torch.autograd.grad(loss(*leaves), leaves, create_graph=second)
        if second:
            gradients = torch.autograd.grad(sum(part.square().sum() for part in gradients), leaves)
        results += gradients
        results += grad(loss, argnums=(0, 1))(states, words)
        results.append(jvp(loss, (states, words), (torch.ones_like(states), words))[1])
    torch.testing.assert_close(found, wanted, **EXACT)


def test_second_derivatives_reach_through_the_auxiliary_language_model():
    """A Hessian times a vector is the difference of gradients on both sides of the point."""
    config = ZooGPTConfig(**SIZES, lm_loss_weight=0.5, pad_token_id=0, attn_implementation="eager")
    model = ZooGPTForSequenceClassification(config).double().eval()
    weight, labels = model.transformer.h[0].attn.c_proj.weight, torch.tensor([0, 1])

    def gradient(create_graph: bool = False) -> torch.Tensor:
        loss = model(IDS, labels=labels).loss
        return torch.autograd.grad(loss, weight, create_graph=create_graph)[0]

    vector = direction(*weight.shape).double()
    product = torch.autograd.grad(gradient(create_graph=True), weight, vector)[0]
    with torch.no_grad():
        weight += 1e-3 * vector
    above = gradient()
    with torch.no_grad():
        weight -= 2e-3 * vector
    torch.testing.assert_close(product, (above - gradient()) / 2e-3, atol=1e-3, rtol=1e-3)


def elmo(model_class: type = ElmoModel, **changes) -> nn.Module:
    sizes = {"hidden_size": 10, "cell_size": 7, "filters": [[1, 4], [2, 3]], "char_embedding_size": 3}
    return model_class(ElmoConfig(**sizes, num_highway_layers=1, freeze_bilm=False, **changes)).eval()


@pytest.fixture
def characters() -> torch.Tensor:
    ids = torch.randint(1, 256, (2, 3, 50))
    ids[1, 2] = 0  # padding
    return ids


def test_forward_derivatives_of_elmo_are_those_of_its_gradients(characters):
    model = elmo()
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    vectors = {name: torch.randn_like(weight) for name, weight in weights.items()}

    def score(weights: dict) -> torch.Tensor:
        return functional_call(model, weights, (characters,)).last_hidden_state.sin().sum()

    model(characters).last_hidden_state.sin().sum().backward()  # by the recurrence's own backward pass
    gradients = {name: weight.grad for name, weight in model.named_parameters()}
    derivative = sum((gradients[name] * vector).sum() for name, vector in vectors.items())
    assert derivative.abs() > 0.01
    torch.testing.assert_close(jvp(score, (weights,), (vectors,))[1], derivative, **EXACT)
    torch.testing.assert_close(grad(score)(weights), gradients, **EXACT)


def test_second_derivatives_of_elmos_recurrence_are_refused(characters):
    model = elmo()
    score = model(characters).last_hidden_state.sum()  # with a gradient that is a constant
    with pytest.raises(NotImplementedError, match="second derivatives.*ELMo's recurrence.*torch.func"):
        torch.autograd.grad(score, model.layers[0].forward_lstm.input.weight, create_graph=True)


def test_functional_derivatives_of_elmos_language_model_are_refused(characters):
    model = elmo(ElmoForPreTraining, lm_vocab_size=9)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    labels = torch.ones(2, 3, dtype=torch.long)
    with pytest.raises(NotImplementedError, match="ElmoForPreTraining"):
        grad(lambda weights: functional_call(model, weights, (characters,), {"labels": labels}).loss)(weights)


def test_a_taggers_derivatives_are_those_of_its_gradients(characters):
    """Through its LSTM and its CRF."""
    model = elmo(ElmoForTokenClassification, num_labels=3, rnn_size=4, mix_l2=0.1)
    labels = torch.tensor([[0, 2, 1], [1, 0, -100]])
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    model(characters, labels=labels).loss.backward()
    wanted = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    found = grad(lambda weights: functional_call(model, weights, (characters,), {"labels": labels}).loss)(weights)
    torch.testing.assert_close({name: found[name] for name in wanted}, wanted, **EXACT)


def test_second_derivatives_of_the_crf_are_those_of_all_its_sequences():
    crf, emissions = ConditionalRandomField(3), torch.randn(2, 4, 3, requires_grad=True)
    with torch.no_grad():
        crf.transitions.normal_()
    tags, mask = torch.randint(3, (2, 4)), torch.ones(2, 4, dtype=torch.bool)
    sequences = torch.cartesian_prod(*[torch.arange(3)] * 4)  # (81, 4)

    def by_sequences(emissions: torch.Tensor) -> torch.Tensor:
        steps = crf.transitions[sequences[:, :-1], sequences[:, 1:]].sum(1)
        every = emissions[:, torch.arange(4), sequences].sum(-1) + steps  # (2, 81)
        right = (sequences[None] == tags[:, None]).all(-1)
        return (every.logsumexp(1) - every[right]).sum()

    def second(loss) -> torch.Tensor:
        (first,) = torch.autograd.grad(loss(emissions), emissions, create_graph=True)
        return torch.autograd.grad(first.square().sum(), emissions)[0]

    losses = {"ours": lambda emissions: crf.negative_log_likelihood(emissions, tags, mask).sum(), "all": by_sequences}
    torch.testing.assert_close(second(losses["ours"]), second(losses["all"]), **EXACT)


@pytest.mark.parametrize("traced", [False, True], ids=["recurrence", "scan"])
def test_elmos_gradients_in_double_precision_are_those_of_finite_differences(traced, characters):
    model = elmo().double()
    weight = model.layers[0].forward_lstm.recurrent.weight

    def score() -> torch.Tensor:
        mask = torch.tensor([[True] * 3, [True, True, False]])
        states = model.padded_layers(characters, mask, None)[-1] * mask[..., None] if traced else None
        return (model(characters).last_hidden_state if states is None else states).sin().sum()

    (gradient,) = torch.autograd.grad(score(), weight)
    direction, step = torch.randn_like(weight), 1e-5
    with torch.no_grad():
        ends = []
        for sign in (1, -1):
            weight.add_(sign * step * direction)
            ends.append(score())
            weight.sub_(sign * step * direction)
    torch.testing.assert_close((gradient * direction).sum(), (ends[0] - ends[1]) / (2 * step), atol=1e-8, rtol=1e-6)
