"""A tagger on the states of a frozen encoder, and the cache of these states on disk."""

import json
import os
import pickle
import random
import signal
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from datasets import Dataset, DatasetDict
from filelock import FileLock
from huggingface_hub.errors import StrictDataclassError
from safetensors.numpy import save_file
from transformers import AutoConfig, AutoModel, AutoModelForTokenClassification, BertTokenizer

import modeling
from elmo_gpt_bert.tasks.ner import features as ner
from elmo_gpt_bert.tasks.ner import states as state_cache
from elmo_gpt_bert.tasks.ner.states import cache_states
from elmo_gpt_bert.training import files as writing
from elmo_gpt_bert.training import launching
from modeling import FeatureTaggerConfig, FeatureTaggerForTokenClassification
from tests.support.processes import fork, wait
from tests.support.strangers import run_stranger


NAMES = ["embeddings", "second_to_last", "last", "weighted_sum_last_four", "concat_last_four", "weighted_sum_all"]


def encoder_of(model_type: str = "bert", **changes: object) -> torch.nn.Module:
    sizes = {"vocab_size": 30, "hidden_size": 12, "num_hidden_layers": 5, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 20, "max_position_embeddings": 40, "initializer_range": 0.5, **changes}
    return AutoModel.from_config(AutoConfig.for_model(model_type, **sizes))


def tagger(name: str = "concat_last_four", encoder: torch.nn.Module | None = None) -> torch.nn.Module:
    encoder = encoder_of() if encoder is None else encoder
    return FeatureTaggerForTokenClassification.from_encoder(encoder, features=name, rnn_size=7, num_labels=5)


def batch() -> dict[str, torch.Tensor]:
    """Three rows of 9, 4 and 6 tokens, the last padded on the left."""
    mask = torch.ones(3, 9, dtype=torch.long)
    mask[1, 4:] = mask[2, :3] = 0
    return {"input_ids": torch.randint(5, 30, (3, 9)), "attention_mask": mask}


# The model


@pytest.mark.parametrize("name", NAMES)
def test_the_bilstm_reads_the_layers_that_the_features_name(name):
    model = tagger(name).eval()
    inputs = batch()
    layers = model.encoder(**inputs, output_hidden_states=True).hidden_states
    if model.config.features.startswith("weighted"):
        model.combine.weights.data.copy_(torch.randn(len(model.combine.weights)))
        model.combine.gamma.data.fill_(1.7)
        shares = torch.exp(model.combine.weights) / torch.exp(model.combine.weights).sum()
    expected = {
        "embeddings": lambda: layers[0],
        "second_to_last": lambda: layers[4],
        "last": lambda: layers[5],
        "weighted_sum_last_four": lambda: 1.7 * sum(shares[i] * layers[2 + i] for i in range(4)),
        "concat_last_four": lambda: torch.cat(layers[2:], -1),
        "weighted_sum_all": lambda: 1.7 * sum(shares[i] * layers[1 + i] for i in range(5)),
    }[name]()
    logits = model(**inputs).logits
    for row, kept in enumerate(inputs["attention_mask"].bool()):
        alone = model.classifier(model.rnn(expected[row : row + 1, kept])[0])[0]
        torch.testing.assert_close(logits[row, kept], alone, atol=1e-5, rtol=0)


def test_of_a_window_the_bilstm_reads_the_sentence_alone():
    model, inputs = tagger("last").eval(), batch()
    mask = torch.zeros(3, 9, dtype=torch.long)
    mask[0, 2:5] = mask[1, 1:3] = 1  # and nothing of the last row
    states = model.encoder(**inputs).last_hidden_state
    logits = model(**inputs, sentence_mask=mask).logits
    for row, place in ((0, slice(2, 5)), (1, slice(1, 3))):
        alone = model.classifier(model.rnn(states[row : row + 1, place])[0])[0]
        torch.testing.assert_close(logits[row, place], alone, atol=1e-6, rtol=0)
    assert not logits[mask == 0].any()


def test_rows_of_one_length_are_read_in_bfloat16_on_every_processor():
    model, inputs = tagger("last").eval(), {"input_ids": torch.randint(5, 30, (2, 6))}
    wanted = model(**inputs).logits
    with torch.autocast("cpu", torch.bfloat16):
        found = model(**inputs).logits
    torch.testing.assert_close(found.float(), wanted, atol=0.03, rtol=0)


def test_states_that_were_computed_before_take_the_encoders_place():
    model, inputs = tagger("weighted_sum_all").eval(), batch()
    layers = torch.stack(model.encoder(**inputs, output_hidden_states=True).hidden_states, -2)
    cached = model(layer_states=layers, attention_mask=inputs["attention_mask"])
    assert torch.equal(cached.logits, model(**inputs).logits)


