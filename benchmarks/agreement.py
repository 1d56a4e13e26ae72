"""What agreement costs: small allreduces on a communicator whose ranks compare their calls, and on one that does not.

    python -m benchmarks.agreement [--bytes 8] [--json FILE]

Two ranks of a node. The second communicator publishes on a board of its own, which nobody else reads, and believes that
all calls have been compared. What both do is not in the difference: writing a line of the board and, where all give
each other everything, as at 8 bytes, setting and comparing a digest in the line that is read anyway. Loops of 2,000
calls of a plan, in random order; nanoseconds, medians of the slower rank.
"""

import argparse
import ctypes
import random
import sys
import time

import torch
from mpi4py import MPI

import collectives
from benchmarks.timing import Calls, shown, under_ranks, write
from collectives.native import layout as st
from tuner.statistics import median_interval, ratio_interval

LOOP, LOOPS = 2000, 41
WITH, WITHOUT = "calls are compared", "calls are not compared"


def part(comm: collectives.Communicator) -> object:
    """Let the communicator's ranks compare nothing from here on; gives what must live as long."""
    endpoint = comm._channel.endpoint
    board = (ctypes.c_int64 * (st.BOARD_BYTES // 8 * comm.size + 8))()
    words, address = endpoint.words, (ctypes.addressof(board) + 63) // 64 * 64
    words[st.BOARD], words[st.GATE_LIMIT] = address, 1 << 62
    for rank in range(comm.size):
        words[words[st.COMPARED_AT] + rank] = 1 << 62
    return board


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=8)
    parser.add_argument("--json", help="a file for the figures")
    options = parser.parse_args()
    if (status := under_ranks(2, "benchmarks.agreement")) is not None:
        return status
    world = MPI.COMM_WORLD
    with collectives.Communicator() as comm, collectives.Communicator() as other:
        x = torch.zeros(max(1, options.bytes // 4))
        doors: Calls = {WITH: comm.plan("allreduce", x), WITHOUT: other.plan("allreduce", x)}
        for call in doors.values():
            call()
        world.Barrier()
        board = part(other)
        times: dict[str, list[float]] = {name: [] for name in doors}
        order = random.Random(1)
        for _ in range(LOOPS):
            for name in order.sample(list(doors), len(doors)):
                world.Barrier()
                begin = time.perf_counter()
                for _ in range(LOOP):
                    doors[name]()
                times[name].append((time.perf_counter() - begin) / LOOP * 1e9)
        slower = {
            name: [max(each) for each in zip(*world.allgather(mine), strict=True)] for name, mine in times.items()
        }
        medians = {name: median_interval(all_).median for name, all_ in slower.items()}
        ratio = shown(ratio_interval(slower[WITH], slower[WITHOUT]))
        if comm.rank == 0:
            for name, median in medians.items():
                print(f"{name:28}{median:8.0f} ns")
            print(f"difference {medians[WITH] - medians[WITHOUT]:.0f} ns, ratio {ratio}")
        write(options.json, comm, bytes=4 * x.numel(), nanoseconds=medians, ratio=ratio)
        world.Barrier()
        del board
    return 0


if __name__ == "__main__":
    sys.exit(main())
