"""What a caller may hold of calls: a plan, which runs one again and again, and works that belong together."""

from functools import partial
from typing import Any, Protocol

from collectives.channel import Channel
from collectives.engine import ENGINE, Prepared, Work
from collectives.selection import Choice


class Plan(Protocol):
    """A call to be made often. `plan()` makes it; `result` is what it returns, `choice` says what it runs."""

    result: Any

    @property
    def choice(self) -> Any: ...

    def __call__(self) -> Any: ...


class Persistent:
    """A call with everything settled that can be. `plan()` runs it on the memory it was made for; `choice` says how."""

    __slots__ = ("_call", "_choices", "_program", "result")

    def __init__(self, channel: Channel, prepared: Prepared):
        self._program, self._choices, self.result = prepared.program, prepared.choices, prepared.result
        where = prepared.source, prepared.target
        self._call = partial(ENGINE.call, channel, prepared.program, *where, prepared.keep)

    @property
    def choice(self) -> Choice:
        """What it runs, and why; on symmetric memory that is known once it has run."""
        return self._choices.ran(self._program)  # type: ignore[no-any-return]

    def __call__(self) -> Any:
        self._call()
        return self.result


class Several:
    """Works that belong together, as one."""

    def __init__(self, works: list[Work], result: Any):
        self.works, self.result = works, result

    def done(self) -> bool:
        asked = [work.done() for work in self.works]  # all of them: asking advances
        return all(asked)

    def wait(self, timeout: float | None = None) -> Any:
        for work in self.works:
            work.wait(timeout)
        return self.result
