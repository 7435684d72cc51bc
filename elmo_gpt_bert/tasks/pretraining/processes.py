"""Work on the pieces of a text in several processes. The results come in the order of the pieces."""

import multiprocessing
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from elmo_gpt_bert.training.errors import LaunchError, Parameter


Item, Result = TypeVar("Item"), TypeVar("Result")
WORKERS = Parameter("preprocessing_num_workers")

_function: Callable | None = None  # of a worker


def compute(function: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """Yields `function(item)` for each item in its order, computed in this number of processes.

    At most `processes` + 2 items are in memory. Raises RuntimeError if a process was killed.
    """
    if processes <= 1:
        yield from map(function, items)
        return
    # Forked processes start at once and share what the function holds. Elsewhere than on Linux, they are not safe.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(processes, context, _start, (function,))
    waiting = deque()
    try:
        for item in items:
            waiting.append(pool.submit(_call, item))
            if len(waiting) > processes + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        problem = "a process that read the text was killed, perhaps because memory ran out: start again with fewer "
        raise LaunchError(problem, WORKERS, "; finished shards are kept") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start(function: Callable) -> None:
    global _function
    _function = function
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a thread in each process, not one for each processor
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Ends this process when its parent was killed; otherwise it would wait for work forever."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _call(item: Item) -> Result:
    return _function(item)
