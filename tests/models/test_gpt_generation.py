"""GPT generates with a cache what transformers' OpenAI GPT, which has none, generates from the same weights."""

import itertools
from threading import Thread

import pytest
import torch
from transformers import (
    CompileConfig,
    DynamicCache,
    LogitsProcessorList,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    StaticCache,
    TextIteratorStreamer,
    pipeline,
    set_seed,
)

from modeling import ZooGPTConfig, ZooGPTLMHeadModel, ZooGPTTokenizer
from modeling.gpt import modeling_gpt
from modeling.shared.modeling_packing import CACHE
from tests.support.gpt_sample import merges, vocabulary


WORDS, POSITIONS = 53, 24
SIZES = {"vocab_size": WORDS, "n_positions": POSITIONS, "n_embd": 12, "n_layer": 3, "n_head": 3}
COLUMNS = 10
SEEDS = pytest.mark.parametrize("seed", range(2))
CACHES = pytest.mark.parametrize("cache", ["dynamic", "static"])
CHUNKS = pytest.mark.parametrize("chunks", [[1] * COLUMNS, [4, 1, 3, 2], [6, 1, 1, 1, 1]], ids=str)


@pytest.fixture(autouse=True)
def weights_are_packed_soon(monkeypatch):
    """All texts here are short."""
    monkeypatch.setattr(modeling_gpt, "PRODUCTS_BEFORE_PACKING", 2)


def build(seed: int = 0, **changes) -> tuple[ZooGPTLMHeadModel, OpenAIGPTLMHeadModel]:
    """Ours and transformers' with the same weights, of a size with which each prompt has a text of its own."""
    torch.manual_seed(seed)
    sizes = SIZES | changes
    stock = OpenAIGPTLMHeadModel(OpenAIGPTConfig(**sizes)).eval()
    for name, weight in stock.named_parameters():
        is_scale = ".ln_" in name and name.endswith("weight")
        torch.nn.init.normal_(weight, mean=float(is_scale), std=0.3 if weight.dim() > 1 else 0.1)
    ours = ZooGPTLMHeadModel(ZooGPTConfig(**sizes)).eval()
    ours.load_state_dict(stock.state_dict())
    return ours, stock


def prompts(rows: int, columns: int) -> torch.Tensor:
    return torch.randint(1, WORDS, (rows, columns))


