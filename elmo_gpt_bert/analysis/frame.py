"""What the commands of the analysis share: flags, the models that they compare, and the files of their results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import datasets
import transformers

from elmo_gpt_bert.analysis.representations import Encoder, is_vectors, load_encoder
from elmo_gpt_bert.training.command_line import program
from elmo_gpt_bert.training.errors import InputError
from elmo_gpt_bert.training.files import make_folder, new_file, write_text
from elmo_gpt_bert.training.launching import choose_implementation
from elmo_gpt_bert.training.results import markdown_table


if TYPE_CHECKING:
    from matplotlib.figure import Figure


LayerScores = Mapping[str, Mapping[str, float]]  # model -> layer -> score

RANDOM = ", random weights"  # ends the name of a model with random weights


# The command line


def make_parser(docstring: str) -> argparse.ArgumentParser:
    """The parser of a command. The first line of its module's docstring says what it does."""
    parser = argparse.ArgumentParser(program(), description=docstring.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, required=True, metavar="DIR", help="receives numbers and plots")
    return parser


def add_models(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that say which models `named_encoders` loads."""
    model = "model folder, Hub id, or file of word vectors (.txt, .vec, .bin, .gz)"
    parser.add_argument("models", nargs="+", metavar="MODEL", help=model)
    names = "what tables and plots call the models, in their order; default: the last part of each MODEL"
    parser.add_argument("--names", nargs="+", metavar="NAME", help=names)
    parser.add_argument("--random", action="store_true", help="each model with random weights, too, as a control")
    pieces = "whose vector a word of several tokens has; default: first, and last of a causal model"
    parser.add_argument("--pieces", choices=("first", "last", "mean"), help=pieces)


def parse(parser: argparse.ArgumentParser, argv: list[str] | None, **least: int) -> argparse.Namespace:
    """The arguments of `argv`, by default the command line. The output folder is made before the work begins.

    `least` has the smallest numbers that flags may have.
    """
    args = parser.parse_args(argv)
    for name, number in least.items():
        if getattr(args, name) is not None and getattr(args, name) < number:
            raise InputError(f"--{name} must be at least {number}, not {getattr(args, name)}")
    make_folder(args.output_dir)
    set_up_libraries()
    return args


def set_up_libraries() -> None:
    """Takes this project's models, and keeps what the libraries say of their work from the screen."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    choose_implementation("zoo")


def named_encoders(args: argparse.Namespace, words: Iterable[str]) -> Iterator[tuple[str, Encoder]]:
    """Yields each encoder of the command line with its name, one at a time, since each may fill the memory.

    Of a file of vectors, only those of `words` are read. Raises ValueError if --names has not one name for each model.
    """
    words, labels = {*words}, args.names or short_names(args.models)
    if len(labels) != len(args.models) or len({*labels}) != len(labels):
        found = f"{len(labels)}: {', '.join(labels)}"
        raise InputError(f"--names needs {len(args.models)} different names, one for each MODEL, and has {found}")
    for name, label in zip(args.models, labels, strict=True):
        yield label, load_encoder(name, words, pieces=args.pieces)
        if args.random and not is_vectors(name):
            yield label + RANDOM, load_encoder(name, words, random=True, pieces=args.pieces)


def short_names(names: Sequence[str | Path]) -> list[str]:
    """The last parts of the names, as many as it takes to tell them apart."""
    parts = [Path(name).parts for name in names]
    for count in range(1, max(map(len, parts)) + 1):
        short = ["/".join(each[-count:]) for each in parts]
        if len({*short}) == len(short):
            return short
    repeated = next(name for name in short if short.count(name) > 1)
    raise InputError(f"the model {repeated} is given twice: leave one out")


# Files


def write_numbers(output: Path, name: str, numbers: object) -> None:
    """Writes name.json."""
    write_text(output / f"{name}.json", json.dumps(numbers, indent=2, ensure_ascii=False) + "\n")


def write_picture(output: Path, name: str, draw: Callable[..., None], *values: object) -> None:
    """Writes name.png, a new figure on which `draw` draws the values."""
    from matplotlib.figure import Figure  # not pyplot, which would choose a window system

    figure = Figure(layout="constrained")
    draw(figure, *values)
    with new_file(output / f"{name}.png") as temporary:
        figure.savefig(temporary, format="png", dpi=150, metadata={"Software": None})


# Tables and pictures


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Markdown: a header with the columns of all rows, and a line for each row, whose cells may be missing."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return markdown_table(columns, ([cell(row.get(name, "")) for name in columns] for row in rows))


def cell(value: object) -> str:
    """As in 1,500 or 0.734."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}" if isinstance(value, float) else str(value)


def report_layers(
    output: Path, name: str, results: object, scores: LayerScores, references: Mapping[str, float], *labels: str
) -> None:
    """Prints the table of the layers' scores, and writes NAME.json, the results, and NAME.png, with these labels."""
    print(layer_table(scores, references))
    write_numbers(output, name, results)
    write_picture(output, name, draw_layers, scores, references, *labels)


def layer_table(scores: LayerScores, references: Mapping[str, float]) -> str:
    """A row for each model with its scores in percent, the best in bold, and one for each reference."""
    rows = []
    for name, layers in scores.items():
        best = max(layers.values())
        cells = [f"**{score:.1%}**" if score == best else f"{score:.1%}" for score in layers.values()]
        rows.append({"": name, "layer 0": cells[0], **{str(n): cell for n, cell in enumerate(cells[1:], start=1)}})
    rows += [{"": name, "layer 0": f"{score:.1%}"} for name, score in references.items()]
    return table(rows)


def draw_layers(
    figure: Figure, scores: LayerScores, references: Mapping[str, float], title: str, measure: str
) -> None:
    """A line for each model over the relative depth of its layers, and a thin one for each reference.

    A model of one layer is a row of dots, which leaves a reference below it visible. A model with random weights has
    its model's colour.
    """
    figure.set_size_inches(8, 4.5)
    axes = figure.add_subplot(title=title, ylabel=measure)
    axes.set_xticks([0, 0.5, 1], ["embeddings", "middle", "last layer"])
    axes.yaxis.set_major_formatter("{x:.0%}")
    colors: dict[str, str] = {}
    for name, layers in scores.items():
        color = colors.setdefault(name.removesuffix(RANDOM), f"C{len(colors)}")
        values = list(layers.values())
        if len(values) == 1:
            axes.axhline(values[0], label=name, color=color, linestyle="dotted", linewidth=3)
            continue
        depths = [number / (len(values) - 1) for number in range(len(values))]
        style = {"linestyle": "--", "alpha": 0.6} if name.endswith(RANDOM) else {}
        axes.plot(depths, values, marker="o", label=name, color=color, **style)
    for number, (name, score) in enumerate(references.items()):
        color, style = (("black", "dashed"), ("gray", "solid"))[number % 2]
        axes.axhline(score, label=name, color=color, linestyle=style, linewidth=0.8, zorder=0)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center")
