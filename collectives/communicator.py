"""The communicator: collectives on the memory of the caller, by the algorithm that serves best."""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from collectives import timeline
from collectives.algorithms import names
from collectives.calls import Calls, Options, Prepared, planned
from collectives.channel import Channel
from collectives.cuda.views import on_device
from collectives.dtypes import DTYPES, ITEMSIZE, check
from collectives.engine import ENGINE, Work
from collectives.errors import UnsupportedError
from collectives.extents import chunk_offsets
from collectives.flight.diagnosis import NO_OP
from collectives.handles import Persistent, Plan, Several
from collectives.methods import Methods
from collectives.native.library import library
from collectives.plans import Plans
from collectives.ranks import exits
from collectives.ranks.launch import connect, form
from collectives.ranks.peers import Peers
from collectives.ranks.store_peers import join
from collectives.repeats import Quick, Repeats
from collectives.selection import NATIVE, Choice, Table
from collectives.settings import TIMEOUT_SECONDS, Settings, agree, seconds
from collectives.tables.table import ORDINARY, STORAGES
from collectives.topology import Topology

if TYPE_CHECKING:
    from collectives.cuda.device import OnDevice

START_SECONDS = 300.0  # for which a rank that a launcher has started may be late, however short calls' deadlines are


def chunk(count: int, size: int, rank: int) -> slice:
    """The elements of `count` that are rank's chunk among `size` ranks, as torch.tensor_split cuts them."""
    if size < 1 or not 0 <= rank < size:
        raise ValueError(f"rank {rank} is not one of {size} ranks, 0 to {size - 1}")
    offsets = chunk_offsets(count, size)
    return slice(offsets[rank], offsets[rank + 1])


def patience(settings: Settings | Exception) -> float:
    """Seconds for which ranks wait for each other to make a communicator, also where its settings are refused next."""
    return settings.timeout if isinstance(settings, Settings) else TIMEOUT_SECONDS


