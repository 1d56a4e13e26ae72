"""Symmetric memory: every way to have it, slices, memories that do not correspond, many regions and their ends."""

import random

import torch

from collectives.errors import MismatchError, UnsupportedError
from tests.programs import world

comm = world.communicator(timeout=60)
rank, size = comm.rank, comm.size


def exact(x: torch.Tensor, op: str, seed: int, algorithm: str | None = None) -> None:
    """Reduce whole numbers in x, and compare."""
    torch.manual_seed(seed)
    everyone = torch.randint(1, 50, (size, x.numel()))
    x.copy_(everyone[rank].to(x.dtype).view(x.shape))
    returned = comm.allreduce(x, op=op, algorithm=algorithm)
    assert returned is x
    wide = everyone.to(torch.float64)
    right = {"sum": wide.sum(0), "max": wide.amax(0), "avg": wide.mean(0)}[op].to(x.dtype).view(x.shape)
    same = torch.allclose(x, right) if op == "avg" else torch.equal(x, right)
    assert same, f"rank {rank}: {op} of {x.numel()} {x.dtype}"


big, moved = comm.empty(1 << 17), torch.zeros(100_003)
assert comm.register(moved) is moved
for count in (1, 7, 100, 1000, 16_384, 100_003):
    for op in ("sum", "max", "avg"):
        for algorithm in (None, "ring", "double_tree", "two_shot"):
            exact(big[5 : 5 + count], op, count, algorithm)  # slices of symmetric memory are symmetric
            exact(moved[:count], op, count, algorithm)
            exact(big[rank : rank + count], op, count, algorithm)  # other offsets on other ranks
            exact(big[:count] if rank else torch.empty(count), op, count, algorithm)  # ordinary memory on one
            exact(big[:count] if rank else moved[:count], op, count, algorithm)  # another region on one

for dtype in ("float16", "bfloat16", "float64", "int8", "int32", "uint8", "int64"):
    for shape in ((3, 5), (), (1000,)):
        exact(comm.empty(shape, dtype), "max", 3)
assert comm.empty((4, 2), dtype=torch.bfloat16).dtype is torch.bfloat16

# What an optimizer writes after the call does not reach a slower rank's result.
for step in range(300):
    big[:1000] = rank + step
    comm.allreduce(big[:1000])
    right = size * step + size * (size - 1) / 2
    assert bool((big[:1000] == right).all()), f"rank {rank}, step {step}"
    big[:1000] = -1.0

# Many regions, dropped in another order on each rank; the room comes back.
kept, order = [], random.Random(rank)
for number in range(200):
    kept.append(comm.empty(1000 + number))
    exact(kept[-1], "sum", number)
    order.shuffle(kept)
    del kept[8:]
kept.clear()
comm.empty(1)
assert len(comm._regions.regions) <= 4, sorted(comm._regions.regions)

comm.release(moved)
exact(moved, "sum", 1)
for wrong, kind in ((lambda: comm.empty(10 + rank), MismatchError), (lambda: comm.empty(1 << 50), UnsupportedError)):
    try:
        wrong()
        raise AssertionError(f"{kind.__name__} expected")
    except kind:
        pass
exact(big[:100], "sum", 2)
comm.close()
print(f"rank {rank}: symmetric memory is right", flush=True)
