"""Shows which layers fine-tuned task networks use: the weights of their scalar mixes (Peters et al. 2018, figure 2).

    python -m elmo_gpt_bert.analysis.layer_weights runs/elmo/conll2003 runs/elmo/squad --output_dir runs/elmo_weights
    python -m elmo_gpt_bert.analysis.layer_weights --output_dir runs/bert_weights \\
        runs/bert/conll2003_features/weighted_sum_all

A mix is gamma * sum_j s_j h_j over the layers h_j, where s is the softmax of learned weights. ELMo's task networks
have one at their input, at their output, or at both; BERT's feature-based tagger has one with `--features
weighted_sum_all` or `weighted_sum_last_four`. A RUN is a model folder, or a folder of such folders, e.g. one for each
seed: then the numbers are their mean and, after the sign, their standard deviation. OUTPUT_DIR receives
layer_weights.json and layer_weights.png, a heat map.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from elmo_gpt_bert.analysis import frame
from elmo_gpt_bert.training.arguments import ModelSource
from elmo_gpt_bert.training.command_line import run_command
from elmo_gpt_bert.training.errors import InputError, MissingFileError, as_user_errors
from elmo_gpt_bert.training.loading import load_config
from elmo_gpt_bert.training.output_folder import CHECKPOINT
from modeling import ElmoConfig, FeatureTaggerConfig
from modeling.feature_tagger.configuration_features import LAYERS


if TYPE_CHECKING:
    from transformers import PreTrainedConfig


# What the mixes of a network are for, in their order.
PLACES = {"input": ("input",), "output": ("output",), "both": ("input", "output"), "after_first_rnn": ("middle",)}


class Mix(NamedTuple):
    """A scalar mix of one run, or those of several seeds.

    layers: the number of each mixed layer; 0 is that of the embeddings
    weights: (seeds, layers) the weights after the softmax
    gammas: (seeds,)
    """

    layers: range
    weights: np.ndarray
    gammas: np.ndarray

    def values(self) -> dict[str, object]:
        """The entries of layer_weights.json."""
        values = {"layers": [*self.layers], "weights": self.weights.mean(0).tolist()}
        values |= {"gamma": float(self.gammas.mean()), "seeds": len(self.gammas)}
        if len(self.gammas) > 1:
            spread = {"weights_std": self.weights.std(0, ddof=1).tolist(), "gamma_std": float(self.gammas.std(ddof=1))}
            values |= spread
        return values


Mixes = Mapping[str, Mapping[str, Mix]]  # run -> place -> mix


def main(argv: list[str] | None = None) -> dict[str, dict[str, Mix]]:
    """Carries out what `argv`, by default the command line, asks for; returns run -> place -> mix."""
    parser = frame.make_parser(__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="model folder, or a folder of model folders")
    args = frame.parse(parser, argv)
    names = frame.short_names([run.resolve() for run in args.runs])
    mixes = {name: read_run(run) for name, run in zip(names, args.runs, strict=True)}
    print(table(mixes))
    values = {name: {place: mix.values() for place, mix in places.items()} for name, places in mixes.items()}
    frame.write_numbers(args.output_dir, "layer_weights", values)
    frame.write_picture(args.output_dir, "layer_weights", draw, mixes)
    return mixes


# Reading


def read_run(run: Path) -> dict[str, Mix]:
    """place -> mix, of a model folder or of all model folders in `run`. Raises ValueError if there is no mix."""
    folders = [run]
    if not has_weights(run):  # checkpoints are no seeds, but the same run earlier
        folders = sorted(path for path in run.glob("*") if has_weights(path) and not CHECKPOINT.fullmatch(path.name))
    if not folders:
        remedy = "--seeds keeps the model of the best seed only"
        raise MissingFileError(f"{run} is no model folder and holds none; {remedy}")
    mixes, *others = [read_folder(folder) for folder in folders]
    for folder, more in zip(folders[1:], others, strict=True):
        if {place: mix.layers for place, mix in more.items()} != {place: mix.layers for place, mix in mixes.items()}:
            raise InputError(f"{folder} mixes other layers than {folders[0]}: give them as two runs")
        for place, (layers, weights, gammas) in mixes.items():
            weights, gammas = np.append(weights, more[place].weights, 0), np.append(gammas, more[place].gammas)
            mixes[place] = Mix(layers, weights, gammas)
    return mixes


def has_weights(folder: Path) -> bool:
    return any(folder.glob("model*.safetensors"))


def read_folder(folder: Path) -> dict[str, Mix]:
    """place -> mix, of one model folder. Raises ValueError if the model has no mix."""
    config = load_config(ModelSource(str(folder)))
    tensors = read_mixes(folder)
    if not tensors or "ElmoForPreTraining" in (config.architectures or ()):  # a biLM has a mix, but does not use it
        raise InputError(f"{folder}: {config.model_type} has no mix of layers whose weights were learned")
    places, layers = describe(config, len(tensors), len(next(iter(tensors.values()))[0]))
    top_only = getattr(config, "mix_top_layer_only", False)
    mixes = {}
    for place, (weights, gamma) in zip(places, tensors.values(), strict=True):
        shares = torch.eye(len(weights))[-1] if top_only else weights.float().softmax(0)
        mixes[place] = Mix(layers, shares[None].numpy(), gamma.float().reshape(1).numpy())
    return mixes


def read_mixes(folder: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The module of each mix, in the order of their names -> its weights before the softmax, and its gamma."""
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        with as_user_errors(f"{path}: ", SafetensorError), safe_open(path, "pt") as file:
            names = [name for name in file.keys() if name.endswith((".weights", ".gamma"))]  # noqa: SIM118
            tensors |= {name: file.get_tensor(name) for name in names}
    modules = sorted(name.removesuffix(".weights") for name in tensors if name.endswith(".weights"))
    gammas = {name: f"{name}.gamma" for name in modules if f"{name}.gamma" in tensors}  # old LayerNorms have one, too
    return {name: (tensors[f"{name}.weights"], tensors[gamma]) for name, gamma in gammas.items()}


