"""Ranks that wait for each other in two communicators, for the flight recorder: argv[1] is how it ends.

The first two ranks wait in calls that another one has not made; the first gets SIGUSR1 meanwhile. Then "kill" ends the
last rank, and its launcher all; "circle" lets deadlines pass.
"""

import os
import signal
import sys
import threading
import time
from array import array

import collectives

SECONDS = 3.0


def main(way: str) -> None:
    one, other = collectives.Communicator(timeout=4), collectives.Communicator(timeout=120)
    x = array("f", [1] * 100)
    one.allreduce(x, op="max")  # compiles it
    for _ in range(69):  # more than the record holds
        one.allreduce(x)
    other.allreduce(x, algorithm="ring")
    if one.rank == 0:
        threading.Timer(SECONDS / 2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
    if one.rank == 2 and way == "kill":
        time.sleep(SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)
    first, then = (one, other) if one.rank != 1 else (other, one)
    first.allreduce(x, op="max", algorithm="ring")
    then.allreduce(x, op="max", algorithm="ring")


if __name__ == "__main__":
    main(sys.argv[1])
