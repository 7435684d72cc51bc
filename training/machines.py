"""What the processes of a run, on one machine or several, have to agree on."""

from collections.abc import Callable
from typing import TypeVar

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from training.errors import UserError


Value = TypeVar("Value")


def on_main(function: Callable[[], Value]) -> Value:
    """What `function` returns on the main process, on all of them; or its UserError, which then ends them all.

    The files of a run are those that the main process sees: another machine may have others under their names. Every
    process must call it.
    """
    value, error = None, None
    if PartialState().is_main_process:
        try:
            value = function()
        except UserError as problem:
            error = problem
    value, error = broadcast_object_list([value, error])
    if error is not None:
        raise error
    return value
