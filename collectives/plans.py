"""From a call to a program: choose an algorithm, prove its schedule, lower it, keep what was made."""

import ctypes
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from threading import RLock
from typing import Any

from collectives import layout as at
from collectives.algorithms import KERNEL_BYTES, SEGMENT_BYTES, Algorithm, find, hierarchical
from collectives.channel import Channel
from collectives.contract import ROOTED, contract
from collectives.counts import Counts
from collectives.dtypes import ITEMSIZE
from collectives.engine import ENGINE
from collectives.errors import UnsupportedError
from collectives.extents import Bound, chunk_offsets
from collectives.flight import diagnosis
from collectives.native import layout as st
from collectives.native.library import kernel, library
from collectives.native.program import Program, Share
from collectives.nest import Nest
from collectives.plan import Kernel, Sections, Table, Target, kernel_phase, kernel_table, lower
from collectives.properties import output_may_be_input, smallest_part
from collectives.schedule import DATA, INPUT, OUTPUT, WHOLE, Schedule, Span
from collectives.verify import Fault, verify, weights

MOST_PROGRAMS = 512  # kept by a communicator; the one used longest ago goes first
PROVED_RANKS = 8  # up to which every schedule is proved on the actual group at its first use
PROVED_RANKS_OF_STRANGERS = 64  # the same, for algorithms that other distributions have registered
WEIGHED_RANKS = 32  # up to which a mean's weights are found without a collective run
FIFO_PIECE, MPI_PIECE = 1 << 15, 1 << 17  # bytes that travel at once; all ranks must cut alike
ONE_PASS = {
    "allreduce": at.ALLREDUCE, "reduce_scatter": at.REDUCE_SCATTER, "allgather": at.ALLGATHER,
    "broadcast": at.BROADCAST, "reduce": at.REDUCE,
}  # fmt: skip
CHUNKED = ("reduce_scatter", "allgather", "gather", "scatter", "barrier")  # whose chunks a caller can see


@dataclass(frozen=True)
class Call:
    """What a program is for. `op` is diagnosis.NO_OP where nothing is reduced."""

    collective: str
    dtype: str
    count: int
    op: str
    root: int
    algorithm: str
    params: tuple[tuple[str, Any], ...]
    counts: Counts | None = None  # of an alltoall whose caller says what it sends and receives

    @property
    def reduces(self) -> bool:
        return self.op != diagnosis.NO_OP


