"""Sentences score as a plain loop over their tokens says; pairs are read from every form, and mistakes are named."""

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    BertTokenizer,
    ByT5Tokenizer,
)

import modeling
from elmo_gpt_bert.tasks import minimal_pairs
from elmo_gpt_bert.tasks.features import choose_head
from elmo_gpt_bert.tasks.minimal_pairs import (
    Scorer,
    is_blimp,
    make_features,
    make_scorer,
    phenomena,
    read_file,
    read_folder,
)
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.errors import InputError, MissingFileError
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer
from elmo_gpt_bert.training.task import predict
from tests.support.pairs_sample import PAIRS, WORD_PIECES, write_bert, write_bilm, write_gpt, write_gpt2, write_pairs


WRITERS = {"bert": write_bert, "gpt": write_gpt, "gpt2": write_gpt2, "elmo": write_bilm}
SENTENCES = [sentence for pair in PAIRS for sentence in pair[:2]]


def scorer_of(folder: Path, pll: str = "original", zoo: bool = True) -> Scorer:
    if zoo:
        modeling.register()
    source = ModelSource(str(folder), attn_implementation="eager")
    config, tokenizer = load_config(source), load_tokenizer(source, for_task=False)
    head = choose_head(config, tokenizer, source)
    return make_scorer(head, load_model(head, source, config, tokenizer, train=False), tokenizer, pll)


def scores_of(scorer: Scorer, folder: Path, batch_size: int = 5) -> dict[str, np.ndarray]:
    """Each sentence's scores as a run computes them."""
    features, rows = make_features(read_file(write_pairs(folder / "pairs.jsonl")), scorer, None)
    outputs = predict(scorer, features, scorer.collate, Accelerator(cpu=True), batch_size)
    return {name: np.array(values)[rows].flatten() for name, values in outputs.items()}


def log_p(logits: torch.Tensor, target: int) -> float:
    return torch.log_softmax(logits.double(), -1)[target].item()


# Against plain loops


@torch.no_grad()
def causal_score(model, ids: list[int]) -> float:
    return sum(log_p(model(torch.tensor([ids[:end]])).logits[0, -1], ids[end]) for end in range(1, len(ids)))


@torch.no_grad()
def masked_score(model, tokenizer, sentence: str, pll: str) -> float:
    encoding, copies = tokenizer(sentence), []
    ids, words = encoding["input_ids"], encoding.word_ids()
    for place in range(1, len(ids) - 1):  # between [CLS] and [SEP]
        copy = list(ids)
        copy[place] = tokenizer.mask_token_id
        behind = place + 1
        while pll == "within_word_l2r" and words[behind] == words[place]:
            copy[behind] = tokenizer.mask_token_id
            behind += 1
        copies.append(copy)
    logits = model(torch.tensor(copies)).logits
    return sum(log_p(logits[place - 1, place], ids[place]) for place in range(1, len(ids) - 1))


@torch.no_grad()
def bilm_scores(model, tokenizer, sentence: str) -> tuple[float, float]:
    words = ["<S>", *tokenizer.tokenize(sentence), "</S>"]
    outputs = model(**tokenizer([words[1:-1]], is_split_into_words=True, return_tensors="pt"))
    numbers = tokenizer.word_targets(words[1:-1])
    directions = [
        sum(log_p(row, number) for row, number in zip(logits[0], numbers, strict=True))
        for logits in (outputs.logits, outputs.reverse_logits)
    ]
    # The boundary that ends each direction is predicted at the position where a further word would be.
    for direction, (further, boundary) in enumerate((([*words[1:-1], "x"], 1), (["x", *words[1:-1]], 0))):
        outputs = model(**tokenizer([further], is_split_into_words=True, return_tensors="pt"))
        logits = outputs.logits[0, -1] if direction == 0 else outputs.reverse_logits[0, 0]
        directions[direction] += log_p(logits, boundary)
    return tuple(directions)


@pytest.mark.parametrize("family", ["gpt", "gpt2"])
def test_a_causal_model_scores_each_token_after_the_first_given_those_before_it(family, tmp_path):
    scorer = scorer_of(WRITERS[family](tmp_path))
    assert (scorer.tokenizer.pad_token is None) == (family == "gpt2")
    expected = [causal_score(scorer.model, scorer.tokenizer(sentence)["input_ids"]) for sentence in SENTENCES]
    assert len({round(score, 3) for score in expected}) == len(SENTENCES) - 1  # those that differ in case only
    np.testing.assert_allclose(scores_of(scorer, tmp_path)["log_likelihoods"], expected, atol=1e-4)


