"""Allreduce through more levels than nodes, on six real ranks, in nodes of two that hang on named switches."""

import os
import sys
from array import array
from random import Random
from typing import Any

import collectives
from collectives import nest
from collectives.errors import UnsupportedError
from tests.programs import world

SWITCHES = {"(2x2)+(1x2)": ("hall.a", "hall.a", "hall.b"), "3x2": ("hall.a", "hall.a", "hall.a")}  # above each node
NESTED: list[dict[str, Any]] = [
    {"algorithm": "nested"},
    {"algorithm": "nested", "levels": "ring:direct:recursive_doubling"},
    {"algorithm": "nested", "levels": "binomial_tree:two_shot"},
    {"algorithm": "nested", "levels": "direct:bruck:double_tree"},
]
THEMIS: list[dict[str, Any]] = [
    {"algorithm": "themis"},
    {"algorithm": "themis", "level": "ring", "speeds": 4},
    {"algorithm": "themis", "speeds": "1:3"},
]


def run(comm: collectives.Communicator, how: dict[str, Any], op: str, count: int) -> None:
    x = array("d", ((comm.rank + 1) * (k % 97 + 1) * comm.size for k in range(count)))
    comm.allreduce(x, op=op, **how)
    each = sum(range(1, comm.size + 1)) * (comm.size if op == "sum" else 1)  # times k
    wrong = [k for k in range(count) if abs(x[k] / (each * (k % 97 + 1)) - 1) > 1e-12]
    assert not wrong, f"rank {comm.rank}: {op} of {count} by {how}: wrong at {wrong[:5]}, as {x[wrong[0]]}"


def main(seed: str) -> None:
    random, refused = Random(seed), 0
    for shape, switches in SWITCHES.items():
        os.environ["TREERING_SWITCHES"] = switches[world.RANK // 2]
        with collectives.Communicator(timeout=60) as comm:
            assert nest.name(comm.topology.nest) == shape, comm.topology
            for how in NESTED + THEMIS:
                why = f"not {shape}; ring" if how["algorithm"] == "themis" else "names 3 levels, and there are 2"
                try:
                    for count, segment in ((0, None), (7, None), (1009, 512), (20_011, random.choice((None, 4096)))):
                        run(comm, {**how, "segment_bytes": segment}, random.choice(("sum", "avg")), count)
                except (UnsupportedError, ValueError) as error:
                    refused += why in str(error)
            if comm.rank == 0:
                print(shape, "is right,", refused, "refused", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
