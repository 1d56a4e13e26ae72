"""One rank of a job in which one rank goes wrong: at its k-th collective, at the s-th thing that compiled code does.

What compiled code does is seen where it calls by address: reduction kernels, node kernels' pieces, MPI's sends. Where a
call does none of that, or not so many, a fault strikes some microseconds after its start, or not at all.
"""

import ctypes
import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import collectives
from collectives import layout as at
from collectives.algorithms import find
from collectives.handles import Persistent
from collectives.native import layout as st
from collectives.native.program import Program

CALLS, DEADLINE = 12, 1.5  # of a job; seconds
DELAY, SOON = 0.3, 0.02
KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)
STEP = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)
SEND = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 7)


class Job(NamedTuple):
    """What goes wrong and where. `after_us`: strike by a timer, not by counting."""

    number: int
    size: int
    fault: str  # kill, stop, delay, raise, drop
    victim: int
    call: int
    step: int
    after_us: int
    collective: str
    algorithm: str
    counts: tuple[int, ...]
    symmetric: bool
    environment: dict[str, str]


class Struck(ArithmeticError):
    """What a rank raises when it is told to."""


def strike(fault: str, log: int) -> None:
    os.write(log, b"%d" % time.monotonic_ns())
    if fault == "delay":
        time.sleep(DELAY)
    elif fault == "raise":
        signal.setitimer(signal.ITIMER_REAL, SOON)  # not here: what a callback raises is lost
    else:
        os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)


def drop(_call: Any, request: int) -> int:
    """As if MPI_Isend had sent."""
    from mpi4py import MPI

    null = MPI._handleof(MPI.REQUEST_NULL)
    size = MPI._sizeof(MPI.Request)
    ctypes.memmove(request, null.to_bytes(8, "little", signed=null < 0), size)
    return 0