class Communicator(Methods):
    """A group of ranks that make the same calls in the same order.

    mpi_comm: an mpi4py communicator (default: COMM_WORLD), which is duplicated. table: path of a tuning table (default:
    TREERING_TABLE). timeout: seconds until a call that is not done raises CollectiveTimeout (default: TREERING_TIMEOUT,
    or 1800). algorithm: what serves where a call names none, as `ring`, or for several collectives
    `allreduce=ring:segment_bytes=65536;broadcast=binomial_tree` (default: TREERING_ALGORITHM).

    Making and closing one is collective. LaunchError where the ranks were not started as one job, TableError where the
    table cannot be used, MismatchError where ranks have other settings.
    """

    def __init__(
        self,
        mpi_comm: Any = None,
        table: str | os.PathLike[str] | Table | None = None,
        timeout: float | None = None,
        algorithm: str | None = None,
    ):
        settings = Settings.attempt(table, timeout, algorithm)
        self._open(connect(mpi_comm, max(START_SECONDS, patience(settings)), ENGINE.turn), settings)
        self._settings.announce(self)

    @classmethod
    def from_store(
        cls,
        store: Any,
        rank: int,
        size: int,
        *,
        table: str | os.PathLike[str] | Table | None = None,
        timeout: float | None = None,
        algorithm: str | None = None,
        prefix: str = "treering",
    ) -> "Communicator":
        """A communicator of ranks of one node that find each other in a store; MPI need not even be installed.

        store: a torch.distributed.Store (TCPStore, FileStore, ...), or anything with its `set`, `get` and `check`.
        rank: of this process, 0 to size - 1. prefix: what keys in the store begin with; different groups in one store
        need prefixes of their own. Other arguments as for any communicator; `timeout` is also how long ranks wait for
        each other here.

        Collective. LaunchError where ranks are missing or a rank is taken twice, MismatchError where ranks disagree on
        size or settings, UnsupportedError where they cannot share memory.
        """
        settings = Settings.attempt(table, timeout, algorithm)
        made = cls.__new__(cls)
        made._open(join(store, rank, size, prefix, patience(settings), ENGINE.turn), settings)
        made._settings.announce(made)
        return made

    def _open(self, peers: Peers, settings: Settings | Exception) -> None:
        self.rank, self.size = peers.rank, peers.size
        ENGINE.thread = ENGINE.thread or peers.thread
        self._settings = settings = agree(peers, settings)
        library()
        self._group = form(peers)
        self._channel = Channel(self._group, settings.spin)
        self.topology: Topology = self._channel.topology
        self._settings = settings = settings.on(self.topology)
        peers.timeout = self._group.node.timeout = settings.timeout
        self._plans = Plans(self._channel, settings.timeout)
        self._regions = self._channel.regions
        self._calls = Calls(self._plans, settings)
        self._repeats = Repeats(self._plans)
        self._last: Quick | Choice | None = None
        self._closed = False
        self._gpu: OnDevice | None = None
        exits.watch(self._channel)
        ENGINE.timeline = timeline.watch(self._channel, ENGINE.timeline)

    # ------------------------------------------------------------ collectives
    def allreduce(
        self,
        x: Any,
        out: Any = None,
        op: str = "sum",
        *,
        algorithm: str | None = None,
        order: str | None = None,
        precision: str | None = None,
        native: bool = False,
        blocking: bool = True,
        timeout: float | None = None,
        **params: Any,
    ) -> Any:
        """Reduce x over all ranks, element by element, on every rank; returns x, or out.

        x: a torch tensor of any shape, on the CPU or a GPU, a CuPy array, array.array, memoryview, or anything with
        the buffer protocol or DLPack; a list of them is reduced together. out: where to write (default: into x). op:
        sum avg prod min max and or xor. algorithm: by name, with its parameters as keywords (see
        collectives.algorithms). order="fixed": ranks are folded in order, so that bits do not depend on size or
        algorithm. precision="accurate": float16 and bfloat16 are accumulated in float32 and rounded once. native: by
        the MPI library's own collective, which keeps no promise of ours. blocking=False: returns a Work. timeout:
        seconds.

        TypeError for a dtype without the op, BufferError for read-only memory, ValueError for overlapping memory or
        unknown names; MismatchError, CollectiveTimeout, PeerLost when it runs.
        """
        plain = out is None and algorithm is None and order is None and precision is None
        plain = plain and blocking and timeout is None and not native and not params
        torch = sys.modules.get("torch") if plain else None
        if torch is not None and isinstance(x, torch.Tensor) and x.layout is torch.strided:
            address, count = x.data_ptr(), x.numel()
            quick = self._repeats.found.get((x.dtype, count, op))
            plain = address and x.is_cpu and x.is_contiguous()
            if quick is not None and plain and (count > 1 or not x.is_neg()):  # z.conj().imag has a turned sign
                self._last = quick
                ENGINE.call(self._channel, quick[0], address, address, x)
                return x
        self._check_open()
        if on_device(x) or on_device(out):
            how = {"algorithm": algorithm, "order": order, "precision": precision, "native": native, **params}
            return self._on_device("allreduce", x, out, how, blocking, timeout, op)
        if native:
            self._last = Choice(NATIVE, {}, source="argument", why="the call asks for the MPI library's own")
            return self._native(x, out, op, blocking)
        options = Options(algorithm, order, precision, params)
        if isinstance(x, list | tuple):
            if out is not None:
                raise ValueError("a list is reduced in place; out= is for single arrays")
            works = [self._submit(prepared, timeout) for prepared in self._calls.coalesced(x, op, options)]
            return Several(works, x).wait() if blocking else Several(works, x)
        choice = self._calls.prefers_native(x, out, op, options) if blocking else None
        if choice is not None:
            self._last = choice
            return self._native(x, out, op, blocking)
        prepared = self._calls.allreduce(x, out, op, options)
        if torch is not None and isinstance(x, torch.Tensor) and prepared.finish is None:
            self._repeats.remember((x.dtype, x.numel(), op), prepared)
        return self._go(prepared, blocking, timeout)

    def plan(self, collective: str, x: Any, *args: Any, **how: Any) -> Plan:
        """A call to be made often on the same memory: `plan()` runs it and returns what the method would.

        Arguments are those of the method called `collective`. ValueError for another one, UnsupportedError for memory
        that is not contiguous, lists and halves widened for accuracy: the methods serve those.
        """
        self._check_open()
        arguments = planned(collective, x, args, how)
        if on_device(x) or on_device(arguments.get("out")):
            return self._device().plan(collective, x, arguments, Options.of(how))
        prepared = self._calls.prepare(collective, x, arguments, Options.of(how))
        if prepared.finish is not None or prepared.copied:
            why = f"a plan works on contiguous memory as it is, so this {collective} needs the method comm.{collective}"
            raise UnsupportedError(why)
        return Persistent(self._channel, prepared)

    # ------------------------------------------------------------ symmetric memory
    def empty(self, shape: int | Sequence[int], dtype: Any = "float32", device: Any = "cpu") -> Any:
        """An array in memory that all ranks of a node map: collectives on it, or on parts of it, need no copy.

        A torch tensor, or where torch is not imported an Array of ours, with the buffer protocol and DLPack; not
        initialised. Collective, with the same size on all ranks.
        Dropping it is local; its memory is used again when all ranks have. Ranks may pass different parts to a call;
        where one passes ordinary memory, all go the ordinary way. device: "cuda" or "cuda:1" for memory of a GPU, the
        same on a rank as its other arrays'. TypeError, MismatchError, UnsupportedError, CollectiveTimeout.
        """
        with self._meeting("empty"):
            if str(device) != "cpu":
                return self._device().empty(shape, dtype, str(device))
            return self._regions.empty(shape, dtype)

    def register(self, x: Any) -> Any:
        """Make the storage of x, a torch tensor, symmetric where it is; returns x. Collective.

        Only storages that nobody resizes may be registered. They are kept until `release(x)`, which is local, or close.
        """
        with self._meeting("register"):
            return self._regions.register(x)

    def release(self, x: Any) -> None:
        """Let go of what `register` holds for x."""
        self._regions.release(x)

    # ------------------------------------------------------------ choosing
    def explain(
        self,
        collective: str = "allreduce",
        nbytes: int = 0,
        dtype: str = "float32",
        op: str = "sum",
        *,
        order: str | None = None,
        precision: str | None = None,
        storage: str = ORDINARY,
    ) -> Choice:
        """Which algorithm would run, and why. nbytes: of the whole message. storage: ordinary, or symmetric memory."""
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} does not exist; there are {', '.join(DTYPES)}")
        if nbytes < 0:
            raise ValueError(f"nbytes is {nbytes}; a message has 0 bytes or more")
        if storage not in STORAGES:
            raise ValueError(f"storage {storage!r} does not exist; there are {', '.join(STORAGES)}")
        check(dtype, op)
        names(collective)  # ValueError where there is no such collective
        options = Options(None, order, precision, {})
        return self._calls.choose(collective, nbytes // ITEMSIZE[dtype], dtype, op, options, True, storage)

    @property
    def _ran(self) -> Choice | None:
        """What the last call was."""
        return self._last[1].ran(self._last[0]) if isinstance(self._last, tuple) else self._last

    # ------------------------------------------------------------ running
    def _go(self, prepared: Prepared, blocking: bool, timeout: float | None) -> Any:
        if not blocking:
            return self._submit(prepared, timeout)
        if timeout is not None:
            return self._submit(prepared, timeout).wait()
        self._note(prepared)
        ENGINE.call(self._channel, prepared.program, prepared.source, prepared.target, prepared.keep)
        if prepared.finish is not None:
            prepared.finish()
        return prepared.result

    def _device(self) -> "OnDevice":
        """What runs calls on GPUs."""
        if self._gpu is None:
            from collectives.cuda.device import OnDevice

            self._gpu = OnDevice(self, self._settings.timeout)
        return self._gpu

    def _on_device(
        self, collective: str, x: Any, out: Any, how: dict[str, Any], blocking: bool, timeout: Any, op: str = NO_OP,
        root: int = 0, count: int | None = None,
    ) -> Any:  # fmt: skip
        limit = None if timeout is None else seconds(timeout, "timeout")
        return self._device().call(collective, x, out, how, blocking, limit, op, root, count)

    def _submit(self, prepared: Prepared, timeout: float | None) -> Work:
        limit = self._settings.timeout if timeout is None else seconds(timeout, "timeout")
        self._note(prepared)
        return ENGINE.submit(Work(self._channel, prepared, limit, self._channel.site()))

    def _note(self, prepared: Prepared) -> None:
        if prepared.choices is not None:  # a barrier has none
            self._last = prepared.program, prepared.choices

    def _pair(self, collective: str, *args: Any, blocking: bool, timeout: float | None, how: dict[str, Any]) -> Any:
        """A call from args[0] to args[1]. Where one of its kind was made before, its program is at hand."""
        plain = not how
        found = self._repeats.find(collective, *args) if plain and blocking and timeout is None else None
        if found is not None:
            self._last, source, target = found
            ENGINE.call(self._channel, found[0][0], source, target, args)
            return args[1]
        self._check_open()
        if on_device(args[0]) or on_device(args[1]):
            x, out, op = (*args, NO_OP)[:3]
            return self._on_device(collective, x, out, how, blocking, timeout, op)
        prepared = getattr(self._calls, collective)(*args, Options.of(how))
        if plain:
            self._repeats.keep(prepared, collective, *args)
        return self._go(prepared, blocking, timeout)

    def _native(self, x: Any, out: Any, op: str, blocking: bool) -> Any:
        from collectives.mpi_native import allreduce

        mpi = self._group.comm.mpi
        if mpi is None:
            raise UnsupportedError("native=True asks for an MPI library, and these ranks met without one: leave it out")
        if not blocking:
            raise UnsupportedError("native=True blocks; treering's own algorithms serve blocking=False")
        source, target, result = self._calls.pair(x, out, op)
        self._drain()  # it would let nothing move until it returns
        began = time.monotonic_ns()
        allreduce(mpi, source, target, op)
        if ENGINE.timeline is not None:
            about = {"bytes": target.n_bytes, "dtype": target.dtype, "op": op, "algorithm": NATIVE, "waited_us": None}
            with ENGINE.lock:
                ENGINE.timeline.span(self._channel, f"allreduce {NATIVE}", began, time.monotonic_ns(), about)
        target.restore()
        return result

    @contextmanager
    def _meeting(self, doing: str) -> Iterator[None]:
        """No call of this communicator is under way on any rank: none reads what is about to change."""
        self._drain()
        with self._channel.meeting(doing):
            self._group.comm.meet()
            yield

    def _drain(self) -> None:
        while self._channel.pending:
            ENGINE.wait(self._channel.pending[-1])
        self._check_open()

    def _check_open(self) -> None:
        if self._channel.broken is not None:
            raise self._channel.broken_now()

    # ------------------------------------------------------------ life
    def split(
        self, color: int | None, key: int = 0, *, table: str | os.PathLike[str] | Table | None = None
    ) -> "Communicator | None":
        """A communicator of the ranks with my color, ordered by key and rank; None for color None. Collective.

        table: a tuning table of its own (default: this communicator's).
        """
        self._check_open()
        settings = self._settings if table is None else self._settings.with_table(table)
        with self._channel.meeting("split"):
            self._group.comm.meet()
            part = self._group.comm.split(color, key)
            if part is None:
                return None
            made = Communicator.__new__(Communicator)
            made._open(part, settings)
            return made

    def abort(self, why: str) -> None:
        """End all ranks of the job at once, not zero, saying why."""
        exits.abort(self._channel, f"rank {self.rank} aborts: {why}")

    def close(self) -> None:
        """Free what the communicator holds. Collective; calls that are under way are waited for.

        Raises what made one of these fail, unless the communicator was broken before.
        """
        if self._closed:
            return
        self._closed, channel = True, self._channel
        self._repeats.found.clear()
        worked = channel.broken is None
        while worked and channel.pending:
            ENGINE.wait(channel.pending[-1])
        failed = channel.broken
        if failed is None and self._gpu is not None:
            self._gpu.close()
        if failed is None:
            exits.forget(channel)
            channel.part()
            self._group.free()
        channel.close()
        if worked and failed is not None:
            raise failed

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()

    def __repr__(self) -> str:
        return f"Communicator(rank={self.rank}, size={self.size}, nodes={self.topology.shape})"
