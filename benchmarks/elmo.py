"""ELMo: this zoo's biLM against a plain one, as in AllenNLP (plain_elmo.py), on the same weights.

A row is a function `(precision, baseline_precision, tiny, device) -> Contest`; precision.py describes the precisions.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from modeling import ElmoConfig, ElmoForPreTraining, ElmoModel, ElmoTokenizer
from modeling.elmo.modeling_elmo_graphs import VARIABLE as GRAPHS_VARIABLE

from .bert import PASSES, Batch, on
from .measure import Build, Contest, Need, Outputs, Side
from .plain_elmo import CudnnElmo, PlainElmo, PlainForPreTraining
from .precision import forward_backward, gradients, inference, model_dtype, tolerance


OURS, PLAIN = "zoo", "plain"
BATCH_SIZE = 32
BATCHES = 6

# Sizes of the published models (allennlp.org/elmo).
SIZES = {
    "full": {"cell_size": 4096, "hidden_size": 1024, "num_highway_layers": 2},
    "small": {"cell_size": 1024, "hidden_size": 256, "num_highway_layers": 1},
    "tiny": {
        "cell_size": 11,
        "hidden_size": 14,
        "num_highway_layers": 1,
        "char_embedding_size": 3,
        "filters": [[1, 4], [3, 5]],
    },
}
LM_VOCABULARY, SAMPLED = 50_000, 8192
TINY_LM_VOCABULARY, TINY_SAMPLED = 97, 13

# Lengths of sentences are log-normal, with this mean, this deviation of the logarithm, and this maximum.
MEAN_LENGTH, LENGTH_DEVIATION, LONGEST = 22, 0.6, 80
# The frequencies of words fall as 1 / (rank + 2.7), Mandelbrot's form of Zipf's law. With this number of words, 61 %
# of the words of a batch are distinct, as in the sentences of the released model's tests.
WORDS, TINY_WORDS = 12_000, 40
# Quantiles of the UTF-8 bytes of the distinct words of 32 sentences, counted on the Universal Dependencies English
# training set; the last is the median of the longest word of such a batch.
QUANTILES = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1]
WORD_LENGTHS = [1, 2, 3, 4, 4, 5, 6, 6, 7, 9, 10, 13, 16]

Sentence = list[str]
Models = dict[str, torch.nn.Module]  # OURS and PLAIN


class Text:
    """Draws sentences of random words, the same for every new object."""

    def __init__(self, tiny: bool):
        self.generator = np.random.default_rng(0)
        count = TINY_WORDS if tiny else WORDS
        lengths = np.interp(self.generator.random(count), QUANTILES, WORD_LENGTHS).round().astype(int)
        letters = list("abcdefghijklmnopqrstuvwxyz")
        self.words = ["".join(self.generator.choice(letters, length)) for length in lengths]
        self.frequencies = 1 / (np.arange(count) + 2.7)
        self.frequencies /= self.frequencies.sum()

    def sentence(self, length: int | None = None) -> Sentence:
        if length is None:
            location = np.log(MEAN_LENGTH) - LENGTH_DEVIATION**2 / 2
            length = round(np.clip(self.generator.lognormal(location, LENGTH_DEVIATION), 1, LONGEST))
        return [self.words[rank] for rank in self.generator.choice(len(self.words), length, p=self.frequencies)]

    def sentences(self, count: int, length: int | None = None) -> list[Sentence]:
        return [self.sentence(length) for _ in range(count)]


def tokenize(sentences: list[Sentence]) -> Batch:
    return ElmoTokenizer()(sentences, is_split_into_words=True, padding=True, return_tensors="pt")


def describe(batches: list[list[Sentence]]) -> str:
    """The numbers of sentences and of words per sentence, and the columns per word, for the table."""
    words = [sum(map(len, batch)) for batch in batches]
    columns = [len(batch) * max(map(len, batch)) for batch in batches]
    padding = f", padded {sum(columns) / sum(words):.2f}x" if len(batches[0]) > 1 else ""
    return f"{len(batches[0])} x {sum(words) / len(batches) / len(batches[0]):.0f} words{padding}"


def make_config(size: str, tiny: bool, **fields) -> ElmoConfig:
    """Sentences start from zeros and there is no dropout, so that both sides have the same results.

    Clips are lower than the published 3, so that random weights reach them, in about 1 of 50 projections.
    """
    fields = {"cell_clip": 1.0, "proj_clip": 0.6} | fields
    fields |= {"state": "zero", "hidden_dropout_prob": 0.0, "mix_dropout": 0.0}
    return ElmoConfig(**SIZES["tiny" if tiny else size], **fields)


def make_models(our_class: type, plain_class: type, config: ElmoConfig, device: torch.device) -> Models:
    """Both classes with the same random weights, which keep the size of states about constant."""
    ours, plain = our_class(config), plain_class(config)
    generator = torch.Generator().manual_seed(0)
    for parameter in ours.parameters():
        scale = parameter[0].numel() ** -0.5 if parameter.dim() > 1 else 0.5
        parameter.data.normal_(0, scale, generator=generator)
    ours.get_input_embeddings().weight.data[0] = 0
    weights = ours.state_dict()
    plain.load_state_dict({name: weights[name] for name in plain.state_dict()})
    return {OURS: ours.to(device), PLAIN: plain.to(device)}


def flop(config: ElmoConfig, sentences: list[Sentence]) -> float:
    """The FLOPs that the biLM needs for these sentences: each direction reads all words and boundaries."""
    steps = sum(len(sentence) + 1 for sentence in sentences)
    return words_flop(config, sentences, boundaries=2) + 2 * steps_flop(config, steps)


def words_flop(config: ElmoConfig, sentences: list[Sentence], boundaries: int) -> float:
    """Of the word layer: for each distinct word, the windows with a character of it and one window without."""
    distinct = {word for sentence in sentences for word in sentence}
    # A word has marks at its begin and end. <S> and </S> are words of one mark.
    windows = sum(len(word.encode()) + 3 for word in distinct) + 4 * boundaries
    filters, size = sum(count for _, count in config.filters), config.projection_size
    convolutions = windows * sum(width * count for width, count in config.filters) * config.char_embedding_size
    dense = (len(distinct) + boundaries) * filters * (2 * config.num_highway_layers * filters + size)
    return 2 * (convolutions + dense)


def steps_flop(config: ElmoConfig, steps: int) -> float:
    """Of so many steps of one direction of all LSTM layers."""
    step = 4 * config.cell_size * 2 * config.projection_size + config.cell_size * config.projection_size
    return 2 * config.num_hidden_layers * steps * step


def outputs_of(model: torch.nn.Module, batch: Batch) -> list[torch.Tensor]:
    """The mix and all layers."""
    if isinstance(model, PlainElmo):
        return model(batch["input_ids"])
    output = model(**batch, output_hidden_states=True)
    return [output.last_hidden_state, *output.hidden_states]


def named(outputs: list[torch.Tensor]) -> Outputs:
    return {f"output {number}": output for number, output in enumerate(outputs)}


@dataclass(frozen=True)
class Loops:
    """Who computes the loops over time.

    Attributes:
        by_graphs: whether ours uses CUDA graphs.
        by_cudnn: whether the baseline's are cuDNN's. It has no clips, so neither side has any.
    """

    by_graphs: bool = False
    by_cudnn: bool = False

    @property
    def ours(self) -> str:
        return f"{OURS}, CUDA graphs" if self.by_graphs else OURS

    @property
    def theirs(self) -> str:
        return "cuDNN" if self.by_cudnn else PLAIN

    def make(self, size: str, tiny: bool, device: torch.device, **fields) -> tuple[ElmoConfig, Models]:
        if self.by_cudnn:
            fields |= {"cell_clip": None, "proj_clip": None}
        config = make_config(size, tiny, **fields)
        return config, make_models(ElmoModel, CudnnElmo if self.by_cudnn else PlainElmo, config, device)

    @contextmanager
    def switched(self) -> Iterator[None]:
        """While it is open, ours computes its loops so. The baselines do not read the variable."""
        before = os.environ.get(GRAPHS_VARIABLE, "")
        os.environ[GRAPHS_VARIABLE] = str(int(self.by_graphs))
        try:
            yield
        finally:
            os.environ[GRAPHS_VARIABLE] = before


IN_PYTHON = Loops()

# Inference


def embed_batches(
    size: str, batch_size: int = BATCH_SIZE, length: int | None = None, loops: Loops = IN_PYTHON
) -> Build:
    """Computes the mix and all layers of batches in random order, each padded to its longest sentence.

    Results are compared with those of the baseline in fp32, whatever precision it is timed in.
    """

    def build(precision: str, baseline_precision: str, tiny: bool, device: torch.device) -> Contest:
        text, (config, models) = Text(tiny), loops.make(size, tiny, device)
        batches = [text.sentences(min(batch_size, 5) if tiny else batch_size, length) for _ in range(BATCHES)]
        inputs = [on(device, tokenize(batch)) for batch in batches]
        with inference("highest"):
            exact = named(outputs_of(models[PLAIN], inputs[0]))

        def runner(name: str, precision: str) -> Callable[[int], list[torch.Tensor]]:
            model = models[name].eval().to(model_dtype(precision))

            def run(index: int) -> list[torch.Tensor]:
                with inference(precision), loops.switched():
                    return outputs_of(model, inputs[index % BATCHES])

            return run

        run = runner(OURS, precision)
        return Contest(
            Side(loops.ours, run, check=lambda: named(run(0))),
            Side(loops.theirs, runner(PLAIN, baseline_precision), check=lambda: exact),
            describe(batches),
            tolerance(precision, device=device),
            Need("products", lambda index: flop(config, batches[index % BATCHES])),
            device,
        )

    return build


# Training

# Where rounding decides on a clip or a maximum, the two sides may differ in the path of a gradient.
KINKS = 1e-2

Loss = Callable[[torch.nn.Module, int], torch.Tensor]  # (model, number of the input) -> loss


def training_contest(
    models: Models,
    loss: Loss,
    precision: str,
    baseline_precision: str,
    work: str,
    forward_flop: Callable[[int], float],
    loops: Loops = IN_PYTHON,
) -> Contest:
    """Forward and backward, without an optimizer's step.

    Loss and gradients are compared with those of the baseline in fp32.
    """
    device = models[OURS].device

    def side(title: str, name: str, precision: str, check_precision: str) -> Side:
        model = models[name].train()

        def run(index: int) -> None:
            with loops.switched():
                forward_backward(lambda: loss(model, index), precision, device)
            model.zero_grad()

        def check() -> Outputs:
            with loops.switched():
                value = forward_backward(lambda: loss(model, 0), check_precision, device)
            outputs = {"loss": value, "gradients": gradients(model)}
            model.zero_grad()
            return outputs

        return Side(title, run, check)

    return Contest(
        side(loops.ours, OURS, precision, precision),
        side(loops.theirs, PLAIN, baseline_precision, "highest"),
        work,
        max(tolerance(precision, device=device), KINKS),
        Need("products", lambda index: PASSES * forward_flop(index % BATCHES)),
        device,
    )


def train(size: str, loops: Loops = IN_PYTHON) -> Build:
    """Trains the whole biLM, on 20 columns with <S> and </S> and no padding."""

    def build(precision: str, baseline_precision: str, tiny: bool, device: torch.device) -> Contest:
        text, (config, models) = Text(tiny), loops.make(size, tiny, device, freeze_bilm=False)
        batches = [text.sentences(5 if tiny else BATCH_SIZE, length=18) for _ in range(BATCHES)]
        inputs = [on(device, tokenize(batch)) for batch in batches]

        def loss(model: torch.nn.Module, index: int) -> torch.Tensor:
            return outputs_of(model, inputs[index % BATCHES])[0].float().square().mean()

        def forward_flop(index: int) -> float:
            return flop(config, batches[index])

        work = describe(batches)
        return training_contest(models, loss, precision, baseline_precision, work, forward_flop, loops)

    return build


def streams_flop(config: ElmoConfig, sentences: list[Sentence]) -> float:
    """Of the language model on the words of both directions' streams: layers, and scores of the sampled words."""
    words = sum(map(len, sentences))
    scores = 2 * words * config.num_sampled * config.projection_size
    return words_flop(config, sentences, boundaries=0) + steps_flop(config, words) + scores