def test_the_encoder_is_never_trained_and_has_no_dropout():
    model, inputs = tagger(encoder=encoder_of(hidden_dropout_prob=0.5)), batch()
    before = {name: weight.clone() for name, weight in model.encoder.state_dict().items()}
    model.train()
    first, again = (model.encode(**inputs, token_type_ids=None).hidden_states for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    model(**inputs, labels=torch.zeros(3, 9, dtype=torch.long)).loss.backward()
    assert all(weight.grad is None for weight in model.encoder.parameters())
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    assert trained and all(weight.grad is not None for weight in trained)
    torch.optim.AdamW(model.parameters(), lr=0.1).step()
    assert all(torch.equal(weight, before[name]) for name, weight in model.encoder.state_dict().items())


@pytest.mark.parametrize("model_type", ["bert", "distilbert", "roberta", "gpt2"])
def test_any_encoder_may_be_read_and_comes_back_from_the_saved_folder(tmp_path, model_type):
    changes = {"n_embd": 12, "n_layer": 5, "n_head": 3, "n_positions": 40} if model_type == "gpt2" else {}
    model, inputs = tagger(encoder=encoder_of(model_type, **changes)).eval(), batch()
    model.save_pretrained(tmp_path)
    back = AutoModelForTokenClassification.from_pretrained(tmp_path)
    assert type(back.encoder) is type(model.encoder)
    torch.testing.assert_close(back(**inputs).logits, model(**inputs).logits)
    assert not any(weight.requires_grad for weight in back.encoder.parameters())


def test_the_zoos_bert_and_transformers_are_the_same_encoder(tmp_path):
    modeling.register()
    model, inputs = tagger().eval(), batch()
    model.save_pretrained(tmp_path)
    modeling.unregister()
    stock = AutoModelForTokenClassification.from_pretrained(tmp_path)
    assert {type(model.encoder).__name__, type(stock.encoder).__name__} == {"ZooBertModel", "BertModel"}
    kept = inputs["attention_mask"].bool()
    torch.testing.assert_close(stock(**inputs).logits[kept], model(**inputs).logits[kept], atol=1e-5, rtol=0)


STRANGER = """
import json, sys
import torch
from transformers import AutoModelForTokenClassification
model = AutoModelForTokenClassification.from_pretrained(sys.argv[1], trust_remote_code=True)
assert type(model).__name__ in AutoModelForTokenClassification._model_mapping._model_mapping.values()
logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits
print(json.dumps([type(model.encoder).__name__, logits.flatten().tolist()]))
"""


@pytest.mark.slow
def test_a_saved_folder_works_where_this_package_is_not_installed(tmp_path):
    modeling.register()
    model = tagger().eval()
    model.save_pretrained(tmp_path / "model")
    done = run_stranger(STRANGER, str(tmp_path / "model"), home=tmp_path / "stranger", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    encoder, logits = json.loads(done.stdout.splitlines()[-1])
    ours = model(input_ids=torch.tensor([[5, 6, 7]])).logits.flatten()
    assert encoder == "BertModel"
    torch.testing.assert_close(torch.tensor(logits), ours, atol=1e-5, rtol=0)


def test_features_of_more_layers_than_there_are_are_refused():
    with pytest.raises(
        StrictDataclassError, match="'concat_last_four' needs an encoder of 4 layers, and this one has 3; choose"
    ):
        FeatureTaggerConfig(encoder=encoder_of(num_hidden_layers=3).config)
    tagger("embeddings", encoder_of(num_hidden_layers=1))


# The cache


@pytest.fixture
def cached(tmp_path, run, monkeypatch):
    """Caches the states of 11 examples, 4 a file, for a model; gives the features, the batches' maker, the folder."""
    monkeypatch.setattr(state_cache, "FILE", 4)
    rng = torch.Generator().manual_seed(0)
    rows = [torch.randint(5, 30, (length,), generator=rng).tolist() for length in [3, 9, 4, 1, 7, 7, 2, 5, 8, 6, 3]]
    data = Dataset.from_dict({"input_ids": rows, "labels": [[id_ % 5 for id_ in row] for row in rows]})

    def collate(examples: list[dict]) -> dict[str, torch.Tensor]:
        width = max(len(example["input_ids"]) for example in examples)
        padded = [example["input_ids"] + [0] * (width - len(example["input_ids"])) for example in examples]
        masks = [example.get("sentence_mask", []) for example in examples]
        batch = {"input_ids": torch.tensor(padded)}
        batch["attention_mask"] = (batch["input_ids"] > 0).long()
        if masks[0]:
            batch["sentence_mask"] = torch.tensor([mask + [0] * (width - len(mask)) for mask in masks])
        return batch

    def cache(model: torch.nn.Module, data: Dataset = data, **changes: object):
        folder = tmp_path / "cache"
        AcceleratorState._reset_state(True)
        accelerator = launching.make_accelerator(run(**changes))
        split, reader = cache_states(model, DatasetDict(train=data), collate, folder, 3, accelerator)
        return split["train"], reader, folder

    cache.data, cache.collate = data, collate
    return cache


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.safetensors"))


def test_batches_from_the_cache_give_the_logits_of_the_encoder(cached):
    model = tagger()
    data, reader, folder = cached(model)
    assert len(files(folder)) == 3
    rows = [9, 0, 4, 10]
    ours = model(**{k: v for k, v in reader([data[row] for row in rows]).items() if k != "input_ids"}).logits
    plain = cached.collate([cached.data[row] for row in rows])
    kept = plain["attention_mask"].bool()
    torch.testing.assert_close(ours[kept], model(**plain).logits[kept], atol=1e-6, rtol=0)
    assert data["labels"] == cached.data["labels"]


def test_a_worker_without_this_processs_memory_reads_the_same_states(cached):
    data, _, folder = cached(tagger())
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])})
    collate = partial(ner.collate, tokenizer=tokenizer)
    rows = [{**data[row], "attention_mask": [1] * len(data[row]["input_ids"])} for row in (9, 0, 4)]
    ours = state_cache.CachedStates(files(folder), collate)
    sent = pickle.loads(pickle.dumps(ours))
    assert all(torch.equal(values, ours(rows)[name]) for name, values in sent(rows).items())


