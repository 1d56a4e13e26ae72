"""The ranks that run a test program: an MPI library's, or those that `spawn` or torchrun started, which have no MPI."""

import os
import pickle
from typing import Any

import collectives
from collectives.engine import ENGINE
from collectives.ranks.launch import connect
from collectives.ranks.peers import Peers
from collectives.ranks.store_peers import join

PATIENCE = 120  # seconds

if PATH := os.environ.get("TREERING_TEST_STORE"):
    import torch.distributed as dist

    STORE = dist.FileStore(PATH)  # type: ignore[attr-defined]
    RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    PEERS: Peers = join(STORE, RANK, SIZE, "the test's own", PATIENCE, ENGINE.turn)
else:
    PEERS = connect(None, PATIENCE, ENGINE.turn)
    RANK, SIZE = PEERS.rank, PEERS.size


def communicator(**settings: Any) -> collectives.Communicator:
    """A new one of all ranks."""
    if PATH:
        return collectives.Communicator.from_store(STORE, RANK, SIZE, **settings)
    return collectives.Communicator(**settings)


def everyone(mine: Any) -> list[Any]:
    """Every rank's. Collective."""
    return [pickle.loads(said) for said in PEERS.exchange(pickle.dumps(mine))]


def barrier() -> None:
    PEERS.meet()
