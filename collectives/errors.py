"""What can go wrong in a collective, as exceptions that say what, where and the mend."""

from collections.abc import Sequence

SAME_CALLS = "all ranks of a communicator must make the same calls in the same order"


class CollectiveError(RuntimeError):
    """A collective failed. The communicator that raised it is broken: its later calls fail at once."""


class MismatchError(CollectiveError):
    """Ranks called different things at the same time.

    `field` names what differs (collective, dtype, op, count, root, algorithm, ...), `ranks` who was compared, and
    `values` what each of them passed.
    """

    def __init__(
        self, field: str, ranks: Sequence[int], values: Sequence[object], where: str = "", mend: str = SAME_CALLS
    ):
        self.field, self.ranks, self.values = field, tuple(ranks), tuple(values)
        self._around = where, mend
        said = ", ".join(f"rank {rank}: {value}" for rank, value in zip(ranks, values, strict=True))
        super().__init__(f"{where + ': ' if where else ''}ranks disagree on {field} ({said}); {mend}")

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.field, self.ranks, self.values, *self._around)


class CollectiveTimeout(CollectiveError):
    """A collective did not finish within its deadline."""


class PeerLost(CollectiveError):
    """A process that a collective waits for has ended."""


class CommunicatorBroken(CollectiveError):
    """An earlier collective on this communicator failed, so nothing more can be run on it."""


class UnsupportedError(CollectiveError):
    """What was asked for is restricted; the message names the restriction and what would serve."""


class TableError(CollectiveError):
    """A tuning table cannot be used; the message names the file, the place in it and the mend."""


class LaunchError(CollectiveError):
    """The processes were not started as one job."""
