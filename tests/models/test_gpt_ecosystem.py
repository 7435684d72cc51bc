"""GPT's label smoothing, pipelines, several processes and caches. What BERT has, too, is in test_ecosystem."""

import copy

import peft
import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import (
    DynamicCache,
    Trainer,
    TrainingArguments,
    pipeline,
)

import modeling
from modeling import ZooGPTTokenizer
from tests.support.gpt_cases import (
    SIZES,
    case,
    pair,
    zoo,
)
from tests.support.gpt_sample import merges, vocabulary
from tests.support.model_cases import COLUMNS, ROWS
from tests.support.processes import fork, wait
from tests.support.sharded_step import assert_same_step


@pytest.mark.slow
@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "LoRA"])
def test_trainer_smooths_the_labels_of_the_next_tokens_as_for_the_stock_model(adapted, tmp_path):
    ids = torch.randint(1, SIZES["vocab_size"], (6, 11))
    labels = ids.clone()
    labels[:, 0] = -100  # no token predicts it, but Trainer counts it for transformers' class
    rows = [{"input_ids": row, "labels": label} for row, label in zip(ids, labels, strict=True)]
    losses, weights = [], []
    for model in pair("LMHeadModel", tmp_path):
        if adapted:
            torch.manual_seed(0)
            model = peft.get_peft_model(model, peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
        options = {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
        options |= {"max_steps": 4, "logging_steps": 1, "per_device_train_batch_size": 3}
        options |= {"optim": "sgd", "learning_rate": 0.3}  # Adam makes steps of zeros that differ in the last bit
        args = TrainingArguments(str(tmp_path), label_smoothing_factor=0.1, **options)
        trainer = Trainer(model, args, train_dataset=rows)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        weights.append({name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad})
    assert len(losses[0]) == 4 and losses[1] == pytest.approx(losses[0], abs=1e-4) and losses[0][0] != losses[0][2]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weights[1][name], weight, atol=1e-5, rtol=1e-4, msg=lambda text, n=name: n + text)


TEXTS = ["the film is good", "not good , not the film .", "is it ?"]


def test_the_text_generation_pipeline_goes_on_from_prompts_that_end_with_a_space():
    tokenizer = ZooGPTTokenizer(vocab=vocabulary(), merges=merges(), padding_side="left")
    ours = zoo("LMHeadModel", vocab_size=len(tokenizer))
    prompts = ["the film ", "is it not good "]
    options = {"max_new_tokens": 6, "do_sample": False}
    answers = pipeline("text-generation", model=ours, tokenizer=tokenizer)(prompts, batch_size=2, **options)
    for prompt, (answer,) in zip(prompts, answers, strict=True):
        ids = ours.generate(**tokenizer(prompt, return_tensors="pt"), **options)[0]
        assert answer["generated_text"] == tokenizer.decode(ids, skip_special_tokens=True)
        assert answer["generated_text"].startswith(prompt) and len(answer["generated_text"]) > len(prompt)


def saved_with_tokenizer(head, folder, **changes):
    """A head and a tokenizer that adds the tokens of the paper's tasks, in one folder."""
    tokenizer = ZooGPTTokenizer(vocab=vocabulary(), merges=merges(), task_inputs=True)
    changes |= {"vocab_size": len(tokenizer), "sep_token_id": tokenizer.sep_token_id}
    ours = zoo(head, **changes)
    ours.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modeling.register()
    return ours, tokenizer


@pytest.mark.parametrize("both_orders", [False, True])
def test_the_text_classification_pipeline_takes_pairs(both_orders, tmp_path):
    ours, tokenizer = saved_with_tokenizer("ForSequenceClassification", tmp_path, both_orders=both_orders)
    pairs = [{"text": one, "text_pair": other} for one, other in zip(TEXTS, reversed(TEXTS), strict=True)]
    answers = pipeline("text-classification", model=str(tmp_path))(pairs, batch_size=3, top_k=1)
    for given, (answer,) in zip(pairs, answers, strict=True):
        inputs = tokenizer(given["text"], given["text_pair"], return_tensors="pt")
        expected = ours(**inputs).logits.detach()[0].softmax(0)
        assert answer["label"] == f"LABEL_{int(expected.argmax())}"
        assert answer["score"] == pytest.approx(float(expected.max()), abs=1e-5)


def test_the_token_classification_pipeline_tags_each_token(tmp_path):
    ours, tokenizer = saved_with_tokenizer("ForTokenClassification", tmp_path)
    answers = pipeline("token-classification", model=str(tmp_path), ignore_labels=[])(TEXTS[0])
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    expected = ours(**inputs).logits[0].softmax(-1)[1:-1]  # without start and extract tokens
    assert [answer["word"] for answer in answers] == tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])[1:-1]
    assert [answer["entity"] for answer in answers] == [f"LABEL_{int(scores.argmax())}" for scores in expected]
    assert [float(answer["score"]) for answer in answers] == pytest.approx(
        [float(s.max()) for s in expected], abs=1e-5
    )


