"""Process groups over "treering" that cannot be, each in this process alone: a JSON object of {case: [type, text]}."""

import json
import os
import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

import integrations.torch_backend  # noqa: F401 - it registers itself
from integrations.torch_launch import init_process_group

dist: Any = torch.distributed


def of(rank: int, size: int, backend: str = "treering") -> None:
    store = dist.HashStore()
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=1))


def on_a_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        init_process_group("treering", timeout=5)


def on_another_device() -> None:
    of(0, 1, "cuda:treering")
    dist.group.WORLD.broadcast([torch.empty(1, device="meta")], dist.BroadcastOptions())


CASES: dict[str, Callable[[], None]] = {
    "a rank that never comes": lambda: of(0, 2),
    "a rank too many": lambda: of(2, 2),
    "a port taken": on_a_taken_port,
    "another device": on_another_device,
}

if __name__ == "__main__":
    found = {}
    for name, case in CASES.items():
        try:
            case()
        except Exception as error:  # noqa: BLE001 - that is what is looked at
            found[name] = [type(error).__name__, str(error)]
    print(json.dumps(found))
