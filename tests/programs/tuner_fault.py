"""A search among algorithms of which one raises on one rank and one is wrong; rank 0 prints what came of it."""

import json
from collections.abc import Iterator

from mpi4py import MPI

import collectives
from collectives.algorithms import Algorithm, register, ring
from collectives.schedule import WHOLE, Group, Span
from tuner.clock import Clock
from tuner.decision import Measured
from tuner.measure import Session
from tuner.search import Search, Study
from tuner.space import Candidate, space


def raises(g: Group, span: Span = WHOLE) -> Iterator[list]:
    """A ring for each half, but not on the last rank."""
    if g.me == MPI.COMM_WORLD.size - 1 and MPI.COMM_WORLD.rank == g.me:
        raise ArithmeticError("the last rank does not like this algorithm")
    for half in span.split(2):
        yield from ring.allreduce(g, half)


def lazy(g: Group, span: Span = WHOLE) -> Iterator[list]:
    """Does nothing."""
    yield []


register(Algorithm("allreduce", "raises", raises))
register(Algorithm("allreduce", "lazy", lazy))
with collectives.Communicator() as comm:
    session = Session(MPI.COMM_WORLD.Dup(), comm)
    if comm.rank:
        session.follow()
    else:
        size = Measured(1024, Candidate("recursive_doubling"), baseline=True)
        study = Study(space("allreduce", comm.topology.nodes, 1024), "test", None, 0)
        ended = Search(session, "allreduce", "float32", "sum", Clock(8.0), 0).run([size], [study])
        session.stop()
        faults = {str(candidate): fault for candidate, fault in size.faults.items()}
        print(json.dumps({"ended": ended, "faults": faults, "raced": [str(each) for each in size.race]}))
