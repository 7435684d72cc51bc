"""Keeps freed memory for the next update, and gives what no update needs back to the system.

glibc, the C library of most Linux systems, returns large blocks to the system as soon as they are freed. The next
update asks for them again, and the system fills each of their pages with zeros first, which takes 5 to 17 % of the
time of a small model on a CPU. Blocks that stay with the process do not need that. But batches of different lengths
leave holes of ever different sizes between them, so that a process grows for hours, with any implementation. Giving
the holes back now and then stops that.
"""

import ctypes
import functools
import os
import re


UPDATES = 20  # between two calls of `release` in training: often enough to stop the growth, and too rare to take time
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # malloc.h
BLOCKS, FREE = (2**30, 2**25), 2**31 - 1  # bytes: smaller blocks stay, and so much at the end of the memory
CHOICES = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}  # variables of the environment


def keep_blocks() -> None:
    """Keeps large blocks from now on, unless variables of the environment say when to return them."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    is_chosen = CHOICES & os.environ.keys() or re.search("(mmap|trim)_threshold", tunables)
    library = _glibc()
    # Old releases refuse more than 32 MB. The second call alone would only keep the first limit from growing.
    if library is not None and not is_chosen and any(library.mallopt(M_MMAP_THRESHOLD, size) for size in BLOCKS):
        library.mallopt(M_TRIM_THRESHOLD, FREE)


def release() -> None:
    """Gives back what is free now. Elsewhere than with glibc, it does nothing."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):  # TypeError: Windows, where a library needs a name
        return None
    return library if hasattr(library, "malloc_trim") else None  # not musl's, nor that of macOS
