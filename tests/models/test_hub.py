"""Push to the Hub and load from it, as the owner of a model with this package and as a stranger without it.

Both are processes of their own, because only the owner has this package, and both work with the real
`huggingface_hub` and `transformers` against `hub_server.HubServer`. Each does all of its errands in one go (starting
one costs seconds) and reports what it saw; the tests below look at the reports and at what arrived on the server.
"""

import inspect
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import run_glue
from modeling import ElmoConfig
from tests.conftest import ROOT
from tests.support.hub_server import HubServer, log_in
from tests.support.strangers import code_in, run_stranger


pytestmark = pytest.mark.slow


PACKAGES = ("modeling", "elmo_gpt_bert")  # what a stranger must not be able to import, installed or not
REMOTE = "from here on with trust_remote_code"  # the stranger's mark on stderr


def score(model, tokenizer) -> list[float]:
    """The logits of three sentences of unequal lengths, all in one list."""
    import torch

    batch = tokenizer(["the film was good", "bad", "badly the film"], padding=True, return_tensors="pt")
    with torch.inference_mode():
        return model.eval()(**batch).logits.flatten().tolist()


def push() -> dict:
    """The owner: pushes a BERT whole (with another one on a branch), sharded and private, ELMo, GPTs; loads each."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertTokenizer

    from modeling import (
        ElmoConfig,
        ElmoForSequenceClassification,
        ElmoTokenizer,
        ZooBertConfig,
        ZooBertForSequenceClassification,
    )

    def model(seed: int) -> ZooBertForSequenceClassification:
        torch.manual_seed(seed)
        sizes = {"vocab_size": 11, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
        sizes |= {"intermediate_size": 37, "max_position_embeddings": 19}
        return ZooBertForSequenceClassification(ZooBertConfig(**sizes, initializer_range=0.5))

    def refusal(repo_id: str, **options: object) -> str:
        try:
            load(repo_id, **options)
        except OSError as error:
            return str(error)
        return "no error"

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "was", "good", "bad", "##ly"]
    tokenizer = BertTokenizer(vocab={word: row for row, word in enumerate(words)})
    main, branch = model(seed=1), model(seed=2)
    main.push_to_hub("me/tiny-bert")
    tokenizer.push_to_hub("me/tiny-bert")
    branch.push_to_hub("me/tiny-bert", revision="v1")
    main.push_to_hub("me/sharded", max_shard_size="10KB")
    main.push_to_hub("me/private", private=True)
    sizes = {"max_characters_per_token": 9, "char_embedding_size": 3, "filters": [[1, 4], [2, 5]], "cell_size": 7}
    sizes |= {"num_highway_layers": 1, "hidden_size": 12, "rnn_size": 5, "classifier_size": 6}
    elmo = ElmoForSequenceClassification(ElmoConfig(**sizes))
    elmo.push_to_hub("me/tiny-elmo")
    letters = ElmoTokenizer(max_characters_per_token=9)
    letters.push_to_hub("me/tiny-elmo")

    load = ZooBertForSequenceClassification.from_pretrained
    refusals = {
        "absent": refusal("me/absent"),
        "private": refusal("me/private", token=False),
        "v9": refusal("me/tiny-bert", revision="v9"),
    }
    tokenizer_back = AutoTokenizer.from_pretrained("me/tiny-bert")
    letters_back = AutoTokenizer.from_pretrained("me/tiny-elmo")
    return refusals | {
        "main": score(main, tokenizer),
        "main back": score(load("me/tiny-bert"), tokenizer_back),
        "v1": score(branch, tokenizer),
        "v1 back": score(load("me/tiny-bert", revision="v1"), tokenizer_back),
        "sharded back": score(load("me/sharded"), tokenizer_back),
        "private back": score(load("me/private"), tokenizer_back),
        "elmo": score(elmo, letters),
        "elmo back": score(AutoModelForSequenceClassification.from_pretrained("me/tiny-elmo"), letters_back),
        "gpt": push_gpt(),
    }


def pairs(model, tokenizer) -> list[float]:
    """The logits of two pairs of sentences of unequal lengths, all in one list."""
    import torch

    batch = tokenizer(["the film was good", "bad"], ["bad", "badly the film"], padding=True, return_tensors="pt")
    with torch.inference_mode():
        return model.eval()(**batch).logits.flatten().tolist()


def story(model, tokenizer) -> str:
    """What a language model makes of two words."""
    ids = tokenizer("the film", add_special_tokens=False, return_tensors="pt")
    return tokenizer.decode(model.eval().generate(**ids, max_new_tokens=9, do_sample=False)[0])


def smoothed_losses(model) -> list[float]:
    """Four steps of transformers' Trainer with label smoothing on ten tokens, from which a model can learn to copy."""
    import tempfile

    import torch
    from transformers import Trainer, TrainingArguments

    ids = torch.arange(1, 11)
    row = {"input_ids": ids, "labels": torch.where(ids > 1, ids, -100)}  # no token predicts the first
    options = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    options |= {"label_smoothing_factor": 0.1, "max_steps": 4, "logging_steps": 1, "learning_rate": 0.01}
    trainer = Trainer(model, TrainingArguments(tempfile.mkdtemp(), **options), train_dataset=[row])
    trainer.log = lambda logs, *_: trainer.state.log_history.append(logs)  # and nothing on stdout
    trainer.train()
    return [logs["loss"] for logs in trainer.state.log_history if "loss" in logs]


