"""The biLM's objective: streams that lose and repeat no word, and the training of the released code on them."""

import pickle

import numpy as np
import pytest
import torch
from transformers import AutoModelForPreTraining

import modeling
from elmo_gpt_bert.tasks.pretraining import bilm as streams
from elmo_gpt_bert.tasks.pretraining.bilm import BiLM
from elmo_gpt_bert.tasks.pretraining.corpus import Corpus
from elmo_gpt_bert.tasks.pretraining.plan import Phase
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.identity import run_identity
from elmo_gpt_bert.training.launching import make_accelerator
from elmo_gpt_bert.training.loading import load_config, load_model
from elmo_gpt_bert.training.loop import train
from modeling import ElmoForPreTraining, ElmoTokenizer
from modeling.elmo import modeling_elmo_pretraining as pretraining
from modeling.elmo.tokenization_elmo_spelling import ByteSpelling
from run_pretraining import LanguageModelling, PretrainingArguments, describe_data
from tests.support.corpus_sample import random_documents, write_corpus
from tests.support.elmo_recording import UNROLL, batch, check_end, released_model
from tests.support.elmo_reference import small_config, small_model


VOCABULARY, WORDS, K = 17, 23, 12  # words 17 to 22 have characters, but are not predicted


@pytest.fixture
def corpus(tmp_path) -> Corpus:
    return word_corpus(tmp_path, random_documents(31, WORDS, first=3))


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(streams, "PIECE", 19)


def word_corpus(folder, documents, split: str = "train") -> Corpus:
    characters = ByteSpelling(K).rows(["<S>", "</S>", "<UNK>", *(f"w{number}" for number in range(3, WORDS))])
    return write_corpus(folder, documents, VOCABULARY, characters.astype(np.uint16), split=split)


def sentences_of(corpus: Corpus) -> list[list[int]]:
    ends = corpus.sentences[np.arange(len(corpus.sentences))]
    return [words.tolist() for words in np.split(corpus.read(0, corpus.num_tokens), ends[:-1])]


def word_numbers(corpus: Corpus, input_ids: torch.Tensor) -> np.ndarray:
    """(..., K) character ids -> the number of each word."""
    numbers = {tuple(row): number for number, row in enumerate(corpus.characters.tolist())}
    return np.array([numbers[tuple(row)] for row in input_ids.flatten(0, -2).tolist()]).reshape(input_ids.shape[:-1])


def epoch_of(objective: BiLM, epoch: int, prefix: str = "") -> tuple[list[list[int]], list[list[int]]]:
    """The inputs and the targets of each row in an epoch."""
    inputs, targets = [[] for _ in range(objective.rows)], [[] for _ in range(objective.rows)]
    for window in range(objective.windows):
        first = epoch * objective.size + window * objective.rows
        batch = objective.batch(range(first, first + objective.rows))
        words = word_numbers(objective.corpus, batch[f"{prefix}input_ids"])
        for row in range(objective.rows):
            inputs[row] += words[row].tolist()
            targets[row] += batch[f"{prefix}labels"][row].tolist()
    return inputs, targets


def in_line(rows: list[list[int]]) -> list[int]:
    return [word for row in rows for word in row]


def split_at(words: list[int], boundary: int) -> list[tuple[int, ...]]:
    """The sentences between the boundaries; the first is what precedes the first boundary."""
    places = [place for place, word in enumerate(words) if word == boundary]
    return [tuple(words[begin + 1 : end]) for begin, end in zip([-1, *places], [*places, len(words)], strict=True)]


@pytest.mark.parametrize("piece", [19, 2**15])  # of a few sentences, and of the whole text
@pytest.mark.parametrize("prefix", ["", "reverse_"])
def test_an_epoch_has_each_sentence_once_but_for_the_steps_that_fill_no_batch(corpus, monkeypatch, prefix, piece):
    monkeypatch.setattr(streams, "PIECE", piece)
    objective = BiLM(corpus, rows=3, steps=4, seed=5)
    sentences = sentences_of(corpus)
    if prefix:
        sentences = [words[::-1] for words in sentences]
    steps = sum(map(len, sentences)) + len(sentences)
    begin, end = (1, 0) if prefix else (0, 1)
    orders = []
    for epoch in range(3):
        inputs, targets = (in_line(rows) for rows in epoch_of(objective, epoch, prefix))
        assert steps - 3 * 4 < len(inputs) == objective.size * 4 <= steps
        first, *whole, last = split_at(inputs, begin)
        assert first == ()
        missing = sorted(map(tuple, sentences))
        for sentence in whole:
            missing.remove(sentence)
        assert any(sentence[: len(last)] == last for sentence in missing)
        assert sum(map(len, missing)) + len(missing) - len(last) - 1 == steps - len(inputs)
        # Targets are the next inputs: the end instead of the beginning of a sentence, <UNK> beyond the vocabulary.
        following = [end if word == begin else word if word < VOCABULARY else 2 for word in inputs[1:]]
        assert targets[:-1] == following
        orders.append(whole)
    assert orders[0] != orders[1] != orders[2]