@pytest.mark.parametrize("pll", ["original", "within_word_l2r"])
@pytest.mark.parametrize("zoo", [True, False], ids=["zoo", "transformers"])
def test_a_masked_model_scores_each_token_given_all_others_or_all_but_those_behind_it_in_its_word(pll, zoo, tmp_path):
    scorer = scorer_of(write_bert(tmp_path), pll, zoo)
    assert type(scorer.model).__name__ == ("ZooBertForMaskedLM" if zoo else "BertForMaskedLM")
    expected = [masked_score(scorer.model, scorer.tokenizer, sentence, pll) for sentence in SENTENCES]
    np.testing.assert_allclose(scores_of(scorer, tmp_path)["log_likelihoods"], expected, atol=1e-4)


def test_the_two_pseudo_log_likelihoods_differ_where_a_word_has_several_pieces(tmp_path):
    folder = write_bert(tmp_path)
    original, by_word = (
        scores_of(scorer_of(folder, pll), tmp_path)["log_likelihoods"] for pll in ("original", "within_word_l2r")
    )
    several = np.array([any(piece in sentence for piece in ("plot", "good", "dull")) for sentence in SENTENCES])
    assert 0 < several.sum() < len(SENTENCES)
    assert (np.abs(original - by_word) > 1e-3).tolist() == several.tolist()


@pytest.mark.parametrize("state", ["warm", "carry"])
def test_a_bilm_scores_each_word_and_the_boundary_in_both_directions(state, tmp_path):
    scorer = scorer_of(write_bilm(tmp_path, state=state))
    expected = np.array([bilm_scores(scorer.model, scorer.tokenizer, sentence) for sentence in SENTENCES])
    outputs = scores_of(scorer, tmp_path)
    np.testing.assert_allclose(outputs["forward_log_likelihoods"], expected[:, 0], atol=1e-4)
    np.testing.assert_allclose(outputs["backward_log_likelihoods"], expected[:, 1], atol=1e-4)
    assert np.abs(expected[:, 0] - expected[:, 1]).min() > 1e-3


@pytest.mark.parametrize("family", WRITERS)
def test_scores_do_not_depend_on_the_batch_and_equal_rows_score_equally_to_the_last_bit(family, tmp_path, monkeypatch):
    scorer = scorer_of(WRITERS[family](tmp_path))
    large = scores_of(scorer, tmp_path, batch_size=99)
    monkeypatch.setattr(minimal_pairs, "AT_ONCE", 25)
    for name, small in scores_of(scorer, tmp_path, batch_size=1).items():
        np.testing.assert_allclose(small, large[name], atol=1e-4)
        assert (small[-1] == small[-2]) == (family != "elmo")  # which reads the letter's case
        assert (large[name][-1] == large[name][-2]) == (family != "elmo")


def test_the_head_computes_only_the_positions_that_are_scored(tmp_path):
    scorer = scorer_of(write_bert(tmp_path))
    sizes = []
    head = scorer.model.get_output_embeddings()
    head.register_forward_hook(lambda module, inputs, output: sizes.append(output.shape[:2]))
    batch = scorer.collate(scorer.encode(SENTENCES[:2]))
    scorer(**batch)
    assert sizes == [(1, len(batch["targets"]))] and batch["input_ids"].shape[1] > 3


def test_other_families_of_masked_models_are_scored_too(tmp_path):
    from transformers import DistilBertConfig, DistilBertForMaskedLM, RobertaConfig, RobertaForMaskedLM

    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(WORD_PIECES)})
    size, positions = {"vocab_size": len(WORD_PIECES), "initializer_range": 0.5}, 25
    for model in (
        RobertaForMaskedLM(
            RobertaConfig(
                **size,
                hidden_size=12,
                num_hidden_layers=1,
                num_attention_heads=3,
                intermediate_size=20,
                max_position_embeddings=positions,
                pad_token_id=0,
            )
        ),
        DistilBertForMaskedLM(
            DistilBertConfig(**size, dim=12, n_layers=1, n_heads=3, hidden_dim=20, max_position_embeddings=positions)
        ),
    ):
        scorer = make_scorer(AutoModelForMaskedLM, model.eval(), tokenizer, "original")
        expected = [masked_score(model, tokenizer, sentence, "original") for sentence in SENTENCES]
        np.testing.assert_allclose(scores_of(scorer, tmp_path)["log_likelihoods"], expected, atol=1e-4)