@pytest.mark.parametrize("head", ["LMHeadModel", "ForSequenceClassification"])
def test_autocast_stays_as_close_as_the_stock_model_is_to_itself(head, tmp_path):
    stock, ours = pair(head, tmp_path)
    this = case(head)
    exact = stock(**this.inputs).logits[this.real] if head == "LMHeadModel" else stock(**this.inputs).logits
    errors = []
    for model in (stock, ours):
        with torch.autocast("cpu", torch.bfloat16):
            output = model(**this.inputs, **this.labels)
        output.loss.backward()
        logits = output.logits[this.real] if head == "LMHeadModel" else output.logits
        errors.append((logits.float() - exact).abs().max())
        assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())
    assert errors[1] < 2 * errors[0] + 1e-3


@pytest.mark.parametrize("head", ["Model", "LMHeadModel"])
@pytest.mark.parametrize("configured", [True, False])
def test_a_cache_is_kept_for_those_who_ask_for_it(head, configured):
    ours, this = zoo(head, use_cache=configured), case(head)
    for training in (False, True):
        ours.train(training)
        for labels in ({}, this.labels):
            assert "past_key_values" not in ours(**this.inputs, **labels)
            assert "past_key_values" not in ours(**this.inputs, **labels, use_cache=False)
            cache = ours(**this.inputs, **labels, use_cache=True).past_key_values
            assert type(cache) is DynamicCache and cache.get_seq_length() == this.real.shape[1]


def test_the_loss_of_what_follows_a_cache_is_that_of_its_tokens():
    ours, this = zoo("LMHeadModel"), case("LMHeadModel")
    mask = torch.ones_like(this.inputs["attention_mask"])
    ids = torch.randint(1, 97, mask.shape)
    past = ours(ids[:, :5], use_cache=True).past_key_values
    following = ours(ids[:, 5:], attention_mask=mask, past_key_values=past, labels=ids[:, 5:]).loss
    labels = ids.index_fill(1, torch.arange(6), -100)
    torch.testing.assert_close(following, ours(ids, attention_mask=mask, labels=labels).loss, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_two_processes_that_share_the_weights_compute_the_same_step(tmp_path):
    this = case("LMHeadModel")
    assert_same_step(zoo("LMHeadModel"), this.inputs | this.labels, "fsdp_size", tmp_path)


@pytest.mark.parametrize("head", ["ForSequenceClassification", "ForMultipleChoice"])
def test_words_sharded_by_themselves_are_whole_for_the_language_modeling_loss(head):
    """As accelerate's FSDP2 cuts a model up, and with unequal batches, whose gradients are averaged."""
    whole, this = zoo(head, lm_loss_weight=0.5), case(head)
    parts = [
        {name: tensor[part] for name, tensor in (this.inputs | this.labels).items()}
        for part in (slice(0, 2), slice(2, 7))
    ]
    for part in parts:
        (whole(**part).loss / 2).backward()
    expected = {name: parameter.grad for name, parameter in whole.named_parameters()}

    def step() -> None:
        dist.init_process_group("gloo")
        mesh = init_device_mesh("cpu", (2,))
        split = copy.deepcopy(whole)
        for module in (*split.transformer.h, split.transformer.tokens_embed, split):
            fully_shard(module, mesh=mesh)
        split.zero_grad()
        split(**parts[dist.get_rank()]).loss.backward()
        for name, parameter in split.named_parameters():
            gradient = parameter.grad.full_tensor()
            torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4, msg=lambda t, n=name: n + t)
        dist.destroy_process_group()

    assert wait(fork(step, count=2)) == [0, 0]


@pytest.mark.parametrize("adapted", [{"target_modules": ["tokens_embed"]}, {"trainable_token_indices": [94, 95, 96]}])
def test_adapted_words_are_those_that_the_language_modeling_loss_predicts(adapted):
    ours, this = zoo("ForSequenceClassification", lm_loss_weight=0.5), case("ForSequenceClassification")
    adapter = {"target_modules": ["c_attn"], "r": 2, "init_lora_weights": False}
    tuned = peft.get_peft_model(copy.deepcopy(ours), peft.LoraConfig(task_type="SEQ_CLS", **adapter | adapted))
    if "trainable_token_indices" in adapted:
        (rows,) = (p for name, p in tuned.named_parameters() if "token_adapter" in name and "delta" in name)
        rows.data += torch.randn_like(rows)
    loss = tuned(**this.inputs, **this.labels).loss
    assert (loss - ours(**this.inputs, **this.labels).loss).abs() > 1e-3
    merged = copy.deepcopy(tuned).merge_and_unload()
    torch.testing.assert_close(merged(**this.inputs, **this.labels).loss, loss, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["attention_mask", "position_ids", "labels"])
def test_shapes_are_known_without_values(name):
    model, inputs = zoo("LMHeadModel").to("meta"), torch.ones(ROWS, COLUMNS, dtype=torch.long, device="meta")
    assert model(inputs, **{name: inputs}).logits.shape == (ROWS, COLUMNS, SIZES["vocab_size"])
