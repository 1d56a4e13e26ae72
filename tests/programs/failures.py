"""What goes wrong and is seen by Python: python -m tests.programs.failures. Each case on communicators of its own.

Rank 0 prints {case: [what each rank saw]} as JSON; then the job ends, not zero, since communicators are broken.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import collectives
from collectives.errors import CollectiveError, MismatchError
from tests.programs import world

RANK, LAST = world.RANK, world.SIZE - 1
DEADLINE, PATIENCE = 2.0, 6.0  # seconds, of calls that are late and of those that differ
LARGE = 409_600
Seen = dict[str, Any]


def attempt(call: Callable[[], Any]) -> Seen:
    """What a call raises, and how long it takes."""
    began = time.monotonic()
    try:
        call()
    except (CollectiveError, ValueError, TypeError, KeyboardInterrupt) as error:
        seen: Seen = {"type": type(error).__name__, "text": str(error)}
        if isinstance(error, MismatchError):
            seen |= {"field": error.field, "ranks": error.ranks, "values": list(map(str, error.values))}
    else:
        seen = {"type": "", "text": ""}
    return seen | {"seconds": time.monotonic() - began}


def then(comm: collectives.Communicator, *calls: Callable[[], Any]) -> Seen:
    """The first of the calls that raises; then another collective, which must fail at once."""
    seen = next((seen for seen in map(attempt, calls) if seen["type"]), attempt(lambda: None))
    return seen | {"later": attempt(lambda: comm.allreduce(torch.ones(2))), "barrier": attempt(comm.barrier)}


def new(**settings: Any) -> collectives.Communicator:
    return world.communicator(**{"timeout": DEADLINE, **settings})


def differ(usual: Callable[[Any], Any], other: Callable[[Any], Any], before: int = 1) -> Callable[[], Seen]:
    """The last rank calls something else. What only some ranks notice, all notice in their next call."""

    def case() -> Seen:
        comm = new(timeout=PATIENCE)
        for _ in range(before):
            comm.allreduce(torch.ones(3))
        call = other if RANK == LAST else usual
        return then(comm, lambda: call(comm), comm.barrier)

    return case


def straddling() -> Seen:
    """Counts on two sides of the size from which another algorithm serves."""
    comm = new(timeout=PATIENCE)

    def serving(count: int) -> str:
        return comm.explain("allreduce", nbytes=4 * count).algorithm

    low = next(count for count in (1 << bits for bits in range(24)) if serving(2 * count) != serving(count))
    high = 2 * low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if serving(middle) == serving(low) else (low, middle)
    count = high if RANK == LAST else low
    seen = then(comm, lambda: comm.allreduce(ones(count)), comm.barrier)
    return seen | {"algorithms": [serving(low), serving(high)]}


def ones(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(count, dtype=dtype)


def counted(comm: collectives.Communicator, from_first: int) -> Any:
    """An alltoall of one element to each rank, which expects so many from the first."""
    receives = [from_first, *[1] * (comm.size - 1)]
    return comm.alltoall(ones(comm.size), send_counts=[1] * comm.size, recv_counts=receives)


# ---------------------------------------------------------------- time
def late() -> Seen:
    comm = new()
    comm.allreduce(ones(3))
    if RANK == LAST:
        time.sleep(DEADLINE + 1)
    return then(comm, lambda: comm.allreduce(ones(1000)))


def late_to(meeting: Callable[[collectives.Communicator], Any]) -> Callable[[], Seen]:
    """What is no call, and all must do."""

    def case() -> Seen:
        comm = new()
        comm.allreduce(ones(3))
        if RANK == LAST:
            time.sleep(DEADLINE + 1)
        return then(comm, lambda: meeting(comm))

    return case


def late_for_this_call() -> Seen:
    """A deadline of its own, shorter than the communicator's."""
    comm = new(timeout=60)
    if RANK == LAST:
        time.sleep(2)
    return then(comm, lambda: comm.allreduce(ones(1000), timeout=1))


def missing_where_memory_is_made() -> Seen:
    """The last rank calls a barrier instead, and never comes to what is no call."""
    comm = new()
    return then(comm, comm.barrier if RANK == LAST else lambda: comm.empty(1000))


