"""The ranks of a group, as far as making a communicator needs them: they tell each other a few bytes, and part.

There are two kinds: ranks that an MPI library has started (`mpi_peers`), and ranks of one node that find each other in
a store (`store_peers`). All else asks for no more than this. What ranks say is data; nothing of it is unpickled.
"""

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any

from collectives.errors import UnsupportedError


class Peers(ABC):
    """This rank, and how it reaches the others. Every method but `end_job` is collective.

    Who does not come is waited for as long as a call of the communicator would wait: then CollectiveTimeout.
    """

    rank: int
    size: int
    mpi: Any = None  # the mpi4py communicator of these ranks, for what only MPI does; None where there is no MPI
    timeout: float = inf  # seconds that others may be late
    thread: int | None = None  # the only one that may reach them, where not all may
    look: Callable[[], None] = staticmethod(lambda: None)  # now and then while they are waited for: raises if in vain

    @abstractmethod
    def exchange(self, mine: bytes) -> list[bytes]:
        """What every rank says, in their order."""

    @abstractmethod
    def meet(self) -> None:
        """Wait until all ranks have come here, while calls under way go on."""

    @abstractmethod
    def split(self, color: int | None, key: int) -> "Peers | None":
        """The ranks with my color, ordered by key and rank; None for color None."""

    @abstractmethod
    def host(self) -> "Peers":
        """Those that can share memory with me."""

    @abstractmethod
    def free(self) -> None:
        """Let go of what finding each other took."""

    @abstractmethod
    def end_job(self) -> None:
        """End the other ranks, in whatever they do; this one ends itself next."""

    @property
    def over(self) -> bool:
        """Whether nothing can be said any more."""
        return False

    def words(self, *mine: int) -> list[tuple[int, ...]]:
        """Every rank's whole numbers of 64 bits, as many from each."""
        form = struct.Struct(f"={len(mine)}q")
        return [form.unpack(said) for said in self.exchange(form.pack(*mine))]

    def agree(self, mine: bool) -> bool:
        """Whether it holds on every rank."""
        return all(said for (said,) in self.words(mine))

    @contextmanager
    def together(self, doing: str) -> Iterator[None]:
        """What is done inside succeeds on all ranks, or all raise UnsupportedError that names those with an OSError."""
        fault = ""
        try:
            yield
        except OSError as error:
            fault = f"cannot {doing}: {error.strerror or error}"
        faults = [f"rank {rank} {said.decode()}" for rank, said in enumerate(self.exchange(fault.encode())) if said]
        if faults:
            raise UnsupportedError("; ".join(faults))