class Plans:
    """Programs of one communicator."""

    def __init__(self, channel: Channel, timeout: float):
        self.channel, self.timeout = channel, timeout
        self.topology, self.rank = channel.topology, channel.comm.rank
        self._programs: OrderedDict[tuple[Call, bool], Program] = OrderedDict()
        self._schedules: dict[tuple[Any, ...], Schedule] = {}
        self._weights: dict[tuple[Any, ...], list[int]] = {}
        self._making = RLock()  # several threads may ask
        self.forgotten = 0  # programs let go, so that whoever keeps one by another key can tell

    def call(
        self,
        collective: str,
        dtype: str,
        count: int,
        op: str,
        root: int,
        algorithm: str,
        params: Mapping[str, Any],
        counts: Counts | None = None,
    ) -> Call:
        """A call with its algorithm's full parameters. ValueError, UnsupportedError where they cannot serve."""
        found = find(collective, algorithm)
        full = found.check(**params)
        if refusal := found.refusal(self.topology.ranks, found.groups(self.topology), counts is not None):
            raise UnsupportedError(refusal)
        return Call(collective, dtype, count, op, root, algorithm, tuple(sorted(full.items())), counts)

    @property
    def on_one_node(self) -> bool:
        """Whether node kernels can serve a call."""
        return self.channel.endpoint.kernels and self.topology.ranks > 1 and len(self.topology.nodes) == 1

    def levels_share(self, collective: str, algorithm: str, params: Mapping[str, Any]) -> bool:
        """Whether a call uses symmetric memory within nodes, though it goes between nodes too."""
        here = self.channel.endpoint.kernels and len(self.topology.nodes) > 1
        plain = params.get("leaders") != hierarchical.ONE and not params.get(SEGMENT_BYTES.name)
        return here and plain and (collective, algorithm) == ("allreduce", "hierarchical")

    def program(self, call: Call, symmetric: bool = False) -> Program:
        """The call's program, made at its first use.

        symmetric: it tries to pass over symmetric memory first, which all ranks must want, wherever their memory lies.
        Its making may be collective, as its use is.
        """
        key = call, symmetric
        with self._making:
            program = self._programs.get(key)
            if program is None:
                program = self._programs[key] = self._make(call, symmetric)
                if len(self._programs) > MOST_PROGRAMS:
                    self._programs.popitem(last=False)
                    self.forgotten += 1
            else:
                self._programs.move_to_end(key)
        return program

    def in_place(self, call: Call) -> bool:
        """Whether the call's output may lie where its input does."""
        return output_may_be_input(self._schedule(call))

    # ------------------------------------------------------------ making one
    def _make(self, call: Call, symmetric: bool) -> Program:
        schedule = self._schedule(call)
        itemsize = ITEMSIZE[call.dtype]
        before, whole = self._kernel_phases(call, itemsize, symmetric)
        weights = self._weights_of(call, schedule) if call.op == "avg" and not whole else None
        align = max(1, at.LINE // itemsize)
        if call.counts is None:
            bound = bound_of(call.collective, call.count, self.topology.ranks, align)
        else:
            bound = call.counts.bound(self.rank)
        params = dict(call.params)
        by_level = symmetric and self.levels_share(call.collective, call.algorithm, params)
        levels = self._levels(params, bound, itemsize) if by_level else {}
        share = self._share(call, itemsize) if symmetric and call.count and (before.phases or levels) else None
        if whole:
            table = kernel_table(before)
        else:
            table = self._lower(call, schedule, itemsize, bound, params.get("segment_bytes"), weights, before, levels)
        count = call.count if call.counts is None else 0  # each rank has counts of its own
        mark = diagnosis.fingerprint(call.collective, call.dtype, call.op, call.root, count, call.algorithm, params)
        by_bytes = not call.reduces  # its folds are copies
        return Program(
            self.channel.endpoint,
            table,
            kernel=kernel("uint8", "or") if by_bytes else kernel(call.dtype, call.op),
            itemsize=1 if by_bytes else itemsize,
            fingerprint=mark,
            copy_bytes=call.count * itemsize if call.collective == "allreduce" and not whole else 0,
            share=share,
            timeout=self.timeout,
        )

    def _levels(self, params: Mapping[str, Any], bound: Bound, itemsize: int) -> dict[int, Kernel]:
        """What a hierarchical allreduce tries within my node before its first phase and before its last."""
        node = self.channel.ranks_of_node
        if len(node) == 1:
            return {}
        lead = hierarchical.leading(params["leaders"], len(node))
        chunk = WHOLE.shares([1] * lead + [0] * (len(node) - lead))[node.index(self.rank)]
        mine = bound(chunk.lo) * itemsize, bound.length(chunk) * itemsize
        kernels = {0: at.NODE_REDUCE_SCATTER, -1: at.NODE_ALLGATHER}
        return {phase: Kernel(function, chunk=mine, terms=2 * len(node)) for phase, function in kernels.items()}

    def _kernel_phases(self, call: Call, itemsize: int, symmetric: bool) -> tuple[Sections, bool]:
        """Phases of node kernels that serve the call, and whether the last of them does all of it by itself."""
        params, endpoint, ranks = dict(call.params), self.channel.endpoint, self.topology.ranks
        found, n_bytes = Sections(), call.count * itemsize
        if not self.on_one_node:
            return found, False
        if symmetric:
            owner = call.root if call.collective in ROOTED else at.EVERYONE
            one = Kernel(ONE_PASS[call.collective], owner=owner, unit=itemsize, terms=2 * ranks)
            kernel_phase(found, one, n_bytes)
        kernel = kernel_of(call, itemsize, endpoint.reads_peers)
        if kernel is None or params.get("segment_bytes"):
            return found, False
        if kernel.function == at.ONE_SHOT and n_bytes > st.HALF_BYTES:
            return found, False
        copies = kernel.function == at.SINGLE_COPY
        pieces = ranks if copies else st.RING * (ranks * kernel.gives + (kernel.taker != at.NOBODY))  # in staging
        largest = st.HALF_BYTES // pieces // at.LINE * at.LINE
        piece = params.get("kernel_bytes", at.LINE) // at.LINE * at.LINE
        kernel_phase(found, replace(kernel, terms=ranks, piece_bytes=max(at.LINE, min(piece, largest))), n_bytes)
        return found, True

    def _share(self, call: Call, itemsize: int) -> Share:
        """What of my memory the others access in a single pass; native/one_pass.py has the reasons."""
        n_bytes, root = call.count * itemsize, self.rank == call.root
        match call.collective:
            case "allgather":
                return Share(st.SHARE_OF_OUTPUT, n_bytes)
            case "broadcast" if not root:
                return Share(st.OPTIONAL_SHARE, n_bytes)
            case "allreduce":
                return Share(st.SHARE_OF_OUTPUT, n_bytes, n_bytes, kernel(call.dtype, call.op, many=True))
            case "reduce" if root:
                return Share(st.SHARE_OF_OUTPUT, n_bytes, n_bytes)
        return Share(st.SHARE_OF_INPUT, n_bytes)

    def barrier(self) -> Program:
        """A byte of each rank, which everyone must have before anyone goes on."""
        return self.program(self.call("barrier", "uint8", self.topology.ranks, diagnosis.NO_OP, 0, "dissemination", {}))

    @cached_property
    def counting(self) -> Program:
        """Two numbers from each rank to each, before an alltoall whose callers say what they send."""
        ranks = self.topology.ranks
        call = self.call("alltoall", "int64", 2 * ranks, diagnosis.NO_OP, 0, "direct", {})
        return Program(
            self.channel.endpoint,
            self._lower(call, self._schedule(call), 8, bound_of("alltoall", call.count, ranks), None, None),
            kernel=kernel("uint8", "or"),
            itemsize=1,
            fingerprint=diagnosis.fingerprint(diagnosis.COUNTS, "int64", diagnosis.NO_OP, 0, call.count, "", {}),
            timeout=self.timeout,
        )

    def agreement(self, fingerprint: Sequence[int], waits: bool = True) -> Program:
        """What says to all ranks what a call is, and moves none of its data; `waits`: until all have said the same."""
        call = self.call("allreduce", "uint8", int(waits), "or", 0, "recursive_doubling", {})
        return Program(
            self.channel.endpoint,
            self._lower(call, self._schedule(call), 1, Bound([0, int(waits)]), None, None),
            kernel=kernel("uint8", "or"),
            itemsize=1,
            fingerprint=fingerprint,
            timeout=self.timeout,
        )

    def _lower(
        self,
        call: Call,
        schedule: Schedule,
        itemsize: int,
        bound: Bound,
        segment_bytes: int | None,
        weights: Sequence[int] | None,
        before: Sections | None = None,
        levels: Mapping[int, Kernel] | None = None,
    ) -> Table:
        endpoint, node = self.channel.endpoint, self.channel.ranks_of_node
        if self.channel.comm.mpi is None:
            check_channels(call, schedule, endpoint.lanes, endpoint.slots)
        places = {rank: i for i, rank in enumerate(node)}
        return lower(
            schedule,
            Target(
                itemsize,
                bound,
                holds(call.collective, self.topology.ranks, self.rank),
                link=lambda peer: at.SHARED_MEMORY if peer in places and endpoint.lanes else at.MPI,
                fifo=lambda peer: places[peer],
                fifo_lanes=endpoint.lanes,
                fifo_slots=endpoint.slots,
                piece_bytes=FIFO_PIECE if "shared-memory" in self.topology.links else MPI_PIECE,
                segment_bytes=segment_bytes,
                weights=weights,
                stand_ins=levels or {},
            ),
            before,
        )

    def _schedule(self, call: Call) -> Schedule:
        """This rank's schedule, proved together with all others where that is cheap."""
        algorithm, params = find(call.collective, call.algorithm), dict(self._settings(call))
        key = call.collective, call.algorithm, self._settings(call), call.root
        if key not in self._schedules:
            ranks, nodes = self.topology.ranks, algorithm.groups(self.topology)
            ours = (algorithm.emit.__module__ or "").startswith("collectives.")
            if ranks <= (PROVED_RANKS if ours else PROVED_RANKS_OF_STRANGERS):
                prove(algorithm, ranks, nodes, call.root, params)
            self._schedules[key] = algorithm.schedule(range(ranks), self.rank, nodes=nodes, root=call.root, **params)
        return self._schedules[key]

    def _settings(self, call: Call) -> tuple[tuple[str, Any], ...]:
        """The parameters by which a schedule differs; of a segment's length, only whether there are segments."""
        short = ((name, value and 1 if name == SEGMENT_BYTES.name else value) for name, value in call.params)
        return tuple((name, value) for name, value in short if name != KERNEL_BYTES)

    def _weights_of(self, call: Call, schedule: Schedule) -> list[int]:
        """What each operand of each fold weighs in a mean: from everybody's schedules where they are few."""
        key = call.collective, call.algorithm, self._settings(call), call.root
        if key not in self._weights:
            proved = self.topology.ranks <= WEIGHED_RANKS
            self._weights[key] = self._proved_weights(call) if proved else self._dry_run(call, schedule)
        return self._weights[key]

    def _proved_weights(self, call: Call) -> list[int]:
        ranks, params = self.topology.ranks, dict(self._settings(call))
        algorithm = find(call.collective, call.algorithm)
        groups = algorithm.groups(self.topology)
        schedules = algorithm.schedules(ranks, nodes=groups, root=call.root, **params)
        return weights(schedules, contract(call.collective, ranks, call.root))[self.rank]

    def _dry_run(self, call: Call, schedule: Schedule) -> list[int]:
        """The same from a collective run in which everyone contributes 1."""
        ranks = self.topology.ranks
        parts = max(2 * int(1 / smallest_part(schedule)) + 2, ranks)  # so that no message is empty
        count = self._largest(-(-parts // ranks) * ranks)
        bound = bound_of(call.collective, count, ranks)
        program = Program(
            self.channel.endpoint,
            self._lower(call, schedule, 8, bound, 1 << 62, None),
            kernel=library().note_weights,
            itemsize=8,
            fingerprint=diagnosis.fingerprint(call.collective, "int64", "sum", call.root, count, call.algorithm, {}),
            timeout=self.timeout,
        )
        source, target = (ctypes.c_int64 * count)(*[1] * count), (ctypes.c_int64 * count)(*[1] * count)
        ENGINE.call(self.channel, program, ctypes.addressof(source), ctypes.addressof(target), (source, target))
        return program.weights

    def _largest(self, value: int) -> int:
        """The largest of all ranks' values. Collective."""
        box = ctypes.c_int64(value)
        program = self.program(self.call("allreduce", "int64", 1, "max", 0, "recursive_doubling", {}))
        ENGINE.call(self.channel, program, ctypes.addressof(box), ctypes.addressof(box), box)
        return box.value


def bound_of(collective: str, count: int, ranks: int, align: int = 1) -> Bound:
    """Where spans of the message begin and end: what a caller can see is cut as torch.tensor_split cuts.

    count: elements of the message; of an alltoall, those that each rank sends.
    """
    if collective == "alltoall":
        cuts = chunk_offsets(count, ranks)
        return Bound([rank * count + cut for rank in range(ranks) for cut in cuts[:-1]] + [ranks * count])
    return Bound(chunk_offsets(count, ranks if collective in CHUNKED else 1), align)


def kernel_of(call: Call, itemsize: int, reads_peers: bool) -> Kernel | None:
    """The node kernel that does what the call's algorithm does, or None."""
    copies = at.SINGLE_COPY if reads_peers else at.STAGED
    match call.collective, call.algorithm:
        case "allreduce", "one_shot":
            return Kernel(at.ONE_SHOT)
        case "allreduce", "two_shot":
            return Kernel(at.STAGED, gives=True)
        case "allreduce", "single_copy":
            return Kernel(copies, gives=True)
        case "reduce", "two_shot":
            return Kernel(at.STAGED, gives=True, taker=call.root)
        case "reduce", "direct":
            return Kernel(at.STAGED, gives=True, owner=call.root, taker=at.NOBODY)
        case "reduce_scatter", "direct":
            return Kernel(at.STAGED, gives=True, taker=at.NOBODY, unit=itemsize)
        case "allgather", "direct":
            return Kernel(at.STAGED, unit=itemsize)
        case "allgather", "single_copy":
            return Kernel(copies, unit=itemsize)
        case "broadcast", "direct":
            return Kernel(at.STAGED, owner=call.root)
    return None


def check_channels(call: Call, schedule: Schedule, lanes: int, slots: int) -> None:
    """UnsupportedError where the schedule needs more lanes or slots than have FIFOs, and there is no other link."""
    there = [(number, lane.slots) for phase in schedule.phases for number, lane in phase.lanes.items()]
    if any(number >= lanes or wanted > slots for number, wanted in there):
        raise UnsupportedError(
            f"{call.collective} {call.algorithm} needs {1 + max(there)[0]} lanes of {max(s for _, s in there)} slots, "
            f"and ranks that met without MPI have {lanes} of {slots}: pass slots={slots} or fewer"
        )


def prove(algorithm: Algorithm, ranks: int, nodes: Nest, root: int, params: Mapping[str, Any]) -> None:
    """Raise UnsupportedError unless the algorithm's schedules keep the collective's contract on this group."""
    schedules = algorithm.schedules(ranks, nodes=nodes, root=root, **params)
    try:
        verify(schedules, contract(algorithm.collective, ranks, root))
    except Fault as fault:
        name = f"{algorithm.collective} {algorithm.name}"
        raise UnsupportedError(f"{name} is wrong for these {ranks} ranks, and is not run: {fault}") from None


def blocks_to(rank: int, ranks: int) -> list[Fraction]:
    """Where the blocks begin that each rank sends to this one."""
    return [Fraction(source * ranks + rank, ranks * ranks) for source in range(ranks)]


def holds(collective: str, ranks: int, rank: int) -> dict[str, list[Span]]:
    """What the caller's buffers hold of the message, as the collective's contract lays them out."""
    whole, chunk = [WHOLE], Span(Fraction(rank, ranks), Fraction(rank + 1, ranks))
    match collective:
        case "allreduce" | "broadcast":
            return {DATA: whole}
        case "reduce":
            return {INPUT: whole, OUTPUT: whole}
        case "reduce_scatter" | "scatter":
            return {INPUT: whole, OUTPUT: [chunk]}
        case "allgather" | "gather" | "barrier":
            return {INPUT: [chunk], OUTPUT: whole}
        case "alltoall":
            return {INPUT: [chunk], OUTPUT: [Span(lo, lo + chunk.size / ranks) for lo in blocks_to(rank, ranks)]}
    raise ValueError(f"no collective is called {collective!r}")
