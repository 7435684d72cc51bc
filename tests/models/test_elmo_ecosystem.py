"""ELMo's classes at home in transformers: Auto classes, folders, Trainer, peft, graphs, precisions, threads, forks."""

import copy
import json
import pickle
import statistics
from concurrent.futures import ThreadPoolExecutor

import accelerate
import peft
import pytest
import torch
import transformers
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

import modeling
from elmo_gpt_bert.convert.elmo import convert
from modeling import ElmoConfig, ElmoModel, ElmoTokenizer
from modeling.elmo import modeling_elmo
from modeling.elmo.configuration_elmo import AUTO_MAP
from modeling.elmo.modeling_elmo_lstm import run_both
from tests.support.manylangs_reference import SENTENCES, write_release
from tests.support.strangers import code_followed, code_in, load_and_save_again


CHARACTERS, LABELS = 9, 3
SIZES = {
    "max_characters_per_token": CHARACTERS,
    "char_embedding_size": 4,
    "filters": [[1, 5], [3, 8]],
    "num_highway_layers": 1,
    "hidden_size": 14,
    "cell_size": 9,
    "lm_vocab_size": 23,
    "num_sampled": 0,
    "num_mixes": 2,
    "elmo_placement": "both",
    "num_word_vectors": 11,
    "word_vector_size": 6,
    "task_char_filters": 5,
    "rnn_size": 5,
    "classifier_size": 8,
    "num_labels": LABELS,
}
PLAIN = {"hidden_dropout_prob": 0.0, "mix_dropout": 0.0, "task_dropout": 0.0}
AUTO = {name: reference for name, reference in AUTO_MAP.items() if name.startswith("AutoModel")}
HEADS = [name.removeprefix("Auto") for name in AUTO]  # Model, ModelForPreTraining, ...
TASKS = HEADS[2:]
EACH = pytest.mark.parametrize("head", HEADS)
EACH_TASK = pytest.mark.parametrize("head", TASKS)
LENGTHS = [(2, 2), (1, 3), (2, 1), (3, 1)]


def build(head: str, **changes) -> PreTrainedModel:
    """A tiny model in evaluation, with weights large enough for every part to matter."""
    name = AUTO[f"Auto{head}"].split(".")[1]
    model = getattr(modeling, name)(ElmoConfig(**(SIZES | changes))).eval()
    for tensor in [*model.parameters(), *(buffer for name, buffer in model.named_buffers() if "initial" in name)]:
        torch.nn.init.normal_(tensor, std=0.4)
    return model


def batch(head: str, labels: bool = False) -> dict[str, torch.Tensor]:
    """Rows of two sentences each, of unequal lengths, with whatever else the head takes."""
    rows, columns = len(LENGTHS), max(map(sum, LENGTHS))
    first, whole = (torch.tensor(counts).unsqueeze(1) for counts in ([n for n, _ in LENGTHS], list(map(sum, LENGTHS))))
    place = torch.arange(columns)
    mask = (place < whole).long()
    inputs = {
        "input_ids": torch.randint(1, 257, (rows, columns, CHARACTERS)) * mask.unsqueeze(-1),
        "attention_mask": mask,
        "token_type_ids": (place >= first).long() * mask,
    }
    if head in TASKS:
        inputs["vector_ids"] = torch.randint(1, SIZES["num_word_vectors"], (rows, columns)) * mask
    if head == "ModelForMultipleChoice":
        inputs = {name: torch.stack([tensor, tensor.flip(0)], 1) for name, tensor in inputs.items()}
    return inputs | (labels_for(head, mask) if labels else {})


