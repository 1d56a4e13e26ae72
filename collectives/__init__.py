"""treering: collective communication for Python. Importing this initialises nothing; Communicator() does."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from collectives import errors

if TYPE_CHECKING:
    from collectives.communicator import Communicator, chunk
    from collectives.selection import Choice

    def algorithms(collective: str = "allreduce") -> tuple[str, ...]:
        """The names that `algorithm=` takes."""


__version__ = "0.1.0"
__all__ = ["Communicator", "algorithms", "chunk", "errors", "last_choice"]


def last_choice(comm: "Communicator") -> "Choice | None":
    """What the last call on the communicator ran, and why; None before the first one."""
    return comm._ran


def __getattr__(name: str) -> Any:
    if name == "algorithms":  # a package that can be called: collectives.algorithms("allreduce")
        return import_module("collectives.algorithms")
    if name in ("Communicator", "chunk"):
        from collectives import communicator

        return getattr(communicator, name)
    raise AttributeError(f"module 'collectives' has no attribute {name!r}")