def test_rows_are_parts_of_one_line_and_both_directions_have_orders_of_their_own(corpus, small_pieces):
    objective = BiLM(corpus, rows=3, steps=4, seed=5)
    one_row = BiLM(corpus, rows=1, steps=4, seed=5)
    line = in_line(epoch_of(one_row, 1)[0])
    for row, words in enumerate(epoch_of(objective, 1)[0]):
        start = row * len(words)
        assert words == line[start : start + len(words)]
    forward, backward = split_at(line, 0), split_at(in_line(epoch_of(one_row, 1, "reverse_")[0]), 1)
    assert [words[::-1] for words in backward] != forward


def test_held_out_text_keeps_its_order(corpus, small_pieces):
    objective = BiLM(corpus, rows=1, steps=4, shuffle=False)
    expected = in_line([[0, *words] for words in sentences_of(corpus)])
    assert objective.predictions == len(expected)
    for epoch in range(2):
        inputs = in_line(epoch_of(objective, epoch)[0])
        assert inputs == expected[: len(inputs)]


def test_pieces_hold_whole_sentences_even_those_longer_than_a_piece(tmp_path, small_pieces):
    long = [list(range(3, 20)) * 5]
    corpus = word_corpus(tmp_path, [[[3]], long, [[4], [5, 6]], long])
    sentences, tokens = streams.cut(corpus)
    assert sentences[0] == 0 and sentences[-1] == len(corpus.sentences) and (np.diff(sentences) > 0).all()
    assert tokens.tolist() == [0, *corpus.sentences[sentences[1:] - 1]]
    objective = BiLM(corpus, rows=1, steps=1, seed=2)
    assert sorted(in_line(epoch_of(objective, 0)[0])) == sorted([0] * 5 + in_line(sentences_of(corpus)))


def test_batches_are_the_same_for_any_number_of_processes_and_in_workers(corpus, small_pieces):
    whole = BiLM(corpus, rows=8, steps=3, seed=1, num_sampled=5)
    for processes in (2, 4):
        copies = [pickle.loads(pickle.dumps(whole)) for _ in range(processes)]
        for first in range(0, 2 * whole.size, whole.rows):
            expected = whole.batch(range(first, first + 8))
            for process, objective in enumerate(copies):
                for name, values in objective.batch(range(first + process, first + 8, processes)).items():
                    is_shared = name in ("sampled_words", "num_draws")
                    assert torch.equal(values, expected[name] if is_shared else expected[name][process::processes])
    late = pickle.loads(pickle.dumps(whole))  # a worker that begins in the middle
    assert all(torch.equal(values, expected[name]) for name, values in late.batch(range(first, first + 8)).items())


def test_words_are_sampled_anew_for_each_window_and_direction(corpus):
    objective = BiLM(corpus, rows=2, steps=3, seed=1, num_sampled=7)
    batches = [objective.batch([2 * window]) for window in range(objective.windows + 2)]
    samples = {tuple(words.tolist()) for batch in batches for words in batch["sampled_words"]}
    assert len(samples) == 2 * len(batches)
    assert "sampled_words" not in BiLM(corpus, rows=2, steps=3, num_sampled=VOCABULARY).batch([0])


def test_sampled_words_are_drawn_as_the_model_draws_them():
    counts, total, expected = np.zeros(50), 4000, torch.zeros(50)
    for window in range(total):
        words, draws = streams.sample_words(50, 10, window, 3)
        assert len(np.unique(words)) == 10 <= draws and words.min() >= 0 and words.max() < 50
        counts[words] += 1
        expected += pretraining.expected_count(torch.arange(50), 50, draws)
    np.testing.assert_allclose(counts / total, expected / total, atol=0.03)
    words, draws = streams.sample_words(50, 49, 0, 3)  # takes many more draws than words
    assert len(np.unique(words)) == 49 and draws > 100


