"""Times run_blimp.py's scores of sentences against minicons', with the same model, and prints a Markdown table.

    python -m benchmarks.minimal_pairs MODEL [MODEL ...] --data_file pairs.jsonl [--tokenizer_name NAME]

A MODEL is a folder or a config JSON (random weights; then --tokenizer_name). minicons must be installed; it is in the
extra `clients`. Each turn scores other pairs, drawn from the whole file, from text to numbers. minicons reads batches
of 16 sentences in their order, padded to the longest. Each side's seconds are CPU time, and the minutes for 67,000
pairs, the size of BLiMP, are extrapolated from them.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from datasets import Dataset
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

from elmo_gpt_bert.tasks.features import choose_head
from elmo_gpt_bert.tasks.minimal_pairs import SENTENCES, Scorer, make_features, make_scorer, read_file
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.batches import in_pieces
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.launching import choose_implementation
from elmo_gpt_bert.training.loading import load_config, load_model, load_tokenizer
from elmo_gpt_bert.training.task import predict

from .measure import Contest, Side, assert_equal, take_turns
from .reporting import describe_machine, markdown, print_head, print_machine


BLIMP_PAIRS = 67_000
BATCH = 16  # minicons' sentences; as many masked copies as these have tokens are in memory at once
TOLERANCE = 1e-4
HEADER = ["model", "parameters", "CPU ms a pair, ours : minicons", "CPU time ratio", "difference"]
HEADER += ["67,000 pairs, CPU minutes"]


def our_scores(scorer: Scorer, pairs: Dataset) -> torch.Tensor:
    """The score of each sentence, as run_blimp.py computes it."""
    features, rows = make_features(pairs, scorer, None)
    outputs = predict(scorer, features, scorer.collate, Accelerator(cpu=True), batch_size=32)
    return torch.tensor(outputs["log_likelihoods"])[torch.from_numpy(rows.flatten())]


def minicons_scores(head: type, scorer: Scorer) -> Callable[[Dataset], torch.Tensor]:
    """The function that computes the same by minicons."""
    from minicons.scorer import IncrementalLMScorer, MaskedLMScorer

    is_masked, tokenizer = head is AutoModelForMaskedLM, scorer.tokenizer
    theirs = (MaskedLMScorer if is_masked else IncrementalLMScorer)(scorer.model, "cpu", tokenizer=tokenizer)

    def score(pairs: Dataset) -> torch.Tensor:
        sentences = [sentence for pair in pairs for sentence in (pair[name] for name in SENTENCES)]
        totals = []
        for batch in in_pieces(sentences, BATCH):
            # Its masked scorer calls the tokenizer in a way that transformers 5 no longer has.
            inputs = tokenizer(batch, padding=True) if is_masked else batch
            totals += theirs.sequence_score(inputs, reduction=lambda scores: scores.sum(0).item())
        return torch.tensor(totals)

    return score


def contest_of(source: ModelSource, data: Dataset, count: int) -> tuple[Contest, int]:
    """Ours against minicons on `count` pairs a turn, and the number of the model's parameters."""
    config, tokenizer = load_config(source), load_tokenizer(source, for_task=False)
    head = choose_head(config, tokenizer, source)
    if head is AutoModelForPreTraining:
        raise InputError(f"{source.model_name_or_path}: minicons has no biLM: name a causal or a masked model")
    model = load_model(head, source, config, tokenizer, train=False).eval()
    scorer = make_scorer(head, model, tokenizer, "original")
    theirs = minicons_scores(head, scorer)
    turns = len(data) // count

    def pairs_of(turn: int) -> Dataset:
        return data.select(range(turn % turns, turns * count, turns))

    sides = [
        Side(name, lambda turn, score=score: score(pairs_of(turn)), lambda score=score: {"": score(pairs_of(0))})
        for name, score in (("run_blimp.py", lambda pairs: our_scores(scorer, pairs)), ("minicons", theirs))
    ]
    return Contest(*sides, work=f"{count} pairs", tolerance=TOLERANCE), model.num_parameters()


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.minimal_pairs", description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL", help="folder or config JSON of a causal or masked one")
    parser.add_argument("--tokenizer_name", metavar="NAME", help="folder or vocab.txt, for a config JSON")
    parser.add_argument("--data_file", type=Path, required=True, metavar="FILE", help="pairs, as for run_blimp.py")
    parser.add_argument("--count", type=int, default=50, help="pairs a turn")
    parser.add_argument("--turns", type=int, default=3, help="how many times the sides take turns")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads")
    args = parser.parse_args(argv)
    if min(args.count, args.turns, args.threads) < 1:
        parser.error("--count, --turns and --threads must be positive")
    torch.set_num_threads(args.threads)
    choose_implementation("zoo")
    data = read_file(args.data_file)
    if args.count > len(data):
        parser.error(f"--count {args.count}: {args.data_file} has only {len(data)} pairs")
    print_machine(describe_machine())
    print_head(HEADER)
    for name in args.models:
        source = ModelSource(name, tokenizer_name=args.tokenizer_name, attn_implementation="eager")
        contest, parameters = contest_of(source, data, args.count)
        difference = assert_equal(contest)
        timing = take_turns(contest, args.turns, seconds=0.0)
        seconds = [each / args.count for each in (timing.cpu_seconds, timing.baseline_cpu_seconds)]
        ratios = f"**{timing.cpu_ratio:.1f}** ({min(timing.cpu_ratios):.1f} - {max(timing.cpu_ratios):.1f})"
        milliseconds = " : ".join(f"{each * 1000:.0f}" for each in seconds)
        minutes = " : ".join(f"{each * BLIMP_PAIRS / 60:.0f}" for each in seconds)
        row = [Path(name).name, f"{parameters:,}", milliseconds, ratios, f"{difference:.0e}", minutes]
        print(markdown(row), flush=True)


if __name__ == "__main__":
    run_command(main)
