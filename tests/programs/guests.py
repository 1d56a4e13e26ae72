"""What else lives in a rank's process: threads, forked children, others who use MPI. argv[1] says which.

Rank 0 prints {case: [what each rank saw]} as JSON. All ranks end well, but for `threads`, which breaks a communicator.
"""

import json
import os
import sys
import threading
from array import array
from collections.abc import Callable
from typing import Any

import collectives
from collectives.errors import CollectiveError

THREADS, ROUNDS = 4, 12


def attempt(call: Callable[[], Any]) -> str:
    """What a call raises, or nothing."""
    try:
        call()
    except (CollectiveError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def show(rank: int, seen: dict[str, list[Any]]) -> None:
    if rank == 0:
        print(json.dumps(seen), flush=True)


def at_once(work: Callable[[int], None]) -> None:
    """In several threads, which are given their numbers."""
    all_ = [threading.Thread(target=work, args=(i,)) for i in range(THREADS)]
    for each in all_:
        each.start()
    for each in all_:
        each.join()


def sums(comm: collectives.Communicator, count: int = 5) -> bool:
    """Whether an allreduce serves."""
    x = array("i", [comm.rank + 1] * count)
    comm.allreduce(x)
    return list(x) == [comm.size * (comm.size + 1) // 2] * count


# ---------------------------------------------------------------- threads
def equal_calls(comm: collectives.Communicator) -> str:
    """In no order at all, by every door, from the first use on."""
    right: list[bool] = []

    def work(_: int) -> None:
        for turn in range(ROUNDS):
            x = array("i", [comm.rank + 1] * 3000)
            if turn % 3 == 0:
                comm.allreduce(x)
            elif turn % 3 == 1:
                comm.allreduce(x, blocking=False).wait()
            else:
                comm.plan("allreduce", x)()
            right.append(list(x) == [comm.size * (comm.size + 1) // 2] * 3000)

    at_once(work)
    return "" if len(right) == THREADS * ROUNDS and all(right) else "WRONG"


def calls_in_turn(comm: collectives.Communicator) -> str:
    """Plans made by all threads at once, of sizes of their own, run in one order that the program sees to."""
    turn, wrong = threading.Condition(), list[str]()
    now = [0]

    def work(me: int) -> None:
        for i in range(me, THREADS * ROUNDS, THREADS):
            count = 10 + 977 * i
            x = array("i", [comm.rank + i] * count)
            plan = comm.plan("allreduce", x)
            with turn:
                turn.wait_for(lambda i=i: now[0] == i)  # type: ignore[misc]
                work = comm.allreduce(x, blocking=False) if i % 2 else plan()
                now[0] += 1
                turn.notify_all()
            if i % 2:
                work.wait()
            if list(x) != [i * comm.size + comm.size * (comm.size - 1) // 2] * count:
                wrong.append(f"call {i}")

    at_once(work)
    return ", ".join(wrong)


def calls_out_of_turn(comm: collectives.Communicator) -> str:
    """Two threads, whose calls differ, and come in another order on the last rank."""
    first, said = threading.Event(), ["", ""]

    def work(me: int) -> None:
        if me > 1:
            return
        if me == (comm.rank < comm.size - 1):
            first.wait(60)
            said[me] = attempt(lambda: comm.allreduce(array("i", [1] * (100 + me))))
        else:
            pending = comm.allreduce(array("i", [1] * (100 + me)), blocking=False)
            first.set()
            said[me] = attempt(pending.wait)

    at_once(work)
    return said[0]


def threads() -> None:
    from tests.programs import world

    comm = world.communicator(timeout=60)
    seen = {"equal": equal_calls(comm), "in turn": calls_in_turn(comm), "out of turn": calls_out_of_turn(comm)}
    show(world.RANK, {case: world.everyone(said) for case, said in seen.items()})
    world.barrier()  # who leaves now ends the others


# ---------------------------------------------------------------- levels and children
def from_a_thread(call: Callable[[], Any]) -> str:
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(attempt(call)))
    thread.start()
    thread.join()
    return said[0]


def in_child(work: Callable[[], str]) -> tuple[str, int]:
    """What a forked child says, and its exit status; it leaves as Python programs do."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, work().encode())
        sys.exit(3)
    os.close(writing)
    with open(reading) as said:
        return said.read(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def level(wanted: str) -> None:
    """MPI at this thread level; then children, which know the rank's communicators, one with a call under way."""
    import mpi4py

    mpi4py.rc.thread_level = wanted
    comm = collectives.Communicator(timeout=60)
    plan = comm.plan("allreduce", array("i", [1] * 5))
    seen: dict[str, Any] = {
        "thread": [from_a_thread(each) for each in (lambda: sums(comm), plan, comm.barrier, collectives.Communicator)],
        "main thread": sums(comm),
    }
    work = comm.allreduce(array("i", [1] * 300_000), blocking=False)
    calls = {"call": lambda: sums(comm), "plan": plan, "work": work.wait, "new": collectives.Communicator}
    seen |= {f"child's {name}": in_child(lambda call=call: attempt(call)) for name, call in calls.items()}  # type: ignore[misc]
    work.wait()
    seen["afterwards"] = sums(comm)
    comm.close()
    from mpi4py import MPI

    show(comm.rank, {case: MPI.COMM_WORLD.allgather(said) for case, said in seen.items()})


# ---------------------------------------------------------------- others who use MPI
def others() -> None:
    """MPI not initialised; then by somebody else, at a time of its own; then finalised by somebody else."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    seen: dict[str, Any] = {"before": attempt(collectives.Communicator)}
    MPI.Init_thread(MPI.THREAD_MULTIPLE)
    comm = collectives.Communicator(timeout=60)
    seen["between"] = sums(comm)
    plan = comm.plan("allreduce", array("i", [1] * 5))
    MPI.Finalize()
    seen |= {"after": attempt(lambda: sums(comm)), "plan": attempt(plan), "new": attempt(collectives.Communicator)}
    comm.close()
    show(comm.rank, {case: [said] for case, said in seen.items()})


if __name__ == "__main__":
    cases: dict[str, Callable[..., None]] = {"threads": threads, "level": level, "others": others}
    cases[sys.argv[1]](*sys.argv[2:])
