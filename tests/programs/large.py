"""A message of more than 2^31 bytes: the first element, the last, and all between."""

from typing import Any

import torch

import collectives

COUNT = 2**31 + 8

torch.set_num_threads(1)
comm = collectives.Communicator(timeout=300)
x = torch.empty(COUNT, dtype=torch.uint8)
pipeline: dict[str, Any] = {"algorithm": "ring", "segment_bytes": 1 << 20, "slots": 2}
for options in ({}, pipeline):
    x.fill_(comm.rank + 1)
    comm.allreduce(x, **options)
    right = comm.size * (comm.size + 1) // 2
    assert int(x.min()) == int(x.max()) == right, f"rank {comm.rank}: {options}"
comm.close()
print(f"rank {comm.rank}: {COUNT} bytes are right", flush=True)
