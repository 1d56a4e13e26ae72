"""The last rank goes wrong while the others wait for it, and nobody catches anything: argv[1] is the way.

The job must end, not zero. What it does is in the dictionary. With "symmetric" as argv[2] memory is symmetric.
"""

import os
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable

import collectives
from tests.programs import world

DEADLINE = 3.0


def boom(_: collectives.Communicator) -> None:
    raise ArithmeticError("the last rank exploded")


def within(comm: collectives.Communicator, algorithm: str) -> None:
    """Killed in the middle of some node kernel's call, of which it takes thousands a second."""
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
    endless(comm, algorithm)


def endless(comm: collectives.Communicator, algorithm: str) -> None:
    x = array("f", bytes(4 << 20))
    while True:
        comm.allreduce(x, algorithm=algorithm)


WAYS: dict[str, Callable[[collectives.Communicator], object]] = {
    "raise": boom,
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda _: sys.exit(5),
    "end": lambda _: None,
    "sleep": lambda _: time.sleep(1000),
    "abort": lambda comm: comm.abort("the last rank has seen enough"),
    "differ": lambda comm: comm.allreduce(array("f", [1] * 5)),
    "kill inside": lambda comm: within(comm, "two_shot"),
    "kill inside, copying": lambda comm: within(comm, "single_copy"),
    "interrupt": lambda _: time.sleep(2),  # while it is awaited, somebody stops the first rank
}

if __name__ == "__main__":
    way = sys.argv[1]
    with world.communicator(timeout=DEADLINE) as comm:
        x = comm.empty(5000) if sys.argv[2:] == ["symmetric"] else array("f", [1] * 1000)
        comm.allreduce(x)
        if comm.rank == comm.size - 1:
            WAYS[way](comm)
        elif way == "interrupt" and comm.rank == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        elif way.startswith("kill inside"):
            endless(comm, "single_copy" if way.endswith("copying") else "two_shot")
        if way not in ("end", "differ") or comm.rank < comm.size - 1:
            comm.allreduce(x)
            comm.barrier()
            print("came to the end", flush=True)
        elif way == "end":
            sys.exit()