def test_tokens_that_are_only_context_are_not_kept(cached):
    model = tagger()
    masks = [
        [int(place % 3 == 1) or int(len(row) == 1) for place in range(len(row))] for row in cached.data["input_ids"]
    ]
    data, reader, _ = cached(model, cached.data.add_column("sentence_mask", masks))
    assert [len(row) for row in data["labels"]] == [sum(mask) for mask in masks]
    assert "sentence_mask" not in data.column_names
    rows = [1, 3, 8]
    ours = model(**{k: v for k, v in reader([data[row] for row in rows]).items() if k != "input_ids"}).logits
    plain = cached.collate([{**cached.data[row], "sentence_mask": masks[row]} for row in rows])
    theirs = model(**plain).logits[plain["sentence_mask"].bool()]
    kept = torch.tensor([[place < sum(masks[row]) for place in range(ours.shape[1])] for row in rows])
    torch.testing.assert_close(ours[kept], theirs, atol=1e-6, rtol=0)


def computed(monkeypatch) -> list[int]:
    """Receives the number of examples of every file that is computed from here on."""
    found, compute = [], state_cache._compute
    monkeypatch.setattr(
        state_cache, "_compute", lambda base, data, *rest: found.append(len(data)) or compute(base, data, *rest)
    )
    return found


def test_states_are_computed_once_for_all_task_networks_on_them(cached, monkeypatch):
    encoder, calls = encoder_of(), computed(monkeypatch)
    cached(tagger("last", encoder))
    assert calls == [4, 4, 3]
    cached(tagger("weighted_sum_all", encoder), seed=7)
    assert calls == [4, 4, 3]
    with torch.no_grad():
        next(encoder.parameters()).add_(0.1)
    cached(tagger("last", encoder))
    cached(tagger("last", encoder), cached.data.select(range(5)))
    assert calls == [4, 4, 3, 4, 4, 3, 4, 1]


@pytest.mark.parametrize("changes", [{"mixed_precision": "bf16"}, {"matmul_precision": "medium"}])
def test_states_of_another_precision_are_others(cached, monkeypatch, changes):
    model, calls = tagger(), computed(monkeypatch)
    cached(model)
    cached(model, **changes)
    assert calls == [4, 4, 3] * 2


