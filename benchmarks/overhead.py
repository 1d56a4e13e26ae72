"""What a call costs in Python: the same small allreduce, back to back, by several doors.

    python -m benchmarks.overhead -n 1        the call alone: nobody to wait for
    python -m benchmarks.overhead -n 2 [--bytes 8] [--json FILE]

Microseconds a call in loops of 2,000, doors in random order, medians of the slowest rank; ratios to mpi4py's Allreduce
of the same tensor, with their 95 % interval.
"""

import argparse
import random
import sys
import time

import torch
from mpi4py import MPI

import collectives
from benchmarks.timing import Calls, shown, under_ranks, write
from tuner.statistics import median_interval, ratio_interval

LOOP, LOOPS = 2000, 21


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    if (status := under_ranks(options.n, "benchmarks.overhead")) is not None:
        return status
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    with collectives.Communicator() as comm:
        x = torch.zeros(max(1, options.bytes // 4))
        doors: Calls = {
            "mpi4py Allreduce(tensor)": lambda: world.Allreduce(MPI.IN_PLACE, x),
            "comm.allreduce(tensor)": lambda: comm.allreduce(x),
            "plan()": comm.plan("allreduce", x),
        }
        times: dict[str, list[float]] = {name: [] for name in doors}
        order = random.Random(1)
        for _ in range(LOOPS):
            names = list(doors)
            order.shuffle(names)
            for name in names:
                call = doors[name]
                world.Barrier()
                begin = time.perf_counter()
                for _ in range(LOOP):
                    call()
                times[name].append((time.perf_counter() - begin) / LOOP * 1e6)
        slowest = {
            name: [max(each) for each in zip(*world.allgather(mine), strict=True)] for name, mine in times.items()
        }
        theirs = slowest["mpi4py Allreduce(tensor)"]
        rows = [
            {"door": name, "median_us": median_interval(ours).median, "to_mpi4py": shown(ratio_interval(ours, theirs))}
            for name, ours in slowest.items()
        ]
        if comm.rank == 0:
            print(f"{comm.topology.fingerprint}, {4 * x.numel()} bytes")
            for row in rows:
                print(f"{row['door']:28}{row['median_us']:8.2f} us   ratio {row['to_mpi4py']}")
        write(options.json, comm, ranks=comm.size, bytes=4 * x.numel(), rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
