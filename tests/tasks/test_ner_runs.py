"""Runs of run_ner.py that are repeated, killed, resumed, pushed, or fed unusual sentences, of each kind of tagger."""

import json
import os
import re
import signal
import statistics
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoConfig, AutoModelForTokenClassification, AutoTokenizer, PreTrainedTokenizerFast

import run_ner
from elmo_gpt_bert.tasks.ner.features import speaks_iob1
from elmo_gpt_bert.training import loop
from tests.support.glue_sample import VOCABULARY, write_model, write_vocabulary
from tests.support.hub_server import HubServer, log_in
from tests.support.ner_sample import read_columns, sentence, write_conll, write_elmo, write_folder, write_json
from tests.support.processes import fork, wait
from tests.support.strangers import run_stranger


ALL = ["--do_train", "--do_eval", "--do_predict"]
AT_THE_END = ["--eval_strategy", "no", "--save_strategy", "no"]


@pytest.fixture
def conll(tmp_path) -> list[str]:
    return ["--data_dir", str(write_folder(tmp_path / "conll")), "--learning_rate", "0.01", "--max_seq_length", "32"]


@pytest.fixture(params=["bert", "elmo", "cached"])
def tagger(request, tmp_path, conll) -> list[str]:
    """A run of 6 updates, 4 of them in the first epoch, with dropout."""
    flags = [*conll, *ALL, "--max_steps", "6", "--per_device_train_batch_size", "3", "--save_strategy", "steps"]
    flags += ["--save_steps", "2", "--eval_steps", "3"]
    if request.param == "elmo":
        return [*flags, "--model_name_or_path", write_elmo(tmp_path / "elmo"), "--tag_scheme", "bioes"]
    model = write_model(tmp_path, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.2)
    flags += ["--model_name_or_path", str(model), "--tokenizer_name", str(write_vocabulary(tmp_path))]
    if request.param == "bert":
        return flags
    flags += ["--features", "weighted_sum_all", "--config_overrides", "rnn_size=7,dropout=0.3"]
    return [*flags, "--state_cache", str(tmp_path / "cache")]


@pytest.fixture
def bert(tmp_path, conll) -> list[str]:
    model, vocabulary = write_model(tmp_path), write_vocabulary(tmp_path)
    return [*conll, "--model_name_or_path", str(model), "--tokenizer_name", str(vocabulary)]


def without_data(flags: list[str]) -> list[str]:
    place = flags.index("--data_dir")
    return flags[:place] + flags[place + 2 :]


def record(folder: Path) -> dict:
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))


def scores_of(results: dict) -> dict[str, float]:
    return {k: v for k, v in results.items() if k.startswith(("eval_", "test_", "train_")) and "runtime" not in k}


