"""In every rank of a launch: time the MPI library's own collective at each size. python -m tuner.targets.rank REQUEST

REQUEST is JSON: collective, dtype, op, sizes, and seconds to spend. Rank 0 prints an Answer as a line of JSON. Nothing
of treering's engine runs here, and every launch is a fresh one, since most knobs are read at start.
"""

import hashlib
import json
import random
import sys
from array import array
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Any

from mpi4py import MPI

from collectives.contract import REDUCING
from tuner.cases import Case
from tuner.contenders import native

LEAST, MOST = 7, 400  # repetitions of a size
WARM_UP = 3
SAMPLE = 1024  # words of a message that are looked at


def main(request: dict[str, Any]) -> None:
    mpi = MPI.COMM_WORLD
    answer: dict[str, Any] = {"times": {}, "wrong": {}, "bits": {}, "order": {}, "nodes": nodes(mpi)}
    for nbytes in request["sizes"]:
        case = Case(request["collective"], request["dtype"], request["op"], nbytes, mpi.rank, mpi.size)
        run = native(mpi, case)
        answer["wrong"][nbytes] = wrong(mpi, case, run)
        times = timed(mpi, case, run, request["seconds"] / len(request["sizes"]))
        answer["times"][nbytes] = times
        if request["dtype"] in ("float32", "float64"):
            answer["bits"][nbytes] = bits(mpi, case, run, request["dtype"])
        if request["collective"] in REDUCING:
            answer["order"][nbytes] = order(mpi, case)
    if mpi.rank == 0:
        print(json.dumps(answer), flush=True)


def nodes(mpi: Any) -> list[int]:
    """How many ranks each node has."""
    node = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    sizes = gathered(mpi, [node.size if node.rank == 0 else 0])
    node.Free()
    return [size for (size,) in sizes if size]


def gathered(mpi: Any, mine: Sequence[int]) -> list[Sequence[int]]:
    """What every rank says, as many numbers each, at rank 0; nothing elsewhere."""
    sent = array("q", mine)
    found = array("q", bytes(8 * len(sent) * mpi.size)) if mpi.rank == 0 else None
    mpi.Gather([sent, MPI.INT64_T], [found, MPI.INT64_T] if found is not None else None)
    return [found[i : i + len(sent)] for i in range(0, len(found), len(sent))] if found is not None else []


def wrong(mpi: Any, case: Case, run: Any) -> int:
    """Elements that are not as they must be, on all ranks together."""
    case.spoil()
    case.write()
    run()
    return sum(count for (count,) in gathered(mpi, [case.wrong()]))


def timed(mpi: Any, case: Case, run: Any, seconds: float) -> list[float]:
    """Microseconds of each repetition, the largest over ranks; the input freshly written before each."""

    def once() -> int:
        case.write()
        mpi.Barrier()
        started = perf_counter_ns()
        run()
        return perf_counter_ns() - started

    started = perf_counter_ns()
    for _ in range(WARM_UP):
        once()
    each = (perf_counter_ns() - started) / WARM_UP / 1e9
    repetitions = array("q", [int(min(MOST, max(LEAST, seconds / max(each, 1e-7))))])
    mpi.Bcast([repetitions, MPI.INT64_T])
    everyone = gathered(mpi, [once() for _ in range(repetitions[0])])
    return [max(ns) / 1e3 for ns in zip(*everyone, strict=True)]


def order(mpi: Any, case: Case) -> str:
    """A digest of what all ranks have after a reduction by an operation that tells its operands apart.

    It is declared to commute, so that the library takes the same algorithm; only a sample of elements is reduced. So it
    tells apart algorithms that add in the same order but hand over to others, and those of two ranks.
    """
    one_sided = MPI.Op.Create(lambda theirs, ours, _: mix(theirs, ours), commute=True)
    rng = random.Random(mpi.rank)
    words = memoryview(case.x).cast("B").cast("I")
    for i in range(0, len(words), max(1, len(words) // SAMPLE)):
        words[i] = rng.getrandbits(32)
    native(mpi, case, one_sided)()
    one_sided.Free()
    mine = hashlib.blake2b(memoryview(case.x).cast("B"), digest_size=7).digest()
    everyone = gathered(mpi, [int.from_bytes(mine)])
    return hashlib.blake2b(str([list(each) for each in everyone]).encode(), digest_size=8).hexdigest()


def mix(theirs: Any, ours: Any) -> None:
    """Reduce a sample of 32-bit words, in a way that neither commutes nor associates."""
    left, right = (memoryview(each).cast("B") for each in (theirs, ours))
    whole = len(right) // 4 * 4
    left, right = left[:whole].cast("I"), right[:whole].cast("I")
    for i in range(0, len(right), max(1, len(right) // SAMPLE)):
        right[i] = (left[i] * 0x9E3779B1 + (right[i] ^ left[i] >> 15) * 0x85EBCA6B + 1) & 0xFFFFFFFF


def bits(mpi: Any, case: Case, run: Any, dtype: str) -> str:
    """A digest of the sum of numbers that no two orders of adding round alike: it tells algorithms apart."""
    rng = random.Random(mpi.rank)
    case.write()
    x = memoryview(case.x).cast("B").cast("f" if dtype == "float32" else "d")
    for i in range(0, len(x), max(1, len(x) // 4096)):
        x[i] = rng.uniform(-1, 1) * 10 ** rng.randrange(7)
    run()
    return hashlib.blake2b(bytes(memoryview(case.x).cast("B")), digest_size=8).hexdigest()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
