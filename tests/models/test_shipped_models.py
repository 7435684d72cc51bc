"""The models of checkpoints/ are small, load as others of their kind, and have learned English."""

import csv
import json
import re

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import safe_open
from transformers import AutoConfig, AutoTokenizer, BertForMaskedLM, OpenAIGPTLMHeadModel

import modeling
from elmo_gpt_bert.tasks.features import choose_head
from elmo_gpt_bert.tasks.minimal_pairs import make_scorer
from elmo_gpt_bert.training.arguments import ModelSource
from tests.conftest import ROOT


NAMES = ("bert-books", "gpt-books", "elmo-books")
MEGABYTES = 25
ON_SST2 = {"bert-books": "BERT, fine-tuned", "gpt-books": "GPT, fine-tuned", "elmo-books": "ELMo, features"}
STOCK = {"bert-books": BertForMaskedLM, "gpt-books": OpenAIGPTLMHeadModel}
SENTENCES = [
    "The old man took his hat and went out of the house.",
    "She had never seen so large a ship before.",
    "They walked along the river until it was dark.",
    "I do not know what you mean, said the captain.",
    "In the morning the sun came through the window.",
    "He was one of the best men in the town.",
]


@pytest.fixture(params=NAMES)
def name(request) -> str:
    return request.param


@pytest.fixture
def folder(name, monkeypatch) -> str:
    """The folder's name from the root, as users write it."""
    monkeypatch.chdir(ROOT)
    return f"checkpoints/{name}"


def test_a_folder_is_small_and_has_no_code_and_no_path_of_a_machine(folder):
    files = {path.name: path for path in (ROOT / folder).iterdir()}
    assert {"README.md", "config.json", "model.safetensors", "tokenizer_config.json"} < files.keys()
    assert not [file for file in files if file.endswith(".py")]
    assert sum(path.stat().st_size for path in files.values()) <= MEGABYTES * 1e6
    for file, path in files.items():
        if not file.endswith((".safetensors", "vocab.txt", "tokenizer.json")):
            assert not re.search(r"/work|/home|/root|/tmp", path.read_text(encoding="utf-8")), file


def test_the_weights_are_stored_in_bfloat16(folder):
    with safe_open(ROOT / folder / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(name).get_dtype() for name in weights.keys()} == {"BF16"}  # noqa: SIM118


def test_the_card_and_the_list_of_the_models_have_the_same_perplexity(name, folder):
    card = ModelCard.load(ROOT / folder / "README.md")
    scores = {result.metric_type: result.metric_value for result in card.data.eval_results}
    (line,) = re.findall(rf"^\| \[{name}\].*", (ROOT / "checkpoints/README.md").read_text(encoding="utf-8"), re.M)
    assert f"| {scores['perplexity']:.1f} |" in line
    limit = re.search(r"^max_eval_samples: (\d+)$", card.text, re.M)[1]  # of the recipe
    (head,) = re.findall(r"^\| validation, (.+ examples) \| score \|$", card.text, re.M)
    assert head.startswith(f"the first {int(limit):,} of ") and head in card.data.eval_results[0].dataset_name


@pytest.mark.parametrize("guide", ["README.md", "README.zh.md"])
def test_the_readme_has_the_scores_of_the_card_and_of_the_record_and_a_line_that_loads_the_model(guide, name, folder):
    (row,) = re.findall(rf"^\| \[\w+\]\({folder}\).*", (ROOT / guide).read_text(encoding="utf-8"), re.M)
    card = ModelCard.load(ROOT / folder / "README.md")
    scores = {result.metric_type: result.metric_value for result in card.data.eval_results}
    lines = csv.DictReader((ROOT / "docs/records/pretraining_pays.csv").read_text(encoding="utf-8").splitlines())
    on_sst2 = {line["column"]: line for line in lines if [*line.values()][:2] == ["SST-2 accuracy", ON_SST2[name]]}
    without, pretrained = (on_sst2[f"{word} pre-training"] for word in ("without", "with"))
    assert without["seeds"] == pretrained["seeds"] == "3"
    measured = [float(number) for number in (pretrained["mean"], pretrained["std"], without["mean"])]
    expected = [f"{scores['perplexity']:.1f}", f"{scores['accuracy']:.1%}"[:-1], *(f"{each:.1f}" for each in measured)]
    assert re.findall(r"\d+\.\d+", row)[-5:] == expected
    assert eval(f"modeling.{row.split('`')[1]}").config.name_or_path == folder


def test_a_sentence_is_more_probable_than_its_words_in_another_order(name, folder):
    modeling.register()
    source = ModelSource(folder)
    config, tokenizer = AutoConfig.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    head = choose_head(config, tokenizer, source)
    scorer = make_scorer(head, head.from_pretrained(folder).eval(), tokenizer, "original")
    mixed = [" ".join([*sorted(sentence[:-1].split(), key=len), "."]) for sentence in SENTENCES]
    with torch.no_grad():
        outputs = scorer(**scorer.collate(scorer.encode(SENTENCES + mixed)))
    for scores in outputs.values():
        right, wrong = scores.split(len(SENTENCES))
        assert (right > wrong + 5).all()


@pytest.mark.parametrize("name", STOCK)
def test_transformers_own_classes_compute_the_same_from_the_folder(name, folder):
    modeling.register()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = {"input_ids": tokenizer(SENTENCES[0], return_tensors="pt")["input_ids"]}
    ours = {"bert-books": modeling.ZooBertForMaskedLM, "gpt-books": modeling.ZooGPTLMHeadModel}[name]
    with torch.no_grad():
        expected, logits = (model.from_pretrained(folder).eval()(**inputs).logits for model in (STOCK[name], ours))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_the_configuration_asks_for_float32(folder):
    assert json.loads((ROOT / folder / "config.json").read_text(encoding="utf-8"))["dtype"] == "float32"


@pytest.mark.parametrize("name", STOCK)
def test_the_tokenizer_cuts_text_at_the_model_s_positions(name, folder):
    modeling.register()
    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    inputs = tokenizer("the " * 600, truncation=True)
    assert len(inputs["input_ids"]) == config.max_position_embeddings == 512