def labels_for(head: str, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    rows = len(mask)
    if head == "ModelForQuestionAnswering":
        return {"start_positions": mask.sum(1) - 1, "end_positions": mask.sum(1) - 1}
    if head in ("ModelForPreTraining", "ModelForTokenClassification"):
        return {"labels": torch.randint(0, LABELS, mask.shape).masked_fill(mask == 0, -100)}
    return {"labels": torch.arange(rows) % (2 if head == "ModelForMultipleChoice" else LABELS)}


def found(output) -> list[torch.Tensor]:
    """All tensors of a model's output."""
    return [tensor for tensor in output.to_tuple() if torch.is_tensor(tensor)]


def assert_same(one, other, **tolerance) -> None:
    assert len(found(one)) == len(found(other)) > 0
    for left, right in zip(found(one), found(other), strict=True):
        torch.testing.assert_close(left, right, **(tolerance or {"atol": 0, "rtol": 0}))


# Folders and Auto classes


@pytest.mark.parametrize("registry", ["imported", "registered", "unregistered"])
def test_the_auto_classes_find_elmo_whatever_is_done_with_berts(registry, tmp_path):
    build("Model").save_pretrained(tmp_path)
    ElmoTokenizer(max_characters_per_token=CHARACTERS).save_pretrained(tmp_path)
    if registry != "imported":
        modeling.register()
    if registry == "unregistered":
        modeling.unregister()
    assert type(AutoConfig.from_pretrained(tmp_path)) is ElmoConfig
    assert type(AutoTokenizer.from_pretrained(tmp_path)) is ElmoTokenizer
    for auto, reference in AUTO.items():
        model = getattr(transformers, auto).from_pretrained(tmp_path)
        assert f"{type(model).__module__}.{type(model).__name__}" == f"modeling.elmo.{reference}"


@EACH
def test_a_saved_model_comes_back_bit_for_bit(head, tmp_path):
    model = build(head)
    model.save_pretrained(tmp_path)
    again, report = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"))
    expected = model.state_dict()
    assert expected.keys() == again.state_dict().keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.state_dict().items())
    inputs = batch(head)
    assert_same(again(**inputs), model(**inputs), atol=1e-6, rtol=1e-5)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == AUTO_MAP
    assert code_in(tmp_path) == code_followed(tmp_path) | {"pipeline_elmo.py"}


@pytest.mark.parametrize("head", HEADS[1:])
def test_a_base_checkpoint_fills_a_head_and_a_heads_checkpoint_the_base(head, tmp_path):
    base = build("Model")
    base.save_pretrained(tmp_path / "base")
    model, report = type(build(head)).from_pretrained(tmp_path / "base", output_loading_info=True)
    assert report["missing_keys"] == {name for name in model.state_dict() if not name.startswith("elmo.")}
    model.save_pretrained(tmp_path / "head")
    again = ElmoModel.from_pretrained(tmp_path / "head")
    for name, tensor in base.state_dict().items():
        assert torch.equal(model.elmo.state_dict()[name], tensor), name
        assert torch.equal(again.state_dict()[name], tensor), name


@EACH
def test_what_is_to_be_learned_is_the_same_in_a_loaded_model(head, tmp_path):
    model = build(head, freeze_word_vectors=True, mix_top_layer_only=True)
    build("Model").save_pretrained(tmp_path / "base")
    model.save_pretrained(tmp_path / "whole")
    loaded = [type(model).from_pretrained(tmp_path / name, config=model.config) for name in ("base", "whole")]
    made, *others = ({name for name, p in each.named_parameters() if p.requires_grad} for each in (model, *loaded))
    assert set() < made < {name for name, _ in model.named_parameters()}
    assert others == [made, made]


def test_a_classifier_of_other_classes_starts_anew_where_that_is_asked_for(tmp_path):
    model = build("ModelForSequenceClassification")
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        type(model).from_pretrained(tmp_path, num_labels=LABELS + 1)
    other = type(model).from_pretrained(tmp_path, num_labels=LABELS + 1, ignore_mismatched_sizes=True)
    assert other(**batch("ModelForSequenceClassification")).logits.shape == (len(LENGTHS), LABELS + 1)
    assert torch.equal(other.hidden.weight, model.hidden.weight)


