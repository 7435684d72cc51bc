"""A text becomes tokens once: no token is lost, nothing depends on the number of processes, and what was interrupted,
damaged or changed is made anew or refused."""

import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pyarrow
import pytest
from filelock import FileLock
from pyarrow import parquet
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import BertTokenizer, ByT5Tokenizer, PreTrainedTokenizerFast

import modeling
from elmo_gpt_bert.tasks.pretraining import preparing, vocabulary
from elmo_gpt_bert.tasks.pretraining.corpus import Corpus, SplitWriter
from elmo_gpt_bert.tasks.pretraining.preparing import prepare
from elmo_gpt_bert.tasks.pretraining.text import TextSource, pieces, split_sentences
from elmo_gpt_bert.tasks.pretraining.vocabulary import train_subwords, word_vocabulary
from elmo_gpt_bert.tasks.rows import is_held_out
from elmo_gpt_bert.training.errors import FileError, InputError, UserError
from modeling import ElmoConfig, ElmoTokenizer, ZooBertConfig, ZooGPTConfig
from tests.support.processes import fork, wait


SENTENCE = "the cat Zoë sat on a mat and don't U.S. dogs barked loudly yesterday [SEP] <S> rain 1848 fell"
WORDS = SENTENCE.split(" ")
PIECE = 700  # characters


def documents(count: int = 42, seed: int = 0) -> list[str]:
    rng = random.Random(seed)

    def sentence() -> str:
        words = " ".join(rng.choices(WORDS, range(len(WORDS), 0, -1), k=rng.randrange(1, 8)))
        return words[0].upper() + words[1:] + rng.choice(".!?")

    def line() -> str:
        return " ".join(sentence() for _ in range(rng.randrange(1, 4)))

    return ["\n".join(line() for _ in range(rng.randrange(1, 5))) for _ in range(count)]


@pytest.fixture
def texts(tmp_path) -> list[str]:
    """In two files, of which one is compressed."""
    texts = documents()
    (tmp_path / "a.txt").write_text("\n\n".join(texts[:17]), encoding="utf-8")
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[17:]))
    return texts


@pytest.fixture
def source(tmp_path, texts) -> TextSource:
    return TextSource(f"{tmp_path}/a.txt,{tmp_path}/b.jsonl", validation_split_percentage=20.0)


@pytest.fixture(autouse=True)
def zoo(monkeypatch):
    modeling.register()
    monkeypatch.setattr(preparing, "PIECE_SIZE", PIECE)


BERT = ZooBertConfig(vocab_size=67)
GPT = ZooGPTConfig(vocab_size=71)
ELMO = ElmoConfig(lm_vocab_size=11, max_characters_per_token=9, char_cnn_filters=[[1, 3]])


def run(folder, source, config=BERT, **options):
    return prepare(folder, source, config, **options)


