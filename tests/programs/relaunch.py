"""One job launched again and again, whose results must be the same to the bit: python -m tests.programs.relaunch

    [--launches 20] [--ranks 3] [--mpi mpich]

Sums in float32 of numbers of very different size, which any other order of additions would change, by whatever the
tuning table chooses. Prints how many launches there were and their hashes; not zero where there are two.
"""

import argparse
import hashlib
import json
import sys
from array import array
from random import Random

import collectives
from tests import launch

COUNTS = (1, 17, 1000, 50_000)


def digest() -> str:
    """Of all results of this launch's rank."""
    found = hashlib.sha256()
    with collectives.Communicator() as comm:
        random = Random(comm.rank)
        for count in COUNTS:
            x = array("f", (random.uniform(-1, 1) * 10.0 ** random.randrange(-6, 7) for _ in range(count)))
            for order in ("fixed", None):
                result = array("f", x)
                comm.allreduce(result, order=order)
                found.update(result.tobytes())
    return found.hexdigest() if comm.rank == 0 else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--mpi", choices=launch.LIBRARIES, default="mpich")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        print(digest(), end="", flush=True)
        return 0
    program, hashes = ["-m", "tests.programs.relaunch", "--rank"], set()
    for _ in range(options.launches):
        done = launch.run(options.ranks, program, mpi=options.mpi)
        if done.returncode:
            sys.exit(launch.describe(done.args, done.returncode, done.stdout, done.stderr))
        hashes.add(done.stdout.strip())
    print(json.dumps({"launches": options.launches, "hashes": sorted(hashes)}))
    return int(len(hashes) != 1)


if __name__ == "__main__":
    sys.exit(main())
