"""The hand-written rings and the executor's ring give the same bits."""

import torch
from mpi4py import MPI

import collectives
from tests.control.ring import Ring

world = MPI.COMM_WORLD
with collectives.Communicator(timeout=60) as comm:
    ring = Ring(world, piece=1 << 12)
    for count in (1, 100, 12_288, 100_003):
        torch.manual_seed(comm.rank)
        data = torch.randn(count)
        mine, by_mpi, by_fifo = data.clone(), data.clone(), data.clone()
        comm.allreduce(mine, algorithm="ring")
        ring.by_mpi(by_mpi.data_ptr(), 4 * count)
        ring.by_fifo(by_fifo.data_ptr(), 4 * count)
        assert torch.equal(by_mpi, by_fifo), f"rank {comm.rank}: {count} elements over MPI and over FIFOs"
        assert torch.allclose(by_mpi, mine, atol=1e-5), (
            f"rank {comm.rank}: {count} elements by hand and by the executor"
        )
        if count % (16 * comm.size) == 0:  # chunks that end at the same lines
            assert torch.equal(by_mpi, mine), f"rank {comm.rank}: {count} elements, other bits"
    print(f"rank {comm.rank}: hand-written rings agree", flush=True)
