"""From the start of a process to the end of its first allreduce, with compiled code in the cache and without.

    python -m benchmarks.startup -n 2 [--runs 5] [--cold] [--json FILE]

Seconds since the process began, as the kernel counts them, of the slowest rank: medians over runs. With torch is what a
training script sees; without, what an mpi4py program sees. --cold also measures one run with an empty cache.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tuner import launch

PROGRAM = """
import os, sys, time
if sys.argv[1] == "torch":
    import torch
    x = torch.ones(1000)
else:
    from array import array
    x = array("f", [1.0] * 1000)
import collectives
comm = collectives.Communicator()
comm.allreduce(x)
ticks = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19])
alive = float(open("/proc/uptime").read().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
import json
from mpi4py import MPI
slowest = MPI.COMM_WORLD.allreduce(alive, op=MPI.MAX)
if comm.rank == 0:
    print(json.dumps(slowest))
"""


def once(ranks: int, kind: str, cache: str | None = None) -> float:
    start = launch.command(ranks, ["-c", PROGRAM, kind])
    environment = os.environ | start.environment | ({"TREERING_CACHE_DIR": cache} if cache else {})
    done = subprocess.run(start.command, env=environment, check=True, capture_output=True, text=True, timeout=600)
    return float(json.loads(done.stdout.split()[-1]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="also with an empty cache")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    found: dict[str, float] = {}
    for kind in ("plain", "torch"):
        once(options.n, kind)
        found[f"warm, {kind}"] = sorted(once(options.n, kind) for _ in range(options.runs))[options.runs // 2]
    if options.cold:
        with tempfile.TemporaryDirectory() as empty:
            found["cold, plain"] = once(options.n, "plain", empty)
    for name, seconds in found.items():
        print(f"{name:14}{seconds:8.2f} s")
    if options.json:
        options.json.write_text(json.dumps({"ranks": options.n, "seconds": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
