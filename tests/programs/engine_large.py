"""Two ranks reduce a message of 2^31 + 8 bytes in place: python -m tests.programs.engine_large ALGORITHM."""

import sys

import torch

import collectives
from tests.programs.engine_report import Report

COUNT = (1 << 31) + 8

report = Report()
with collectives.Communicator(timeout=200) as comm:
    x = torch.zeros(COUNT, dtype=torch.int8)
    marked = [0, 1, COUNT // 2 - 1, COUNT // 2, (1 << 31) - 1, 1 << 31, COUNT - 1]
    x[marked] = torch.tensor([comm.rank + i + 1 for i in range(len(marked))], dtype=torch.int8)
    comm.allreduce(x, algorithm=sys.argv[1])
    wanted = [comm.size * (i + 1) + comm.size * (comm.size - 1) // 2 for i in range(len(marked))]
    report.check(x[marked].tolist() == wanted, f"marked elements: {x[marked].tolist()}, not {wanted}")
    x[marked] = 0
    report.check(not x.any(), "other elements have changed")
    comm.broadcast(x[-9:], root=1)
report.finish()