def padded(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rows of unequal lengths, ended by the same column, with the ids and the mask of padding before them."""
    columns = max(map(len, rows))
    ids = torch.stack([torch.nn.functional.pad(row, (columns - len(row), 0)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows]).unsqueeze(1)
    return {"input_ids": ids, "attention_mask": (torch.arange(columns) >= columns - lengths).long()}


def generate(model, ids: torch.Tensor, new: int = 9, seed: int = 0, **options) -> torch.Tensor:
    options = {"do_sample": False, "max_new_tokens": new, "pad_token_id": 0} | options
    options.setdefault("attention_mask", torch.ones_like(ids))
    set_seed(seed)
    return model.generate(ids, **options)


def new_cache(model, kind: str):
    return DynamicCache() if kind == "dynamic" else StaticCache(config=model.config, max_cache_len=COLUMNS + 3)


def run_in_chunks(model, cache, chunks: list[int], inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """(B, T, V) scores, computed chunk by chunk; the mask is of all tokens so far, the rest of the new ones."""
    parts = []
    for last, count in zip(itertools.accumulate(chunks), chunks, strict=True):
        new = {name: each[:, last - count : last] for name, each in inputs.items() if name != "attention_mask"}
        if "attention_mask" in inputs:
            new["attention_mask"] = inputs["attention_mask"][:, :last]
        parts.append(model(**new, past_key_values=cache, use_cache=True).logits)
    return torch.cat(parts, 1)


def prefer_even_words(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return scores + 3.0 * (torch.arange(scores.shape[-1]) % 2 == 0)


WAYS = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "beams, all of them": {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 0.3},
    "samples": {"do_sample": True, "num_return_sequences": 2},
    "samples of the likeliest": {"do_sample": True, "top_k": 7, "top_p": 0.8, "temperature": 1.7},
    "sampled beams": {"do_sample": True, "num_beams": 2, "top_k": 9},
    "few repetitions": {"repetition_penalty": 1.8},
    "no pair of words twice": {"no_repeat_ngram_size": 2},
    "up to an end": {"eos_token_id": list(range(1, 12))},
    "beams up to an end": {"eos_token_id": list(range(1, 12)), "num_beams": 3},
    "up to an end, but not at once": {"eos_token_id": list(range(1, 30)), "min_new_tokens": 4},
    "scores changed by the user": {"logits_processor": LogitsProcessorList([prefer_even_words])},
}


@SEEDS
def test_each_prompt_has_a_text_of_its_own_of_different_words(seed):
    ours, _ = build(seed)
    texts = [generate(ours, prompts(1, columns))[0, columns:].tolist() for columns in range(1, 7)]
    assert len(set(map(tuple, texts))) == len(texts)
    assert sum(len(set(text)) for text in texts) > 2 * len(texts)


@SEEDS
@pytest.mark.parametrize("way", WAYS)
def test_generates_the_tokens_that_transformers_generates(way, seed):
    ours, stock = build(seed)
    ids = prompts(rows=1 + 2 * seed, columns=6 - 2 * seed)
    assert torch.equal(generate(ours, ids, seed=seed, **WAYS[way]), generate(stock, ids, seed=seed, **WAYS[way]))


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=["greedy", "beams"])
@pytest.mark.parametrize("cache", [None, "static"])
@SEEDS
def test_a_padded_batch_generates_the_tokens_of_each_row_alone(seed, cache, options):
    ours, stock = build(seed)
    rows = [prompts(1, length)[0] for length in (2, 6, 1, 4)]
    inputs = padded(rows)
    found = generate(
        ours, inputs["input_ids"], attention_mask=inputs["attention_mask"], cache_implementation=cache, **options
    )
    for row, tokens in zip(rows, found, strict=True):
        alone = generate(stock, row.unsqueeze(0), **options)[0]
        assert torch.equal(tokens[6 - len(row) :], alone)


@CACHES
@SEEDS
def test_generates_the_same_without_a_cache(seed, cache):
    ours, _ = build(seed)
    ids = prompts(2, 5)
    kind = None if cache == "dynamic" else cache
    for options in ({}, {"num_beams": 3}):
        with_cache = generate(ours, ids, cache_implementation=kind, **options)
        assert torch.equal(with_cache, generate(ours, ids, use_cache=False, **options))


def test_scores_are_those_of_transformers():
    ours, stock = build()
    ids = prompts(2, 4)
    options = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "repetition_penalty": 2.0,
    }
    found, wanted = generate(ours, ids, **options), generate(stock, ids, **options)
    assert torch.equal(found.sequences, wanted.sequences)
    assert len(found.logits) == 9
    torch.testing.assert_close(found.logits, wanted.logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.scores, wanted.scores, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layers", [1, 3])
def test_an_assistant_changes_no_token(layers):
    """A smaller one, whose proposals are mostly wrong, and a copy, whose proposals are right."""
    ours, stock = build()
    assistant, _ = build(n_layer=layers)
    if layers == 3:
        assistant.load_state_dict(ours.state_dict())
    ids = prompts(1, 5)
    assert torch.equal(generate(ours, ids, new=15, assistant_model=assistant), generate(stock, ids, new=15))


@SEEDS
def test_an_early_exit_of_the_same_model_changes_no_token_and_leaves_its_layers(seed):
    ours, stock = build(seed)
    ids = prompts(1, 5)
    assert torch.equal(generate(ours, ids, new=15, assistant_early_exit=1), generate(stock, ids, new=15))
    assert torch.equal(generate(ours, ids, new=15), generate(stock, ids, new=15))


def test_an_early_exit_proposes_from_the_first_layers():
    ours, _ = build()
    calls = []
    for index, block in enumerate(ours.transformer.h):
        block.register_forward_hook(lambda *_, index=index: calls.append(index))
    generate(ours, prompts(1, 5), new=15, assistant_early_exit=1)
    assert calls.count(0) > calls.count(1) == calls.count(2)


def test_proposals_looked_up_in_the_prompt_change_no_token():
    ours, stock = build(n_positions=POSITIONS + 3)  # transformers reads the proposals behind the last word, too
    start = generate(stock, prompts(1, 2), new=10)
    ids = torch.cat([start, start[:, :4]], 1)  # what follows may be there already
    assert torch.equal(generate(ours, ids, new=8, prompt_lookup_num_tokens=3), generate(stock, ids, new=8))


def test_embeddings_are_a_prompt_as_well():
    ours, stock = build()
    ids = prompts(2, 5)
    new = generate(stock, ids)[:, 5:]
    embeddings = ours.get_input_embeddings()(ids)
    options = {"do_sample": False, "max_new_tokens": 9, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(ours.generate(inputs_embeds=embeddings, **options), new)


@CHUNKS
@CACHES
@SEEDS
def test_scores_with_a_cache_are_those_without(seed, cache, chunks):
    ours, stock = build(seed)
    ids = prompts(3, COLUMNS)
    with torch.no_grad():
        found = run_in_chunks(ours, new_cache(ours, cache), chunks, {"input_ids": ids})
        torch.testing.assert_close(found, ours(ids, use_cache=False).logits, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found, stock(ids).logits, atol=1e-5, rtol=1e-5)


@CHUNKS
@CACHES
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_scores_of_padded_rows_with_a_cache_are_those_of_each_row_alone(attention, cache, chunks):
    ours, stock = build()
    ours.set_attn_implementation(attention)
    rows = [prompts(1, length)[0] for length in (COLUMNS, 7, 3)]
    inputs = padded(rows)
    inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        found = run_in_chunks(ours, new_cache(ours, cache), chunks, inputs)
        for row, scores in zip(rows, found, strict=True):
            alone = stock(row.unsqueeze(0)).logits[0]
            torch.testing.assert_close(scores[-len(row) :], alone, atol=1e-5, rtol=1e-5)


def test_a_cache_cut_short_goes_on_from_there():
    ours, stock = build()
    ids, other = prompts(2, COLUMNS), prompts(2, 3)
    cache = DynamicCache()
    with torch.no_grad():
        ours(ids, past_key_values=cache)
        cache.crop(-4)
        found = ours(other, past_key_values=cache).logits
        wanted = stock(torch.cat([ids[:, :-4], other], 1)).logits[:, -3:]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def test_a_cache_follows_its_beams():
    ours, stock = build()
    ids, other, order = prompts(3, 5), prompts(3, 2), torch.tensor([2, 2, 0])
    cache = DynamicCache()
    with torch.no_grad():
        ours(ids, past_key_values=cache)
        cache.reorder_cache(order)
        found = ours(other, past_key_values=cache).logits
        wanted = stock(torch.cat([ids[order], other], 1)).logits[:, -2:]
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)


def blocks_see(model) -> list[int]:
    """A list which gets the number of columns in every call of the first block."""
    seen = []
    model.transformer.h[0].register_forward_pre_hook(lambda block, inputs: seen.append(inputs[0].shape[1]))
    return seen


def test_a_second_call_goes_on_from_the_cache_of_the_first():
    ours, stock = build()
    ids, reply = prompts(2, 4), prompts(2, 3)
    first = generate(ours, ids, new=5, return_dict_in_generate=True)
    seen = blocks_see(ours)
    talk = torch.cat([first.sequences, reply], 1)
    second = generate(ours, talk, new=4, **{CACHE: first[CACHE]})
    assert torch.equal(second, generate(stock, torch.cat([generate(stock, ids, new=5), reply], 1), new=4))
    assert seen == [1 + 3, 1, 1, 1]  # the first call's last token was not read yet


@pytest.mark.parametrize(("options", "kept"), [({}, 1), ({"num_beams": 2}, 1), ({"use_cache": False}, None)])
def test_each_step_computes_one_token(options, kept):
    ours, _ = build()
    seen = blocks_see(ours)
    generate(ours, prompts(2, 5), new=6, **options)
    assert seen == [5] + [kept or columns for columns in range(6, 11)]


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}, {"num_beams": 2}, {"use_cache": False}])
def test_generates_up_to_the_last_position_and_says_what_is_beyond(options):
    """The last token generated needs no position, as nothing is predicted from it."""
    ours, _ = build()
    ids = prompts(2, 7)
    most = POSITIONS + 1 - 7
    assert generate(ours, ids, new=most, **options).shape == (2, POSITIONS + 1)
    with pytest.raises(ValueError, match=f"position {POSITIONS + 1} .*has {POSITIONS}: .*fewer new tokens"):
        generate(ours, ids, new=most + 1, **options)


@CACHES
def test_a_cache_does_not_reach_beyond_the_last_position(cache):
    ours, _ = build()
    kept = DynamicCache() if cache == "dynamic" else StaticCache(config=ours.config, max_cache_len=POSITIONS + 5)
    ours(prompts(1, POSITIONS - 1), past_key_values=kept)
    with pytest.raises(ValueError, match=f"position {POSITIONS + 1} .*has {POSITIONS}: .*fewer new tokens"):
        ours(prompts(1, 2), past_key_values=kept)


def test_padding_takes_no_position():
    ours, stock = build()
    row = prompts(1, 6)[0]
    inputs = padded([row, row])
    wide = {name: torch.nn.functional.pad(each, (POSITIONS, 0)) for name, each in inputs.items()}
    found = generate(ours, wide["input_ids"], attention_mask=wide["attention_mask"])
    assert torch.equal(found[0, POSITIONS:], generate(stock, row.unsqueeze(0))[0])


@pytest.mark.slow
def test_a_compiled_step_on_a_static_cache_generates_the_same():
    ours, stock = build(n_layer=2)
    ids = prompts(2, 4)
    graphs = []
    compiled = CompileConfig(True, mode=None, backend=lambda graph, _: graphs.append(graph) or graph.forward)
    compiled._compile_all_devices = True  # transformers compiles on other devices only
    found = generate(ours, ids, cache_implementation="static", compile_config=compiled)
    assert torch.equal(found, generate(stock, ids))
    assert len(graphs) == 1


def test_continuous_batching_is_one_clear_error():
    with pytest.raises(ValueError, match="^generate_batch: .* Pad the prompts on the left, and call generate$"):
        build()[0].generate_batch([[1, 2, 3], [4]], max_new_tokens=4)


def test_bfloat16_keeps_the_cache_in_its_type_and_scores_close_to_those_without():
    ours, _ = build()
    ours.to(torch.bfloat16)
    ids, cache = prompts(2, COLUMNS), DynamicCache()
    with torch.no_grad():
        found = run_in_chunks(ours, cache, [4, *[1] * 6], {"input_ids": ids})
        wanted = ours(ids, use_cache=False).logits
    assert found.dtype == cache.layers[0].keys.dtype == torch.bfloat16
    assert (found - wanted).float().norm() < 0.02 * wanted.float().norm()
    assert generate(ours, ids).shape == (2, COLUMNS + 9)


@pytest.mark.parametrize(("dtype", "steps"), [(torch.float32, 4), (torch.bfloat16, 0)])
def test_sdpa_attends_to_prompts_and_in_float32_to_new_words(dtype, steps, monkeypatch):
    """For one query in bfloat16, plain products are faster on the CPU."""
    ours, _ = build()
    columns, attend = [], torch.nn.functional.scaled_dot_product_attention

    def counted(query, *args, **kwargs):
        columns.append(query.shape[2])
        return attend(query, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", counted)
    generate(ours.to(dtype), prompts(2, 6), new=5)
    assert columns == SIZES["n_layer"] * [6] + steps * SIZES["n_layer"] * [1]


@pytest.fixture
def writer():
    """A tokenizer, ours and transformers' model with its words."""
    tokenizer = ZooGPTTokenizer(vocab=vocabulary(), merges=merges())
    return tokenizer, *build(vocab_size=len(tokenizer))


TEXTS = ["the film is not good", "good film", "is the"]


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.parametrize("whole", [True, False])
def test_the_pipeline_writes_what_it_writes_with_transformers_model(writer, rows, whole):
    tokenizer, ours, stock = writer
    asked = {"do_sample": False, "max_new_tokens": 3, "return_full_text": whole}
    write = pipeline("text-generation", model=ours, tokenizer=tokenizer)
    one_by_one = pipeline("text-generation", model=stock, tokenizer=tokenizer)
    found = write(TEXTS, batch_size=rows, **asked)
    assert found == [one_by_one(text, **asked) for text in TEXTS]
    if whole:
        assert all(each["generated_text"].startswith(text) for text, [each] in zip(TEXTS, found, strict=True))


def test_a_stream_brings_the_text_token_by_token(writer):
    tokenizer, ours, stock = writer
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    options = {"do_sample": False, "max_new_tokens": 3, "pad_token_id": 0}
    thread = Thread(target=ours.generate, kwargs={**inputs, **options, "streamer": streamer})
    thread.start()
    parts = list(streamer)
    thread.join()
    new = stock.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :]
    assert "".join(parts).strip() == tokenizer.decode(new).strip()
    assert len(parts) > 1