def test_a_causal_model_is_scored_whose_head_reads_its_decoder_without_its_base_model(tmp_path):
    from transformers import OPTConfig, OPTForCausalLM

    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(WORD_PIECES)})
    sizes = {"hidden_size": 12, "word_embed_proj_dim": 8, "ffn_dim": 20, "num_hidden_layers": 1}
    torch.manual_seed(1)
    model = OPTForCausalLM(OPTConfig(vocab_size=len(WORD_PIECES), num_attention_heads=3, init_std=0.5, **sizes)).eval()
    scorer = make_scorer(AutoModelForCausalLM, model, tokenizer, "original")
    expected = [causal_score(model, tokenizer(sentence)["input_ids"]) for sentence in SENTENCES]
    np.testing.assert_allclose(scores_of(scorer, tmp_path)["log_likelihoods"], expected, atol=1e-4)


# Which head


def test_the_configuration_chooses_the_head(tmp_path):
    names = {}
    for family, write in WRITERS.items():
        names[family] = type(scorer_of(write(tmp_path))).__name__
    expected = {"bert": "MaskedScorer", "gpt": "CausalScorer", "gpt2": "CausalScorer", "elmo": "BidirectionalScorer"}
    assert names == expected


def test_a_bert_that_is_configured_as_a_decoder_is_causal(tmp_path):
    tokenizer = BertTokenizer(vocab={token: number for number, token in enumerate(WORD_PIECES)})
    heads = [
        choose_head(BertConfig(is_decoder=is_decoder), tokenizer, ModelSource("bert")) for is_decoder in (False, True)
    ]
    assert [head.__name__ for head in heads] == ["AutoModelForMaskedLM", "AutoModelForCausalLM"]
    with pytest.raises(InputError, match="cls: ViTConfig is no language model"):
        choose_head(AutoConfig.for_model("vit"), tokenizer, ModelSource("cls"))


def test_a_token_in_no_word_is_a_word_of_its_own():
    first, other, another, last = minimal_pairs._numbers([0, None, None, 0])
    assert first == last and len({first, other, another}) == 3


def test_a_tokenizer_that_cannot_score_is_refused(tmp_path):
    scorer = scorer_of(write_bert(tmp_path))
    scorer.tokenizer.mask_token = None
    with pytest.raises(InputError, match="has no mask token"):
        make_scorer(AutoModelForMaskedLM, scorer.model, scorer.tokenizer, "original")
    with pytest.raises(InputError, match="--pll within_word_l2r: ByT5Tokenizer does not say which tokens are of one"):
        make_scorer(AutoModelForMaskedLM, scorer.model, ByT5Tokenizer(mask_token="_"), "within_word_l2r")
    folder = write_bilm(tmp_path)
    (folder / "vocab.txt").unlink()
    with pytest.raises(InputError, match="cannot score sentences: this tokenizer has no vocab.txt"):
        scorer_of(folder)


# Data


@pytest.mark.parametrize("ending", [".jsonl", ".json.gz", ".jsonl.xz", ".ndjson", ".csv", ".tsv.xz"])
def test_pairs_are_read_from_any_form(ending, tmp_path):
    plain = write_pairs(tmp_path / "pairs.jsonl")
    expected = read_file(plain).remove_columns("place")
    rows = [json.loads(line) for line in plain.read_text(encoding="utf-8").splitlines()]
    text = plain.read_text(encoding="utf-8")
    if "sv" in ending:
        separator = "\t" if "tsv" in ending else ","
        quote = "" if "tsv" in ending else '"'
        lines = [rows[0].keys(), *(row.values() for row in rows)]
        text = "\n".join(separator.join(f"{quote}{value}{quote}" for value in line) for line in lines)
    path = tmp_path / f"other{ending}"
    opener = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(text)
    data = read_file(path)
    assert data.remove_columns("place").to_list() == expected.to_list() and len(data) == len(PAIRS)
    assert data[0]["place"] == f"other{ending}:{2 if 'sv' in ending else 1}"


