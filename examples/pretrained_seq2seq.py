"""A translator of 2017 whose encoder and decoder begin as two language models.

    python examples/pretrained_seq2seq.py --data_dir multi30k --pairs 2000 --output_dir runs/seq2seq \\
        --ablate none encoder decoder lm-loss pretraining all

It writes out Ramachandran, Liu and Le, Unsupervised Pretraining for Sequence to Sequence Learning, EMNLP 2017 (arXiv
1611.02683), and names its sections. Two language models read the sentences of one language each: those that are not
among the pairs or, where all are, those of the pairs. The translator is made of them, and learns from the pairs.

Shapes: B sentences, T pieces of a target sentence, S pieces of a source sentence, V pieces of a vocabulary, H states.

DATA_DIR has the files train, val and test_2016_flickr of both languages, a sentence a line. OUTPUT_DIR receives
metrics.json with the BLEU of each variant, and their translations. The same flags give the same files on a CPU.

What differs from the article: sizes, two layers instead of three, and greedy search. `join`, through which attention
and top layer reach the softmax, is this file's choice.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from elmo_gpt_bert.tasks.rows import read_lines
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import ExistingFileError, InputError, as_user_errors
from elmo_gpt_bert.training.files import make_folder, write_json, write_text


LANGUAGES = "en", "de"  # from and to
PIECES, H, DROPOUT = 3000, 128, 0.2  # pieces of each language; the article's states have 1024 and 1000 numbers
BATCH, LEARNING_RATE, CLIP = 32, 2e-3, 5.0
EVALUATIONS, LONGEST = 10, 50  # how often the loss of val is computed; pieces of a translation
PAD, BEGIN, END = 0, 1, 2  # <pad>, <s> and </s>
VARIANTS = {  # what is left out
    "none": set(),
    "encoder": {"encoder"},  # its weights are random at the beginning, only the decoder's are pre-trained
    "decoder": {"decoder"},
    "lm-loss": {"lm-loss"},
    "pretraining": {"encoder", "decoder"},
    "all": {"encoder", "decoder", "lm-loss"},  # then no sentence is read but those of the pairs
}


# The models


class LanguageModel(nn.Module):
    """The next piece of a sentence: embedding, one LSTM layer, softmax (section 2.1)."""

    def __init__(self, pieces: int):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(pieces, H, padding_idx=PAD), nn.LSTM(H, H, batch_first=True)
        self.softmax, self.dropout = nn.Linear(H, pieces), nn.Dropout(DROPOUT)

    def loss(self, sentences: torch.Tensor) -> torch.Tensor:
        """(B, T), from <s> to </s> and padded -> the mean of -log p of the pieces after <s>."""
        states, _ = self.lstm(self.dropout(self.embedding(sentences[:, :-1])))
        scores = self.softmax(self.dropout(states)).mT  # (B, V, T)
        return functional.cross_entropy(scores, sentences[:, 1:], ignore_index=PAD)


class Seq2Seq(nn.Module):
    """Embeddings, the first layers and the softmax are two language models' (section 2.1), which train along."""

    def __init__(self, source: LanguageModel, target: LanguageModel):
        super().__init__()
        self.source, self.target, self.dropout = source, target, nn.Dropout(DROPOUT)
        self.encoder, self.decoder = nn.LSTM(H, H, batch_first=True), nn.LSTM(H, H, batch_first=True)  # top layers
        self.join = nn.Linear(3 * H, H)

    def encode(self, source: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(B, S) -> the states of the first and the last layer (B, S, H), where, and the end of each layer."""
        is_there = source != PAD
        words, lengths = self.dropout(self.source.embedding(source)), is_there.sum(1).cpu()
        packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
        first, low = self.source.lstm(packed)
        last, high = self.encoder(first)
        first, last = (pad_packed_sequence(states, batch_first=True)[0] for states in (first, last))
        return first, last, is_there, [low, high]

    def attend(self, query: torch.Tensor, first: torch.Tensor, last: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Multi-layer attention (section 2.3): (B, T, H) queries -> (B, T, 2 H).

        a_i = exp(q . h_i^N) / sum over j of exp(q . h_j^N),    c = [sum of a_i h_i^1; sum of a_i h_i^N]
        """
        scores = (query @ last.mT).masked_fill(~mask[:, None], -torch.inf)  # (B, T, S)
        return scores.softmax(-1) @ torch.cat([first, last], -1)

    def decode(self, target: torch.Tensor, memory: Sequence, ends: list[tuple]) -> tuple[torch.Tensor, list[tuple]]:
        """(B, T) pieces -> the scores of the next ones (B, T, V), and the end of each layer."""
        first, low = self.target.lstm(self.dropout(self.target.embedding(target)), ends[0])
        top, high = self.decoder(first, ends[1])
        joined = self.join(torch.cat([top, self.attend(top, *memory)], -1))
        # Residual connection (section 2.3): the first layer goes to the softmax, as in the language model.
        return self.target.softmax(self.dropout(first + joined)), [low, high]

    def loss(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The mean of -log p(y_t | y_1 ... y_{t-1}, x) over a batch of pairs (B, S) and (B, T)."""
        *memory, ends = self.encode(source)
        scores, _ = self.decode(target[:, :-1], memory, ends)
        return functional.cross_entropy(scores.mT, target[:, 1:], ignore_index=PAD)

    @torch.no_grad()
    def translate(self, source: torch.Tensor) -> list[list[int]]:
        """The best piece at each step, until </s> (greedy search)."""
        *memory, ends = self.encode(source)
        piece, pieces = torch.full_like(source[:, :1], BEGIN), []
        for _ in range(LONGEST):
            scores, ends = self.decode(piece, memory, ends)
            piece = scores.argmax(-1)
            pieces.append(piece)
        rows = torch.cat(pieces, 1).tolist()
        return [row[: row.index(END)] if END in row else row for row in rows]


# The text


def read_split(folder: Path, split: str) -> list[list[str]]:
    """The sentences of both languages. Raises ValueError where one has more lines."""
    paths = [folder / f"{split}.{language}" for language in LANGUAGES]
    paths = [path if path.exists() else path.with_name(f"{path.name}.gz") for path in paths]
    sides = [[line.strip() for _, line in read_lines(path)] for path in paths]
    if len(sides[0]) != len(sides[1]) or not sides[0]:
        raise InputError(f"{paths[0]} and {paths[1]} have {len(sides[0])} and {len(sides[1])} lines: get them again")
    return sides


def train_pieces(texts: Sequence[str]) -> Tokenizer:
    """Byte pairs, so that a translation is put together again as it was."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    options = {"special_tokens": ["<pad>", "<s>", "</s>"], "vocab_size": PIECES, "show_progress": False}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(initial_alphabet=alphabet, **options))
    return tokenizer


def pad(rows: Sequence[list[int]]) -> torch.Tensor:
    """(B, T), from <s> to </s>."""
    rows = [torch.tensor([BEGIN, *row, END]) for row in rows]
    return pad_sequence(rows, batch_first=True).to(PartialState().device)


def batches(*sides: list[list[int]]) -> Iterator[list[torch.Tensor]]:
    """Yields sentences, or pairs of them, in random order, epoch after epoch."""
    while True:
        for places in torch.randperm(len(sides[0])).split(BATCH):
            yield [pad([side[place] for place in places]) for side in sides]


# Training


def fit(model: nn.Module, loss: Callable[[], torch.Tensor], val: Sequence[torch.Tensor], steps: int) -> float:
    """Trains by Adam, keeps the weights with the lowest loss of `val`, and returns that loss."""
    accelerator, best = Accelerator(), (torch.inf, {})
    optimizer = accelerator.prepare(torch.optim.Adam(model.parameters(), LEARNING_RATE))
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        accelerator.backward(loss())
        accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        if step % max(steps // EVALUATIONS, 1) == 0:
            with torch.no_grad():
                value = model.eval().loss(*val).item()
            best = min(best, (value, deepcopy(model.train().state_dict())), key=lambda pair: pair[0])
            print(f"update {step} of {steps}: the loss of val is {value:.4f}")
    model.load_state_dict(best[1])
    return best[0]


def translator(lms: list, pairs: list, texts: list, val: list, without: set[str], steps: int) -> tuple[Seq2Seq, float]:
    """The translator that begins as these language models, but for what is left out, and its loss of `val`."""
    parts = zip(("encoder", "decoder"), lms, strict=True)
    lms = (LanguageModel(lm.softmax.out_features) if part in without else deepcopy(lm) for part, lm in parts)
    model = Seq2Seq(*lms).to(PartialState().device)
    pairs, texts = batches(*pairs), [*map(batches, texts)]

    def loss() -> torch.Tensor:
        """The pairs' and, against forgetting, both language models', with equal weights (section 2.2)."""
        losses = [model.loss(*next(pairs))]
        if "lm-loss" not in without:
            losses += [lm.loss(*next(text)) for lm, text in zip((model.source, model.target), texts, strict=True)]
        return torch.stack(losses).mean()

    return model, fit(model, loss, val, steps)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--data_dir", type=Path, required=True, help="the folder of Multi30k")
    parser.add_argument("--pairs", type=int, help="learn to translate from the first pairs only, this many")
    parser.add_argument("--ablate", nargs="+", choices=VARIANTS, default=["none"], help="(default: none)")
    parser.add_argument("--lm_steps", type=int, default=3000, help="updates of a language model (default: 3000)")
    parser.add_argument("--max_steps", type=int, default=1000, help="updates of a translator (default: 1000)")
    parser.add_argument("--seed", type=int, default=42, help="of all random choices (default: 42)")
    parser.add_argument("--output_dir", type=Path, required=True, help="the folder to write")
    args = parser.parse_args(argv)
    if (args.output_dir / "metrics.json").exists():
        raise ExistingFileError(f"--output_dir {args.output_dir} has results: choose another")
    for flag in ("pairs", "lm_steps", "max_steps"):
        if getattr(args, flag) is not None and getattr(args, flag) < 1:
            raise InputError(f"--{flag} must be positive, not {getattr(args, flag)}")
    return args


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Carries out what `argv`, by default the command line, asks for; returns the results."""
    args = parse(argv)
    with as_user_errors("BLEU needs sacrebleu, pip install sacrebleu: ", ImportError):
        from sacrebleu.metrics import BLEU
    train, val, test = (read_split(args.data_dir, split) for split in ("train", "val", "test_2016_flickr"))
    make_folder(args.output_dir)
    tokenizers = [train_pieces(side) for side in train]
    train, val, (source, _) = (
        [[row.ids for row in tokenizer.encode_batch(side)] for tokenizer, side in zip(tokenizers, sides, strict=True)]
        for sides in (train, val, test)
    )
    pairs, val = [side[: args.pairs] for side in train], [*map(pad, val)]
    texts = [side[len(pairs[0]) :] or side for side in train]
    results = {"pairs": len(pairs[0])}
    torch.manual_seed(args.seed)
    lms = [LanguageModel(tokenizer.get_vocab_size()).to(PartialState().device) for tokenizer in tokenizers]
    for language, lm, text, held_out in zip(LANGUAGES, lms, map(batches, texts), val, strict=True):
        loss = fit(lm, lambda lm=lm, text=text: lm.loss(*next(text)), [held_out], args.lm_steps)
        results[f"{language}_perplexity"] = math.exp(loss)
    for name in args.ablate:
        torch.manual_seed(args.seed)
        model, results[f"{name}_loss"] = translator(lms, pairs, texts, val, VARIANTS[name], args.max_steps)
        translations = [line.strip() for line in tokenizers[1].decode_batch(model.eval().translate(pad(source)))]
        write_text(args.output_dir / f"{name}.{LANGUAGES[1]}", "\n".join([*translations, ""]))
        results[f"{name}_bleu"] = BLEU().corpus_score(translations, [test[1]]).score
    write_json(args.output_dir / "metrics.json", results)
    print(*(f"{name}: {value:,.2f}" for name, value in results.items()), sep="\n")
    return results


if __name__ == "__main__":
    run_command(main)