def describe(config: PreTrainedConfig, mixes: int, layers: int) -> tuple[Sequence[str], range]:
    """What the model's mixes are for, and the numbers of the layers that they mix."""
    if isinstance(config, FeatureTaggerConfig):
        return ("input",), range(config.encoder.num_hidden_layers + 1)[LAYERS[config.features][0]]
    places = PLACES[config.elmo_placement] if isinstance(config, ElmoConfig) else ()
    return places if len(places) == mixes else [f"mix {number}" for number in range(mixes)], range(layers)


# Showing


def table(mixes: Mixes) -> str:
    """A row for each mix: the weight of each layer, gamma, and how many seeds they are from."""
    rows = []
    for name, places in mixes.items():
        for place, mix in places.items():
            cells = dict(zip(mix.layers, map(shown, mix.weights.T), strict=True))
            shares = {f"layer {number}": cells.get(number, "") for number in layers_of(mixes)}
            rows.append({"run": name, "place": place, **shares, "gamma": shown(mix.gammas), "seeds": len(mix.gammas)})
    return frame.table(rows)


def shown(values: np.ndarray) -> str:
    """As in 0.41, or 0.41 ± 0.02 for several seeds."""
    return f"{values.mean():.2f}" + (f" ± {values.std(ddof=1):.2f}" if len(values) > 1 else "")


def layers_of(mixes: Mixes) -> range:
    """All layers from the lowest to the highest that a run mixes."""
    numbers = {number for places in mixes.values() for mix in places.values() for number in mix.layers}
    return range(min(numbers), max(numbers) + 1)


def draw(figure: frame.Figure, mixes: Mixes) -> None:
    """A column for each mix and a row for each layer, the lowest at the bottom."""
    rows = layers_of(mixes)
    columns = {f"{name}\n{place}": mix for name, places in mixes.items() for place, mix in places.items()}
    grid = np.full((len(rows), len(columns)), np.nan)
    for column, mix in enumerate(columns.values()):
        grid[[rows.index(layer) for layer in mix.layers], column] = mix.weights.mean(0)
    figure.set_size_inches(2 + 1.1 * len(columns), 1.5 + 0.4 * len(rows))
    axes = figure.add_subplot()
    image = axes.imshow(grid, origin="lower", aspect="auto", cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(columns)), [*columns], fontsize=7, rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), [f"layer {number}" for number in rows], fontsize=7)
    for row, column in np.argwhere(~np.isnan(grid)):
        color = "white" if grid[row, column] > 0.5 else "black"
        axes.text(column, row, f"{grid[row, column]:.2f}", ha="center", va="center", color=color)
    figure.colorbar(image, label="weight after the softmax")


if __name__ == "__main__":
    run_command(main)
