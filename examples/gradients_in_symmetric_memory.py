"""A parameter server's worth of gradients in memory that all ranks of a node map, and no server.

mpiexec -n 2 python examples/gradients_in_symmetric_memory.py
"""

import torch

import collectives


def main() -> None:
    torch.set_num_threads(1)
    with collectives.Communicator() as comm:
        torch.manual_seed(0)  # the same model everywhere
        model = torch.nn.Sequential(torch.nn.Linear(64, 8192), torch.nn.ReLU(), torch.nn.Linear(8192, 1))

        # Each gradient is a slice of one symmetric array: backward adds to it where it lies.
        sizes = [p.numel() for p in model.parameters()]
        gradients = comm.empty(sum(sizes))
        for p, part in zip(model.parameters(), gradients.split(sizes), strict=True):
            p.grad = part.view_as(p)

        average = comm.plan("allreduce", gradients, op="avg")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002)
        x = torch.randn(32, 64, generator=torch.Generator().manual_seed(comm.rank))  # each rank has data of its own
        for step in range(20):
            gradients.zero_()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            average()  # one pass over everybody's, with no copy
            optimizer.step()
            if comm.rank == 0 and step in (0, 19):
                print(f"step {step}: loss {loss:.1f}")

        if comm.rank == 0:
            print(f"{gradients.nbytes} bytes of gradients by {average.choice.algorithm}")


if __name__ == "__main__":
    main()
