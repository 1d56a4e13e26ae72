"""What serves best on a GPU: candidates timed one after another, in turns, on the ranks' own device memory.

The tuner's search is for hundreds of candidates; here there are dozens, so each is tried. Needs no CUDA by name: the
communicator knows its device, and a call that the host has waited for is timed from outside.
"""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from collectives import chunk
from collectives.cuda.choice import candidates
from collectives.dtypes import ITEMSIZE
from collectives.errors import UnsupportedError
from collectives.tables.table import GPU, Place, Rule, RunnerUp
from tuner.rules import border, place_of, rounded
from tuner.space import Candidate

if TYPE_CHECKING:
    from collectives.communicator import Communicator

Arrays = Callable[[int], Any]  # of so many elements, on this rank's GPU


def arrays_of(dtype: str, place: int) -> Arrays:
    """Makes arrays on the GPU of the rank in this place of its node: torch's, or CuPy's. UnsupportedError for none."""
    why = []
    try:
        import torch

        if torch.cuda.is_available():
            device = f"cuda:{place % torch.cuda.device_count()}"
            return lambda count: torch.ones(count, dtype=getattr(torch, dtype), device=device)
        why.append("torch sees no GPU")
    except ImportError as error:
        why.append(str(error))
    try:
        import cupy
    except ImportError as error:
        why.append(str(error))
    else:
        try:
            cupy.cuda.Device(place % cupy.cuda.runtime.getDeviceCount()).use()
            return lambda count: cupy.ones(count, dtype=dtype)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            why.append(f"CuPy: {error}")
    raise UnsupportedError(f"no GPU can be used here ({'; '.join(why)}): tune without --device cuda")


def measure(
    comm: "Communicator", arrays: Arrays, collective: str, nbytes: int, *, dtype: str = "float32", turns: int = 5
) -> dict[Candidate, float]:
    """Microseconds of each candidate for `nbytes`, the median of the slowest rank's. Collective."""
    call = call_of(comm, arrays, collective, max(1, nbytes // ITEMSIZE[dtype]))
    call(blocking=False).wait()  # the first call finds what paths there are
    paths = comm._device().paths
    found = candidates(collective, nbytes, comm.size, paths)
    there = [Candidate(name, tuple(sorted(params.items()))) for name, params in found]
    times: dict[Candidate, list[float]] = {each: [] for each in there}
    order = random.Random(nbytes)  # the same on all ranks
    for turn in range(turns + 1):
        order.shuffle(there)
        for each in there:
            comm.barrier()
            began = time.perf_counter()
            work = call(blocking=False, algorithm=each.algorithm, **each.params)
            while not work.done():
                pass
            if turn:  # the first loads kernels
                times[each].append((time.perf_counter() - began) * 1e6)
    mine = [int(1e3 * sorted(times[each])[turns // 2]) for each in sorted(times, key=str)]
    slowest = [max(said) / 1e3 for said in zip(*comm._group.comm.words(*mine), strict=True)]
    return dict(zip(sorted(times, key=str), slowest, strict=True))


def call_of(comm: "Communicator", arrays: Arrays, collective: str, count: int) -> Callable[..., Any]:
    """The collective on arrays of its own, for a message of so many elements; root is rank 0."""
    part, root = len(range(count)[chunk(count, comm.size, comm.rank)]), comm.rank == 0
    match collective:
        case "allreduce" | "reduce" | "broadcast":
            return partial(getattr(comm, collective), arrays(count))
        case "reduce_scatter":
            return partial(comm.reduce_scatter, arrays(count), arrays(part))
        case "allgather":
            return partial(comm.allgather, arrays(part), arrays(count))
        case "gather":
            return partial(comm.gather, arrays(part), arrays(count) if root else None, count=count)
        case "scatter":
            return partial(comm.scatter, arrays(count) if root else None, arrays(part), count=count)
        case "alltoall":
            return partial(comm.alltoall, arrays(count), arrays(comm.size * part))
    raise UnsupportedError(f"{collective} on GPUs is not tuned")


def place_of_gpu(comm: "Communicator") -> Place:
    """What a table for this communicator's GPU says of where it was measured."""
    return msgspec.structs.replace(place_of(comm.topology), device=comm._device().names[0])


def rules(collective: str, measured: Sequence[tuple[int, dict[Candidate, float]]]) -> list[Rule]:
    """A rule for each size, sizes ascending; borders as the tuner's."""
    found = []
    for i, (nbytes, times) in enumerate(measured):
        best, *others = sorted(times, key=times.__getitem__)
        second = next((each for each in others if each.algorithm != best.algorithm), None)
        runner_up = None if second is None else RunnerUp(
            algorithm=second.algorithm, params=second.params, median_us=rounded(times[second])
        )  # fmt: skip
        low = border(measured[i - 1][0], nbytes) + 1 if i else 0
        high = border(nbytes, measured[i + 1][0]) if i + 1 < len(measured) else None
        found.append(
            Rule(
                collective=collective, storage=GPU, min_bytes=low, max_bytes=high, algorithm=best.algorithm,
                params=best.params, measured_bytes=nbytes, median_us=rounded(times[best]), runner_up=runner_up,
            )
        )  # fmt: skip
    return found