def files_of(folder: Path) -> dict[str, bytes]:
    """The content of the tokens, words and tokenizer."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def units(corpus: Corpus, ends) -> list[list[int]]:
    stops = ends[np.arange(len(ends))].tolist()
    return [corpus.read(start, stop).tolist() for start, stop in zip([0, *stops], stops, strict=False)]


def tokens_of(corpus: Corpus) -> list[int]:
    return corpus.read(0, corpus.num_tokens).tolist()


# What is written


@pytest.mark.parametrize("config", [BERT, GPT, ELMO], ids=lambda config: config.model_type)
def test_the_files_hold_the_tokens_of_all_documents_once_and_in_order(tmp_path, source, texts, config):
    prepared = run(tmp_path / "out", source, config)
    seen = Counter()
    for corpus in (prepared.train, prepared.validation):
        documents, sentences = units(corpus, corpus.documents), units(corpus, corpus.sentences)
        numbers = {tuple(row) for row in documents}
        mine = [text for text in texts if tuple(encode(prepared.tokenizer, corpus, text)) in numbers]
        assert documents == [encode(prepared.tokenizer, corpus, text) for text in mine]
        expected = [encode(prepared.tokenizer, corpus, row, "lines") for text in mine for row in split_sentences(text)]
        assert sentences == expected
        assert corpus.num_bytes == sum(len(" ".join(split_sentences(text)).encode()) for text in mine)
        seen.update(mine)
    assert seen == Counter(texts)
    assert prepared.train.vocab_size == {"bert": 67, "zoo_bert": 67, "elmo": 11}.get(config.model_type, 71)


def encode(tokenizer, corpus: Corpus, text: str, sentences: str = "split") -> list[int]:
    """The numbers by a plain call of the tokenizer; words are found by their rows of characters."""
    pieces = split_sentences(text, sentences)
    if corpus.characters is None:
        rows = tokenizer(pieces, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return [number for row in rows for number in row]
    table = {tuple(row): number for number, row in reversed([*enumerate(np.asarray(corpus.characters).tolist())])}
    return [
        table[tuple(row)] for piece in pieces for row in tokenizer.convert_tokens_to_ids(tokenizer.tokenize(piece))
    ]


def test_a_tokenizer_that_sees_white_space_reads_the_space_between_sentences(tmp_path, source, texts):
    tokenizer = byte_pairs(texts)
    prepared = run(tmp_path / "out", source, tokenizer=tokenizer)
    for corpus in (prepared.train, prepared.validation):
        decoded = [tokenizer.decode(document) for document in units(corpus, corpus.documents)]
        assert {*decoded} <= {" ".join(split_sentences(text)) for text in texts}
        assert corpus.num_bytes == sum(len(text.encode()) for text in decoded)


def byte_pairs(texts: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer as GPT-2 has it."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def test_a_tokenizer_without_a_fast_one_behind_it_writes_its_ids(tmp_path, texts):
    tokenizer = ByT5Tokenizer()
    text = " ".join([*texts[0].split(), "Zoë </s>"])
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    source = TextSource(f"{tmp_path}/text.txt", sentences="lines", validation_split_percentage=0)
    corpus = run(tmp_path / "out", source, tokenizer=tokenizer).train
    apart = text.partition("</s>")[0], "<", "/s>"  # the name of a special token is read as text
    assert tokens_of(corpus) == [
        number for part in apart for number in tokenizer.encode(part, add_special_tokens=False)
    ]


@pytest.mark.parametrize("config", [BERT, GPT, ELMO], ids=lambda config: config.model_type)
def test_the_files_do_not_depend_on_the_number_of_processes(tmp_path, source, config):
    run(tmp_path / "one", source, config)
    run(tmp_path / "three", source, config, processes=3)
    one = files_of(tmp_path / "one")
    assert one == files_of(tmp_path / "three") and sum(name.startswith("train.") for name in one) == 3
    assert sum(map(len, documents())) > 5 * PIECE


def test_equal_documents_are_held_out_together_and_never_trained_on(tmp_path):
    texts = documents(40) * 3
    random.Random(1).shuffle(texts)
    (tmp_path / "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    other_ends = "\n\n".join(texts[::2]).replace("\n", " \r\n")
    (tmp_path / "b.txt").write_text(other_ends, encoding="utf-8", newline="")
    texts += texts[::2]
    prepared = run(tmp_path / "out", TextSource(f"{tmp_path}/?.txt", validation_split_percentage=25.0))
    train, held_out = (
        {*map(tuple, units(corpus, corpus.documents))} for corpus in (prepared.train, prepared.validation)
    )
    assert train and held_out and not train & held_out
    assert all(is_held_out(text, 0.25) == is_held_out(f"\n{text} ", 0.25) for text in texts)
    assert len(prepared.train.documents) + len(prepared.validation.documents) == len(texts)


def test_the_text_for_a_tokenizer_is_read_without_the_files_of_held_out_text(tmp_path, texts, monkeypatch):
    held_out, read = tmp_path / "b.jsonl", []

    def train(config, texts, do_lower_case):
        held_out.rename(tmp_path / "away")
        read.extend(text.strip() for batch in texts() for text in batch)
        (tmp_path / "away").rename(held_out)
        return train_subwords(config, texts, do_lower_case)

    monkeypatch.setattr(vocabulary, "train_subwords", train)
    run(tmp_path / "out", TextSource(str(tmp_path / "a.txt"), validation_file=str(held_out)))
    assert read == texts[:17]


def test_a_validation_file_is_the_held_out_text(tmp_path, texts):
    files = {"train_file": str(tmp_path / "a.txt"), "validation_file": str(tmp_path / "b.jsonl")}
    prepared = run(tmp_path / "out", TextSource(**files))
    assert (len(prepared.train.documents), len(prepared.validation.documents)) == (17, 25)
    for percentage in (0.0, 5.0):
        with pytest.raises(UserError, match="leave out --validation_split_percentage"):
            TextSource(**files, validation_split_percentage=percentage)


def test_a_file_that_is_named_twice_is_read_once_and_none_is_held_out_and_trained_on(tmp_path, texts):
    (tmp_path / "link.txt").symlink_to("a.txt")
    prepared = run(tmp_path / "twice", TextSource(f"{tmp_path}/a.txt,{tmp_path}/*.txt", validation_split_percentage=0))
    assert len(prepared.train.documents) == 17
    both = TextSource(f"{tmp_path}/*", validation_file=f"{tmp_path}/b.jsonl")
    with pytest.raises(InputError, match="^--validation_file .*b.jsonl is among the files to train on: leave it o"):
        run(tmp_path / "out", both)
    shutil.copy(tmp_path / "b.jsonl", tmp_path / "copy.jsonl")
    copied = TextSource(f"{tmp_path}/a.txt,{tmp_path}/b.jsonl", validation_file=f"{tmp_path}/copy.jsonl")
    with pytest.raises(InputError, match="the held-out text .*copy.jsonl is a copy of .*b.jsonl, which is trained on"):
        run(tmp_path / "out", copied)


def test_documents_and_sentences_without_tokens_vanish(tmp_path):
    (tmp_path / "a.txt").write_text("One.\n\u200b\nTwo.\n\n\u200b\n\n\u200b\nThree.", encoding="utf-8")
    tokenizer = BertTokenizer({"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, ".": 5})
    source = TextSource(str(tmp_path / "a.txt"), validation_split_percentage=0)
    prepared = run(tmp_path / "out", source, tokenizer=tokenizer)
    assert units(prepared.train, prepared.train.documents) == [[1, 5, 1, 5], [1, 5]]
    assert len(prepared.train.sentences) == 3 and prepared.validation is None


def test_a_text_without_a_token_is_one_error(tmp_path):
    (tmp_path / "a.txt").write_text(" \n\n", encoding="utf-8")
    with pytest.raises(UserError, match="the training text, .*a.txt, has no tokens"):
        run(tmp_path / "out", TextSource(str(tmp_path / "a.txt")), tokenizer=BertTokenizer({"[UNK]": 0}))
    (tmp_path / "b.txt").write_text("The cat sat.", encoding="utf-8")
    source = TextSource(str(tmp_path / "b.txt"), validation_file=str(tmp_path / "a.txt"))
    with pytest.raises(UserError, match="the held-out text, .*a.txt, has no tokens"):
        run(tmp_path / "out", source, tokenizer=BertTokenizer({"[UNK]": 0}))


# Vocabularies


def test_word_pieces_begin_with_the_special_tokens_and_depend_on_the_training_text_alone(tmp_path, source, texts):
    tokenizer = run(tmp_path / "out", source).tokenizer
    assert type(tokenizer) is BertTokenizer and len(tokenizer) == 67
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert tokenizer.convert_ids_to_tokens(range(5)) == special
    assert tokenizer.tokenize("THE CAT") == ["the", "cat"]
    cased = run(tmp_path / "cased", source, ZooBertConfig(vocab_size=97), do_lower_case=False).tokenizer
    assert "Z" in cased.get_vocab() and "Z" not in tokenizer.get_vocab()


@pytest.mark.parametrize("config", [BERT, GPT], ids=lambda config: config.model_type)
def test_the_pieces_do_not_depend_on_how_many_strings_are_in_memory_at_once(source, config, monkeypatch):
    def texts():
        return pieces(source.read(source.files(Path())["train"]), PIECE)

    whole = train_subwords(config, texts)
    monkeypatch.setattr(vocabulary, "DISTINCT", 4)
    lists = [*vocabulary._distinct(texts())]
    assert len(lists) > 9 and max(map(len, lists)) < 100
    assert train_subwords(config, texts).get_vocab() == whole.get_vocab()


def test_words_that_word_pieces_replace_by_unknown_teach_none():
    def tokenizer(word: str) -> BertTokenizer:
        return train_subwords(ZooBertConfig(vocab_size=97), lambda: iter([["the cat sat on the mat", word]]))

    longest, longer = "zq" * 50, "zq" * 50 + "z"
    assert tokenizer(longest).tokenize(longest) == [longest]
    assert tokenizer(longer).tokenize(longer) == ["[UNK]"]
    assert tokenizer(longer).get_vocab() == tokenizer("").get_vocab()


def test_byte_pairs_are_in_the_format_of_gpt(tmp_path, source):
    tokenizer = run(tmp_path / "out", source, GPT).tokenizer
    assert type(tokenizer).__name__ == "ZooGPTTokenizer" and tokenizer.convert_ids_to_tokens(0) == "<unk>"
    assert tokenizer.tokenize("The cat") == ["the</w>", "cat</w>"]
    assert tokenizer.decode(tokenizer("the cat sat")["input_ids"]).strip() == "the cat sat"


def test_words_are_numbered_by_their_frequency_in_the_training_text(tmp_path, source, texts):
    prepared = run(tmp_path / "out", source, ELMO)
    tokenizer, corpus = prepared.tokenizer, prepared.train
    held_out = {tuple(row) for row in units(prepared.validation, prepared.validation.documents)}
    trained = [text for text in texts if tuple(encode(tokenizer, corpus, text)) not in held_out]
    counts = Counter(word for text in trained for word in tokenizer.tokenize(text))
    expected = sorted(counts, key=lambda word: (-counts[word], word))
    assert [*tokenizer.targets] == ["<S>", "</S>", "<UNK>", *expected[:8]]
    words = (tmp_path / "out" / "words.txt").read_text(encoding="utf-8").splitlines()
    assert words[: len(expected) + 3] == ["<S>", "</S>", "<UNK>", *expected]
    assert corpus.characters.tolist() == tokenizer.convert_tokens_to_ids(words)
    assert corpus.vocab_size == 11 < len(words) and corpus.read(0, corpus.num_tokens).max() < len(words)


def test_words_of_held_out_text_and_those_that_a_file_cannot_hold_are_not_predicted():
    counts = Counter(
        {"b": 2, "a": 2, "c": 5, "held out": 0, "held": 0, "<S>": 9, "!!!MAXTERMID": 9, "x\u2028y": 9, "d": 1}
    )
    assert word_vocabulary(counts, 6) == ["<S>", "</S>", "<UNK>", "c", "a", "b"]
    assert word_vocabulary(counts, 99) == ["<S>", "</S>", "<UNK>", "c", "a", "b", "d"]


def test_words_that_only_held_out_text_has_are_read_but_not_predicted(tmp_path):
    files = {"train_file": str(tmp_path / "a.txt"), "validation_file": str(tmp_path / "b.txt")}
    (tmp_path / "a.txt").write_text("a cat sat")
    (tmp_path / "b.txt").write_text("a zebra sat")
    prepared = run(tmp_path / "out", TextSource(**files), ELMO)
    assert [*prepared.tokenizer.targets] == ["<S>", "</S>", "<UNK>", "a", "cat", "sat"]
    assert prepared.validation.read(0, 3).tolist() == [3, 6, 5] and prepared.validation.vocab_size == 6
    (zebra,) = prepared.tokenizer.convert_tokens_to_ids(["zebra"])
    assert prepared.validation.characters[6].tolist() == zebra


def test_a_text_with_fewer_words_or_pieces_than_asked_gives_those_it_has(tmp_path, source):
    words = run(tmp_path / "words", source, ElmoConfig(lm_vocab_size=5000, char_cnn_filters=[[1, 3]]))
    assert words.train.vocab_size == len(words.tokenizer.targets) < 60
    subwords = run(tmp_path / "subwords", source, ZooBertConfig(vocab_size=5000))
    assert subwords.train.vocab_size == len(subwords.tokenizer) < 200
    with pytest.raises(UserError, match="the text needs .* pieces for its characters alone.* vocab_size 9"):
        run(tmp_path / "small", source, ZooBertConfig(vocab_size=9))


def test_words_of_a_tokenizer_keep_their_numbers(tmp_path, source):
    (tmp_path / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nsat\nnowhere\nthe\n")
    tokenizer = ElmoTokenizer(str(tmp_path / "vocab.txt"), max_characters_per_token=9)
    corpus = run(tmp_path / "out", source, ELMO, tokenizer=tokenizer).train
    assert corpus.vocab_size == 6
    assert corpus.characters[3:6].tolist() == tokenizer.convert_tokens_to_ids(["sat", "nowhere", "the"])


# Interruption


def test_a_run_that_was_killed_leaves_no_corpus_and_begins_again(tmp_path, source, monkeypatch):
    run(tmp_path / "whole", source, ELMO)
    folder, encode, tokens = tmp_path / "out", preparing.encode, tmp_path / ".out.new" / "train.tokens"
    begun = None  # when the tokens were written that are there

    def slow(*arguments):
        time.sleep(0.02)
        return encode(*arguments)

    for processes in (1, 3):
        with monkeypatch.context() as patch:
            patch.setattr(preparing, "encode", slow)
            (process,) = fork(lambda n=processes: run(folder, source, ELMO, processes=n))
            while not tokens.exists() or tokens.stat().st_mtime_ns == begun:
                time.sleep(0.005)
            workers = psutil.Process(process.pid).children()
            os.kill(process.pid, signal.SIGKILL)
        assert wait([process]) == [-signal.SIGKILL]
        assert len(workers) == (processes if processes > 1 else 0) and psutil.wait_procs(workers, 20)[1] == []
        assert not folder.exists()
        begun = tokens.stat().st_mtime_ns
    run(folder, source, ELMO)
    assert files_of(folder) == files_of(tmp_path / "whole") and not tokens.exists()


def test_of_two_runs_that_want_the_same_corpus_one_prepares_it_and_the_other_waits(tmp_path, source, monkeypatch):
    prepared, encode = tmp_path / "prepared", preparing.write_tokens

    def noted(*arguments):
        with prepared.open("a") as file:
            file.write("once\n")
        time.sleep(1)
        return encode(*arguments)

    monkeypatch.setattr(preparing, "write_tokens", noted)
    assert wait([fork(lambda: run(tmp_path / "out", source, ELMO))[0] for _ in range(2)]) == [0, 0]
    assert prepared.read_text() == "once\n" and Corpus.open(tmp_path / "out").num_tokens


def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path, source, monkeypatch):
    folder, append, parts = tmp_path / "out", SplitWriter.append, []

    def full(writer, part):
        parts.append(part)
        if len(parts) > 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(writer, part)

    with monkeypatch.context() as patch:
        patch.setattr(SplitWriter, "append", full)
        with pytest.raises(FileError, match=r"^cannot write .*out: No space left on device. Make room"):
            run(folder, source)
    assert not folder.exists() and not (tmp_path / ".out.new").exists()
    run(folder, source)


def test_a_disk_that_is_full_for_the_tokenizer_is_one_error(tmp_path, source, monkeypatch):
    def full(*_, **__):
        raise Exception("No space left on device (os error 28)")  # as the library tokenizers does

    monkeypatch.setattr(BertTokenizer, "save_pretrained", full)
    with pytest.raises(FileError, match="cannot write .*corpus: No space left on device"):
        prepare(tmp_path / "corpus", source, BERT)


def test_another_error_of_writing_the_tokenizer_is_the_systems(tmp_path, source, monkeypatch):
    def refused(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(BertTokenizer, "save_pretrained", refused)
    with pytest.raises(FileError, match="cannot write .*corpus: Permission denied"):
        prepare(tmp_path / "corpus", source, BERT)


def test_an_empty_folder_that_is_there_is_filled(tmp_path, source):
    (tmp_path / "out").mkdir()
    assert run(tmp_path / "out", source, ELMO).train.num_tokens


def test_a_text_that_changes_while_it_is_read_leaves_no_corpus(tmp_path, source, monkeypatch):
    write_tokens = preparing.write_tokens

    def changed(*arguments):
        with (tmp_path / "a.txt").open("a") as file:
            file.write("more\n")
        return write_tokens(*arguments)

    monkeypatch.setattr(preparing, "write_tokens", changed)
    with pytest.raises(InputError, match="was prepared from a text that changed while it was read. Undo the change"):
        run(tmp_path / "out", source)
    assert not (tmp_path / "out").exists()


def test_a_killed_process_of_many_is_one_error(tmp_path, source, monkeypatch):
    def kill(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(preparing, "encode", kill)
    with pytest.raises(
        RuntimeError, match="was killed, perhaps because memory ran out: .* --preprocessing_num_workers"
    ):
        run(tmp_path / "out", source, processes=2)


# Damage and changes

CHANGED = (
    "the corpus in .* was prepared from another text, with another tokenizer or with other settings. Undo the change, "
    "remove the folder, or choose another --corpus_dir"
)


@pytest.fixture
def folder(tmp_path, source) -> Path:
    run(tmp_path / "out", source)
    return tmp_path / "out"


@pytest.mark.parametrize("config", [BERT, ELMO], ids=lambda config: config.model_type)
def test_a_finished_corpus_is_opened_and_not_made_again(tmp_path, source, config, monkeypatch):
    run(tmp_path / "out", source, config)
    before = files_of(tmp_path / "out")
    monkeypatch.setattr(TextSource, "read", None)
    assert run(tmp_path / "out", source, config).train.num_tokens and files_of(tmp_path / "out") == before


@pytest.mark.parametrize(
    "name", ["train.tokens", "train.documents", "validation.sentences", "characters.npy", "tokenizer/vocab.txt"]
)
def test_a_damaged_corpus_is_one_error_that_says_what_to_do(tmp_path, source, name):
    run(tmp_path / "out", source, ELMO)
    path = tmp_path / "out" / name
    content = path.read_bytes()
    for damaged in (content[:-2], None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        problem = f"{path.name} is damaged: it .*. Remove .*out, and prepare the corpus again"
        with pytest.raises(FileError, match=problem):
            run(tmp_path / "out", source, ELMO)


def test_without_its_text_a_corpus_is_opened(tmp_path, folder, source):
    (tmp_path / "a.txt").unlink()
    assert run(folder, source).train.num_tokens == Corpus.open(folder).num_tokens
    with pytest.raises(FileNotFoundError, match="a.txt: no such file"):
        run(folder, dataclasses.replace(source, train_file=f"{tmp_path}/a.txt"))


def test_a_text_that_changed_is_one_error_and_one_that_moved_is_not(tmp_path, folder, source):
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("a.txt", "b.jsonl"):
        (moved / name).write_bytes((tmp_path / name).read_bytes())  # another time, the same content
    elsewhere = dataclasses.replace(source, train_file=f"{moved}/a.txt,{moved}/b.jsonl")
    assert run(folder, elsewhere).train.num_tokens
    content = (moved / "a.txt").read_bytes()
    (moved / "a.txt").write_bytes(content.replace(b"at", b"ta"))
    with pytest.raises(InputError, match=CHANGED):
        run(folder, elsewhere)
    with pytest.raises(InputError, match=CHANGED):
        run(folder, dataclasses.replace(source, train_file=f"{tmp_path}/a.txt"))
    with pytest.raises(FileNotFoundError, match="train_file none.txt: no such file"):
        run(folder, dataclasses.replace(source, train_file="none.txt"))


@pytest.mark.parametrize(
    "changes", [{"sentences": "lines"}, {"documents": "files"}, {"validation_split_percentage": 2.5}]
)
def test_another_setting_is_one_error(folder, source, changes):
    with pytest.raises(InputError, match=CHANGED):
        run(folder, dataclasses.replace(source, **changes))


@pytest.mark.parametrize("rule", [{"split_by": "spaces"}, {"nfc": True}, {"full_width_to_ascii": True}])
def test_words_are_read_by_the_rules_of_a_tokenizer_without_a_vocabulary(tmp_path, source, rule):
    """As of a released biLM without its softmax."""
    reader = ElmoTokenizer(max_characters_per_token=9, **rule)
    prepared = run(tmp_path / "out", source, ELMO, tokenizer=reader).tokenizer
    assert vocabulary.reading_rules(prepared) == vocabulary.reading_rules(reader)
    assert len(prepared.targets) == 11
    for tokenizer, config in ((None, ELMO), (reader, ElmoConfig(**ELMO.to_dict() | {"max_characters_per_token": 12}))):
        with pytest.raises(InputError, match="was prepared from another text, with another tokenizer or with other"):
            run(tmp_path / "out", source, config, tokenizer=tokenizer)
    words = tmp_path / "words"  # with a vocabulary
    prepared.save_pretrained(words)
    run(tmp_path / "again", source, ELMO, tokenizer=ElmoTokenizer.from_pretrained(words))
    with pytest.raises(InputError, match="was prepared from another text, with another tokenizer or with other"):
        changed = {name: {"split_by": "rules"}.get(name, False) for name in rule}
        run(tmp_path / "again", source, ELMO, tokenizer=ElmoTokenizer.from_pretrained(words, **changed))


def test_a_tokenizer_that_changed_is_one_error(tmp_path, folder, source):
    vocabulary = {name: number for number, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "."])}
    run(tmp_path / "given", source, tokenizer=BertTokenizer(vocabulary))
    assert run(tmp_path / "given", source, tokenizer=BertTokenizer(dict(vocabulary))).train.vocab_size == 6
    with pytest.raises(InputError, match=CHANGED):
        run(tmp_path / "given", source, tokenizer=BertTokenizer(vocabulary | {"the": 6}))
    made = folder / "tokenizer" / "tokenizer.json"
    made.write_text(made.read_text().replace('"the"', '"thy"'))
    with pytest.raises(InputError, match="prepared with another tokenizer than that in .*tokenizer"):
        run(folder, source)


@pytest.mark.parametrize("config", [BERT, GPT, ELMO], ids=lambda config: config.model_type)
def test_a_model_that_was_trained_on_the_corpus_comes_with_its_tokenizer(tmp_path, source, config):
    made = prepare(tmp_path / "corpus", source, config)
    made.tokenizer.save_pretrained(tmp_path / "model")
    tokenizer = type(made.tokenizer).from_pretrained(tmp_path / "model")
    before = files_of(tmp_path / "corpus")
    again = prepare(tmp_path / "corpus", source, config, tokenizer)
    assert again.train.num_tokens == made.train.num_tokens and again.tokenizer is tokenizer
    assert prepare(tmp_path / "corpus", source, config).train.num_tokens and files_of(tmp_path / "corpus") == before


def test_a_folder_with_other_content_or_of_another_run_is_refused(tmp_path, folder, source):
    with pytest.raises(FileExistsError, match="holds no corpus: choose another folder"):
        run(tmp_path, source)
    shutil.rmtree(folder)
    with FileLock(tmp_path / ".out.lock"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparing, "LOCK_SECONDS", 0)
        with pytest.raises(BlockingIOError, match="another run prepares .*out: wait for it"):
            run(folder, source)


def test_a_text_that_could_not_be_read_may_be_mended(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    source = TextSource(str(tmp_path / "a.txt"), validation_split_percentage=0)
    with pytest.raises(InputError, match="a.txt:1: not UTF-8"):
        run(tmp_path / "out", source, ELMO)
    (tmp_path / "a.txt").write_text("café", encoding="utf-8")
    assert run(tmp_path / "out", source, ELMO).train.num_bytes == 5


# Data sets


def test_a_finished_corpus_of_a_data_set_is_opened_without_it(tmp_path, texts, monkeypatch):
    hub = tmp_path / "hub"
    hub.mkdir()
    parquet.write_table(pyarrow.table({"body": texts}), hub / "train.parquet")
    source = TextSource(dataset_name=str(hub), text_column="body", validation_split_percentage=0)
    corpus = run(tmp_path / "out", source).train
    assert len(corpus.documents) == len(texts)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    files = run(tmp_path / "files", TextSource(f"{tmp_path}/a.jsonl", validation_split_percentage=0))
    assert tokens_of(files.train) == tokens_of(corpus)
    (hub / "train.parquet").unlink()
    assert tokens_of(run(tmp_path / "out", source).train) == tokens_of(corpus)
    with pytest.raises(InputError, match=CHANGED):
        run(tmp_path / "out", dataclasses.replace(source, dataset_name=f"{tmp_path}/other"))
    parquet.write_table(pyarrow.table({"body": texts[1:]}), hub / "train.parquet")
    with pytest.raises(InputError, match=CHANGED):
        run(tmp_path / "out", source)


def test_a_data_set_with_held_out_text_of_its_own_is_not_split(tmp_path, texts):
    (tmp_path / "hub").mkdir()
    for split, rows in (("train", texts[:30]), ("validation", texts[30:]), ("test", texts)):
        parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "hub" / f"{split}.parquet")
    source = TextSource(dataset_name=str(tmp_path / "hub"))
    prepared = run(tmp_path / "out", source)
    assert (len(prepared.train.documents), len(prepared.validation.documents)) == (30, len(texts) - 30)
    prepared = run(tmp_path / "split", dataclasses.replace(source, validation_split_percentage=50.0))
    assert len(prepared.train.documents) + len(prepared.validation.documents) == 30
    prepared = run(tmp_path / "all", dataclasses.replace(source, validation_split_percentage=0.0))
    assert len(prepared.train.documents) == 30 and prepared.validation is None
    with pytest.raises(InputError, match="hub: row 0: no column body among text. Name the text's with --text_column"):
        run(tmp_path / "other", dataclasses.replace(source, text_column="body"))


def test_the_row_of_a_data_set_that_has_no_text_is_named(tmp_path, texts):
    (tmp_path / "hub").mkdir()
    rows = [*texts[:20], None, *texts[20:]]
    parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "hub" / "train.parquet")
    with pytest.raises(InputError, match="hub: row 20: the column text is no string, but None"):
        run(tmp_path / "out", TextSource(dataset_name=str(tmp_path / "hub")))
    (tmp_path / "hub" / "train.parquet").rename(tmp_path / "hub" / "test.parquet")
    with pytest.raises(InputError, match="--dataset_name .*hub has no train split, but test. Or give --train_file"):
        run(tmp_path / "out", TextSource(dataset_name=str(tmp_path / "hub")))