def push_gpt() -> dict:
    """The owner: pushes a GPT that compares sentences and one that writes, each with its tokenizer; loads each."""
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    import modeling

    torch.manual_seed(1)
    modeling.register()
    letters = sorted(set("thefilmwasgoodbadly"))
    merges = [("t", "h"), ("th", "e</w>"), ("b", "a"), ("ba", "d</w>")]
    tokens = ["<unk>", *letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges)]
    vocab = {token: row for row, token in enumerate(tokens)}
    tokenizer = modeling.ZooGPTTokenizer(vocab=vocab, merges=merges, words="released", task_inputs=True)
    sizes = {"vocab_size": len(tokenizer), "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 41}
    sizes |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = modeling.ZooGPTConfig(**sizes, initializer_range=0.5, pad_token_id=0, sep_token_id=tokenizer.sep_token_id)
    writer = modeling.ZooGPTLMHeadModel(config)
    config.both_orders = True
    classifier = modeling.ZooGPTForSequenceClassification(config)
    for model, name in ((classifier, "me/tiny-gpt"), (writer, "me/tiny-writer")):
        model.push_to_hub(name)
        tokenizer.push_to_hub(name)
    tokenizer_back = AutoTokenizer.from_pretrained("me/tiny-gpt")
    return {
        "pairs": pairs(classifier, tokenizer),
        "pairs back": pairs(AutoModelForSequenceClassification.from_pretrained("me/tiny-gpt"), tokenizer_back),
        "story": story(writer, tokenizer),
        "story back": story(AutoModelForCausalLM.from_pretrained("me/tiny-writer"), tokenizer_back),
        "tokenizer back": [type(tokenizer_back).__name__, tokenizer_back.words, tokenizer_back.task_inputs],
    }


def pull_gpt(trust_remote_code: bool) -> dict:
    """The stranger: loads both with stock transformers, or with the code that came with them."""
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

    options = {"trust_remote_code": trust_remote_code}
    tokenizer = AutoTokenizer.from_pretrained("me/tiny-gpt", **options)
    classifier = AutoModelForSequenceClassification.from_pretrained("me/tiny-gpt", **options)
    writer = AutoModelForCausalLM.from_pretrained("me/tiny-writer", **options)
    return {
        "classes": [type(part).__module__ + "." + type(part).__name__ for part in (tokenizer, classifier, writer)],
        "pairs": pairs(classifier, tokenizer),
        "story": story(writer, tokenizer),
        "smoothed losses": smoothed_losses(writer),
    }


def pull(packages: list[str], mark: str, folder: str) -> dict:
    """The stranger: first stock transformers, then, after a mark on stderr, the code that came with the weights."""
    import sys

    for package in packages:
        try:
            __import__(package)
        except ModuleNotFoundError:
            continue
        raise RuntimeError(f"{package} can be imported")

    from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

    def load(auto: type, path: str, reader: object = None, **options: object) -> dict:
        model = auto.from_pretrained(path, **options)
        logits = score(model, reader or tokenizer) if auto is AutoModelForSequenceClassification else None
        name, names = type(model).__name__, auto._model_mapping._model_mapping.values()  # where names are looked up
        return {"class": f"{type(model).__module__}.{name}", "announced": name in names, "logits": logits}

    classify = AutoModelForSequenceClassification
    tokenizer = AutoTokenizer.from_pretrained("me/tiny-bert")
    report = {"stock main": load(classify, "me/tiny-bert"), "stock sharded": load(classify, "me/sharded")}
    report["stock v1"] = load(classify, "me/tiny-bert", revision="v1")
    report["stock gpt"] = pull_gpt(trust_remote_code=False)
    print(mark, file=sys.stderr, flush=True)
    AutoModelForMaskedLM.from_pretrained("me/tiny-bert", trust_remote_code=True).save_pretrained(f"{folder}-words")
    report["saved as another"] = load(classify, f"{folder}-words", trust_remote_code=True)
    for auto in (AutoModel, AutoModelForMaskedLM, classify):
        report[auto.__name__] = load(auto, "me/tiny-bert", trust_remote_code=True)
    classify.from_pretrained("me/tiny-bert", trust_remote_code=True).save_pretrained(folder)
    report["saved again"] = load(classify, folder, trust_remote_code=True)
    letters = AutoTokenizer.from_pretrained("me/tiny-elmo", trust_remote_code=True)
    report["elmo"] = load(classify, "me/tiny-elmo", letters, trust_remote_code=True)
    classify.from_pretrained("me/tiny-elmo", trust_remote_code=True).save_pretrained(f"{folder}-elmo")
    report["elmo saved again"] = load(classify, f"{folder}-elmo", letters, trust_remote_code=True)
    report["gpt"] = pull_gpt(trust_remote_code=True)
    return report


def run_owner(hub: HubServer, home: Path, code: str) -> subprocess.CompletedProcess:
    """Runs a process that has `hub` for its Hub, an empty cache in `home`, and, unlike a stranger, this package."""
    admit = ["import sys", *(f"del sys.modules[{package!r}]" for package in PACKAGES)]
    process = run_stranger("\n".join([*admit, f"sys.path.insert(0, {str(ROOT)!r})", code]), home=home, hub=hub)
    assert process.returncode == 0, process.stderr
    return process


def report_of(process: subprocess.CompletedProcess) -> dict:
    *printed, report = process.stdout.splitlines()
    assert printed == []  # importing, pushing and loading a model says nothing on stdout
    return json.loads(report)


ERRANDS = (score, pairs, story, smoothed_losses, push, push_gpt, pull, pull_gpt)


def program(function: Callable, **arguments: object) -> str:
    """The source of a process that calls `function`, one of `ERRANDS`, and prints what it returns."""
    call = f"import json\nprint(json.dumps({function.__name__}(**{arguments!r})))"
    return "\n".join([*map(inspect.getsource, ERRANDS), call])


@pytest.fixture(scope="module")
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture(scope="module")
def owner(hub: HubServer, tmp_path_factory: pytest.TempPathFactory) -> dict:
    process = run_owner(hub, tmp_path_factory.mktemp("owner"), program(push))
    return report_of(process) | {"output": process.stderr}


@pytest.fixture(scope="module")
def stranger(hub: HubServer, owner: dict, tmp_path_factory: pytest.TempPathFactory) -> dict:
    home = tmp_path_factory.mktemp("stranger")
    code = program(pull, packages=PACKAGES, mark=REMOTE, folder=str(home / "again"))
    process = run_stranger(code, home=home, hub=hub)
    assert process.returncode == 0, process.stderr
    saved = {path.name: path.read_text(encoding="utf-8") for path in (home / "again").glob("*.py")}
    return report_of(process) | {"stock output": process.stderr.partition(REMOTE)[0], "code saved again": saved}


@pytest.fixture(scope="module")
def finetuned(hub: HubServer, owner: dict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of run_glue.py after one epoch over the pushed model, with the result pushed as well."""
    home = tmp_path_factory.mktemp("finetuned")
    for split in ("train", "dev"):
        (home / "SST-2").mkdir(exist_ok=True)
        (home / "SST-2" / f"{split}.tsv").write_text("sentence\tlabel\nthe film was good\t1\nbad film\t0\nbad\t0\n")
    flags = ["--task_name", "sst2", "--data_dir", str(home), "--do_train", "--do_eval", "--num_train_epochs", "1"]
    flags += ["--model_name_or_path", "me/tiny-bert", "--max_seq_length", "19", "--output_dir", str(home / "output")]
    with pytest.MonkeyPatch.context() as monkeypatch:
        log_in(monkeypatch, hub, home / "cache")
        run_glue.main([*flags, "--push_to_hub", "--hub_model_id", "tiny-bert-sst2"])
    return home / "output"


def test_a_pushed_model_and_its_tokenizer_come_back_the_same(owner: dict):
    assert owner["main back"] == owner["main"]


def test_pushing_and_loading_with_this_package_prints_nothing(owner: dict):
    assert owner["output"] == ""


def test_a_branch_keeps_its_own_weights(owner: dict, stranger: dict):
    assert owner["v1 back"] == owner["v1"] != owner["main"]
    assert stranger["stock v1"]["logits"] == pytest.approx(owner["v1"], abs=1e-5)


def test_a_sharded_model_comes_back_the_same(hub: HubServer, owner: dict, stranger: dict):
    assert len([path for path in hub.files("me/sharded") if path.endswith(".safetensors")]) > 1
    assert owner["sharded back"] == owner["main"]
    assert stranger["stock sharded"]["logits"] == pytest.approx(owner["main"], abs=1e-5)


def test_weights_are_pushed_as_safetensors_only(hub: HubServer, owner: dict):
    suffixes = {Path(path).suffix for name in ("tiny-bert", "sharded") for path in hub.files(f"me/{name}")}
    assert suffixes == {".json", ".md", ".py", ".safetensors"}


def test_an_absent_repository_is_named_in_the_error(owner: dict):
    assert "me/absent" in owner["absent"]


def test_a_private_repository_opens_only_for_its_token(owner: dict):
    assert "me/private" in owner["private"]
    assert owner["private back"] == owner["main"]


def test_an_unknown_revision_is_named_in_the_error(owner: dict):
    assert "v9" in owner["v9"]


def test_stock_transformers_reads_the_model_without_this_package(owner: dict, stranger: dict):
    assert stranger["stock main"]["class"] == "transformers.models.bert.modeling_bert.BertForSequenceClassification"
    assert stranger["stock main"]["logits"] == pytest.approx(owner["main"], abs=1e-5)


def test_stock_transformers_reads_the_model_without_a_warning(stranger: dict):
    assert stranger["stock output"] == ""


@pytest.mark.parametrize(
    ("auto", "name"),
    [
        ("AutoModel", "modeling_bert.ZooBertModel"),
        ("AutoModelForMaskedLM", "modeling_bert.ZooBertForMaskedLM"),
        ("AutoModelForSequenceClassification", "modeling_bert_tasks.ZooBertForSequenceClassification"),
    ],
)
def test_with_remote_code_every_head_of_the_folder_is_ours(auto: str, name: str, stranger: dict):
    assert re.fullmatch(rf"transformers_modules\..*\.{re.escape(name)}", stranger[auto]["class"])
    assert stranger[auto]["announced"]


def test_remote_code_computes_the_same_logits(owner: dict, stranger: dict):
    assert stranger["AutoModelForSequenceClassification"]["logits"] == owner["main"]


def test_a_model_from_remote_code_is_saved_with_its_code(hub: HubServer, owner: dict, stranger: dict):
    code = {path: content.decode() for path, content in hub.files("me/tiny-bert").items() if path.endswith(".py")}
    assert stranger["code saved again"] == code
    assert stranger["saved again"]["class"].endswith("modeling_bert_tasks.ZooBertForSequenceClassification")
    assert stranger["saved again"]["logits"] == owner["main"]


def test_a_folder_saved_from_one_head_has_the_code_of_all(stranger: dict):
    assert stranger["saved as another"]["class"].endswith("modeling_bert_tasks.ZooBertForSequenceClassification")


def test_a_pushed_elmo_comes_back_the_same_with_and_without_this_package(
    hub: HubServer, owner: dict, stranger: dict, tmp_path: Path
):
    ElmoConfig().save_pretrained(tmp_path)
    assert code_in(tmp_path) <= hub.files("me/tiny-elmo").keys()
    assert owner["elmo back"] == pytest.approx(owner["elmo"], abs=1e-6)
    for name in ("elmo", "elmo saved again"):
        assert stranger[name]["class"].startswith("transformers_modules.")
        assert stranger[name]["class"].endswith(".modeling_elmo_tasks.ElmoForSequenceClassification")
        assert stranger[name]["logits"] == pytest.approx(owner["elmo"], abs=1e-6)


def test_a_pushed_gpt_and_its_tokenizer_come_back_the_same(owner: dict):
    gpt = owner["gpt"]
    assert gpt["tokenizer back"] == ["ZooGPTTokenizer", "released", True]
    assert gpt["pairs back"] == gpt["pairs"] and gpt["story back"] == gpt["story"]
    assert gpt["story"].startswith("the film") and len(gpt["story"]) > len("the film")


def test_a_stranger_reads_a_pushed_gpt_with_the_code_that_came_with_it(owner: dict, stranger: dict):
    gpt = stranger["gpt"]
    assert all(name.startswith("transformers_modules.") for name in gpt["classes"])
    names = ["ZooGPTTokenizer", "ZooGPTForSequenceClassification", "ZooGPTLMHeadModel"]
    assert [name.rpartition(".")[2] for name in gpt["classes"]] == names
    assert gpt["pairs"] == pytest.approx(owner["gpt"]["pairs"], abs=1e-6) and gpt["story"] == owner["gpt"]["story"]


def test_trainer_smooths_the_labels_of_a_stranger_s_gpt_as_of_the_stock_model(stranger: dict):
    stock, ours = (stranger[name]["smoothed losses"] for name in ("stock gpt", "gpt"))
    assert len(ours) == 4 and ours == pytest.approx(stock, abs=1e-3)


def test_stock_transformers_writes_on_as_a_pushed_gpt_does_and_reads_its_pairs_in_one_order(
    owner: dict, stranger: dict
):
    gpt = stranger["stock gpt"]
    names = ["TokenizersBackend", "OpenAIGPTForSequenceClassification", "OpenAIGPTLMHeadModel"]
    assert [name.rpartition(".")[2] for name in gpt["classes"]] == names
    assert gpt["story"] == owner["gpt"]["story"] and gpt["pairs"] != pytest.approx(owner["gpt"]["pairs"], abs=1e-3)


def test_run_glue_pushes_the_model_and_tokenizer_that_it_saved(hub: HubServer, finetuned: Path):
    pushed = hub.files("me/tiny-bert-sst2")
    needed = {"config.json", "model.safetensors", "modeling_bert.py", "tokenizer.json", "tokenizer_config.json"}
    assert needed <= pushed.keys()
    assert {path: (finetuned / path).read_bytes() for path in pushed} == pushed


def test_run_glue_pushes_a_card_whose_model_index_has_the_measured_scores(hub: HubServer, finetuned: Path):
    card = ModelCard(hub.files("me/tiny-bert-sst2")["README.md"].decode())
    measured = json.loads((finetuned / "metrics.json").read_text(encoding="utf-8"))
    (accuracy,) = [result for result in card.data.eval_results if result.metric_type == "accuracy"]
    assert accuracy.metric_value == measured["eval_accuracy"]