@pytest.mark.parametrize("way", ["made", "loaded"])
def test_the_first_weights_are_the_released_codes(way, tmp_path):
    """Also of what a checkpoint lacks: the tensors are then made without storage, and filled in afterwards."""
    config = ElmoConfig(**(SIZES | {"hidden_size": 62, "cell_size": 40}))
    model = modeling.ElmoForQuestionAnswering(config)
    if way == "loaded":
        empty = {"elmo.mixes.0.gamma": torch.tensor(2.0)}
        model = modeling.ElmoForQuestionAnswering.from_pretrained(None, config=config, state_dict=empty)
    encoder, lstm = model.elmo.token_encoder, model.elmo.layers[1].backward_lstm
    assert encoder.char_embeddings.weight[0].eq(0).all()
    assert 0.9 < encoder.char_embeddings.weight.abs().max() <= 1
    for embeddings in (model.word_vectors, model.characters.embeddings):  # of length 1 in the mean
        lengths = embeddings.weight.detach().norm(dim=1)
        assert lengths[0] == 0 and lengths[1:].square().mean() == pytest.approx(1, abs=0.4)
    assert encoder.highways[0].carry.bias.eq(-2).all() and encoder.highways[0].transform.bias.eq(0).all()
    gates = lstm.input.bias.unflatten(0, (4, 40))  # input, forget, candidate, output
    assert gates[1].eq(1).all() and gates[[0, 2, 3]].eq(0).all()
    limit = (6 / (31 + 31 + 160)) ** 0.5
    assert 0.95 * limit < lstm.recurrent.weight.abs().max() <= limit
    assert model.elmo.initial_cell.eq(0).all()
    assert [mix.gamma.item() for mix in model.elmo.mixes] == [2.0 if way == "loaded" else 1.0, 1.0]
    rnn = model.self_attention.rnn.layers[0]
    limit = (6 / (10 + 15)) ** 0.5  # Glorot's, of the 10 inputs and three gates of 5 cells
    assert 0.9 * limit < rnn.weight_ih_l0_reverse.abs().max() <= limit and rnn.bias_hh_l0.eq(0).all()


