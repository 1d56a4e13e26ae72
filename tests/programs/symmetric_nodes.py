"""Allreduce within and between nodes, where nodes have symmetric memory: SEED CASES, under TREERING_RANKS_PER_NODE.

Each rank's arrays lie in symmetric or in ordinary memory, as a seed says that all ranks share: so each knows whether
its node must pass over symmetric memory. The bits are those of ordinary memory, whatever each node does.
"""

import sys
import time
from random import Random
from typing import Any

import torch

import collectives
from tests.programs.engine_numbers import digest, inputs
from tests.programs.engine_report import Report
from tests.programs.symmetric_calls import MIXED, Places

INNER = ("ring", "recursive_doubling", "halving_doubling", "binomial_tree", "one_shot", "two_shot")
KINDS = ("one region", "another offset", "ordinary")
COUNTS = (0, 1, 2, 7, 31, 129, 1009, 4099, 20_011, 87_500)


def run(comm: collectives.Communicator, places: Places, random: Random, case: str, report: Report) -> None:
    dtype, op = random.choice(MIXED)
    count, seed, inner = random.choice(COUNTS), random.randrange(1 << 30), random.choice(INNER)
    leaders = random.choice(("all", 2))
    likely = random.choice((KINDS[:2], KINDS))
    kinds = [random.choice(likely) for _ in range(comm.size)]
    apart = random.random() < 0.3
    how: dict[str, Any] = {"algorithm": "hierarchical", "inner": inner, "leaders": leaders}
    what = f"{case}: {op} of {count} {dtype} by {inner}, leaders {leaders}, in {kinds}{', out of place' * apart}"
    given = inputs(dtype, op, comm.size, count, seed)[comm.rank]
    wanted = given.clone()
    comm.allreduce(wanted, op=op, **how)
    x = places.take(kinds[comm.rank], given)
    out = places.take(kinds[comm.rank], torch.zeros_like(given)) if apart else x
    comm.allreduce(x, out=out if apart else None, op=op, **how)
    report.equal(out, wanted, what)
    report.agree(what, digest(out))
    node = next(node for node in comm.topology.nodes if comm.rank in node)
    passes = count > 0 and len(node) > 1 and all(kinds[rank] != "ordinary" for rank in node)
    assert isinstance(comm._last, tuple)
    report.check(comm._last[0].one_pass == passes, f"{what}: ran {collectives.last_choice(comm)}")
    if apart:
        report.equal(x, given, what)
    report.check(places.give_back(), f"{what}: wrote beside it")


def back_to_back(comm: collectives.Communicator, report: Report) -> None:
    """With nothing between the calls but what an optimizer would write, and stragglers."""
    x, own = comm.empty(3 * comm.size + 1, "int64"), Random(comm.rank)
    calls = [comm.plan("allreduce", x, algorithm="hierarchical", inner=inner) for inner in INNER]
    calls.append(comm.plan("allreduce", x, algorithm="hierarchical", leaders=2))
    calls.append(comm.plan("allreduce", x, algorithm="one_pass"))  # of one node, and by its schedule elsewhere
    for turn in range(100):
        for call in calls:
            x.fill_(turn + comm.rank)
            call()
            wanted = comm.size * turn + sum(range(comm.size))
            report.check(bool((x == wanted).all()), f"turn {turn}: {x}, not {wanted}")
        if own.random() < 0.1:
            time.sleep(0.002)


def main(seed: str, cases: int) -> None:
    report, random = Report(), Random(seed)
    with collectives.Communicator(timeout=60) as comm:
        said = comm.explain("allreduce", 1 << 20, storage="symmetric").reason
        alone = [comm.rank] in [list(node) for node in comm.topology.nodes]
        report.check(("symmetric memory" in said) != alone, said)
        places = Places(comm)
        for number in range(cases):
            run(comm, places, random, f"case {number}", report)
        report.time("cases")
        back_to_back(comm, report)
        report.time("back to back")
    report.finish()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
