"""Counts how many words of a text an ELMo has vectors of (ELMoForManyLangs), to see whether the text is split well.

    python -m elmo_gpt_bert.analysis.known_words elmo-zh --texts train.txt dev.conll --output_dir runs/known_words

The texts are plain text, CoNLL columns or JSON, as for `elmo_gpt_bert.convert.vectors`. Plain text is split as the
model's tokenizer splits it, at spaces unless it says otherwise. Below 80 % of the words, the text is probably split
into words or written in another way than the text that the model was trained on. The most frequent words and
characters that the model does not know tell what differs. OUTPUT_DIR receives known_words.json.
"""

from pathlib import Path

from elmo_gpt_bert.analysis import frame
from elmo_gpt_bert.convert.vectors import count_words
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import as_user_errors
from elmo_gpt_bert.training.loading import load_tokenizer


MOST = 20  # unknown words and characters that are shown


def main(argv: list[str] | None = None) -> dict:
    """Carries out what `argv`, by default the command line, asks for; returns the numbers."""
    parser = frame.make_parser(__doc__)
    parser.add_argument("model", metavar="MODEL", help="folder of a model of ELMoForManyLangs, or its name on the Hub")
    texts = "plain text, CoNLL columns (.conll) or JSON"
    parser.add_argument("--texts", nargs="+", type=Path, required=True, metavar="FILE", help=texts)
    args = frame.parse(parser, argv)
    tokenizer = load_tokenizer(ModelSource(args.model), for_task=False)
    with as_user_errors(f"{args.model}: "):
        if not hasattr(tokenizer, "count_known"):
            raise ValueError(f"{type(tokenizer).__name__} is no tokenizer of an ELMo, which reads words")
        report = tokenizer.count_known(count_words(args.texts, tokenizer.split))
    unknown, characters = dict(report.unknown.most_common(MOST)), dict(report.characters.most_common(MOST))
    print(report, table(unknown, "unknown word"), table(characters, "unknown character"), sep="\n\n")
    numbers = {"words": report.words, "known": report.known, "share": report.share}
    numbers |= {"unknown_words": unknown, "unknown_characters": characters}
    frame.write_numbers(args.output_dir, "known_words", numbers)
    return numbers


def table(counts: dict[str, int], name: str) -> str:
    """The most frequent first. White space and characters that change the line are escaped."""
    rows = [{name: shown(text), "times": count} for text, count in counts.items()]
    return frame.table(rows or [{name: "none", "times": 0}])


def shown(text: str) -> str:
    return text.replace("|", "\\|") if text.isprintable() and text.strip() else ascii(text)


if __name__ == "__main__":
    run_command(main)
