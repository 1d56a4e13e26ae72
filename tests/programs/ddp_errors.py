"""What the DDP door refuses. Two ranks; rank 0 prints one JSON line a case: {"case": ..., "type": ..., "text": ...}.

Every case must leave both ranks able to go on with the next.
"""

import json
from collections.abc import Callable

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import collectives
from integrations.torch_ddp import DDPHookState, allreduce_hook, register
from integrations.torch_launch import init_process_group

WORLD = MPI.COMM_WORLD


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(10, 4, sparse=True), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.embedding(x))


def model() -> DistributedDataParallel:
    return DistributedDataParallel(nn.Linear(4, 4))


def second_registration() -> None:
    ddp = model()
    register(ddp)
    register(ddp)


def sparse_in_backward() -> None:
    ddp = DistributedDataParallel(Words())
    ddp.register_comm_hook(DDPHookState(), allreduce_hook)
    ddp(torch.tensor([WORLD.rank, 3])).sum().backward()


def closed_communicator() -> None:
    comm = collectives.Communicator()
    comm.close()
    register(model(), comm=comm)


def closed_state() -> None:
    ddp = model()
    state = register(ddp)
    ddp(torch.ones(2, 4)).sum().backward()
    state.close()
    ddp(torch.ones(2, 4)).sum().backward()


def other_ranks() -> None:
    register(model(), comm=WORLD.Split(WORLD.rank))


def second_process_group() -> None:
    init_process_group()


CASES: dict[str, Callable[[], object]] = {
    "not DDP": lambda: register(nn.Linear(4, 4)),
    "second registration": second_registration,
    "sparse module": lambda: register(DistributedDataParallel(Words())),
    "sparse gradient": sparse_in_backward,
    "other device": lambda: DDPHookState().average(torch.empty(3, device="meta")),
    "closed communicator": closed_communicator,
    "closed state": closed_state,
    "other ranks": other_ranks,
    "compression": lambda: register(model(), compression="float16"),
    "unknown overlap": lambda: register(model(), overlap="some"),
    "unknown zero copy": lambda: register(model(), zero_copy="some"),
    "unknown keyword": lambda: register(model(), tables="x"),
    "no such table": lambda: register(model(), table="/nowhere/table.json"),
    "second process group": second_process_group,
}


def main() -> None:
    torch.set_num_threads(1)
    init_process_group(timeout=60)
    for name, case in CASES.items():
        try:
            case()
            seen: dict[str, object] = {"type": None, "text": "no error"}
        except Exception as error:  # noqa: BLE001 the test looks at its type
            notes = getattr(error, "__notes__", [])
            seen = {"type": type(error).__name__, "text": "\n".join([str(error), *notes])}
        everyone = WORLD.gather(seen)
        if everyone is not None:
            print(json.dumps({"case": name, "same": everyone[0]["type"] == everyone[1]["type"], **seen}), flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
