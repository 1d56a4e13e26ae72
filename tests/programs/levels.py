"""Allreduce through more levels than nodes, on real ranks: SEED CASES, in nodes of two that hang on named switches."""

import os
import sys
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

import collectives
from collectives import nest
from collectives.errors import UnsupportedError
from tests.programs import world
from tests.programs.engine_numbers import digest, inputs, result
from tests.programs.engine_report import Report

EACH = 2  # ranks of a node
EVEN, UNEVEN = ("hall.a", "hall.a", "hall.b", "hall.b"), ("hall.a", "hall.a", "hall.a", "hall.b")  # above each node
NESTED: list[dict[str, Any]] = [
    {"algorithm": "nested"},
    {"algorithm": "nested", "levels": "ring:direct:recursive_doubling"},
    {"algorithm": "nested", "levels": "binomial_tree:two_shot"},
    {"algorithm": "nested", "levels": "direct:bruck:double_tree"},
]
THEMIS: list[dict[str, Any]] = [
    {"algorithm": "themis"},
    {"algorithm": "themis", "level": "ring", "speeds": 2},
    {"algorithm": "themis", "speeds": "1:2:4"},
]
KINDS = (("float32", "sum"), ("float64", "avg"), ("bfloat16", "max"), ("int32", "xor"), ("float16", "avg"))
COUNTS = (0, 1, 7, 63, 1009, 20_011)


def run(switches: Sequence[str], shape: str, random: Random, cases: int, report: Report) -> None:
    os.environ["TREERING_SWITCHES"] = switches[world.RANK // EACH]
    those = NESTED + THEMIS * (switches == EVEN)
    with collectives.Communicator(timeout=60) as comm:
        found = nest.name(comm.topology.nest)
        report.check(found == shape, f"the topology is {found}, not {shape}")
        report.check("on switches of" in comm.topology.fingerprint, comm.topology.fingerprint)
        for case in range(cases):
            how = those[case % len(those)]
            dtype, op = random.choice(KINDS)
            count, segment = random.choice(COUNTS), random.choice((None, None, 512, 4096))
            given = inputs(dtype, op, comm.size, count, random.randrange(1 << 30))
            x = given[comm.rank].clone()
            comm.allreduce(x, op=op, segment_bytes=segment, **how)
            what = f"{shape}: {op} of {count} {dtype} by {how}, segment {segment}"
            report.equal(x, result(dtype, op, given), what)
            report.agree(what, digest(x))
        if switches == UNEVEN:
            try:
                comm.allreduce(torch.ones(3), algorithm="themis")
                report.check(False, "themis serves uneven groups")
            except UnsupportedError as error:
                report.check(f"not {shape}; ring" in str(error), error)
    report.time(shape)


def main(seed: str, cases: int) -> None:
    report, random = Report(), Random(seed)
    run(EVEN, "2x2x2", random, cases, report)
    run(UNEVEN, "(3x2)+(1x2)", random, cases // 2, report)
    report.finish()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
