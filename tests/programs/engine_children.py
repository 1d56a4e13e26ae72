"""Child processes, forked and spawned, that import collectives at their head: they never initialise MPI.

Rank 0 prints {way: [what each child of each rank found]}. A child's end, whatever its status, disturbs nobody.
"""

import json
import multiprocessing
import sys
from array import array

import collectives


def look(status: int) -> None:
    """In the child: leave with 10 if MPI was initialised here and not inherited, else as told."""
    mpi = sys.modules.get("mpi4py.MPI")
    inherited = multiprocessing.get_start_method(allow_none=True) == "fork"
    sys.exit(10 if mpi is not None and not inherited else status)


def main() -> None:
    found = {}
    with collectives.Communicator(timeout=60) as comm:
        for way in ("fork", "spawn"):
            multiprocessing.set_start_method(way, force=True)
            children = [multiprocessing.Process(target=look, args=(status,)) for status in (0, 3)]
            for child in children:
                child.start()
            for child in children:
                child.join(60)
            found[way] = [child.exitcode for child in children]
            x = array("f", [1] * 5)
            comm.allreduce(x)
            found[way].append(list(x) == [comm.size] * 5)
        from mpi4py import MPI

        everyone = MPI.COMM_WORLD.gather(found)
    if everyone is not None:
        print(json.dumps({way: [seen[way] for seen in everyone] for way in found}))


if __name__ == "__main__":
    main()
