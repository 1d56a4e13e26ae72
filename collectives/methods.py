"""All collectives but allreduce, as methods of a communicator."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from collectives.calls import Calls, Options
from collectives.cuda.views import no_counts, on_device
from collectives.engine import Prepared
from collectives.flight.diagnosis import NO_OP


class Methods(ABC):
    """Keywords and errors that are not described are those of allreduce."""

    _calls: Calls

    def reduce_scatter(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        *,
        blocking: bool = True,
        timeout: float | None = None,
        **how: Any,
    ) -> Any:
        """Reduce x over all ranks, and keep my chunk of the result: returns out, or a new one-dimensional array.

        x: n elements, untouched. out: as many elements as collectives.chunk(n, size, rank).
        """
        return self._pair("reduce_scatter", x, out, op, blocking=blocking, timeout=timeout, how=how)

    def allgather(
        self, x: Any, out: Any = None, *, blocking: bool = True, timeout: float | None = None, **how: Any
    ) -> Any:
        """Gather every rank's chunk x into out, in rank order, on every rank; returns out.

        out: n elements, of which x is collectives.chunk(n, size, rank); by default a new array of size times x's
        elements.
        """
        return self._pair("allgather", x, out, blocking=blocking, timeout=timeout, how=how)

    def broadcast(
        self, x: Any, root: int = 0, *, blocking: bool = True, timeout: float | None = None, **how: Any
    ) -> Any:
        """Copy root's x to every rank's x; returns x."""
        self._check_open()
        if on_device(x):
            return self._on_device("broadcast", x, None, how, blocking, timeout, root=root)
        return self._go(self._calls.broadcast(x, root, Options.of(how)), blocking, timeout)

    def reduce(
        self,
        x: Any,
        root: int = 0,
        out: Any = None,
        op: str = "sum",
        *,
        blocking: bool = True,
        timeout: float | None = None,
        **how: Any,
    ) -> Any:
        """Reduce x over all ranks into root's out (default: its x); other ranks' memory is untouched.

        Returns the result on root, x elsewhere.
        """
        self._check_open()
        if on_device(x) or on_device(out):
            return self._on_device("reduce", x, out, how, blocking, timeout, op, root)
        return self._go(self._calls.reduce(x, root, out, op, Options.of(how)), blocking, timeout)

    def gather(
        self,
        x: Any,
        out: Any = None,
        root: int = 0,
        *,
        count: int | None = None,
        blocking: bool = True,
        timeout: float | None = None,
        **how: Any,
    ) -> Any:
        """Gather every rank's chunk x into root's out, in rank order; returns out, or None on other ranks.

        out: n elements on root (default: a new array), of which x is collectives.chunk(n, size, rank); not looked at
        elsewhere. count: n, the same on all ranks, where chunks differ in length (default: size times x's elements).
        """
        self._check_open()
        if on_device(x):
            return self._on_device("gather", x, out, how, blocking, timeout, root=root, count=count)
        return self._go(self._calls.gather(x, out, root, count, Options.of(how)), blocking, timeout)

    def scatter(
        self,
        x: Any,
        out: Any = None,
        root: int = 0,
        *,
        count: int | None = None,
        blocking: bool = True,
        timeout: float | None = None,
        **how: Any,
    ) -> Any:
        """Hand every rank its chunk of root's x, in rank order; returns out.

        x: n elements on root; not looked at elsewhere. out: collectives.chunk(n, size, rank) elements; on root, a new
        array by default. count: n, the same on all ranks, where chunks differ in length (default: size times out's
        elements, and on root x's).
        """
        self._check_open()
        if on_device(x) or on_device(out):
            return self._on_device("scatter", x, out, how, blocking, timeout, root=root, count=count)
        return self._go(self._calls.scatter(x, out, root, count, Options.of(how)), blocking, timeout)

    def alltoall(
        self,
        x: Any,
        out: Any = None,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        blocking: bool = True,
        timeout: float | None = None,
        **how: Any,
    ) -> Any:
        """Send a block of x to every rank, and receive one from each into out, in rank order; returns out.

        x: n elements, the same number on all ranks; block r is collectives.chunk(n, size, r). With send_counts, one
        number for each rank, blocks are as long as they say, and out holds what they send here. recv_counts, where
        given, must be what the others send. Ranks tell each other their counts first, which waits for all also with
        blocking=False. out: memory apart from x (default: a new array).

        ValueError for counts that do not fit x or out, MismatchError where ranks disagree on what one sends another.
        """
        self._check_open()
        if on_device(x) or on_device(out):
            no_counts(send_counts, recv_counts)
            return self._on_device("alltoall", x, out, how, blocking, timeout)
        prepared = self._calls.alltoall(x, out, send_counts, recv_counts, Options.of(how))
        return self._go(prepared, blocking, timeout)

    def barrier(self, *, blocking: bool = True, timeout: float | None = None) -> Any:
        """Wait until every rank has come here. blocking=False: returns a Work."""
        self._check_open()
        return self._go(self._calls.barrier(), blocking, timeout)

    @abstractmethod
    def _check_open(self) -> None: ...

    @abstractmethod
    def _go(self, prepared: Prepared, blocking: bool, timeout: float | None) -> Any: ...

    @abstractmethod
    def _pair(self, collective: str, *args: Any, blocking: bool, timeout: float | None, how: dict[str, Any]) -> Any: ...

    @abstractmethod
    def _on_device(
        self, collective: str, x: Any, out: Any, how: dict[str, Any], blocking: bool, timeout: Any, op: str = NO_OP,
        root: int = 0, count: int | None = None,
    ) -> Any: ...  # fmt: skip