def test_a_sampled_softmax_is_the_full_one_in_expectation():
    """What a target's rivals add up to, each divided by its chance of being drawn, in the mean of many windows."""
    vocabulary, count, windows = 600, 100, 500
    head = language_model(lm_vocab_size=vocabulary).lm_head
    states, targets = torch.randn(20, 7), torch.randint(0, vocabulary, (20,))
    scores = head(states).double().detach()
    target = scores.gather(1, targets[:, None])[:, 0].exp()
    expected = scores.exp().sum(1) - target
    sums = []
    for window in range(windows):
        words, draws = streams.sample_words(vocabulary, count, window, 1)
        words = torch.from_numpy(words)
        chances = [pretraining.expected_count(drawn, vocabulary, draws) for drawn in (targets, words)]
        with torch.no_grad():
            losses = head.sampled_losses(states, targets, words, chances).double()
        sums.append(losses.expm1() * target / chances[0])  # loss = log(1 + rivals / target)
    sums = torch.stack(sums)
    error = sums.std(0) / windows**0.5
    # The last draw always finds a word, which the released formula ignores: one word in `count` is too many at most.
    assert ((sums.mean(0) - expected).abs() < 4 * error + expected / count).all() and (error < 0.03 * expected).all()


# Training


def recorded(arrays, number: int) -> dict[str, torch.Tensor]:
    """The batch of a recorded step."""
    values = batch(arrays, number) | {"rows": torch.arange(2), "windows": torch.full((2,), number)}
    if f"cand{number}/0/ids" in arrays:
        words = torch.stack([torch.tensor(arrays[f"cand{number}/{side}/ids"]).long() for side in range(2)])
        probability = ((words + 2) / (words + 1)).double().log() / np.log(33)
        expected = torch.stack([torch.tensor(arrays[f"cand{number}/{side}/samp"]).double() for side in range(2)])
        draws = ((-expected).log1p() / (-probability).log1p()).mean(1).round().long()
        values |= {"sampled_words": words, "num_draws": draws}
    return values


