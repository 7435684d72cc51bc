"""Lets the processes of a start find each other, and none of an earlier start.

torchrun and `accelerate launch` have one store for all starts of a run. A process that they start again may read there
the address of one that has ended. It fails then, and costs one more restart.
"""

import os
import time
import uuid
from datetime import timedelta

from torch.distributed import DistStoreError, TCPStore


USES_LAUNCHERS = "TORCHELASTIC_USE_AGENT_STORE"


def make_store(timeout: int) -> TCPStore | None:
    """Starts a new store in the first process, and makes torch.distributed use it in all processes.

    The caller has to keep the returned store until torch.distributed has one. It is None, and nothing happens, unless
    a launcher has a store for several processes.

    Raises:
        DistStoreError: if the processes do not meet within `timeout` seconds.
    """
    environment = os.environ
    if environment.get(USES_LAUNCHERS) != "True" or int(environment["WORLD_SIZE"]) == 1:
        return None
    host, limit = environment["MASTER_ADDR"], timedelta(seconds=timeout)
    launchers = TCPStore(host, int(environment["MASTER_PORT"]), is_master=False, timeout=limit)
    if environment["RANK"] == "0":
        store = TCPStore(host, 0, is_master=True, timeout=limit, wait_for_workers=False, multi_tenant=True)
        _invite(launchers, store, int(environment["WORLD_SIZE"]), timeout)
    else:
        store = _follow(launchers, host, environment["RANK"], limit)
    environment |= {"MASTER_PORT": str(store.port), USES_LAUNCHERS: "False"}
    return store


def _invite(launchers: TCPStore, store: TCPStore, processes: int, timeout: int) -> None:
    """Tells each other process where the store is, until all of them are there."""
    missing, end = set(range(1, processes)), time.monotonic() + timeout
    while missing := {rank for rank in missing if not store.check([f"here/{rank}"])}:
        for rank in missing:  # its name, or that of a process that has ended, which reads no answer
            if launchers.check([f"zoo/name/{rank}"]):
                name = launchers.get(f"zoo/name/{rank}").decode()
                launchers.set(f"zoo/port/{name}", str(store.port))
        if time.monotonic() > end:
            raise DistStoreError(f"processes {sorted(missing)} have not come to the TCPStore of process 0")
        time.sleep(0.05)


def _follow(launchers: TCPStore, host: str, rank: str, limit: timedelta) -> TCPStore:
    """The store, of which only the first process of the same start tells: it answers a name that is used once."""
    name = uuid.uuid4().hex
    launchers.set(f"zoo/name/{rank}", name)
    port = int(launchers.get(f"zoo/port/{name}"))  # waits for the answer
    store = TCPStore(host, port, is_master=False, timeout=limit)
    store.set(f"here/{rank}", "")
    return store
