"""What agreement costs: small allreduces on communicators whose ranks compare their calls, and on others.

    python -m benchmarks.agreement [--bytes 8] [--json FILE]

Two ranks of a node. One communicator compares; the ranks of the second publish what they call, each on a board that
nobody else reads, and believe that all calls have been compared; the third has no board at all, so nothing is written
either, and nobody would know who waits for whom. What all three do is in no difference: where all give each other
everything, as at 8 bytes, a digest is set and compared in the line that is read anyway. Loops of 2,000 calls of a plan,
in random order; nanoseconds, medians of the slower rank.
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
WITH, WITHOUT, NOTHING = "calls are compared", "calls are not compared", "nor are they written down"


def part(comm: collectives.Communicator, *, writes: bool) -> object:
    """Let the communicator's ranks compare nothing from here on; gives what must live as long."""
    endpoint = comm._channel.endpoint
    board = (ctypes.c_int64 * (st.BOARD_BYTES // 8 * comm.size + 8))()
    words, address = endpoint.words, (ctypes.addressof(board) + 63) // 64 * 64
    words[st.BOARD], words[st.GATE_LIMIT] = address if writes else 0, 1 << 62
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
    new = collectives.Communicator
    with new() as comm, new() as other, new() as third:
        x = torch.zeros(max(1, options.bytes // 4))
        doors: Calls = {
            name: each.plan("allreduce", x) for name, each in ((WITH, comm), (WITHOUT, other), (NOTHING, third))
        }
        for call in doors.values():
            call()
        world.Barrier()
        boards = part(other, writes=True), part(third, writes=False)
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
        ratios = {name: shown(ratio_interval(slower[WITH], slower[name])) for name in (WITHOUT, NOTHING)}
        if comm.rank == 0:
            for name, median in medians.items():
                print(f"{name:28}{median:8.0f} ns")
            for name, ratio in ratios.items():
                print(f"over {name:24}{medians[WITH] - medians[name]:7.0f} ns, ratio {ratio}")
        write(options.json, comm, bytes=4 * x.numel(), nanoseconds=medians, ratios=ratios)
        world.Barrier()
        del boards
    return 0


if __name__ == "__main__":
    sys.exit(main())
