"""What goes wrong with symmetric memory: python -m tests.programs.symmetric_trouble ALLOCATIONS.

Every rank gets the same answer: the right result, or one error that says what and the mend; and then goes on. A line
with growth of descriptors, mappings and memory over many allocations, ended in another order on each rank, comes last.
"""

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest
import torch

import collectives
from collectives.errors import MismatchError, UnsupportedError

comm = collectives.Communicator(timeout=60)
rank, size, last = comm.rank, comm.size, comm.size - 1


@contextmanager
def limited(kind: int, value: int, here: bool) -> Iterator[None]:
    """A limit of this process, on some ranks."""
    soft, hard = resource.getrlimit(kind)
    if here:
        resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def refused(call: Callable[[], object], words: str, kind: type[Exception] = UnsupportedError) -> None:
    with pytest.raises(kind, match=words):
        call()
    serves(torch.ones(100))


def serves(x: torch.Tensor) -> None:
    x.fill_(rank + 1)
    comm.allreduce(x)
    assert bool((x == size * (size + 1) / 2).all()), f"rank {rank}: {x}"


def by(algorithm: str) -> None:
    ran = collectives.last_choice(comm)
    assert ran is not None, "nothing ran"
    assert (ran.algorithm == "one_pass") == (algorithm == "one_pass"), f"rank {rank}: {ran}"


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def lowest_free() -> int:
    """The descriptor that the next file would get; with this as the limit there is none."""
    os.close(found := os.dup(0))
    return found


def mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def end(x: torch.Tensor, registered: bool) -> None:
    """Memory from comm.empty ends with its last tensor."""
    if registered:
        comm.release(x)


# ---------------------------------------------------------------- no room, no descriptors, no way to map
SIZE = 1 << 22
for where in (0, last):
    refused(lambda: comm.empty(1 << 50, "uint8"), "memory|open files")
    with limited(resource.RLIMIT_FSIZE, 1 << 16, rank == where):
        if where == 0:  # it makes the file
            refused(lambda: comm.empty(SIZE), "memory|open files")
    with limited(resource.RLIMIT_NOFILE, lowest_free(), rank == where):
        refused(lambda: comm.empty(SIZE), "memory|open files")
        refused(lambda: comm.register(torch.ones(SIZE)), "comm.empty")
    # Nothing can be mapped any more: what is there already is more than may be.
    with limited(resource.RLIMIT_AS, 1 << 28, rank == where):
        refused(lambda: comm.empty(SIZE), "memory|open files")
refused(lambda: comm.empty(100 + rank), "size of symmetric memory", MismatchError)
serves(comm.empty(2000))
by("one_pass")

# ---------------------------------------------------------------- memory that changes on one rank
x = comm.register(torch.zeros(5000))
serves(x)
by("one_pass")
plan = comm.plan("allreduce", x)
if rank == last:
    x.data = torch.zeros(5000)  # another storage in the same tensor
serves(x)
by("ordinary")
y = comm.register(torch.zeros(5000))
if rank == 0:
    comm.release(y)
    comm.release(y)
serves(y)
by("ordinary")
assert comm.register(y) is y
serves(y)
by("one_pass")
serves(y[100:2100])
by("one_pass")
comm.release(y)
z = comm.empty(5000)
comm.release(z)  # which is for registered tensors: this one stays what it is
serves(z)
by("one_pass")
x.fill_(1)
comm.empty(10)  # here what has ended everywhere is unmapped
plan()
serves(y)
z = comm.empty(5000)
if rank == 0:
    del z
    z = torch.zeros(5000)
serves(z)
by("ordinary")
del x, y, z, plan

# ---------------------------------------------------------------- many allocations, ended in any order
count, order, kept = int(sys.argv[1]), Random(rank), list[tuple[torch.Tensor, bool]]()
before = (0, 0, 0)
for number in range(count):
    if number == count // 5:
        before = descriptors(), mappings(), resident()
    registers, length = number % 3 == 0, 2000 + number % 7
    kept.append((comm.register(torch.zeros(length)) if registers else comm.empty(length), registers))
    if number % 16 == 0:
        serves(kept[-1][0])
        by("one_pass")
    order.shuffle(kept)
    while len(kept) > 8:
        end(*kept.pop())
after = descriptors(), mappings(), resident()
grown = [b - a for a, b in zip(before, after, strict=True)]
assert abs(grown[0]) <= 40, grown  # regions under way at either moment
assert abs(grown[1]) <= 80, grown
kept.clear()
comm.empty(1)
comm.close()
print(
    f"rank {rank}: right or refused; grown by {grown[0]} descriptors, {grown[1]} mappings, {grown[2] >> 10} KiB",
    flush=True,
)