@pytest.mark.slow
def test_folders_load_and_are_saved_again_where_this_package_is_not_installed(tmp_path):
    for head in HEADS:
        ElmoTokenizer(max_characters_per_token=CHARACTERS).save_pretrained(tmp_path / f"Auto{head}")
    cases = {f"Auto{head}": (build(head), batch(head)) for head in HEADS}
    language = "language AutoModel"  # one that reads the characters and the words of a language
    convert(None, str(write_release(tmp_path / "release")), str(tmp_path / "converted"))
    tokenizer = ElmoTokenizer.from_pretrained(tmp_path / "converted")
    tokenizer.save_pretrained(tmp_path / language)
    inputs = tokenizer(SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt")
    cases[language] = (ElmoModel.from_pretrained(tmp_path / "converted"), dict(inputs))
    load_and_save_again(tmp_path, cases)
    for auto, reference in AUTO.items():
        again = tmp_path / f"{auto} again"
        assert code_in(tmp_path / auto) > code_in(again) > {f"{reference.split('.')[0]}.py"}
        assert (again / "tokenizer_config.json").is_file()


# Training


TEXTS = [("Zoe ran", "who ?"), ("a dog sat on the mat", "the cat , the dog"), ("no", "it was not bad at all")] * 2


def arguments(folder, **changes) -> TrainingArguments:
    quiet = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    return TrainingArguments(str(folder), **(quiet | {"per_device_train_batch_size": 3} | changes))


@pytest.mark.slow
@pytest.mark.parametrize("freeze", [True, False, "undone"])
@pytest.mark.parametrize("head", ["ModelForSequenceClassification", "ModelForTokenClassification"])
def test_trainer_changes_what_is_not_frozen_and_drops_nothing_of_the_rest(head, freeze, tmp_path):
    tokenizer = ElmoTokenizer(max_characters_per_token=CHARACTERS)
    examples = Dataset.from_list([dict(tokenizer(*pair)) for pair in TEXTS])
    if head == "ModelForTokenClassification":
        labels, collator = [[0] * len(ids) for ids in examples["input_ids"]], DataCollatorForTokenClassification
    else:
        labels, collator = [0, 1, 2, 0, 1, 2], DataCollatorWithPadding
    model = build(head, freeze_bilm=bool(freeze), hidden_dropout_prob=0.9, num_word_vectors=0)
    model.save_pretrained(tmp_path)
    model = type(model).from_pretrained(tmp_path)  # what is frozen is not in the file
    if freeze == "undone":
        model, freeze = copy.deepcopy(model.requires_grad_(True)), False
    before = copy.deepcopy(model.state_dict())
    examples = examples.add_column("labels", labels)
    Trainer(
        model,
        arguments(tmp_path / "out", max_steps=2, learning_rate=1e-2),
        train_dataset=examples,
        data_collator=collator(tokenizer),
    ).train()
    changed = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    bilm = {name for name in before if name.startswith(("elmo.token_encoder.", "elmo.layers."))}
    state = {"elmo.initial_hidden", "elmo.initial_cell"}
    assert bilm and changed == before.keys() - state - (bilm if freeze else set())
    inputs = batch("Model")
    layers = [model.train(mode).elmo(**inputs, output_hidden_states=True).hidden_states for mode in (True, False)]
    assert all(torch.equal(*pair) for pair in zip(*layers, strict=True)) is freeze


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS[1:])
def test_trainer_updates_alike_from_one_batch_and_from_accumulated_ones(head, tmp_path):
    model = build(head, mix_l2=0.1, use_crf=False, **PLAIN)
    given = batch(head, labels=True)
    if head == "ModelForPreTraining":  # its losses are means over each batch: equal counts make both ways the same
        given = {name: tensor[:1].repeat_interleave(4, 0) for name, tensor in given.items()}
        given["labels"] = torch.where(given["labels"] < 0, -100, torch.randint(0, 23, given["labels"].shape))
    examples = [{name: tensor[row] for name, tensor in given.items()} for row in range(len(LENGTHS))]
    changes = []
    for size in (4, 2):
        tuned = copy.deepcopy(model)
        training = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 4 // size, "max_steps": 1}
        training |= {"learning_rate": 0.1, "optim": "sgd", "max_grad_norm": 0.0, "lr_scheduler_type": "constant"}
        Trainer(tuned, arguments(tmp_path, **training), train_dataset=examples).train()
        changes.append([new - old for new, old in zip(tuned.parameters(), model.parameters(), strict=True)])
    assert any(change.abs().max() > 1e-4 for change in changes[0])
    torch.testing.assert_close(changes[1], changes[0], atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("head", HEADS[1:])
def test_gradient_checkpointing_changes_memory_not_gradients(head, monkeypatch):
    model, inputs = build(head, freeze_bilm=False, **PLAIN).train(), batch(head, labels=True)
    gradients, calls = [], []
    monkeypatch.setattr(modeling_elmo, "run_both", lambda *given: calls.append(1) or run_both(*given))
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(**inputs).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.requires_grad])
    assert len(calls) == 2 + 2 + 2  # two layers, and then each once more in the backward pass
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-6, rtol=1e-5)