def impatient() -> Seen:
    """Waiting for a work no longer breaks nothing: the work ends well, and so does what comes after."""
    comm = new(timeout=60)
    if RANK == LAST:
        time.sleep(1)
    x = ones(1000)
    work = comm.allreduce(x, blocking=False)
    seen = attempt(lambda: work.wait(timeout=0.2)) if RANK != LAST else attempt(work.wait)
    work.wait()
    comm.allreduce(x)
    comm.close()
    return seen | {"right": bool((x == world.SIZE**2).all())}


def crossed() -> Seen:
    """Two groups, called in another order on the last rank."""
    one, other = new(), new(timeout=DEADLINE + 0.5)
    pair = [one, other] if RANK < LAST else [other, one]
    return then(pair[0], lambda: pair[0].allreduce(ones(20)))


def abandoned() -> Seen:
    """A work that nobody waits for, and that never ends well: closing says so."""
    comm = new()
    if RANK == LAST:
        time.sleep(DEADLINE + 1)
        return attempt(comm.abort.__str__)
    comm.allreduce(ones(1000), blocking=False)
    return attempt(comm.close)


# ---------------------------------------------------------------- interrupts
def interrupted(call: Callable[[], Any], after: float) -> Callable[[], Any]:
    """The call, with KeyboardInterrupt so many seconds after its start."""

    def run() -> None:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, after)
        call()

    return run


def interrupt(blocking: bool) -> Callable[[], Seen]:
    """On the first rank, while it waits for the last one."""

    def case() -> Seen:
        comm = new(timeout=60)
        comm.allreduce(ones(3))
        if RANK == LAST:
            time.sleep(1.5)
        call = (lambda: comm.allreduce(ones(1000))) if blocking else comm.allreduce(ones(1000), blocking=False).wait
        return then(comm, call if RANK else interrupted(call, 0.5))

    return case


def interrupt_at_once() -> Seen:
    """In the short time in which nobody has noted yet that the call must be waited for."""
    comm = new(timeout=60)
    plan: Any = comm.plan("allreduce", ones(1000))
    plan()
    if RANK == LAST:
        time.sleep(0.5)
    program = plan._program
    run = program.run

    def run_and_raise(*buffers: int) -> int:
        status = run(*buffers)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.raise_signal(signal.SIGALRM)
        return status

    if RANK == 0:
        program.run = run_and_raise
    return then(comm, plan)


# ---------------------------------------------------------------- settings
def setting(name: str, value: Any) -> Callable[[], Seen]:
    """The last rank's differs; a communicator made afterwards serves."""

    def case() -> Seen:
        seen = attempt(lambda: new(**({name: value} if RANK == LAST else {})))
        with new() as comm:
            comm.allreduce(x := ones(3))
            return seen | {"right": bool((x == world.SIZE).all())}

    return case


def closed() -> Seen:
    comm = new()
    plan = comm.plan("allreduce", ones(3))
    comm.close()
    calls: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: comm.allreduce(ones(3)),
        "list": lambda: comm.allreduce([ones(3)]),
        "plan": lambda: comm.plan("allreduce", ones(3)),
        "made before": plan,
        "barrier": comm.barrier,
        "split": lambda: comm.split(0),
        "broadcast": lambda: comm.broadcast(ones(3)),
    }
    return {name: attempt(call) for name, call in calls.items()}