class Trap:
    """The victim's hooks in the program of one call."""

    def __init__(self, job: Job, comm: collectives.Communicator, log: int):
        self.job, self.comm, self.log = job, comm, log
        self.count, self.keep = 0, []  # type: int, list[Any]
        self.hooked: list[tuple[Any, int, int]] = []
        self.timer: threading.Timer | None = None

    def due(self) -> bool:
        self.count += 1
        return self.count == self.job.step

    def set(self, program: Program) -> None:
        job, words = self.job, self.comm._channel.endpoint.words
        if job.after_us:
            self.timer = threading.Timer(job.after_us / 1e6, strike, (job.fault, self.log))
            self.timer.start()
            return
        if job.fault != "drop":
            self.hook(program.state, st.KERNEL, KERNEL)
            memory = program.memory.words(0, program.memory.n_bytes // 8)
            for row in range(memory[at.ROWS], memory[at.ROWS] + program.table.n_rows * at.ROW_WORDS, at.ROW_WORDS):
                if memory[row + at.KIND] == at.FUSED:
                    self.hook(memory, row + at.FUNCTION, STEP)
        if words[st.MPI_ISEND]:
            self.hook(words, st.MPI_ISEND, SEND)

    def unset(self) -> None:
        for words, index, address in self.hooked:
            words[index] = address

    def hook(self, words: Any, index: int, kind: Any) -> None:
        """Put a function that counts in the place of a compiled one."""
        self.hooked.append((words, index, words[index]))
        real: Callable[..., Any] = kind(words[index])

        def act(*args: int) -> Any:
            if self.due():
                self.unset()
                if self.job.fault == "drop":
                    os.write(self.log, b"%d" % time.monotonic_ns())
                    return drop(args, args[-1])
                strike(self.job.fault, self.log)
            return real(*args)

        self.keep += [act, kind(act)]
        words[index] = ctypes.cast(self.keep[-1], ctypes.c_void_p).value


def expect_to_raise() -> None:
    """Raise when the alarm comes, and again where Python swallowed it: a weak reference's callback had been running."""
    seen = sys.unraisablehook

    def swallowed(what: Any) -> None:
        if isinstance(what.exc_value, Struck):
            signal.setitimer(signal.ITIMER_REAL, SOON)
        else:
            seen(what)

    sys.unraisablehook = swallowed
    signal.signal(signal.SIGALRM, on_alarm)


def on_alarm(*_: Any) -> None:
    raise Struck("told to go wrong")


def wait_to_raise(trap: Trap) -> None:
    """Not end before the alarm that is set, or about to be."""
    if trap.timer is not None:
        trap.timer.join()
    while signal.getitimer(signal.ITIMER_REAL)[0]:
        time.sleep(SOON)


def memory(comm: collectives.Communicator, job: Job, values: Sequence[int], room: int) -> Any:
    """These numbers as int32, in the kind of memory that the job wants, which has room for so many on all ranks."""
    filled = array("i", values)
    if not job.symmetric:
        return filled
    x = memoryview(comm.empty(room, "int32")).cast("B").cast("i")[: len(filled)]
    x[:] = memoryview(filled)
    return x


def one_call(comm: collectives.Communicator, job: Job, turn: int, trap: Trap | None) -> bool:
    """A collective of the job, by a plan; whether its result is right."""
    count, size, me = job.counts[turn], comm.size, comm.rank
    root, part = turn % size, collectives.chunk(count, size, me)
    total = range(size * turn + size * (size - 1) // 2, size * (turn + count) + size * (size - 1) // 2, size)
    mine, how = range(turn + me, turn + me + count), {"algorithm": job.algorithm}
    wanted: Sequence[int]
    plan: Any
    match job.collective:
        case "barrier" if turn % 2:
            signs = comm._calls.barrier()
            result, wanted, plan = array("i"), (), Persistent(comm._channel, signs)
        case "allreduce" | "barrier":  # in turn, or a barrier that is left out would be taken for the next one
            how = how if job.collective == "allreduce" else {}
            x, wanted = memory(comm, job, mine, count), total
            result, plan = x, comm.plan("allreduce", x, **how)
        case "reduce":
            x, result = memory(comm, job, mine, count), memory(comm, job, range(count), count)
            wanted = total if me == root else range(count)
            plan = comm.plan("reduce", x, root, result, **how)
        case "broadcast":
            x, wanted = memory(comm, job, mine, count), range(turn + root, turn + root + count)
            result, plan = x, comm.plan("broadcast", x, root, **how)
        case "reduce_scatter":
            x, wanted = memory(comm, job, mine, count), total[part]
            result = memory(comm, job, range(len(wanted)), count)
            plan = comm.plan("reduce_scatter", x, result, **how)
        case "gather":
            wanted = range(turn, turn + count)
            x, result = memory(comm, job, wanted[part], count), memory(comm, job, range(count), count)
            plan = comm.plan("gather", x, result, root, count, **how)
            wanted = wanted if me == root else range(count)
        case "scatter":
            wanted = range(turn, turn + count)[part]
            x, result = (memory(comm, job, values, count) for values in (range(turn, turn + count), range(len(wanted))))
            plan = comm.plan("scatter", x, result, root, count, **how)
        case "alltoall" if turn % 2 and not find("alltoall", job.algorithm).refusal(size, comm.topology.nodes, True):
            lengths = [[count // size + (source + 2 * to) % 3 for to in range(size)] for source in range(size)]
            first = [[turn + 10 * source + to for to in range(size)] for source in range(size)]
            given, blocks = array("i"), array("i")
            for rank in range(size):
                given.extend(range(first[me][rank], first[me][rank] + lengths[me][rank]))
                blocks.extend(range(first[rank][me], first[rank][me] + lengths[rank][me]))
            x, result = (memory(comm, job, values, count + 3 * size) for values in (given, range(len(blocks))))
            plan, wanted = comm.plan("alltoall", x, result, lengths[me], **how), blocks
        case "alltoall":
            blocks = array("i")
            for rank in range(size):
                blocks.extend(range(turn + rank, turn + rank + count)[part])
            x = memory(comm, job, mine, count)
            result = memory(comm, job, range(len(blocks)), size * count)
            plan, wanted = comm.plan("alltoall", x, result, **how), blocks
        case _:
            wanted = range(turn, turn + count)
            x, result = memory(comm, job, wanted[part], count), memory(comm, job, range(count), count)
            plan = comm.plan("allgather", x, result, **how)
    if trap is not None:
        trap.set(plan._program)
    plan()
    if trap is not None:
        trap.unset()
    return bytes(memoryview(result).cast("B")) == array("i", wanted).tobytes()


def work(comm: collectives.Communicator, job: Job, log: int) -> None:
    """All calls of the job. Says WRONG where a result is, and what has come to its end."""
    trap = Trap(job, comm, log)
    raises = job.fault == "raise" and comm.rank == job.victim
    if raises:
        expect_to_raise()
    for turn in range(CALLS):
        struck = turn == job.call and comm.rank == job.victim
        if struck and job.step == 0 and not job.after_us:
            if job.fault == "drop":  # the whole call
                os.write(log, b"%d" % time.monotonic_ns())
                continue
            strike(job.fault, log)
            struck = False
        if not one_call(comm, job, turn, trap if struck else None):
            print(f"WRONG: rank {comm.rank}, call {turn} of {job}", flush=True)
    if raises:
        wait_to_raise(trap)
    comm.barrier()
    print("came to the end", flush=True)
