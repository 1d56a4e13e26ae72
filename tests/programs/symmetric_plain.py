"""Symmetric memory without torch: arrays of every dtype, by the buffer protocol and by DLPack; then torch sees them."""

import gc
import sys
from array import array
from typing import Any

import collectives
from collectives import arrays
from collectives.dtypes import DTYPES, HALVES

comm = collectives.Communicator(timeout=60)
rank, size = comm.rank, comm.size
ONES = {"float16": 0x3C00, "bfloat16": 0x3F80}  # their bits
made: dict[str, Any] = {name: comm.empty((3, 4), name) for name in DTYPES}
assert "torch" not in sys.modules, "torch is loaded, so these are tensors"


def in_one_pass() -> bool:
    """Whether the last call was."""
    assert isinstance(comm._last, tuple)
    return comm._last[0].one_pass


for name, x in made.items():
    memory = memoryview(x)
    assert (x.shape, x.dtype, memory.shape, memory.nbytes) == ((3, 4), name, (3, 4), 12 * memory.itemsize), name
    for row in x:
        row[:] = [ONES.get(name, 1)] * 4
    assert comm.allreduce(x, op="max", algorithm="one_pass") is x, name
    assert in_one_pass(), name
    assert [list(row) for row in x] == [[ONES.get(name, 1)] * 4] * 3, name
    part = x[1:]
    assert (part.shape, part.dtype) == ((2, 4), name), name
    comm.allreduce(part, op="min", algorithm="one_pass")
    assert in_one_pass(), f"{name}: a slice of symmetric memory is symmetric"

x = comm.empty(10)
x[:] = [rank + 1.0] * 10
mine: Any = comm.reduce_scatter(x)
assert type(mine).__mro__[1] is arrays.Array, mine
assert list(mine) == [size * (size + 1) / 2] * len(mine), list(mine)
y = comm.empty(10)
comm.allgather(mine, out=y)
assert list(y) == [size * (size + 1) / 2] * 10, list(y)
comm.broadcast(y, root=size - 1)
comm.reduce(y)
comm.allreduce([made["bfloat16"], made["float32"]])
comm.allreduce(made["float16"], precision="accurate", algorithm="ring")
out = array("f", bytes(40))
comm.allreduce(x, out=out)
assert comm.allgather(made["bfloat16"]).dtype == "bfloat16"

lent = made["float32"].__dlpack__()
assert len(arrays._lent) == 1
del lent
assert not arrays._lent, "a capsule that nobody has taken is not given back"

import torch  # noqa: E402 - what it sees was made before
from torch.utils.dlpack import from_dlpack  # noqa: E402

for name, x in made.items():
    seen = from_dlpack(x)
    assert (tuple(seen.shape), seen.dtype) == ((3, 4), getattr(torch, name)), name
    seen.fill_(3)
    assert name in HALVES or x[2][3] == 3, name
    comm.allreduce(seen, algorithm="one_pass")
    assert in_one_pass(), name
    assert bool((seen == 3 * size).all()), (name, seen)
alive = from_dlpack(made.pop("int64"))
gc.collect()
assert bool((alive == 3 * size).all()), "the memory ended before the tensor"
del seen, alive, x
gc.collect()
assert not arrays._lent, "torch has not given all back"
comm.close()
print(f"rank {rank}: arrays without torch are right", flush=True)
