"""One collective on one size: the memory of a rank, its input freshly written, and the result it must have.

Contributions are whole numbers whose sums are exact in the dtype, so a result is right to the bit or wrong. They
repeat with a prime period, so that a misplaced chunk shows, and differ by powers of two from rank to rank, so that a
contribution counted twice or missed shows.
"""

import ctypes
import math
import mmap
import random
import struct
from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_, or_, xor
from typing import Any

from collectives.buffers import view
from collectives.contract import REDUCING
from collectives.dtypes import ITEMSIZE

PERIOD = 251
GATHERS = ("allgather", "gather")  # which take a chunk from each rank
FORMATS = {
    "float16": "e", "float32": "f", "float64": "d", "int8": "b", "int16": "h", "int32": "i", "int64": "q",
    "uint8": "B", "uint16": "H", "uint32": "I", "uint64": "Q",
}  # fmt: skip
EXACT_BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
HALVES = ("float16", "bfloat16")
MOST_CHECKED = 1 << 16  # elements looked at one by one where a mean may be rounded
TOLERANCE = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 2.0**-20, "float64": 2.0**-49}  # a few roundings


class Case:
    """Memory for one collective; the same on every rank, but for the rank's own contribution.

    `x` and `out` are what the collective takes (out None: in place). `write()` puts the input there afresh. `empty`, a
    communicator's, makes what ranks share in the collective symmetric: allgather's output, the others' input.
    """

    def __init__(
        self,
        collective: str,
        dtype: str,
        op: str,
        nbytes: int,
        rank: int,
        size: int,
        empty: Callable[[int, str], Any] | None = None,
    ):
        self.collective, self.dtype, self.op, self.rank, self.size = collective, dtype, op, rank, size
        self.nbytes, self.count = nbytes, nbytes // ITEMSIZE[dtype]
        mine = chunk(self.count, size, rank)
        whole, part = slice(0, self.count), mine
        contribution, reduced = pattern(dtype, op, rank, size), result(dtype, op, size)
        blocks = slice(0, size * (mine.stop - mine.start))
        self._out: Any = None
        shared = symmetric(empty, nbytes) if empty else None
        taken = part if collective in GATHERS else slice(0, 0) if collective == "scatter" and rank else whole
        self._in = memory(self._bytes(taken)) if shared is None or collective == "allgather" else shared
        self._source = memory(self._bytes(taken))
        one = collective in ("broadcast", "scatter", *GATHERS)  # all ranks' parts are of one message
        own = pattern(dtype, op, 0, size) if one else contribution
        if collective == "broadcast" and rank:
            own = [0] * PERIOD
        fill(self._source, dtype, own, taken.start)
        at_root = collective not in ("reduce", "gather") or rank == 0
        given = {"reduce_scatter": part, "scatter": part, "allgather": whole, "gather": whole, "alltoall": blocks}
        self._expected_slice = given.get(collective, whole) if at_root else taken
        if collective in given and at_root:
            self._out = memory(self._bytes(self._expected_slice))
        if collective == "allgather" and shared is not None:
            self._out = shared
        self._exact = op != "avg" or collective not in REDUCING or not at_root
        self._expected_values = own if collective in GATHERS or collective == "scatter" or not at_root else reduced
        if collective == "broadcast":
            self._expected_values = pattern(dtype, op, 0, size)
        self._expected = memory(self._bytes(self._expected_slice))
        if collective == "alltoall":
            self._fill_blocks(mine)
        else:
            fill(self._expected, dtype, self._expected_values, self._expected_slice.start)
        self.x = array(self._in, self._bytes(taken), dtype)
        self.out = array(self._out, self._bytes(self._expected_slice), dtype) if self._out is not None else None
        self._result = self._in if self._out is None else self._out
        self._result_bytes = self._bytes(self._expected_slice)
        self._in_view, self._source_view = memoryview(self._in), memoryview(self._source)

    def _fill_blocks(self, mine: slice) -> None:
        """What an alltoall brings: of each rank's message the part that is mine."""
        length, expected = self._bytes(mine), memoryview(self._expected)
        for source in range(self.size):
            block = expected[source * length : (source + 1) * length]
            fill(block, self.dtype, pattern(self.dtype, self.op, source, self.size), mine.start)

    def _bytes(self, elements: slice) -> int:
        return int(elements.stop - elements.start) * ITEMSIZE[self.dtype]

    def write(self) -> None:
        """The input, as if this rank had just computed it."""
        self._in_view[:] = self._source_view

    def spoil(self) -> None:
        """Put something else where the result will be, so that one left over from an earlier call does not count."""
        if self._out is not None:
            self._out[:] = b"\xa5" * len(self._out)

    def wrong(self) -> int:
        """How many elements of the result are not what they must be."""
        if self._exact and self._result[: self._result_bytes] == self._expected[: self._result_bytes]:
            return 0
        misses: int = sum(not self._right(place) for place in self._places())
        return misses

    def _places(self) -> Sequence[int]:
        count = self._expected_slice.stop - self._expected_slice.start
        return range(count) if count <= MOST_CHECKED or self._exact else range(0, count, count // MOST_CHECKED)

    def _right(self, place: int) -> bool:
        item = ITEMSIZE[self.dtype]
        found = self._result[place * item : (place + 1) * item]
        if self._exact:
            return found == self._expected[place * item : (place + 1) * item]
        value = decode(bytes(found), self.dtype)
        wanted = self._expected_values[(self._expected_slice.start + place) % PERIOD]
        return math.isclose(value, wanted, rel_tol=TOLERANCE[self.dtype])


def chunk(count: int, size: int, rank: int) -> slice:
    """As torch.tensor_split cuts."""
    each, more = divmod(count, size)
    start = rank * each + min(rank, more)
    return slice(start, start + each + (rank < more))


def memory(nbytes: int) -> mmap.mmap:
    return mmap.mmap(-1, max(nbytes, 1))


def symmetric(empty: Callable[[int, str], Any], nbytes: int) -> memoryview:
    """Bytes that all ranks of a node map. Collective."""
    shared = empty(max(nbytes, 1), "uint8")
    held = (ctypes.c_uint8 * max(nbytes, 1)).from_address(view(shared).address)
    held.keep = shared  # type: ignore[attr-defined]
    return memoryview(held).cast("B")


def array(owner: Any, nbytes: int, dtype: str) -> Any:
    """The memory as an array: a memoryview, or a tensor where Python has no such elements."""
    if dtype not in HALVES:
        return memoryview(owner)[:nbytes].cast(FORMATS[dtype])  # type: ignore[call-overload]
    import torch

    kind = getattr(torch, dtype)
    return torch.frombuffer(owner, dtype=kind, count=nbytes // 2) if nbytes else torch.empty(0, dtype=kind)


def pattern(dtype: str, op: str, rank: int, size: int) -> list[int]:
    """A period of this rank's contribution."""
    rng = random.Random(PERIOD)
    factors = [rng.randrange(1, 4) for _ in range(PERIOD)]
    if op == "prod":  # each place of the period has one rank with a 2 or a 3, the others with a 1
        return [factor if place % size == rank else 1 for place, factor in enumerate(factors)]
    most = 1 << (EXACT_BITS.get(dtype, 7) - (op == "avg"))
    powers = 16
    while powers > 1 and sum(3 << (r % powers) for r in range(size)) >= most:
        powers -= 1
    if sum(3 << (r % powers) for r in range(size)) >= most:
        return [int(place % size == rank) for place in range(PERIOD)]
    return [factor << (rank % powers) for factor in factors]


def result(dtype: str, op: str, size: int) -> list[Any]:
    """A period of the reduction of all contributions."""
    combine: dict[str, Callable[[Sequence[int]], Any]] = {
        "sum": sum,
        "avg": lambda values: sum(values) / len(values),
        "prod": math.prod,
        "min": min,
        "max": max,
        "and": lambda values: reduce(and_, values),
        "or": lambda values: reduce(or_, values),
        "xor": lambda values: reduce(xor, values),
    }
    columns = zip(*(pattern(dtype, op, rank, size) for rank in range(size)), strict=True)
    return [combine[op](column) for column in columns]


def fill(target: Any, dtype: str, values: Sequence[Any], start: int) -> None:
    """Repeat a period over the memory, which holds the message from element `start` on."""
    shift = start % PERIOD
    turned = [*values[shift:], *values[:shift]]
    period = b"".join(encode(value, dtype) for value in turned)
    block = period * max(1, (1 << 16) // len(period))
    for place in range(0, len(target), len(block)):
        target[place : place + len(block)] = block[: len(target) - place]


def encode(value: float, dtype: str) -> bytes:
    if dtype == "bfloat16":
        return struct.pack("<f", value)[2:]  # whole numbers of at most 8 bits, so nothing is cut off
    if dtype in EXACT_BITS:
        return struct.pack(f"<{FORMATS[dtype]}", value)
    return int(value).to_bytes(16, "little", signed=True)[: ITEMSIZE[dtype]]


def decode(data: bytes, dtype: str) -> float:
    if dtype == "bfloat16":
        return float(struct.unpack("<f", b"\0\0" + data)[0])
    return float(struct.unpack(f"<{FORMATS[dtype]}", data)[0])