def test_a_folder_is_read_file_by_file_and_names_are_optional(tmp_path):
    (tmp_path / "data").mkdir()
    write_pairs(tmp_path / "data" / "b.jsonl", PAIRS[4:])
    write_pairs(tmp_path / "data" / "a.jsonl", PAIRS[:4])
    (tmp_path / "data" / "readme.txt").write_text("no pairs")
    data = read_folder(tmp_path)
    assert data["sentence_good"][:] == [pair[0] for pair in PAIRS]
    assert phenomena(data) == {
        "field": ["syntax", "semantics"],
        "linguistics_term": ["order", "size"],
        "UID": ["order_1", "order_2", "length", "case"],
    }
    (tmp_path / "bare.jsonl").write_text('{"sentence_good": "a b", "sentence_bad": "b a", "pairID": 7}')
    bare = read_file(tmp_path / "bare.jsonl")
    assert bare["pairID"][:] == ["7"] and phenomena(bare) == {} and not is_blimp(bare)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"sentence_good": "a"}', "pairs.jsonl:1: no column sentence_bad among sentence_good"),
        ('{"sentence_good": "a", "sentence_bad": " "}', "pairs.jsonl:1: sentence_bad is ' ', not a sentence"),
        ('{"sentence_good": "", "sentence_bad": "a"}', "pairs.jsonl:1: sentence_good is empty: leave the pair out"),
        ('{"sentence_good": null, "sentence_bad": "a"}', "sentence_good is empty"),
        ('{"sentence_good": 5, "sentence_bad": "a"}', "sentence_good is 5, not a sentence"),
        ('{"sentence_good": "b", "sentence_bad": "a", "UID": ["x"]}', r"UID is \['x'\], not a name"),
        ('{"sentence_good": "b", "sentence_bad": "a"}\nwhat', "pairs.jsonl:2: not JSON"),
        ("\n", "holds no pairs"),
    ],
)
def test_a_mistake_in_a_file_is_named(content, message, tmp_path):
    (tmp_path / "pairs.jsonl").write_text(content)
    with pytest.raises(InputError, match=message):
        read_file(tmp_path / "pairs.jsonl")


def test_what_is_no_file_of_pairs_is_named(tmp_path):
    with pytest.raises(
        InputError, match=r"pairs.zip: a file of pairs must be one of .csv, .tsv, .json, .jsonl, .ndjson, which"
    ):
        read_file(tmp_path / "pairs.zip")
    with pytest.raises(MissingFileError, match="cannot read"):
        read_file(tmp_path / "pairs.jsonl")
    with pytest.raises(MissingFileError, match="holds no .jsonl files"):
        read_folder(tmp_path)
    content = lzma.compress(write_pairs(tmp_path / "pairs.jsonl").read_bytes())
    for name, damaged in (("cut.jsonl.xz", content[:-20]), ("text.jsonl.xz", b"{}"), ("text.jsonl.gz", b"{}")):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(OSError, match=f"{name} is damaged or cut short .*: get it again"):
            read_file(tmp_path / name)


def test_a_name_in_two_columns_is_an_error(tmp_path):
    pairs = [("a b", "b a", "order", "order", "syntax")]
    with pytest.raises(InputError, match="'order' is both a linguistics_term and a UID"):
        phenomena(read_file(write_pairs(tmp_path / "pairs.jsonl", pairs)))


def test_a_sentence_longer_than_the_model_reads_is_named(tmp_path):
    scorer, data = scorer_of(write_bert(tmp_path)), read_file(write_pairs(tmp_path / "pairs.jsonl"))
    with pytest.raises(InputError, match="pairs.jsonl:2: sentence_good has 11 tokens, but the model reads at most 9"):
        make_features(data, scorer, 9)


def test_a_sentence_without_a_token_to_score_is_named(tmp_path):
    pairs = [*PAIRS[:1], ("film is", "film", "", "", "")]
    scorer, data = scorer_of(write_gpt(tmp_path)), read_file(write_pairs(tmp_path / "pairs.jsonl", pairs))
    scorer.encode = lambda sentences: [{"input_ids": sentence.split()} for sentence in sentences]
    with pytest.raises(InputError, match="pairs.jsonl:2: sentence_bad has 1 token, none of which can be scored"):
        make_features(data, scorer, None)


def test_blimp_is_read_and_recognised(data, tmp_path, monkeypatch):
    with lzma.open(data / "blimp" / "blimp.jsonl.xz", "rt", encoding="utf-8") as file:
        lines = {json.loads(line)["UID"]: line for line in file}  # the last of each phenomenon
    path = tmp_path / "blimp.jsonl"
    path.write_text("".join(lines.values()), encoding="utf-8")
    pairs = read_file(path)
    assert not is_blimp(pairs)
    monkeypatch.setattr(minimal_pairs, "BLIMP_PAIRS", 67)
    assert is_blimp(pairs) and not is_blimp(pairs.select(range(66)))
    assert list(map(len, phenomena(pairs).values())) == [4, 13, 67]