CASES: dict[str, Callable[[], Any]] = {
    "count": differ(lambda c: c.allreduce(ones(LARGE)), lambda c: c.allreduce(ones(LARGE - 2))),
    "count after many calls": differ(
        lambda c: c.allreduce(ones(LARGE)), lambda c: c.allreduce(ones(LARGE - 2)), before=200
    ),
    "small count": differ(lambda c: c.allreduce(ones(5)), lambda c: c.allreduce(ones(6))),
    "count of a ring": differ(
        lambda c: c.allreduce(ones(LARGE), algorithm="ring", segment_bytes=65536),
        lambda c: c.allreduce(ones(LARGE - 2), algorithm="ring", segment_bytes=65536),
    ),
    "nothing": differ(lambda c: c.allreduce(ones(0)), lambda c: c.allreduce(ones(6))),
    "dtype": differ(lambda c: c.allreduce(ones(900)), lambda c: c.allreduce(ones(900, torch.bfloat16))),
    "dtype of one size": differ(lambda c: c.allreduce(ones(900)), lambda c: c.allreduce(ones(900, torch.int32))),
    "op": differ(lambda c: c.allreduce(ones(900)), lambda c: c.allreduce(ones(900), op="max")),
    "collective": differ(lambda c: c.allreduce(ones(900)), lambda c: c.broadcast(ones(900))),
    "barrier for a sum": differ(lambda c: c.allreduce(ones(900)), lambda c: c.barrier()),
    "root": differ(lambda c: c.broadcast(ones(900)), lambda c: c.broadcast(ones(900), root=1)),
    "broadcast of another count": differ(lambda c: c.broadcast(ones(90)), lambda c: c.broadcast(ones(91))),
    "algorithm": differ(
        lambda c: c.allreduce(ones(900), algorithm="ring"),
        lambda c: c.allreduce(ones(900), algorithm="recursive_doubling"),
    ),
    "parameters": differ(
        lambda c: c.allreduce(ones(LARGE), algorithm="ring", segment_bytes=65536),
        lambda c: c.allreduce(ones(LARGE), algorithm="ring", segment_bytes=32768),
    ),
    "precision": differ(
        lambda c: c.allreduce(ones(900, torch.float16), algorithm="ring"),
        lambda c: c.allreduce(ones(900, torch.float16), algorithm="ring", precision="accurate"),
    ),
    "straddling": lambda: straddling(),
    "call site": differ(
        lambda c: c.allreduce(ones(9)),
        lambda c: c.allreduce(ones(9)),
    ),
    "one call less": differ(lambda c: [c.allreduce(ones(9)), c.allreduce(ones(9))], lambda c: c.allreduce(ones(9))),
    "counts or none": differ(
        lambda c: c.alltoall(ones(6 * c.size)), lambda c: c.alltoall(ones(6 * c.size), send_counts=[6] * c.size)
    ),
    "counts": differ(lambda c: counted(c, 1), lambda c: counted(c, 2)),
    "late": late,
    "late to empty": late_to(lambda c: c.empty(10)),
    "late to register": late_to(lambda c: c.register(ones(10))),
    "late to split": late_to(lambda c: c.split(0)),
    "late for this call": late_for_this_call,
    "missing where memory is made": missing_where_memory_is_made,
    "impatient": impatient,
    "crossed": crossed,
    "abandoned": abandoned,
    "interrupt": interrupt(blocking=True),
    "interrupt of a wait": interrupt(blocking=False),
    "interrupt at once": interrupt_at_once,
    "algorithm setting": setting("algorithm", "ring"),
    "timeout setting": setting("timeout", 77),
    "table on one rank": setting("table", os.environ.get("TREERING_TEST_TABLE")),
    "no such table": setting("table", "/nowhere/table.json"),
    "no such algorithm": setting("algorithm", "rong"),
    "closed": closed,
}


def warm() -> None:
    """Compile what the cases need, which takes longer than their deadlines."""
    with new(timeout=120) as comm:
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int32):
            comm.allreduce(ones(3, dtype))
        comm.allreduce(ones(3), op="max")
        comm.allreduce(ones(3, torch.float16), algorithm="ring", precision="accurate")
        comm.broadcast(ones(3))
        comm.barrier()


def main(names: list[str]) -> None:
    warm()
    seen = {}
    for name in names or CASES:
        world.barrier()
        seen[name] = world.everyone(CASES[name]())
        if os.environ.get("TREERING_TEST_VERBOSE") and RANK == 0:
            print(name, json.dumps(seen[name]), file=sys.stderr, flush=True)
    if RANK == 0:
        print(json.dumps(seen), flush=True)
    world.barrier()


if __name__ == "__main__":
    main(sys.argv[1:])