def test_lora_tunes_a_head_and_its_adapter_is_saved_without_the_model(tmp_path):
    head = "ModelForSequenceClassification"
    model, inputs = build(head, **PLAIN), batch(head, labels=True)
    before = model(**inputs).logits
    adapter = peft.LoraConfig(r=2, target_modules=["hidden", "classifier"], modules_to_save=["mixes.0", "mixes.1"])
    tuned = peft.get_peft_model(copy.deepcopy(model), adapter)
    trained = [name for name, parameter in tuned.named_parameters() if parameter.requires_grad]
    assert len(trained) == 8 and all("lora" in name or "mixes" in name for name in trained)
    optimizer = torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=0.5)
    for _ in range(3):
        tuned(**inputs).loss.backward()
        optimizer.step()
    tuned.save_pretrained(tmp_path)
    expected = tuned.eval()(**inputs).logits
    assert (expected - before).abs().max() > 1e-2
    loaded = peft.PeftModel.from_pretrained(model, tmp_path).eval()
    torch.testing.assert_close(loaded(**inputs).logits, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(loaded.merge_and_unload()(**inputs).logits, expected, atol=1e-5, rtol=1e-5)


ITS_OWN_WEIGHTS = r".*(recurrent|lstm\.projection)"  # which the biLM reads without calling the layers


@pytest.mark.parametrize("freeze_bilm", [True, False])
def test_lora_tunes_the_layers_of_the_bilm(freeze_bilm):
    head = "ModelForSequenceClassification"
    model, inputs = build(head, **PLAIN, freeze_bilm=freeze_bilm, num_word_vectors=0), batch(head, labels=True)
    del inputs["vector_ids"]
    before = model(**inputs).logits
    adapter = peft.LoraConfig(target_modules="all-linear", exclude_modules=ITS_OWN_WEIGHTS, init_lora_weights=False)
    tuned = peft.get_peft_model(model, adapter).train()
    tuned(**inputs).loss.backward()
    gradients = {name: part.grad for name, part in tuned.named_parameters() if "lora" in name}
    of_bilm = [name for name in gradients if "lstm.input" in name or "token_encoder" in name]
    assert len(of_bilm) == 2 * (4 + 3)  # two matrices of each LSTM, a highway layer's two and the projection
    assert all(gradient is not None and gradient.any() for gradient in gradients.values())
    adapted = tuned.eval()(**inputs).logits
    assert (adapted - before).abs().max() > 1e-2
    torch.testing.assert_close(tuned.merge_and_unload()(**inputs).logits, adapted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("part", ["recurrent", "projection"])
def test_lora_where_it_would_have_no_effect_is_refused(part):
    model = peft.get_peft_model(build("Model"), peft.LoraConfig(target_modules=rf".*lstm\.{part}"))
    with pytest.raises(NotImplementedError, match="would have no effect: leave this layer out of .* target_modules"):
        model(**batch("Model"))


@EACH
def test_what_a_user_freezes_or_unfreezes_stays_so_in_training(head):
    model = build(head, freeze_word_vectors=True, mix_top_layer_only=True)
    model.requires_grad_(True).train()
    assert all(parameter.requires_grad for parameter in model.parameters())
    bilm = getattr(model, "elmo", model)
    assert bilm.layers.training and bilm.token_encoder.training
    model.requires_grad_(False).train()
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not bilm.layers.training and not bilm.token_encoder.training


def test_adapters_in_a_frozen_bilm_have_their_dropout():
    model, inputs = build("Model", **PLAIN), batch("Model")
    adapter = peft.LoraConfig(target_modules=r".*lstm\.input", lora_dropout=0.5, init_lora_weights=False)
    tuned = peft.get_peft_model(model, adapter).train()
    mixes = [tuned(**inputs).last_hidden_state for _ in range(2)]
    assert not torch.allclose(*mixes, atol=1e-3)


@EACH
def test_the_characters_are_a_fixed_code(head):
    model = build(head)
    for size in (None, model.config.vocab_size):
        assert model.resize_token_embeddings(size) is model.get_input_embeddings()
    with pytest.raises(ValueError, match="the 262 ids of characters cannot become 300: .*leave the resizing out"):
        model.resize_token_embeddings(300)


# Graphs, precisions, copies


@pytest.mark.slow
@pytest.mark.parametrize(("head", "layers"), [("Model", 2), ("ModelForPreTraining", 1)])
@torch.no_grad()
def test_a_compiled_model_computes_the_same(head, layers):
    """In one graph, or, for pre-training, in several: it computes only the words that are there."""
    torch._dynamo.reset()
    model, inputs = build(head, num_hidden_layers=layers), {name: each[1:3, :3] for name, each in batch(head).items()}
    assert_same(
        torch.compile(model, backend="eager", fullgraph=head == "Model")(**inputs),
        model(**inputs),
        atol=1e-5,
        rtol=1e-5,
    )


@pytest.mark.slow
@torch.no_grad()
def test_an_exported_program_takes_batches_of_any_size_and_of_its_length():
    """One layer of each kind; the tagger of test_elmo_tagger.py is exported with two."""
    head = "ModelForSequenceClassification"
    model, inputs = build(head, num_hidden_layers=1, rnn_layers=1), batch(head)
    rows = {0: torch.export.Dim("rows", min=2, max=64)}
    program = torch.export.export(model, (), inputs, dynamic_shapes=dict.fromkeys(inputs, rows)).module()
    for chosen in (slice(1, None), [0, 3, 2, 1, 2]):
        some = {name: tensor[chosen] for name, tensor in inputs.items()}
        assert_same(program(**some), model(**some), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS[1:])
def test_gradients_under_autocast_are_mostly_within_five_percent(head):
    errors = []
    for seed in range(3):  # rounding may change which of two values is the maximum, and then gradients go elsewhere
        torch.manual_seed(seed)
        model, inputs = build(head, freeze_bilm=False, use_crf=False, **PLAIN).train(), batch(head, labels=True)
        gradients = []
        for enabled in (False, True):
            model.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                loss = model(**inputs).loss
            loss.backward()
            gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]))
        exact, rounded = gradients
        assert rounded.dtype == torch.float32
        errors.append((rounded - exact).norm() / exact.norm())
    assert min(errors) > 1e-4 and statistics.median(errors) < 0.05