def pretrain(size: str) -> Build:
    """Pre-trains the language model as in the paper: 20 words of 32 streams per direction, with a sampled softmax."""

    def build(precision: str, baseline_precision: str, tiny: bool, device: torch.device) -> Contest:
        rows, columns = (3, 4) if tiny else (BATCH_SIZE, 20)
        vocabulary, sampled = (TINY_LM_VOCABULARY, TINY_SAMPLED) if tiny else (LM_VOCABULARY, SAMPLED)
        config = make_config(size, tiny, lm_vocab_size=vocabulary, num_sampled=sampled)
        text, generator = Text(tiny), torch.Generator().manual_seed(0)
        texts, inputs = [], []
        for _ in range(BATCHES):
            streams = [text.sentences(rows, columns) for _ in range(2)]
            forward, backward = (tokenize(stream)["input_ids"] for stream in streams)
            labels = torch.randint(0, vocabulary, (2, rows, columns), generator=generator)
            names = ("input_ids", "labels", "reverse_input_ids", "reverse_labels")
            inputs.append(on(device, dict(zip(names, (forward, labels[0], backward, labels[1]), strict=True))))
            texts.append(streams[0] + streams[1])
        models = make_models(ElmoForPreTraining, PlainForPreTraining, config, device)

        def loss(model: torch.nn.Module, index: int) -> torch.Tensor:
            torch.manual_seed(index)  # both sides draw the same words
            output = model(**inputs[index % BATCHES])
            return output if isinstance(output, torch.Tensor) else output.loss

        def forward_flop(index: int) -> float:
            return streams_flop(config, texts[index])

        work = f"2 x {rows} x {columns} words, {sampled} of {vocabulary} scored"
        return training_contest(models, loss, precision, baseline_precision, work, forward_flop)

    return build


ROWS: dict[str, tuple[str, Build]] = {
    "elmo-full": ("ELMo, inference", embed_batches("full")),
    "elmo-small": ("ELMo small, inference", embed_batches("small")),
    "elmo-sentence": ("ELMo, one sentence", embed_batches("full", batch_size=1, length=20)),
    "elmo-training": ("ELMo, training step", train("full")),
    "elmo-training-small": ("ELMo small, training step", train("small")),
    "elmo-pretraining": ("ELMo small, pre-training step", pretrain("small")),
}
