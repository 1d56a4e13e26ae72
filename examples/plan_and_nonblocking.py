"""The same call many times, and calls that run while you compute.

mpiexec -n 2 python examples/plan_and_nonblocking.py
"""

import torch

import collectives


def main() -> None:
    torch.set_num_threads(1)
    with collectives.Communicator() as comm:
        # A plan settles everything that can be settled: calling it costs less than the method does.
        gradient = torch.empty(4096)
        average = comm.plan("allreduce", gradient, op="avg")
        for step in range(100):
            gradient.fill_(step + comm.rank)
            average()
            assert gradient[0] == step + (comm.size - 1) / 2

        # Started now, needed later: every call of ours moves it on, and wait() finishes it.
        big, small = torch.ones(1 << 20), torch.full((10,), float(comm.rank))
        work = comm.allreduce(big, blocking=False)
        matrix = torch.rand(256, 256)
        product = matrix @ matrix
        comm.allreduce(small, op="max")
        work.wait()
        assert big[-1] == comm.size
        assert small[0] == comm.size - 1

        # Many small tensors travel as one message.
        tensors = [torch.full((n,), 1.0) for n in (1, 10, 100)]
        comm.allreduce(tensors)
        assert all(tensor[0] == comm.size for tensor in tensors)
        if comm.rank == 0:
            print(f"the plan runs {average.choice.algorithm}; meanwhile a {tuple(product.shape)} product was made")


if __name__ == "__main__":
    main()