@EACH
@torch.no_grad()
def test_copies_and_pickles_are_the_same_model(head):
    model, inputs = build(head), batch(head)
    model(**inputs)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_same(copied(**inputs), model(**inputs))


@torch.no_grad()
def test_weights_may_live_on_disk(tmp_path):
    """accelerate has to bring a whole layer at once, because its parts are not called one by one."""
    model, inputs = build("ModelForPreTraining"), batch("ModelForPreTraining")
    expected = model(**inputs)
    whole = ["ElmoTokenEncoder", "ElmoLayer"]
    placed = accelerate.disk_offload(
        model, str(tmp_path), execution_device=torch.device("cpu"), preload_module_classes=whole
    )
    assert {parameter.device.type for parameter in placed.parameters()} == {"meta"}
    assert_same(placed(**inputs), expected)
    accelerate.cpu_offload(other := build("Model"), execution_device=torch.device("cpu"))
    with pytest.raises(NotImplementedError, match="offload whole modules with accelerate's preload_module_classes"):
        other(**batch("Model"))


# Threads and processes


@pytest.fixture(params=[True, False], ids=["oneDNN", "torch"])
def threads(request):
    torch.set_num_threads(2)
    with torch.backends.mkldnn.flags(enabled=request.param):
        yield
    torch.set_num_threads(1)


def loss_and_gradients(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    loss = model(**inputs).loss
    return [loss.detach(), *torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])]


@pytest.mark.slow
def test_calls_from_several_threads_at_once_do_not_disturb_each_other(threads):
    model = build("ModelForTokenClassification", freeze_bilm=False, **PLAIN).train()
    inputs = [batch("ModelForTokenClassification", labels=True) for _ in range(4)]
    expected = [loss_and_gradients(model, given) for given in inputs]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(2):
            at_once = list(pool.map(lambda given: loss_and_gradients(model, given), inputs))
            torch.testing.assert_close(at_once, expected, atol=1e-6, rtol=1e-5)


def test_threads_that_come_later_still_have_torchs_number_of_threads(threads):
    build("Model")(**batch("Model"))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == torch.get_num_threads() == 2


@torch.no_grad()
def test_forked_workers_of_a_loader_compute_what_their_parent_does(threads):
    model, inputs = build("Model"), batch("Model")
    rows = [{name: tensor[row] for name, tensor in inputs.items()} for row in range(len(LENGTHS))] * 3
    expected = model(**inputs).last_hidden_state  # which starts the parent's threads

    def embed(some: list[dict[str, torch.Tensor]]) -> torch.Tensor:
        return model(**torch.utils.data.default_collate(some)).last_hidden_state

    loader = DataLoader(
        rows, batch_size=4, num_workers=2, collate_fn=embed, timeout=60, multiprocessing_context="fork"
    )
    for vectors in loader:
        torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=1e-5)
