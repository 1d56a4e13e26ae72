"""A communicator that met in a TCPStore: what it can do, what it refuses, and what it leaves. Three ranks.

Each prints "rank R: right". The store that `world` uses finds the port of the one under test.
"""

import gc
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import collectives
from collectives.algorithms import every
from collectives.errors import CollectiveError
from tests.programs import world

RANK, SIZE = world.RANK, world.SIZE


def refused(call: Callable[[], object], says: str) -> None:
    seen = "nothing"
    try:
        call()
    except CollectiveError as error:
        seen = f"{type(error).__name__}: {error}"
    assert says in seen, seen


def serve_and_close(store: object) -> None:
    """Everything that takes a descriptor, a process or memory, and then nothing of it."""
    with collectives.Communicator.from_store(store, RANK, SIZE, timeout=60, prefix="mine") as comm:
        assert comm.topology.fingerprint.endswith(" | no MPI | cpu")
        assert comm.topology.links == ("shared-memory",) * (SIZE > 1)
        for algorithm in (a for a in every("allreduce") if not a.refusal(SIZE, a.groups(comm.topology))):
            for slots in (2, 8):
                x = torch.full((30_000,), RANK + 1.0)
                how: dict[str, Any] = {"segment_bytes": 4096, "slots": slots} if algorithm.pipelined else {}
                comm.allreduce(x, algorithm=algorithm.name, **how)
                assert bool((x == SIZE * (SIZE + 1) / 2).all()), algorithm.name
        shared = comm.empty(1000)
        shared.fill_(RANK)
        comm.allreduce(shared)
        assert shared[-1] == SIZE * (SIZE - 1) / 2
        part = comm.split(RANK % 2, table=None)
        assert part is not None
        part.barrier()
        part.close()
        refused(
            lambda: comm.allreduce(torch.ones(3), native=True), "UnsupportedError: native=True asks for an MPI library"
        )
        refused(
            lambda: comm.allreduce(torch.ones(30_000), algorithm="ring", segment_bytes=4096, slots=9),
            "needs 1 lanes of 9 slots, and ranks that met without MPI have 2 of 8: pass slots=8 or fewer",
        )
        comm.allreduce(torch.ones(3))


def main() -> None:
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if RANK == 0 else None  # type: ignore[attr-defined]
    port = world.everyone(server.port if server else 0)[0]
    store = dist.TCPStore("127.0.0.1", port, is_master=False)  # type: ignore[attr-defined]
    serve_and_close(store)
    gc.collect()
    open_before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        serve_and_close(store)
        gc.collect()
    assert sorted(os.listdir("/proc/self/fd")) == open_before
    world.barrier()
    keys = [key for key in store.list_keys() if "mine" in key] if hasattr(store, "list_keys") else []
    assert all("/rank/" in key for key in keys), keys

    for name, value in {"TREERING_LINKS": "mpi", "TREERING_RANKS_PER_NODE": "2"}.items():
        os.environ[name] = value
        refused(
            lambda: collectives.Communicator.from_store(store, RANK, SIZE),
            "UnsupportedError: these 3 ranks would need MPI",
        )
        del os.environ[name]
    refused(
        collectives.Communicator, "LaunchError: mpi4py is not installed: pip install 'treering[mpich]', or mpi4py built"
    )
    world.barrier()  # whoever serves the store stays until all are done
    print(f"rank {RANK}: right", flush=True)


if __name__ == "__main__":
    main()
