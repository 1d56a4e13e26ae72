"""How many elements an alltoall moves between each two ranks, where callers say so; ranks tell each other first."""

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from collectives.engine import ENGINE
from collectives.errors import MismatchError
from collectives.extents import Bound
from collectives.native import layout as st

if TYPE_CHECKING:
    from collectives.plans import Plans

UNSAID = -1  # by a rank that leaves recv_counts to be found
MEND = "recv_counts[s] on rank r must be what rank s has as send_counts[r]; left out, it is found"


class Counts(NamedTuple):
    """Elements that a rank sends to each rank, and receives from each."""

    sends: tuple[int, ...]
    receives: tuple[int, ...]

    def bound(self, rank: int) -> Bound:
        """Of the message's blocks, by source and then by destination. Those between other ranks have no length here."""
        ranks, offsets = len(self.sends), [0]
        for source in range(ranks):
            for to in range(ranks):
                mine = self.sends[to] if source == rank else self.receives[source] if to == rank else 0
                offsets.append(offsets[-1] + mine)
        return Bound(offsets)


def checked(counts: Sequence[int], ranks: int, name: str) -> tuple[int, ...]:
    """ValueError unless it is a whole number for each rank."""
    found = tuple(counts)
    if len(found) != ranks or any(type(n) is not int or n < 0 for n in found):
        raise ValueError(f"{name} is {list(found)}; it is {ranks} whole numbers, the elements for each rank")
    return found


def told(plans: "Plans", sends: tuple[int, ...], receives: tuple[int, ...] | None) -> Counts:
    """This rank's counts, once all ranks have told each other theirs. Collective, and waits for all.

    MismatchError on both ranks where one does not send what the other expects; the others are stopped.
    """
    ranks, channel = len(sends), plans.channel
    expected = receives or (UNSAID,) * ranks
    mine = (ctypes.c_int64 * (2 * ranks))(*(n for both in zip(sends, expected, strict=True) for n in both))
    theirs = (ctypes.c_int64 * (2 * ranks))()
    ENGINE.call(channel, plans.counting, ctypes.addressof(mine), ctypes.addressof(theirs), (mine, theirs))
    for rank in range(ranks):
        sent, wanted = theirs[2 * rank], theirs[2 * rank + 1]
        pairs = ((plans.rank, rank, sends[rank], wanted), (rank, plans.rank, sent, expected[rank]))
        for source, to, given, taken in pairs:
            if taken not in (UNSAID, given):
                said = f"{given} as send_counts[{to}]", f"{taken} as recv_counts[{source}]"
                error = MismatchError("counts", (source, to), said, f"rank {plans.rank}: alltoall", MEND)
                channel.break_(st.MISMATCH, error)
                raise error
    return Counts(sends, tuple(theirs[::2]))
