"""Two nodes, one of them late: what their first ranks tell each other meanwhile has been read when they part.

Under TREERING_RANKS_PER_NODE. MPI must not be finalised with messages that nobody takes.
"""

import time
from array import array

from mpi4py import MPI

import collectives

LATE, LIMIT = 2.5, 30.0  # seconds


def main() -> None:
    world, comm = MPI.COMM_WORLD, collectives.Communicator()
    hosts = comm._channel.hosts
    assert hosts is not None
    if comm.rank == hosts.leaders[-1]:
        time.sleep(LATE)
    x = array("i", [1] * 100)
    comm.allreduce(x)
    assert x[0] == comm.size

    def unread() -> bool:
        """On any rank."""
        mine = any(hosts.control.Iprobe(source=peer) for peer in hosts.peers)
        return bool(world.allreduce(mine, MPI.LOR))

    until = time.monotonic() + LIMIT
    while not unread():  # it may be on its way
        assert time.monotonic() < until, "nobody has told anybody that a call waits"
    hosts.part()
    world.Barrier()
    assert not unread()
    comm.close()


if __name__ == "__main__":
    main()
