"""Many more ranks than cores: equal bits on all of them, odd counts that are not small, and waits that give way.

Rank 0 prints what was wrong as JSON, and how long 1,000 small calls took.
"""

from time import monotonic

import torch

from collectives.algorithms import every
from tests.programs import world
from tests.programs.contract import cancellation
from tests.programs.engine_report import Report

ODD = 10_556_587


def main() -> None:
    report = Report()
    with world.communicator(timeout=60) as comm:
        some = [a for a in every("allreduce") if not a.refusal(comm.size, comm.topology.nodes)]
        cancellation(comm, report, some[::6])
        report.time("cancellation")
        x = torch.arange(ODD, dtype=torch.float32).remainder_(1021)
        wanted = x * comm.size + comm.size * (comm.size - 1) / 2
        x += comm.rank
        comm.allreduce(x)
        report.equal(x, wanted, f"a sum of {ODD}")
        report.time("odd")
        began, y = monotonic(), torch.zeros(1)
        for turn in range(1000):
            y.fill_(turn)
            comm.allreduce(y)
            report.check(float(y) == turn * comm.size, f"small call {turn}")
        seconds = monotonic() - began
    report.finish(small_calls_seconds=round(seconds, 2))


if __name__ == "__main__":
    main()
