"""What the converters of ELMo share: how a released tensor becomes a parameter, and pickles without running them."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from elmo_gpt_bert.convert.files import check_names
from elmo_gpt_bert.training.errors import FileError, InputError, MissingFileError


Shape = tuple[int, ...]


class Conversion(NamedTuple):
    """How a tensor of a release becomes a parameter of our model."""

    shape: Callable[[Shape], Shape]  # the parameter's shape -> the released tensor's
    values: Callable[[np.ndarray], np.ndarray]  # the released tensor -> the parameter


def torch_gates(rows: np.ndarray) -> np.ndarray:
    """The rows in torch's order of gates, forget second. TensorFlow's order is input, candidate, forget, output."""
    i, j, f, o = np.split(rows, 4)
    return np.concatenate([i, f, j, o])


def gate_bias(bias: np.ndarray) -> np.ndarray:
    """The bias in torch's order, plus 1 for the forget gate, which TensorFlow adds at each step (`forget_bias`)."""
    i, f, j, o = np.split(torch_gates(bias), 4)
    return np.concatenate([i, f + np.float32(1), j, o])


# TensorFlow multiplies from the right, x W, so its kernels are (in, out) where torch's weights are (out, in). The
# kernels of its convolutions, over images of height 1, are (1, width, in, out). The kernel of an LSTM multiplies
# [x; h]: it has the rows of the input, then as many rows of the state.
AS_IS = Conversion(lambda ours: ours, lambda tensor: tensor)
DENSE = Conversion(lambda ours: ours[::-1], lambda kernel: kernel.T)
CONVOLUTION = Conversion(lambda ours: (1, *ours[::-1]), lambda kernel: kernel[0].T)
INPUT = Conversion(lambda ours: (2 * ours[1], ours[0]), lambda kernel: torch_gates(np.split(kernel, 2)[0].T))
RECURRENT = Conversion(lambda ours: (2 * ours[1], ours[0]), lambda kernel: torch_gates(np.split(kernel, 2)[1].T))
GATE_BIAS = Conversion(lambda ours: ours, gate_bias)
# Our table begins with a row of zeros, which the release lacks: that of the id 0, no character.
CHARACTERS = Conversion(lambda ours: (ours[0] - 1, ours[1]), lambda table: np.pad(table, ((1, 0), (0, 0))))
# AllenNLP keeps the two maps of a highway layer in one tensor. In y = g x + (1 - g) relu(..), its gate g weights the
# input x. The gate of the release, and ours, weights the other term: 1 - g = 1 - sigmoid(a) = sigmoid(-a).
TRANSFORM = Conversion(lambda ours: (2 * ours[0], *ours[1:]), lambda rows: np.split(rows, 2)[0])
CARRY = Conversion(lambda ours: (2 * ours[0], *ours[1:]), lambda rows: -np.split(rows, 2)[1])
SCALAR = Conversion(lambda ours: (1,), lambda tensor: tensor.reshape(()))

Table = tuple[tuple[str, str, Conversion], ...]  # the release's name, ours in ElmoModel, and how to convert


def released_names(table: Table, parameters: Iterable[str]) -> dict[str, tuple[str, Conversion]]:
    """The original name, and the conversion, of each parameter that the table has."""
    parameters = set(parameters)
    return {
        name: (original.format(number), conversion)
        for original, ours, conversion in table
        for number in range(len(parameters))
        if (name := ours.format(number)) in parameters
    }


def fill(
    parameters: Mapping[str, torch.nn.Parameter],
    rows: Mapping[str, tuple[str, Conversion]],
    tensors: Mapping[str, np.ndarray],
    weights: str,
    options: str,
    remedy: str,
) -> None:
    """Copies all of `tensors` into the parameters that `rows` names, as `released_names` makes them.

    Errors name the files `weights` and `options`, from which the tensors and the parameters' shapes are.
    """
    mismatch = f"{weights} does not fit {options}:"
    originals = {original for original, _ in rows.values()}
    check_names(originals - tensors.keys(), tensors.keys() - originals, mismatch, remedy)
    with torch.no_grad():
        for name, (original, conversion) in rows.items():
            tensor, parameter = tensors[original], parameters[name]
            expected = conversion.shape(tuple(parameter.shape))
            if tensor.shape != expected or tensor.dtype != np.float32:
                raise InputError(
                    f"{mismatch} {original} is {tensor.dtype} {tensor.shape}, but the options need float32 {expected}"
                )
            if not np.isfinite(tensor).all():
                raise InputError(
                    f"{weights}: not all numbers of {original} are finite. Its training diverged, or the file is "
                    "damaged: download it again"
                )
            parameter.copy_(torch.from_numpy(conversion.values(tensor)))


def read_pickle(path: Path) -> dict[str, torch.Tensor]:
    """The state dict in a file of torch.save, of any version of torch and any device. No code in it is run."""
    if not path.is_file():
        raise MissingFileError(f"{path}: no such file")
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)  # tensors only: a pickle could run any code
    except Exception as error:  # torch raises many: OSError, pickle's, zipfile's, KeyError, EOFError
        raise FileError(
            f"{path} is not a state dict that torch.save wrote, or is damaged ({type(error).__name__}): copy it again"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise InputError(f"{path} must hold a state dict, from names to tensors")
    return state
