"""Word similarity: whether the cosines of word vectors order pairs of words as people do.

    python examples/word_similarity.py runs/vectors/skipgram/vectors.txt glove.6B.100d.txt checkpoints/elmo-books \\
        --similarity_files EN-SIMLEX-999.txt EN-WS-353-ALL.txt

Vectors are a file of word2vec, GloVe or fastText, or the input embeddings of a model. SimLex-999 (Hill et al. 2015,
arXiv 1408.3456) asks for similarity, WordSim-353 (Finkelstein et al. 2002) also for relatedness: "coffee" and "cup"
score low in one and high in the other. Compare scores only between vectors that cover the same pairs.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import transformers
from scipy.stats import spearmanr

from elmo_gpt_bert.convert.vectors import read_vectors
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import as_user_errors
from modeling import ElmoTokenizer


Pair = tuple[str, str, float]  # two words and people's score


def read_pairs(path: Path) -> list[Pair]:
    """A pair a line, between tabs or commas. SimLex-999's own file names its column of scores in the first line."""
    with as_user_errors(f"{path} must have two words and a score in each line: ", IndexError):
        rows = [re.split("[\t,]", line) for line in path.read_text(encoding="utf-8-sig").splitlines()]
        column = rows[0].index("SimLex999") if "SimLex999" in rows[0] else 2
        has_names = not re.fullmatch(r"[\d.]+", rows[0][column])
        return [(row[0], row[1], float(row[column])) for row in rows[has_names:]]


def similarity(pairs: Sequence[Pair], vectors: Mapping[str, np.ndarray]) -> tuple[float, int]:
    """Spearman's correlation of cosines with people's scores, times 100, and the number of pairs that it is over.

    They are the pairs whose words have vectors. A word without one has that of its lower case.
    """
    cosines, scores = [], []
    for *words, score in pairs:
        left, right = (vectors.get(word, vectors.get(word.lower())) for word in words)
        if left is not None and right is not None:
            cosines.append(left @ right / max(np.linalg.norm(left) * np.linalg.norm(right), 1e-30))  # 0 for no length
            scores.append(score)
    return (100 * spearmanr(cosines, scores).statistic if len(scores) > 1 else np.nan), len(scores)


@torch.no_grad()
def input_embeddings(name: str, words: Sequence[str]) -> dict[str, np.ndarray]:
    """The vectors that a model has for words without context, whatever its head.

    ELMo computes them from the characters. Of other models, they are the mean of the embeddings of a word's pieces.
    """
    transformers.utils.logging.set_verbosity_error()  # the head is left out on purpose
    with as_user_errors(f"{name} is neither a file of vectors nor a model: "):
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        model = transformers.AutoModel.from_pretrained(name)
    if isinstance(tokenizer, ElmoTokenizer):
        vectors = model.embed([[word] for word in words], layers="all", tokenizer=tokenizer)  # each (1 + L, 1, H)
        return {word: layers[0, 0].numpy() for word, layers in zip(words, vectors, strict=True)}
    pieces = {word: tokenizer(word, add_special_tokens=False)["input_ids"] for word in words}
    table = model.get_input_embeddings().weight
    return {word: table[ids].mean(0).numpy() for word, ids in pieces.items() if ids}


def main(argv: list[str] | None = None) -> None:
    """Carries out what `argv`, by default the command line, asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("vectors", nargs="+", help="files of vectors, model folders or names on the Hub")
    parser.add_argument("--similarity_files", nargs="+", type=Path, required=True, help="pairs with people's scores")
    args = parser.parse_args(argv)
    files = {path.stem: read_pairs(path) for path in args.similarity_files}
    words = {form for pairs in files.values() for pair in pairs for word in pair[:2] for form in (word, word.lower())}
    print(f"| vectors | {' | '.join(files)} |\n|{'---|' * (1 + len(files))}")
    for name in args.vectors:
        if Path(name).is_file():
            vectors = dict(zip(*read_vectors(Path(name), words, "--similarity_files"), strict=True))
        else:
            vectors = input_embeddings(name, sorted(words))
        scores = [similarity(pairs, vectors) for pairs in files.values()]
        print(f"| {name} |", *(f"{score:.1f} ({number} pairs) |" for score, number in scores))


if __name__ == "__main__":
    run_command(main)
