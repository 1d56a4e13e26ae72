"""Whether an algorithm folds all ranks in order, once: proved from its schedules, for the ranks at hand."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from collectives.algorithms import KERNEL_BYTES, SEGMENT_BYTES, SLOTS, find
from collectives.contract import REDUCING, ROOTED, contract
from collectives.schedule import Schedule, folds
from collectives.verify import Fault, verify

Nodes = tuple[tuple[int, ...], ...]
LOWERED = (SEGMENT_BYTES.name, SLOTS.name, KERNEL_BYTES)  # parameters that change no tree: segments share nothing


def canonical(collective: str, algorithm: str, params: Mapping[str, Any], nodes: Nodes) -> bool:
    """Whether every result is one fold of its contributions in rank order, whatever the root.

    Where nothing is reduced there is nothing to order. ValueError for an algorithm or a parameter that does not exist.
    """
    own = tuple(sorted((name, value) for name, value in params.items() if name not in LOWERED))
    return collective not in REDUCING or _proved(collective, algorithm, own, nodes)


@cache
def _proved(collective: str, algorithm: str, params: tuple[tuple[str, Any], ...], nodes: Nodes) -> bool:
    found, ranks = find(collective, algorithm), sum(map(len, nodes))
    found.check(**dict(params))
    if found.lack(ranks, nodes):
        return False
    for root in range(ranks if collective in ROOTED else 1):
        schedules = list[Schedule]()
        for me in range(ranks):
            schedules.append(found.schedule(range(ranks), me, nodes=nodes, root=root, **dict(params)))
            if _folds_some(schedules[-1], ranks):
                return False
        try:
            if not verify(schedules, contract(collective, ranks, root)).canonical:
                return False
        except Fault:
            return False
    return True


def _folds_some(schedule: Schedule, ranks: int) -> bool:
    """Whether a rank folds fewer than all ranks' parts at once, which says without a proof that there is an order."""
    lanes = (lane for phase in schedule.phases for lane in phase.lanes.values())
    return any(1 < len(operands) < ranks for lane in lanes for turn in lane.rounds for operands in folds(turn).values())
