# /// script
# requires-python = ">=3.11"
# dependencies = ["elmo-gpt-bert[vectors]==0.1.0"]
# ///
"""Trains static word vectors on raw text, by word2vec, fastText or GloVe, and scores vectors on word similarity.

    python run_vectors.py --method glove --train_file 'books/*.txt' --output_dir runs/vectors/glove \\
        --similarity_files EN-SIMLEX-999.txt EN-WS-353-ALL.txt
    python run_vectors.py --vectors glove.6B.100d.txt --similarity_files EN-SIMLEX-999.txt --output_dir runs/vectors/6b
    python run_vectors.py --vectors runs/elmo/pretraining_small --similarity_files EN-SIMLEX-999.txt \\
        --output_dir runs/vectors/elmo                                    # a model's vectors of words without context

The text is read as run_pretraining.py reads it, and split into ELMo's words. word2vec and fastText are trained by
gensim, which the extra `vectors` installs. With the same flags and one worker, the vectors are the same.
OUTPUT_DIR receives vectors.txt in word2vec's text format, metrics.json, and for fastText also vectors.bin, with the
vectors of subwords. `elmo_gpt_bert.convert.vectors --vectors` reads both.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import transformers
from transformers.hf_argparser import HfArg

from elmo_gpt_bert.convert.vectors import read_vectors
from elmo_gpt_bert.tasks.pretraining.sources import TextSource
from elmo_gpt_bert.tasks.vectors.data import NumberedText, read_text
from elmo_gpt_bert.tasks.vectors.files import write_vectors
from elmo_gpt_bert.tasks.vectors.glove import train_glove
from elmo_gpt_bert.tasks.vectors.models import embed_words
from elmo_gpt_bert.tasks.vectors.similarity import Similarity, read_pairs, score
from elmo_gpt_bert.tasks.vectors.word2vec import import_gensim, save_fasttext, train_word2vec, vectors_of
from elmo_gpt_bert.training.arguments import without_folders
from elmo_gpt_bert.training.clock import Clock
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import DivergedError, ExistingFileError, InputError, Parameter
from elmo_gpt_bert.training.files import make_folder, write_json
from elmo_gpt_bert.training.flags import parse_fields
from elmo_gpt_bert.training.output_folder import METRICS


if TYPE_CHECKING:
    from gensim.models import FastText, Word2Vec

SCORING = ("output_dir", "overwrite_output_dir", "vectors", "similarity_files")  # flags that --vectors goes with
VECTORS, SUBWORDS = "vectors.txt", "vectors.bin"
EPOCHS = {"skipgram": 5, "cbow": 5, "fasttext": 5, "glove": 25}
# Those of the released code, but for GloVe: an update for many counts takes longer steps than one for each count.
LEARNING_RATES = {"skipgram": 0.025, "cbow": 0.05, "fasttext": 0.05, "glove": 0.5}


@dataclass(frozen=True)
class VectorsArguments:
    """The arguments of this script."""

    output_dir: str = HfArg(help="the folder to write")
    overwrite_output_dir: bool = HfArg(default=False, help="replace the results in the folder")
    vectors: str | None = HfArg(
        default=None, help="score these vectors and train none: a file of vectors, a model folder or a name on the Hub"
    )
    similarity_files: list[str] | None = HfArg(
        default=None, help="pairs of words with scores of their similarity, such as EN-SIMLEX-999.txt"
    )
    train_file: str | None = HfArg(
        default=None, help="files of text to train on, as in a.txt,b.jsonl or 'books/*.txt.xz'"
    )
    text_column: str = HfArg(
        default="text", help="column with the text, of JSON lines, csv and parquet (default: text)"
    )
    documents: Literal["blank_lines", "files"] = HfArg(
        default="blank_lines", help="what separates the documents of plain text (default: blank_lines)"
    )
    sentences: Literal["split", "lines"] = HfArg(
        default="split", help="whether lines are split into sentences, or each line is one (default: split)"
    )
    validation_split_percentage: float = HfArg(
        default=0.0, help="leave out the documents that pre-training holds out with this percentage (default: 0)"
    )
    max_train_words: int | None = HfArg(default=None, help="train on the first words only, this many")
    do_lower_case: bool = HfArg(default=False, help="convert the text to lower case (default: false)")
    min_count: int = HfArg(default=5, help="how often the text must have a word of the vocabulary (default: 5)")
    vocab_size: int | None = HfArg(default=None, help="the most frequent words only, this many")
    method: Literal["skipgram", "cbow", "fasttext", "glove"] = HfArg(
        default="skipgram", help="skipgram or cbow of word2vec, fasttext or glove (default: skipgram)"
    )
    vector_size: int = HfArg(default=100, help="numbers of a vector (default: 100)")
    window: int = HfArg(default=5, help="how many words before and after a word are its context (default: 5)")
    num_train_epochs: int | None = HfArg(
        default=None, help="how often the text, or GloVe's table of counts, is read (default: 5, or 25 for GloVe)"
    )
    learning_rate: float | None = HfArg(
        default=None, help="at the start (default: 0.025 for skipgram, 0.5 for GloVe, 0.05 for others)"
    )
    buckets: int = HfArg(default=2_000_000, help="rows for fastText's subwords (default: 2000000)")
    workers: int = HfArg(default=1, help="threads of gensim; more than one give other vectors each time (default: 1)")
    seed: int = HfArg(default=42, help="of all random choices (default: 42)")

    def __post_init__(self) -> None:
        if (self.train_file is None) == (self.vectors is None):
            raise InputError("give --train_file to train vectors, or --vectors to score some")
        if self.vectors is not None and not self.similarity_files:
            raise InputError("--vectors are scored on --similarity_files: name some")
        changed = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        training = [name for name in changed if name not in SCORING]
        if self.vectors is not None and training:
            raise InputError(f"--{training[0]} is for training, and --vectors are only scored: leave it out")
        if self.method != "fasttext" and "buckets" in training:
            raise InputError("--buckets are of --method fasttext: leave them out")
        for name in ("max_train_words", "vocab_size", "num_train_epochs", "learning_rate", "min_count"):
            self._check_positive(name)
        for name in ("vector_size", "window", "buckets", "workers"):
            self._check_positive(name)
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed must be at least 0 and below 2**32, not {self.seed}")
        names = [Path(name).stem for name in self.similarity_files or ()]  # in metrics.json
        if len({*names}) < len(names):
            raise InputError(f"--similarity_files need different names, not {', '.join(sorted(names))}: rename one")
        if self.method == "glove" and self.workers > 1:
            raise InputError("--workers are gensim's threads: leave them out with --method glove")

    def _check_positive(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and not value > 0:
            raise InputError(f"--{name} must be positive, not {value}")

    @property
    def text(self) -> TextSource:
        """The text and how to read it."""
        names = ("train_file", "text_column", "documents", "sentences", "validation_split_percentage")
        return TextSource(**{name: getattr(self, name) for name in names})


def main(argv: list[str] | None = None) -> dict:
    """Carries out what `argv`, by default the command line, asks for; returns the content of metrics.json."""
    args = parse_fields(VectorsArguments, argv, description=__doc__.partition("\n")[0])
    folder = Path(args.output_dir)
    if (folder / METRICS).exists() and not args.overwrite_output_dir:
        raise ExistingFileError(f"--output_dir {folder} has results: choose another, or give --overwrite_output_dir")
    pairs = {Path(name).stem: read_pairs(Path(name)) for name in args.similarity_files or ()}
    make_folder(folder)
    if args.vectors is None:
        vectors, metrics = train(args, folder)
    else:
        words = {word for rows in pairs.values() for *both, _ in rows for word in both}
        vectors, metrics = load_vectors(args.vectors, words | {word.lower() for word in words}), {}
    scores = {name: score(rows, vectors) for name, rows in pairs.items()}
    for name, similarity in scores.items():
        metrics |= {f"eval_{key}_{name}": value for key, value in asdict(similarity).items()}
    if scores:
        print(table(scores))
    write_json(folder / METRICS, metrics | {"args": public_values(args)})
    return metrics


def train(args: VectorsArguments, folder: Path) -> tuple[dict[str, np.ndarray], dict]:
    """Trains the vectors, writes them, and returns them with the numbers of the run."""
    clock = Clock()
    if args.method != "glove":
        import_gensim()  # before the text is read, which takes minutes
    text = read_text(args.text, args.max_train_words, args.do_lower_case, args.min_count, args.vocab_size)
    print(f"read: {text.total:,} words, {len(text.words):,} in the vocabulary, {len(text.numbers):,} of them")
    clock.lap("tokenize")
    for name in (METRICS, VECTORS, SUBWORDS):
        (folder / name).unlink(missing_ok=True)  # of an earlier run, before this one can fail half-way
    vectors, model = train_method(text, args)
    clock.lap("train")
    if not np.isfinite(vectors).all():
        raise DivergedError("the vectors are not finite: lower --learning_rate")
    write_vectors(folder / VECTORS, text.words, vectors)
    if args.method == "fasttext":
        save_fasttext(model, folder / SUBWORDS)
    numbers = {
        "train_words": text.total,
        "train_words_in_vocabulary": len(text.numbers),
        "vocab_size": len(text.words),
    }
    seconds = {f"{name}_runtime": round(value, 1) for name, value in clock.seconds.items()}
    return dict(zip(text.words, vectors, strict=True)), numbers | seconds


def train_method(text: NumberedText, args: VectorsArguments) -> tuple[np.ndarray, "FastText | Word2Vec | None"]:
    """(V, size), the vectors of the vocabulary, and gensim's model if it trained them."""
    epochs = args.num_train_epochs or EPOCHS[args.method]
    learning_rate = args.learning_rate or LEARNING_RATES[args.method]
    common = (args.vector_size, args.window, epochs, learning_rate, args.seed)
    if args.method == "glove":
        return train_glove(text, *common, print), None
    model = train_word2vec(text, args.method, *common, args.workers, args.buckets, print)
    return vectors_of(model, text.words), model


def load_vectors(name: str, words: set[str]) -> Mapping[str, np.ndarray]:
    """The vectors of these words in a file, or in a model, which has one for every word."""
    if not Path(name).is_file():
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        return embed_words(name, sorted(words))
    return dict(zip(*read_vectors(Path(name), words, Parameter("similarity_files")), strict=True))


def public_values(args: VectorsArguments) -> dict:
    """The arguments, in which files and folders have only their names."""
    values = asdict(args)
    names = {name: without_folders(value) for name, value in values.items() if isinstance(value, str)}
    return values | names | {"similarity_files": [Path(name).name for name in args.similarity_files or ()]}


def table(scores: Mapping[str, Similarity]) -> str:
    """The scores as a table in Markdown."""
    lines = ["| word similarity | pairs with vectors | Spearman | all pairs, missing ones as the mean |"]
    lines.append("|---|---|---|---|")
    for name, similarity in scores.items():
        shown = [
            "-" if value is None else f"{100 * value:.1f}" for value in (similarity.spearman, similarity.spearman_all)
        ]
        lines.append(f"| {name} | {similarity.covered} of {similarity.pairs} | {' | '.join(shown)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    run_command(main)
