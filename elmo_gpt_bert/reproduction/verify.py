"""Whether published weights compute here what they compute in other code, for the table `verify`.

BERT and GPT are compared with transformers' classes. A released ELMo is compared with the vectors that its authors
computed: bilm-tf has a small one beside its tests. Both read the same files, in float32.
"""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, BertForPreTraining, OpenAIGPTLMHeadModel, PreTrainedModel

from elmo_gpt_bert.training.errors import LaunchError, as_user_errors
from modeling import ElmoTokenizer, ZooBertForPreTraining, ZooGPTLMHeadModel, elmo_from_released


MOST = 1e-5  # of the largest number
CLASSES = {"bert-base": (ZooBertForPreTraining, BertForPreTraining), "gpt": (ZooGPTLMHeadModel, OpenAIGPTLMHeadModel)}
SENTENCES = (
    "He sat down on the bank of the river and counted his money.",
    "The bank was closed.",
    "Nobody in the village could say who owned the old house by the water, which had been empty since the war.",
)
RELEASE = Path("bilm-tf/tests/fixtures/model")  # below --data_root


def check(models: Mapping[str, str], data: Path) -> None:
    """Compares the models of these names, folders or models of the Hub, and the release below `data`, if it is there.

    Raises LaunchError for those that are not equal.
    """
    wrong = []
    for model, reference, difference in compare(models, data):
        is_equal = difference <= MOST  # False for NaN, too
        verdict = "equal" if is_equal else "NOT EQUAL"
        print(f"{model} and {reference} differ by {difference:.1e}, at most {MOST:.0e}: {verdict}")
        wrong += [] if is_equal else [model]
    if wrong:
        raise LaunchError(f"{', '.join(wrong)}: the weights compute something else here, so nothing is trained")


def compare(models: Mapping[str, str], data: Path) -> Iterator[tuple[str, str, float]]:
    """Yields each model, what it is compared with, and the largest difference relative to the largest number."""
    for name, classes in CLASSES.items():
        yield models[name], "transformers", compare_with_transformers(models[name], *classes)
    release = data / RELEASE
    if release.is_dir():
        yield str(release), "its authors' vectors", compare_with_release(release)
    else:
        print(f"no {release}, so no ELMo is compared: git clone https://github.com/allenai/bilm-tf {data}/bilm-tf")


def compare_with_transformers(name: str, ours: type[PreTrainedModel], theirs: type[PreTrainedModel]) -> float:
    """All scores of a padded batch of sentences, apart from padding."""
    loading = partial(as_user_errors, f"cannot load {name}: ")  # a folder that is not there, or the Hub out of reach
    with loading():
        tokenizer = AutoTokenizer.from_pretrained(name)
    rows = [torch.tensor(tokenizer(sentence)["input_ids"]) for sentence in SENTENCES]
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    inputs = {"input_ids": pad_sequence(rows, batch_first=True), "attention_mask": mask}
    outputs = []
    for model_class in (ours, theirs):
        with loading():
            model = model_class.from_pretrained(name, dtype=torch.float32).eval()
        with torch.no_grad():
            scores = model(**inputs, return_dict=True).to_tuple()
        # (B, T, V) of tokens, and for BERT (B, 2) of the next sentence
        outputs.append(torch.cat([(each[mask.bool()] if each.dim() == 3 else each).flatten() for each in scores]))
    return largest_difference(*outputs)


def compare_with_release(folder: Path) -> float:
    """ELMo's upper layer, of sentences that the released code has read in batches, each going on from the last."""
    import h5py

    model = elmo_from_released(folder / "options.json", folder / "lm_weights.hdf5", state="carry")
    tokenizer = ElmoTokenizer(max_characters_per_token=model.config.max_characters_per_token)
    rows = json.loads((folder / "lm_embeddings_sentences.json").read_text(encoding="utf-8"))
    outputs, published = [], []
    for number, sentences in enumerate(zip(*rows, strict=True)):
        words = [sentence.split() for sentence in sentences]
        batch = tokenizer(words, is_split_into_words=True, padding=True, return_tensors="pt")
        with torch.no_grad():
            top = model(**batch, output_hidden_states=True).hidden_states[-1]  # (B, T, 2 P)
        for row, sentence in enumerate(words):
            with h5py.File(folder / f"lm_embeddings_{row}.hdf5") as file:
                forward, backward = torch.tensor(file[str(number)][()])  # (T, P) each
            outputs.append(top[row, : len(sentence)].flatten())
            published.append(torch.cat([forward, backward], -1).flatten())
    return largest_difference(torch.cat(outputs), torch.cat(published))


def largest_difference(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())