@pytest.mark.parametrize(("recording", "clip"), [("full_softmax", 1.0), ("sampled_softmax", 10.0)])
def test_eight_updates_are_those_of_the_released_code(corpus, data, tmp_path, monkeypatch, recording, clip):
    """The loop, optimizer and plan of run_pretraining.py, with the recorded batches in place of the corpus's."""
    arrays = np.load(data / "elmo_training" / f"{recording}.npz")
    model = released_model(arrays, state="warm")
    objective = BiLM(corpus, rows=2, steps=UNROLL)
    objective.batch = lambda samples: recorded(arrays, samples[0] // 2)
    (tmp_path / "text").write_text("The words of the recorded batches are not here.", encoding="utf-8")
    args = PretrainingArguments(
        model_name_or_path="bilm.json", train_file=str(tmp_path / "text"), output_dir=str(tmp_path), optim="adagrad",
        learning_rate=0.2, lr_scheduler_type="constant", max_grad_norm=clip, per_device_train_batch_size=2,
        max_steps=8, logging_steps=1, save_strategy="no", report_to="none",
        mixed_precision="no", matmul_precision="highest",
    )  # fmt: skip
    accelerator, lines = make_accelerator(args), []
    monkeypatch.setattr(accelerator, "log", lambda values, step: lines.append(values))
    task = LanguageModelling({"train": corpus}, {}, describe_data("bilm", args), [Phase(objective)], model=model)
    train(task, None, args, accelerator, run_identity(args))
    for number, line in enumerate(lines):
        assert line["train_loss"] == pytest.approx(arrays[f"loss{number}"], abs=1e-6)
        directions = line["train_forward_loss"], line["train_backward_loss"]
        np.testing.assert_allclose(directions, arrays[f"ind{number}"], atol=1e-6)
        assert line["grad_norm"] == pytest.approx(arrays[f"gnorm{number}"], rel=2e-6)
    check_end(model, arrays)
    state = objective.state()
    for number in range(len(lines)):
        of_direction, layer = divmod(number // 2, 2)
        part = state["hidden" if number % 2 else "cell"][:, layer, of_direction]
        np.testing.assert_allclose(part, arrays[f"state{number}"], atol=1e-6)
    assert len(lines) == 8


def language_model(**changes) -> ElmoForPreTraining:
    torch.manual_seed(3)
    return ElmoForPreTraining(small_config(**({"lm_vocab_size": VOCABULARY} | changes)))


def test_states_go_on_by_row_over_any_number_of_processes_and_micro_batches(corpus):
    """Windows 0 to 5 on 1 process; the same on 2, then 1, then 4, each of which computes one row at a time."""
    model = language_model().eval()
    make = lambda: BiLM(corpus, rows=4, steps=3, seed=2, num_sampled=6)  # noqa: E731
    alone = make()

    def losses(objective: BiLM, samples) -> torch.Tensor:
        return objective.compute(model, objective.batch(samples), {}).detach()

    expected = [losses(alone, range(first, first + 4)) for first in range(0, 24, 4)]
    state = {}
    for processes, windows in ((2, (0, 1)), (1, (2, 3)), (4, (4, 5))):
        objectives = [make() for _ in range(processes)]
        for objective in objectives:
            objective.load_state(state)
        for window in windows:
            parts = [losses(objectives[sample % processes], [sample]) for sample in range(4 * window, 4 * window + 4)]
            torch.testing.assert_close(torch.stack(parts).mean(0), expected[window], atol=1e-6, rtol=1e-5)
        states = [objective.state() for objective in objectives]
        state = {name: torch.cat([part[name] for part in states]) for name in states[0]}
        assert sorted(state["rows"].tolist()) == [0, 1, 2, 3]
    for name, values in alone.state().items():
        torch.testing.assert_close(state[name][state["rows"].argsort()], values, atol=1e-6, rtol=1e-5)


def test_states_go_on_across_the_end_of_an_epoch_and_are_asked_for_when_they_are_missing(corpus):
    model = language_model().eval()
    objective, other = (BiLM(corpus, rows=2, steps=7, seed=2) for _ in range(2))
    first = objective.size  # the first window of the second epoch
    with pytest.raises(ValueError, match=f"at window {objective.windows}, but have no states"):
        objective.compute(model, objective.batch(range(first, first + 2)), {})
    for start in range(0, first, 2):
        objective.compute(model, objective.batch(range(start, start + 2)), {})
    state = objective.state()
    assert pickle.loads(pickle.dumps(objective)).state() == {}  # a worker gets no states
    batch = objective.batch(range(first, first + 2))
    continued = objective.compute(model, batch, {})
    other.load_state(state)
    torch.testing.assert_close(other.compute(model, batch, {}), continued)
    first_window = {"windows": torch.zeros(2, dtype=torch.long)}
    anew = BiLM(corpus, rows=2, steps=7, seed=2).compute(model, batch | first_window, {})
    assert not torch.allclose(continued, anew, atol=1e-4)


def test_a_window_that_is_computed_again_starts_where_it_started_before(corpus):
    """As after an overflow in fp16; each row goes on for itself."""
    model = language_model().eval()
    once, again = (BiLM(corpus, rows=2, steps=7, seed=2) for _ in range(2))
    for start in range(0, 8, 2):
        batch = once.batch(range(start, start + 2))
        expected = once.compute(model, batch, {})
        row = again.batch([start + 1])
        losses = [again.compute(model, each, {}) for each in (row, batch, batch)]
        torch.testing.assert_close(losses[1:], [expected, expected], rtol=0, atol=1e-6)
    torch.testing.assert_close(again.state(), once.state(), rtol=0, atol=1e-6)


def test_evaluation_has_states_of_its_own_which_begin_anew(corpus):
    model = language_model(num_sampled=5, hidden_dropout_prob=0.5)
    training = BiLM(corpus, rows=2, steps=7, num_sampled=5)
    training.compute(model.train(), training.batch([0, 1]), {})
    before = training.state()
    held_out = BiLM(corpus, rows=2, steps=7, shuffle=False)
    model.eval()
    with torch.no_grad():
        first, second = (
            [held_out.compute(model, held_out.batch(range(start, start + 2)), {}) for start in range(0, 8, 2)]
            for _ in range(2)
        )
    torch.testing.assert_close(first, second, atol=0, rtol=0)
    assert all(torch.equal(values, before[name]) for name, values in training.state().items())
    assert model.elmo.carried is None and model.config.state == "zero"


def test_at_the_end_the_model_has_a_warm_state(corpus, tmp_path):
    model = language_model()
    BiLM(corpus, rows=2, steps=7).finish(model)
    expected = language_model(state="warm")
    names = ["<S>", "</S>", "<UNK>", *(f"w{number}" for number in range(3, WORDS))]
    words = corpus.read(0, 200).tolist()
    ends = corpus.sentences.between(0, 200).tolist()
    cuts = [0, *(end for end in ends if end < 200), 200]
    expected.elmo.warm_up([[names[w] for w in words[a:b]] for a, b in zip(cuts, cuts[1:], strict=False)])
    model.save_pretrained(tmp_path / "model")
    loaded = ElmoForPreTraining.from_pretrained(tmp_path / "model")
    assert loaded.config.state == "warm" and loaded.elmo.initial_cell.any()
    torch.testing.assert_close(loaded.elmo.initial_cell, expected.elmo.initial_cell)
    torch.testing.assert_close(loaded.elmo.initial_hidden, expected.elmo.initial_hidden)


@pytest.mark.slow
def test_a_tiny_model_memorises_a_page(tmp_path):
    """Even the first word of each sentence, since its state goes on from one sentence and window to the next."""
    corpus = word_corpus(tmp_path, random_documents(3, VOCABULARY, first=3))
    model = language_model(hidden_size=24, cell_size=40, cell_clip=None, proj_clip=None).train()
    objective = BiLM(corpus, rows=2, steps=16, num_sampled=12, shuffle=False)
    optimizer = torch.optim.Adam([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.03)
    for first in range(0, 120, 2):
        loss = objective.compute(model, objective.batch([first, first + 1]), {}).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    held_out = BiLM(corpus, rows=2, steps=16, shuffle=False)
    held_out.load_state(objective.state())
    with torch.no_grad():
        losses = held_out.compute(model.eval(), held_out.batch([120, 121]), {})
    assert (losses < 0.1).all()


def tokenizer_of(folder, words: list[str]) -> ElmoTokenizer:
    path = folder / "words"
    path.write_text("".join(f"{word}\n" for word in words))
    return ElmoTokenizer(vocab_file=str(path), max_characters_per_token=K)


def test_a_checkpoint_without_a_softmax_gets_one_of_the_new_words(tmp_path, capsys):
    new = tokenizer_of(tmp_path, ["<S>", "</S>", "<UNK>", "a"])
    bilm = small_model()
    bilm.save_pretrained(tmp_path / "bilm")
    modeling.register()
    source = ModelSource(str(tmp_path / "bilm"))
    config = load_config(source)
    config.lm_vocab_size = len(new.targets)
    model = load_model(AutoModelForPreTraining, source, config, new, train=True)
    assert "newly initialised" in capsys.readouterr().out and model.lm_head.weight.shape == (4, 7)
    assert all(torch.equal(value, bilm.state_dict()[name]) for name, value in model.elmo.state_dict().items())


def test_samples_of_several_windows_and_texts_that_do_not_do_are_one_clear_error(corpus, tmp_path):
    objective = BiLM(corpus, rows=3, steps=4)
    for samples, windows in (([2, 3], 2), (range(0, 7), 3), ([], 0)):
        with pytest.raises(ValueError, match=f"of {windows} windows, .* as many samples as there are rows, 3"):
            objective.batch(samples)
    lower = "lower --per_device_train_batch_size or --max_seq_length"
    with pytest.raises(ValueError, match=f"the training text in .* too few for 90 rows of 20: give more, or {lower}"):
        BiLM(corpus, rows=90, steps=20)
    held_out = word_corpus(tmp_path / "held_out", [[[3, 4]]], split="validation")
    with pytest.raises(ValueError, match="the held-out text in .* too few for 20: hold out more by --validation_file"):
        BiLM(held_out, rows=1, steps=20)
    with pytest.raises(ValueError, match="has the states of 1 streams, but this run has 3: keep the product"):
        objective.load_state({"rows": torch.tensor([1]), "hidden": torch.zeros(1, 2), "cell": torch.zeros(1, 2)})


def test_held_out_text_is_read_from_the_state_of_a_training_stream(corpus):
    model, training = language_model(), BiLM(corpus, rows=3, steps=4)
    held_out = BiLM(corpus, rows=2, steps=4, shuffle=False, training=training)
    for window in range(3):
        training.compute(model, training.batch(range(3 * window, 3 * window + 3)), {})
    batch = held_out.batch([0, 1])
    model.eval()
    losses = held_out.compute(model, batch, {})
    state = tuple(part[:1].movedim(0, 2).expand(-1, -1, 2, -1) for part in training.states)
    inputs = {name: batch[name] for name in ("input_ids", "reverse_input_ids", "labels", "reverse_labels")}
    torch.testing.assert_close(losses, model(**inputs, stream_state=state).direction_losses)


def test_the_warm_state_follows_a_training_stream_and_later_streams_start_from_it(corpus, monkeypatch):
    monkeypatch.setattr(streams, "WARM_UP", 1)  # a state forgets soon
    model, training = language_model(), BiLM(corpus, rows=3, steps=4)
    for window in range(3):
        training.compute(model, training.batch(range(3 * window, 3 * window + 3)), {})
    training.finish(model)
    warm = model.elmo.initial_cell.clone()
    training.states = tuple(torch.zeros_like(part) for part in training.states)
    training.finish(model)
    assert not torch.equal(model.elmo.initial_cell, warm)
    hidden, cell = BiLM(corpus, rows=2, steps=4).first_state(model)
    assert torch.equal(hidden, model.elmo.initial_hidden) and torch.equal(cell, model.elmo.initial_cell)
