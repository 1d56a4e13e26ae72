"""The last rank goes wrong while the others wait for it, and nobody catches anything: argv[1] is the way.

The job must end, not zero. What it does is in the dictionary.
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


WAYS: dict[str, Callable[[collectives.Communicator], object]] = {
    "raise": boom,
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda _: sys.exit(5),
    "end": lambda _: None,
    "sleep": lambda _: time.sleep(1000),
    "abort": lambda comm: comm.abort("the last rank has seen enough"),
    "differ": lambda comm: comm.allreduce(array("f", [1] * 5)),
    "interrupt": lambda _: time.sleep(2),  # while it is awaited, somebody stops the first rank
}

if __name__ == "__main__":
    way = sys.argv[1]
    with world.communicator(timeout=DEADLINE) as comm:
        x = array("f", [1] * 1000)
        comm.allreduce(x)
        if comm.rank == comm.size - 1:
            WAYS[way](comm)
        elif way == "interrupt" and comm.rank == 0:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        if way not in ("end", "differ") or comm.rank < comm.size - 1:
            comm.allreduce(x)
            comm.barrier()
            print("came to the end", flush=True)
        elif way == "end":
            sys.exit()