# Resuming, and predicting with what was saved


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits_and_predicts_again_from_its_folder(tagger, tmp_path, monkeypatch):
    def step(self, *_):
        if self.progress.update == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return between(self)

    between = loop._Training.between_updates
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    with monkeypatch.context() as patch:
        patch.setattr(loop._Training, "between_updates", step)
        assert wait(fork(lambda: run_ner.main([*tagger, "--output_dir", str(killed)]))) == [-signal.SIGKILL]
    run_ner.main([*tagger, "--output_dir", str(whole)])
    moved = ["--state_cache", str(tmp_path / "moved")] if "--state_cache" in tagger else []
    run_ner.main([*tagger, "--output_dir", str(killed), "--resume", *moved])
    assert scores_of(record(killed)) == scores_of(record(whole))
    for name in ("model.safetensors", "predictions.conll"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()

    again = ["--model_name_or_path", str(killed), "--data_dir", str(tmp_path / "conll"), "--max_seq_length", "32"]
    results = run_ner.main([*again, "--do_predict", "--output_dir", str(tmp_path / "again")])
    assert (tmp_path / "again" / "predictions.conll").read_bytes() == (whole / "predictions.conll").read_bytes()
    assert results["test_loss"] == pytest.approx(record(whole)["test_loss"], abs=1e-6)
    assert sorted(path.name for path in (tmp_path / "again").iterdir() if path.name[0] != ".") == [
        "metrics.json",
        "predictions.conll",
    ]


# Seeds and what the card says


@pytest.mark.slow
def test_of_several_seeds_the_scores_on_both_sets_have_mean_and_deviation(tmp_path, bert):
    seeds = ["--seeds", "2", "--max_steps", "14", "--output_dir", str(tmp_path / "out")]
    run_ner.main([*bert, *ALL, *seeds, *AT_THE_END, "--per_device_train_batch_size", "4"])
    found = record(tmp_path / "out")
    each = list(found["runs"].values())
    assert each[0]["eval_f1"] != each[1]["eval_f1"] and each[0]["test_f1"] != each[1]["test_f1"]
    for name in ("eval_f1", "eval_recall", "eval_loss", "test_f1", "test_accuracy"):
        values = [results[name] for results in each]
        assert found[f"{name}_mean"] == pytest.approx(statistics.fmean(values))
        assert found[f"{name}_std"] == pytest.approx(statistics.stdev(values))
        assert (found[f"{name}_min"], found[f"{name}_max"]) == (min(values), max(values))
    scores = {name.removesuffix("_mean") for name in found if name.endswith("_mean")}
    metrics = ("f1", "precision", "recall", "accuracy", "loss")
    assert scores == {f"{split}_{metric}" for split in ("eval", "test") for metric in metrics}
    assert all({"eval_f1_PER", "test_number_WORK"} <= results.keys() for results in each)

    card = ModelCard.load(tmp_path / "out" / "README.md")
    text = " ".join(f"{found[f'eval_f1_{what}']:.4f} |" for what in ("mean", "median", "std", "min", "max"))
    assert f"| f1 | {text}\n" in card.text and card.text.count("| accuracy |") == 2
    assert (
        f"| f1 | {found['eval_f1']:.4f} |\n" in card.text and "loss |" not in card.text and "| test_" not in card.text
    )
    values = [found[f"eval_{name}_WORK"] for name in ("precision", "recall", "f1")]
    assert (
        f"| WORK | {values[0]:.4f} | {values[1]:.4f} | {values[2]:.4f} | {found['eval_number_WORK']} |\n" in card.text
    )
    measured = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert measured == {name: found[f"eval_{name}"] for name in ("f1", "precision", "recall", "accuracy")}


# Whose code


def test_transformers_own_bert_gives_the_zoos_scores(tmp_path, bert, capsys):
    results = []
    for implementation in ("zoo", "transformers"):
        out = ["--output_dir", str(tmp_path / implementation), "--implementation", implementation]
        limits = [f"--max_{part}_samples={size}" for part, size in (("train", 7), ("eval", 4), ("predict", 3))]
        results.append(scores_of(run_ner.main([*bert, *ALL, "--max_steps", "5", *limits, *out])))
        assert len(read_columns(tmp_path / implementation / "predictions.conll")) == 3
    assert results[0] == pytest.approx(results[1], abs=1e-5)
    printed = capsys.readouterr().out
    assert "load: ZooBertForTokenClassification" in printed and "load: BertForTokenClassification" in printed


STRANGER = """
import json, sys
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer, pipeline
model = AutoModelForTokenClassification.from_pretrained("me/elmo-ner", trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained("me/elmo-ner", trust_remote_code=True)
with torch.no_grad():
    logits = model(**tokenizer(sys.argv[1:], is_split_into_words=True, return_tensors="pt")).logits
vectors = pipeline("feature-extraction", model="me/elmo-ner", trust_remote_code=True)(" ".join(sys.argv[1:]))
tagging = pipeline("token-classification", model="me/elmo-ner", trust_remote_code=True, ignore_labels=[])
tags = [[found["word"], found["entity"]] for found in tagging(" ".join(sys.argv[1:]))]
print(json.dumps([type(model).__module__, logits.tolist(), len(vectors[0]), tags]))
"""


@pytest.mark.slow
def test_a_pushed_elmo_tagger_works_for_a_stranger_with_the_code_beside_it(tmp_path, conll, monkeypatch):
    words, out = sentence(1)[0], tmp_path / "out"
    flags = ["--model_name_or_path", write_elmo(tmp_path / "elmo"), *conll, "--do_train", "--do_eval", "--max_steps"]
    flags += ["2", "--output_dir", str(out), "--push_to_hub", "--hub_model_id", "elmo-ner", "--save_strategy", "steps"]
    with HubServer() as hub:
        log_in(monkeypatch, hub, tmp_path / "cache")
        run_ner.main(flags)
        pushed = hub.files("me/elmo-ner")
        process = run_stranger(STRANGER, *words, home=tmp_path / "stranger", hub=hub)
    assert process.returncode == 0, process.stderr
    assert {path: (out / path).read_bytes() for path in pushed} == pushed
    assert {"config.json", "model.safetensors", "modeling_elmo_tasks.py", "tokenization_elmo.py"} <= pushed.keys()
    assert not any(path.startswith("checkpoint-") for path in pushed)
    card = ModelCard(pushed["README.md"].decode())
    assert card.data.pipeline_tag == "token-classification" and "| PER |" in card.text
    measured = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert measured["f1"] == record(out)["eval_f1"] and "`ElmoForTokenClassification` from" in card.text

    module, logits, vectors, tags = json.loads(process.stdout.splitlines()[-1])
    assert module.startswith("transformers_modules.") and vectors == len(words)
    model, tokenizer = AutoModelForTokenClassification.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    ours = model(**tokenizer(words, is_split_into_words=True, return_tensors="pt")).logits
    assert logits[0] == [pytest.approx(row, abs=1e-5) for row in ours[0].tolist()]
    names = [model.config.id2label[number] for number in ours[0].argmax(-1).tolist()]
    assert tags == [list(pair) for pair in zip(words, names, strict=True)]


# Unusual sentences


@pytest.mark.parametrize("family", ["bert", pytest.param("elmo", marks=pytest.mark.slow)])
def test_sentences_of_one_word_and_of_a_thousand_in_files_of_any_layout(tmp_path, bert, family):
    """BERT reads the long one in rows of 30 words, and ELMo in a single row."""
    long = [("bad", "B-PER") if place % 2 else ("the", "O") for place in range(1000)]
    sentences = [[("bad", "B-PER")], long, [("the", "O")], [("cast", "B-PER"), ("the", "O")]]
    learned = [sentences[0], long[:9], *sentences[2:]]
    for name, rows, separator in (("spaces", learned, " "), ("tabs", sentences, "\t")):
        text = "\n\n".join("\n".join(separator.join(pair) for pair in row) for row in rows)  # no newline at the end
        (tmp_path / f"{name}.conll").write_text(text, encoding="utf-8", newline="\r\n" if name == "tabs" else "\n")
    files = ["--train_file", "spaces.conll", "--validation_file", "spaces.conll", "--test_file", "tabs.conll"]
    files = [str(tmp_path / word) if word.endswith(".conll") else word for word in files]
    flags = without_data(bert)
    if family == "elmo":
        name = write_elmo(tmp_path / "elmo")
        flags += ["--model_name_or_path", name, "--tokenizer_name", name, "--max_seq_length", "1000"]
        flags += ["--config_overrides", "task_dropout=0,mix_dropout=0"]
    flags += ["--max_steps", "30", "--learning_rate", "0.05", *AT_THE_END]
    results = run_ner.main([*flags, *files, *ALL, "--output_dir", str(tmp_path / "out")])
    rows = read_columns(tmp_path / "out" / "predictions.conll")
    assert [len(row) for row in rows] == [1, 1000, 1, 2]
    assert (results["eval_number_PER"], results["test_number_PER"]) == (6, 502)
    assert all(line[1] == line[2] for row in rows for line in row)
    assert results["test_recall"] == 1
    assert len(AutoConfig.from_pretrained(tmp_path / "out").id2label) == 3


@pytest.mark.parametrize(
    "extra", [[], ["--features", "last", "--config_overrides", "rnn_size=7", "--state_cache"]], ids=["alone", "cache"]
)
@pytest.mark.parametrize("is_fast", [True, False])
def test_sentences_of_which_nothing_is_left_are_outside_also_by_the_batch(tmp_path, bert, monkeypatch, is_fast, extra):
    """U+FE0F vanishes, and this tokenizer puts nothing around sentences."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    words.normalizer, words.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]")
    tokenizer.save_pretrained(tmp_path / "words")
    monkeypatch.setattr(PreTrainedTokenizerFast, "is_fast", is_fast)
    lost = (["\ufe0f"], ["B-PER"])
    train = write_json(tmp_path / "train.json", [sentence(row) for row in range(12)] + [lost])
    test = write_json(tmp_path / "test.json", [lost, sentence(0), lost, lost, sentence(1)])
    args = [*without_data(bert), "--train_file", train, "--validation_file", test, "--test_file", test, *ALL]
    args += ["--max_steps", "2", "--output_dir", str(tmp_path / "out")]
    args += ["--tokenizer_name", str(tmp_path / "words"), "--per_device_eval_batch_size", "2"]
    results = run_ner.main([*args, *extra, *([str(tmp_path / "cache")] if extra else [])])
    rows = read_columns(tmp_path / "out" / "predictions.conll")
    assert [[line[0] for line in row] for row in rows] == [lost[0], sentence(0)[0], lost[0], lost[0], sentence(1)[0]]
    assert all(rows[place] == [["\ufe0f", "B-PER", "O"]] for place in (0, 2, 3))
    assert results["eval_number_PER"] == 3 + sum(sentence(row)[1].count("B-PER") for row in (0, 1))


def test_tags_that_are_numbers_give_the_run_of_their_names(tmp_path, bert, capsys):
    rows = [sentence(row) for row in range(8)]
    names = ["O", *sorted({tag for _, tags in rows for tag in tags} - {"O"})]
    numbered = [(words, [names.index(tag) for tag in tags]) for words, tags in rows]
    flags, losses = [*without_data(bert), "--max_steps", "2", "--do_train", "--do_eval"], []
    for name, lines, more in [("a", rows, []), ("b", numbered, ["--tag_names", ", ".join(names)])]:
        file = write_json(tmp_path / f"{name}.json", lines)
        files = ["--train_file", file, "--validation_file", file, "--output_dir", str(tmp_path / name)]
        losses.append(run_ner.main([*flags, *files, *more])["eval_loss"])
    assert losses[0] == losses[1]
    for words, message in [
        ([*bert, *more], "has no effect with --d"),
        ([*without_data(bert), "--train_file", file, "--tag_names", "O,B-A,"], "different names, .*: one is empty"),
        ([*without_data(bert), "--train_file", file, "--tag_names", "O,B-A,B-A"], "names, .*: B-A is there twice"),
    ]:
        with pytest.raises(SystemExit):
            run_ner.main([*words, "--do_train", "--output_dir", str(tmp_path / "c")])
        assert re.search(message, capsys.readouterr().err)


def test_the_loss_of_a_checkpoint_that_speaks_iob1_is_measured_in_iob1(tmp_path, capsys):
    """One word an entity: a tagger that calls B-PER I-PER, and I-PER B-PER, begins all entities with I."""
    rows = [(["the", word, "is", "a", "film"], ["O", "B-PER", "O", "O", "B-WORK"]) for word in ("cast", "plot")] * 4
    file = write_json(tmp_path / "a.json", rows)
    data = ["--validation_file", file, "--do_eval"]
    flags = ["--model_name_or_path", str(write_model(tmp_path)), "--tokenizer_name", str(write_vocabulary(tmp_path))]
    flags += ["--output_dir", str(tmp_path / "out"), "--max_seq_length", "32", "--learning_rate", "0.03"]
    first = run_ner.main([*flags, "--train_file", file, *data, "--do_train", *AT_THE_END, "--max_steps", "15"])
    assert first["eval_f1"] == 1 and "IOB1" not in capsys.readouterr().out
    path = tmp_path / "out" / "config.json"
    content = path.read_text(encoding="utf-8")
    turned = {"B-PER": "I-PER", "I-PER": "B-PER", "B-WORK": "I-WORK", "I-WORK": "B-WORK"}
    path.write_text(re.sub("|".join(turned), lambda match: turned[match[0]], content), encoding="utf-8")
    (tmp_path / "out" / "SHA256SUMS").unlink()
    again = ["--model_name_or_path", str(tmp_path / "out"), "--max_seq_length", "32"]
    second = run_ner.main([*again, *data, "--output_dir", str(tmp_path / "again")])
    assert second["eval_loss"] == pytest.approx(first["eval_loss"]) and second["eval_f1"] == 1
    assert "validation: the model's entities begin with I, so the loss is measured in IOB1" in capsys.readouterr().out


def test_a_set_without_entities_is_said_to_have_none(tmp_path, bert, capsys):
    train = write_json(tmp_path / "train.json", [sentence(row) for row in range(8)])
    blind = write_json(tmp_path / "blind.json", [(["the", "film"], ["O", "O"]), (["is"], ["O"])])
    flags = [*without_data(bert), "--train_file", train, "--output_dir", str(tmp_path / "out"), *ALL, *AT_THE_END]
    results = run_ner.main([*flags, "--max_steps", "1", "--validation_file", blind, "--test_file", train])
    assert results["eval_f1"] == 0
    printed = capsys.readouterr().out
    message = "validation: all tags are O, so precision, recall and F1 are 0 whatever the model predicts\n"
    assert printed.count("all tags are O") == printed.count(message) == 1


def test_a_head_of_other_tags_starts_anew_and_one_of_the_same_tags_is_kept(tmp_path, bert, capsys):
    def train(kinds: dict[str, str], model: list[str], out: str, rate: str) -> dict[str, torch.Tensor]:
        rows = [(words, [kinds.get(tag, tag) for tag in tags]) for words, tags in map(sentence, range(12))]
        file = write_json(tmp_path / f"{out}.json", rows)
        flags = ["--train_file", file, "--output_dir", str(tmp_path / out), "--do_train", "--max_seq_length", "32"]
        run_ner.main([*flags, *model, *AT_THE_END, "--max_steps", "4", "--learning_rate", rate])
        return load_file(tmp_path / out / "model.safetensors")

    first = train({}, without_data(bert), "first", "0.03")
    path = tmp_path / "first" / "config.json"
    names = json.loads(path.read_text(encoding="utf-8"))["id2label"]
    model = ["--model_name_or_path", str(tmp_path / "first")]
    capsys.readouterr()
    same = train({}, model, "same", "0")
    assert "newly initialised" not in capsys.readouterr().out
    assert all(torch.equal(weight, same[name]) for name, weight in first.items())

    others = train({"B-PER": "B-CORP"}, model, "others", "0")
    line = f"newly initialised, not in {tmp_path / 'first'}: classifier.bias, classifier.weight\n"
    assert line in capsys.readouterr().out
    new = [name for name, weight in first.items() if not torch.equal(weight, others[name])]
    assert new == ["classifier.bias", "classifier.weight"] and not others["classifier.bias"].any()
    kept = (first["classifier.weight"][:, None] == others["classifier.weight"]).all(-1)
    assert not kept.any() and 0.01 < others["classifier.weight"].std() < 0.03

    turned = dict(zip(names, reversed(names.values()), strict=True))  # as many tags, the same ones in another order
    config = json.loads(path.read_text(encoding="utf-8"))
    config |= {"id2label": turned, "label2id": {name: int(number) for number, name in turned.items()}}
    path.write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "first" / "SHA256SUMS").unlink()
    kept = train({}, model, "turned", "0")
    assert torch.equal(kept["classifier.weight"], first["classifier.weight"])
    assert json.loads((tmp_path / "turned" / "config.json").read_text(encoding="utf-8"))["id2label"] == turned


def test_the_crf_of_another_taggers_tags_starts_anew_too(tmp_path, conll):
    elmo = ["--model_name_or_path", write_elmo(tmp_path / "elmo"), *conll, "--do_train", "--max_steps", "3"]
    run_ner.main([*elmo, *AT_THE_END, "--output_dir", str(tmp_path / "first")])
    rows = [(words, [tag.replace("PER", "CORP") for tag in tags]) for words, tags in map(sentence, range(12))]
    train = ["--train_file", write_json(tmp_path / "a.json", rows), "--do_train", "--max_steps", "1"]
    train += ["--model_name_or_path", str(tmp_path / "first"), "--learning_rate", "0", "--max_seq_length", "32"]
    run_ner.main([*train, *AT_THE_END, "--output_dir", str(tmp_path / "second")])
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "second"))
    new = {name for name, weight in first.items() if not torch.equal(weight, second[name])}
    assert new == {"classifier.bias", "classifier.weight", "crf.transitions", "crf.start", "crf.end"}
    assert not any(second[name].any() for name in ("crf.transitions", "crf.start", "crf.end"))


@pytest.mark.parametrize("scheme", ["iob2", pytest.param("bioes", marks=pytest.mark.slow)])
def test_an_entity_that_begins_in_one_row_and_ends_in_the_next_is_found_by_a_crf(tmp_path, scheme):
    """The long sentences are read in rows of 16 words, the first of which ends between film and plot."""
    tags = {"film": "B-WORK", "plot": "I-WORK", "cast": "B-PER"}
    texts = ["is " * 15 + "film plot is", "the film plot is good", "cast is bad"] * 8
    rows = [(text.split(), [tags.get(word, "O") for word in text.split()]) for text in texts]
    files = [write_json(tmp_path / f"{name}.json", some) for name, some in (("train", rows), ("long", rows[:1]))]
    flags = ["--model_name_or_path", write_elmo(tmp_path / "elmo"), "--train_file", files[0], "--tag_scheme", scheme]
    flags += ["--config_overrides", "task_dropout=0,mix_dropout=0", "--learning_rate", "0.02", *AT_THE_END]
    flags += ["--max_seq_length", "16", "--num_train_epochs", "25", "--output_dir", str(tmp_path / "out"), *ALL]
    results = run_ner.main([*flags, "--validation_file", files[1], "--test_file", files[1]])
    assert results["eval_f1"] == results["test_f1"] == 1 and results["eval_loss"] < 1
    (lines,) = read_columns(tmp_path / "out" / "predictions.conll")
    assert [line[2] for line in lines] == rows[0][1]


def test_a_cache_of_states_leaves_the_order_of_sentences_with_context_that_are_grouped_by_length(tmp_path, bert):
    for name in ("train.txt", "valid.txt"):
        write_conll(tmp_path / "conll" / name, range(40), document=7)
    flags = [*bert, "--document_context", "--group_by_length", "--max_steps", "5", "--per_device_train_batch_size"]
    flags += ["4", "--features", "last", "--config_overrides", "rnn_size=7,dropout=0", "--do_train", "--do_eval"]
    plain, cached = (
        run_ner.main([*flags, *AT_THE_END, *more, "--output_dir", str(tmp_path / str(len(more)))])
        for more in ([], ["--state_cache", str(tmp_path / "cache")])
    )
    assert cached["train_loss"] == pytest.approx(plain["train_loss"], abs=1e-6)
    assert cached["eval_loss"] == pytest.approx(plain["eval_loss"], abs=1e-6)


@pytest.mark.parametrize("kind", ["", "-PER"])
def test_a_word_that_a_model_misses_does_not_hide_that_it_speaks_iob1(kind):
    begin, inside = f"B{kind}", f"I{kind}"
    references = [["O", begin, "O", begin, inside, "O", begin]]
    assert speaks_iob1([["O", inside, "O", inside, inside, "O", "O"]], references)
    assert not speaks_iob1([["O", begin, "O", begin, inside, "O", "O"]], references)