def test_states_of_other_sentences_in_the_same_windows_are_others(cached, monkeypatch):
    model, calls = tagger(), computed(monkeypatch)
    for place in (0, -1):  # as many tokens, so only the key tells them apart
        masks = [[int(n == place % len(row)) for n in range(len(row))] for row in cached.data["input_ids"]]
        cached(model, cached.data.add_column("sentence_mask", masks))
    assert calls == [4, 4, 3] * 2


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_within(tensors: dict, path: Path, metadata: dict) -> None:
    save_file(tensors, path, metadata)
    os.truncate(path, path.stat().st_size // 2)
    kill()


MOMENTS = {
    "while a file is written": ("save_file", killed_within),
    "before it is on the disk": ("sync", lambda *_: kill()),
    "before it has its name": ("os.replace", lambda *_: kill()),
    "while its states are computed": ("_compute", lambda *_: kill()),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_that_is_killed_leaves_whole_files_and_the_next_goes_on_to_the_same_bytes(
    cached, monkeypatch, tmp_path, moment
):
    model, (name, killed) = tagger(), MOMENTS[moment]
    place = {"os.replace": os, "_compute": state_cache}.get(name, writing)
    usual = getattr(place, name.removeprefix("os."))
    in_the_second = lambda *args: (killed if files(tmp_path / "cache") else usual)(*args)  # noqa: E731
    with monkeypatch.context() as patch:
        patch.setattr(place, name.removeprefix("os."), in_the_second)
        assert wait(fork(lambda: cached(model))) == [-signal.SIGKILL]
    assert len(files(tmp_path / "cache")) == 1
    calls = computed(monkeypatch)
    data, reader, folder = cached(model)
    assert calls == [4, 3]
    resumed = {path.name: path.read_bytes() for path in files(folder)}
    assert {path.name for path in folder.rglob("*") if path.is_file()} - {".lock"} == resumed.keys()
    folder.rename(tmp_path / "resumed")
    cached(model)
    assert {path.name: path.read_bytes() for path in files(folder)} == resumed and len(resumed) == 3


def test_a_run_that_waits_for_anothers_states_says_so(cached, monkeypatch, capsys):
    monkeypatch.setattr(state_cache, "PATIENCE", 0.05)
    model = tagger()
    (lock,) = cached(model)[2].rglob(".lock")
    assert "waits" not in capsys.readouterr().out
    other = FileLock(lock, thread_local=False)
    other.acquire()
    threading.Timer(0.2, other.release).start()
    cached(model)
    assert capsys.readouterr().out.count(f"waits for another run that writes {lock.parent}") == 1


def test_two_runs_at_once_share_the_work_of_one(cached, monkeypatch, tmp_path):
    model, compute = tagger(), state_cache._compute

    def slowly(*args):
        with (tmp_path / "computed").open("a", encoding="utf-8") as log:
            log.write("one\n")
        time.sleep(0.1)  # the other run meets this one at work
        return compute(*args)

    def run(name: str) -> None:
        data, reader, _ = cached(model)
        torch.save(reader([data[row] for row in range(len(data))])["layer_states"], tmp_path / name)

    monkeypatch.setattr(state_cache, "_compute", slowly)
    assert wait([*fork(lambda: run("a")), *fork(lambda: run("b"))]) == [0, 0]
    assert (tmp_path / "computed").read_text(encoding="utf-8") == "one\n" * 3
    assert torch.equal(torch.load(tmp_path / "a"), torch.load(tmp_path / "b"))


def test_a_file_that_was_cut_short_or_changed_anywhere_is_computed_again(cached, monkeypatch):
    model, places = tagger(), random.Random(0)
    _, _, folder = cached(model)
    whole = files(folder)[1].read_bytes()
    for number in range(8):
        place = places.randrange(len(whole))
        rest = b"" if number % 4 == 0 else bytes([whole[place] ^ 1 << number]) + whole[place + 1 :]
        files(folder)[1].write_bytes(whole[:place] + rest)
        with monkeypatch.context() as patch:
            calls = computed(patch)
            cached(model)
        assert calls == [4] and files(folder)[1].read_bytes() == whole


def test_files_of_another_number_of_examples_are_computed_again(cached, monkeypatch):
    model = tagger()
    cached(model)
    monkeypatch.setattr(state_cache, "FILE", 5)
    calls = computed(monkeypatch)
    data, reader, _ = cached(model)
    assert calls == [5, 5, 1]
    batch = reader([data[row] for row in (4, 5, 10)])
    plain = cached.collate([cached.data[row] for row in (4, 5, 10)])
    states = torch.stack(model.encoder(**plain, output_hidden_states=True).hidden_states, -2)
    kept = plain["attention_mask"].bool()
    torch.testing.assert_close(batch["layer_states"][kept], states[kept], atol=1e-5, rtol=0)


def test_a_full_disk_is_one_clear_error(cached, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*states-00000.safetensors: No space left on device. Make room"):
        cached(tagger())


def test_a_model_without_a_frozen_base_is_refused(cached):
    plain = AutoModelForTokenClassification.from_config(encoder_of().config)
    with pytest.raises(ValueError, match="^--state_cache .* BertForTokenClassification has none"):
        cached(plain)


def test_states_that_depend_on_the_call_before_are_refused(cached):
    def carry_over(module: torch.nn.Module, *_) -> None:
        module.embeddings.LayerNorm.bias.data.add_(1)

    model = tagger()
    model.encoder.register_forward_hook(carry_over)
    with pytest.raises(ValueError, match="BertModel gives others at a second call"):
        cached(model)
