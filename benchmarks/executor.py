"""The executor against rings written by hand and the MPI library's own allreduce, over the same links.

    python -m benchmarks.executor -n 2 [--json FILE] [--sizes 65536,1048576] [--links mpi]

In place, on an input freshly written before each call, contenders in random order; times are medians, in microseconds,
of the slowest rank. Ratios are of pairs in the same repetition, with their 95 % interval.
"""

import argparse
import sys

import torch
from mpi4py import MPI

import collectives
from benchmarks.timing import Calls, interleaved, repetitions, shown, under_ranks, write
from tests.control.ring import Ring
from tuner.statistics import median_interval, ratio_interval

PIECES = {"shared-memory": 1 << 15, "mpi": 1 << 17}
DOUBLING_BYTES = 1 << 11  # up to which MPI libraries double recursively


def contenders(comm: "collectives.Communicator", x: torch.Tensor, ring: Ring) -> Calls:
    address, n_bytes = x.data_ptr(), 4 * x.numel()
    by_hand = ring.by_mpi if comm.topology.links == ("mpi",) else ring.by_fifo
    library = [MPI.memory.fromaddress(address, n_bytes), MPI.FLOAT]
    alike = "recursive_doubling" if n_bytes <= DOUBLING_BYTES else "halving_doubling"
    return {
        "ring": comm.plan("allreduce", x, algorithm="ring"),
        "by hand": lambda: by_hand(address, n_bytes),
        "alike": comm.plan("allreduce", x, algorithm=alike),
        "library": lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, library),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--links", choices=("any", "mpi"), default="any", help="mpi: no shared memory")
    parser.add_argument("--sizes", default="8,1024,16384,65536,262144,1048576,4194304,16777216", help="bytes")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each size")
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    links = {"TREERING_LINKS": "mpi"} if options.links == "mpi" else {}
    if (status := under_ranks(options.n, "benchmarks.executor", links)) is not None:
        return status
    torch.set_num_threads(1)
    rows = []
    with collectives.Communicator() as comm:
        ring = Ring(MPI.COMM_WORLD, PIECES[comm.topology.links[0]])
        if comm.rank == 0:
            print(comm.topology.fingerprint)
            print(f"{'bytes':>10}{'ring':>10}{'by hand':>10}{'ratio':>24}{'alike':>10}{'library':>10}{'ratio':>24}")
        for n_bytes in map(int, options.sizes.split(",")):
            x = torch.empty(max(1, n_bytes // 4))
            calls, right = contenders(comm, x, ring), comm.size * (comm.size + 1) / 2
            once = interleaved(comm, x, calls, 5, right)
            times = interleaved(comm, x, calls, repetitions(once, options.seconds))
            medians = {name: median_interval(each).median for name, each in times.items()}
            hand, library = (ratio_interval(times[a], times[b]) for a, b in (("ring", "by hand"), ("alike", "library")))
            rows.append({"bytes": n_bytes, **medians, "to_hand": shown(hand), "to_library": shown(library)})
            if comm.rank == 0:
                cells = (*(medians[name] for name in ("ring", "by hand")), shown(hand))
                more = (*(medians[name] for name in ("alike", "library")), shown(library))
                print(f"{n_bytes:>10}", *(f"{a:>9.1f} {b:>9.1f} {c:>23}" for a, b, c in (cells, more)), flush=True)
        write(options.json, comm, ranks=comm.size, rows=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
