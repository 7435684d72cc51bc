"""Says for whom a process waits. A peer that is stopped or slow would otherwise hold up the others without a word.

Each process counts the places where it waits for the others, which it reaches in the same order as they do, and
publishes the count in the store of torch.distributed. A process that has been at one place for a minute names the
peers that have not reached it, and those that have published nothing since it looked. Two threads do so, because the
store itself may not answer, if its process is stopped.
"""

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from torch.distributed import Store, distributed_c10d

from elmo_gpt_bert.training.errors import LaunchError, UserError
from elmo_gpt_bert.training.rendezvous import make_store


PATIENCE = 60.0  # seconds at one place before a process says for whom it waits; it says so again after twice the time
PULSE = 5.0  # seconds between two notes of a process in the store
MISSED = 4  # pulses without a note, after which a process does not answer
# In errors of torch.distributed.
LOST = re.compile(r"\b(gloo|NCCL|TCPStore|clients joined|wait timeout|socket)\b", re.IGNORECASE)


@dataclass(frozen=True)
class _Position:
    """Where a process is: the number of the place, its name, and since when."""

    number: int
    place: str
    since: float


@dataclass
class _Peer:
    """What another process last published, and when this one first read it."""

    note: list[str]
    read_at: float

    @property
    def number(self) -> int:
        return int(self.note[0])


class _Watch:
    """The position of this process, and what it knows of the others."""

    def __init__(self, store: Store, rank: int, processes: int, timeout: int) -> None:
        self.store, self.rank, self.processes, self.timeout = store, rank, processes, timeout
        self.position = _Position(0, "the start", time.monotonic())
        self.peers: dict[int, _Peer] = {}
        self.answered = time.monotonic()  # when the store did so last
        self.told = False  # whether this process has said, at its position, that it waits
        self.ended = threading.Event()
        self.publish(0)

    def arrive(self, place: str | None) -> None:
        """Notes that this process may have to wait from here on."""
        waited = time.monotonic() - self.position.since
        self.position = _Position(self.position.number + 1, place or self.position.place, time.monotonic())
        if self.told:
            self.say(f"goes on after {_minutes(waited)}")
            self.told = False

    def say(self, text: str) -> None:
        sys.stderr.write(f"process {self.rank} of {socket.gethostname()} {text}\n")

    def publish(self, pulse: int) -> None:
        note = [self.position.number, pulse, socket.gethostname(), self.position.place]
        self.store.set(_key(self.rank), "\n".join(map(str, note)))

    def exchange(self) -> None:
        """Publishes where this process is and, if it may be waiting, reads where the others are; in a thread."""
        pulse = 0
        while not self.ended.wait(PULSE):
            with contextlib.suppress(RuntimeError):  # the store is gone, or the run has ended
                self.publish(pulse := pulse + 1)
                if time.monotonic() - self.position.since > PATIENCE / 2:
                    self.read()
                self.answered = time.monotonic()

    def read(self) -> None:
        others = [rank for rank in range(self.processes) if rank != self.rank]
        for rank, content in zip(others, self.store.multi_get([_key(rank) for rank in others]), strict=True):
            note = content.decode().split("\n")
            if rank not in self.peers or self.peers[rank].note != note:
                self.peers[rank] = _Peer(note, time.monotonic())

    def report(self) -> None:
        """Says, in a thread, for whom this process waits."""
        position, looked = self.position, time.monotonic()
        since, patience = position.since, PATIENCE
        while not self.ended.wait(PULSE):
            now = time.monotonic()
            if now - looked > MISSED * PULSE:  # this process itself was stopped: what it knows of the others is old
                since, self.answered, self.peers = now, now, {}
            if self.position != position:
                position, patience = self.position, PATIENCE
                since = position.since
            if now - since > patience and (missing := self.missing()):
                limit = f"It gives up after {_minutes(self.timeout)}, --ddp_timeout"
                self.say(f"has been at {position.place} for {_minutes(now - since)}: {'; '.join(missing)}. {limit}")
                self.told, patience = True, 2 * patience
            looked = now

    def missing(self) -> list[str]:
        """What keeps the other processes, of those that are not where this one is."""
        now, silence = time.monotonic(), MISSED * PULSE
        if now - self.answered > silence:
            store = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
            return [f"it waits for process 0, or its launcher, which does not answer at {store}"]
        reasons = []
        for rank, peer in sorted(self.peers.items()):
            name = f"it waits for process {rank} of {peer.note[2]}, which"
            if now - peer.read_at > silence:
                reasons.append(f"{name} does not answer")
            elif peer.number < self.position.number:
                reasons.append(f"{name} is still at {peer.note[3]}")
        return reasons


_watch: _Watch | None = None  # of this process, as long as it is one of several


def arrive(place: str | None = None) -> None:
    """Notes that this process may wait for the others from here on, at a place that all of them reach.

    place: its name for messages; None leaves it as it was
    """
    if _watch is not None:
        _watch.arrive(place)


@contextlib.contextmanager
def peers_watched(timeout: int) -> Iterator[None]:
    """Joins the processes that were launched with this one, and says within the context for whom it waits.

    timeout: the seconds after which a process gives up waiting
    Raises RuntimeError, in one line, if another process does not join, is lost, or lets this one wait for too long.
    """
    global _watch
    with _lost_processes_in_one_line(timeout):
        _join(timeout)
        state = PartialState()
        if not torch.distributed.is_initialized() or state.num_processes == 1:  # XLA, or no other to wait for
            yield
            return
        store = distributed_c10d._get_default_store()
        store = store.clone() if hasattr(store, "clone") else store  # for a thread of its own
        _watch = _Watch(store, state.process_index, state.num_processes, timeout)
        state.wait_for_everyone()  # until all have published where they are
        threads = [threading.Thread(target=target, daemon=True) for target in (_watch.exchange, _watch.report)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            _watch.ended.set()
            _watch = None
            for thread in threads:
                thread.join(1)


def _join(timeout: int) -> None:
    """Makes the processes know of each other, as Accelerator would, which uses this state again."""
    environment = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    text = "process {RANK} of {WORLD_SIZE} waits for the others to join it at {MASTER_ADDR}:{MASTER_PORT}\n"
    reminder = threading.Timer(PATIENCE, lambda: sys.stderr.write(text.format(**environment)))
    reminder.daemon = True
    if environment["RANK"] is not None:
        reminder.start()
    try:
        store = make_store(timeout)  # until there is the one of torch.distributed
        state = PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"), timeout=timedelta(seconds=timeout))
        del store
        # The only process of XLA is -1 of its machine for accelerate, and would print nothing.
        state.local_process_index = max(state.local_process_index, 0)
    finally:
        reminder.cancel()


@contextlib.contextmanager
def _lost_processes_in_one_line(timeout: int) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if int(os.environ.get("WORLD_SIZE", "1")) == 1 or not LOST.search(reason):
            raise
        raise LaunchError(
            f"process {os.environ.get('RANK')} lost another one, or waited for it for more than {_minutes(timeout)} "
            f"(--ddp_timeout): the same command with --resume goes on from the last checkpoint ({reason})"
        ) from error


def _key(rank: int) -> str:
    return f"zoo/{rank}"


def _minutes(seconds: float) -> str:
    """As in "90 s" or "30 min"."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
