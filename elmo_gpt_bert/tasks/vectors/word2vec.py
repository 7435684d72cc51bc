"""word2vec (Mikolov et al. 2013, arXiv 1310.4546) and fastText (Bojanowski et al. 2017, arXiv 1607.04606), by gensim.

Negative sampling with 5 words and the subsampling of words more frequent than 1 in 1,000 are the defaults of gensim
and of the released word2vec. The learning rate falls to 0.0001, gensim's default. fastText adds the vectors of
subwords of 3 to 6 characters. gensim drops what follows the first 10,000 words of a sentence, so a longer one, such as
a text in a single line, is read in parts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from elmo_gpt_bert.tasks.vectors.data import NumberedText
from elmo_gpt_bert.training.errors import PackageError
from elmo_gpt_bert.training.files import new_file


if TYPE_CHECKING:
    from gensim.models import FastText, Word2Vec


LONGEST = 10_000  # words, gensim's MAX_WORDS_IN_BATCH


@dataclass(frozen=True)
class Sentences:
    """The sentences of a text, which gensim reads again in each epoch, none longer than it can read."""

    text: NumberedText

    def __len__(self) -> int:
        lengths = np.diff(self.text.ends, prepend=0)
        return int(np.maximum(1, -(-lengths // LONGEST)).sum())

    def __iter__(self) -> Iterator[list[str]]:
        return self.text.sentences(LONGEST)


def train_word2vec(
    text: NumberedText,
    method: str,
    vector_size: int,
    window: int,
    epochs: int,
    learning_rate: float,
    seed: int,
    workers: int,
    buckets: int,
    report: Callable[[str], None],
) -> "Word2Vec | FastText":
    """gensim's model, trained with the vocabulary of `text`. `method` is "skipgram", "cbow" or "fasttext" (skip-gram).

    With one worker, equal arguments give equal vectors. `report` receives a line after each epoch.
    """
    models, callbacks = import_gensim()

    class Report(callbacks.CallbackAny2Vec):
        epoch = 0

        def on_epoch_end(self, model: "Word2Vec") -> None:
            self.epoch += 1
            report(f"epoch {self.epoch}/{epochs}")

    options = {"vector_size": vector_size, "window": window, "alpha": learning_rate}
    options |= {"seed": seed, "workers": workers, "min_count": 1, "sorted_vocab": 0, "sg": int(method != "cbow")}
    model = models.FastText(bucket=buckets, **options) if method == "fasttext" else models.Word2Vec(**options)
    frequencies = dict(zip(text.words, text.counts.tolist(), strict=True))
    sentences = Sentences(text)
    model.build_vocab_from_freq(frequencies, corpus_count=len(sentences))
    model.train(
        sentences,
        total_examples=len(sentences),
        total_words=len(text.numbers),
        epochs=epochs,
        callbacks=[Report()],
    )
    return model


def import_gensim() -> tuple:
    """gensim's modules of models and of callbacks."""
    try:
        from gensim import models
        from gensim.models import callbacks
    except ImportError as error:
        raise PackageError(
            f'word2vec and fastText need gensim ({error}): pip install "elmo-gpt-bert[vectors]", or choose GloVe'
        ) from error
    return models, callbacks


def save_fasttext(model: "FastText", path: Path) -> None:
    """Writes the model in the format of fastText's own .bin files, with the vectors of subwords."""
    from gensim.models.fasttext import save_facebook_model

    with new_file(path) as temporary:
        save_facebook_model(model, str(temporary))


def vectors_of(model: "Word2Vec | FastText", words: list[str]) -> np.ndarray:
    """(V, size) float32: the vectors of the vocabulary."""
    return np.stack([model.wv[word] for word in words])
