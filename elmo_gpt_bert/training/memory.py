"""Gives memory that was freed back to the system.

The C library of Linux keeps what lies between blocks that are in use, for later blocks that fit. Batches of different
lengths leave holes of ever different sizes, so that a process on a CPU grows for hours, with any implementation.
"""

import ctypes
import functools
from collections.abc import Callable


UPDATES = 20  # between two calls in training: often enough to stop the growth, and too rare to take time


def release() -> None:
    """Gives back what is free now. Elsewhere than with the C library glibc, it does nothing."""
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, macOS; TypeError: Windows, where a library needs a name
        return None
