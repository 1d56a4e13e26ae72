"""Collectives on plain memory: no PyTorch needed.

mpiexec -n 4 python examples/allreduce_standalone.py
"""

from array import array

import collectives


def main() -> None:
    with collectives.Communicator() as comm:
        mine = array("f", [comm.rank + 1.0] * 1_000_000)
        comm.allreduce(mine)  # in place; op="sum"
        expected = comm.size * (comm.size + 1) / 2
        assert mine[0] == mine[-1] == expected

        # Any algorithm by name, with its parameters; the result has the same bits on every rank.
        values = array("d", range(1000))
        mean = array("d", bytes(8 * 1000))
        comm.allreduce(values, out=mean, op="avg", algorithm="ring", segment_bytes=4096)
        assert mean == values  # everyone passed the same

        # The halves of an allreduce: my chunk of the sum, and everyone's chunks back together.
        part = comm.reduce_scatter(values)
        bounds = collectives.chunk(1000, comm.size, comm.rank)
        assert list(part) == [comm.size * value for value in values[bounds]]
        whole = array("d", bytes(8 * 1000))
        comm.allgather(part, out=whole)

        comm.broadcast(values, root=comm.size - 1)
        comm.barrier()
        if comm.rank == 0:
            choice = comm.explain("allreduce", nbytes=4_000_000, dtype="float32")
            print(f"{comm.size} ranks, {comm.topology.shape}, sum {mine[0]:g}; whole message back: {whole[999]:g}")
            print(f"4 MB would go by {choice.algorithm} {choice.params}: {choice.reason}")


if __name__ == "__main__":
    main()
