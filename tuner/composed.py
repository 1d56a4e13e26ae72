"""An allreduce made of two other collectives, to be timed beside it."""

from typing import Any

from collectives.dtypes import ITEMSIZE
from collectives.errors import UnsupportedError
from collectives.selection import parse_overrides
from collectives.tables.conditions import PRECISIONS
from tuner.cases import Case, array, chunk, memory
from tuner.space import Candidate

COMPOSED = {" + ".join(names): names for names in (("reduce", "broadcast"), ("reduce_scatter", "allgather"))}


def call(comm: Any, collective: str, x: Any, **options: Any) -> Any:
    """A function that makes the call: a plan, or the method where memory is copied or widened, so there is no plan."""
    try:
        return comm.plan(collective, x, **options)
    except UnsupportedError:
        method = getattr(comm, collective)
        return lambda: method(x, **options)


def composed(comm: Any, case: Case, candidate: Candidate, precision: str | None) -> Any:
    """The two calls in turn; the candidate's parameters name their algorithms, as TREERING_ALGORITHM does."""
    first, second = COMPOSED[candidate.algorithm]
    named = parse_overrides(";".join(f"{collective}={text}" for collective, text in candidate.items))
    how: dict[str, dict[str, Any]] = {each: {"algorithm": name, **params} for each, (name, params) in named.items()}
    how[first] |= {"op": case.op} | ({"precision": precision} if precision not in (None, PRECISIONS[0]) else {})
    if second == "broadcast":
        one, two = call(comm, first, case.x, **how[first]), call(comm, second, case.x, **how[second])
    else:
        mine = chunk(case.count, comm.size, comm.rank)
        nbytes = (mine.stop - mine.start) * ITEMSIZE[case.dtype]
        part = array(memory(nbytes), nbytes, case.dtype)
        one = call(comm, first, case.x, out=part, **how[first])
        two = call(comm, second, part, out=case.x, **how[second])

    def both() -> None:
        one()
        two()

    return both
