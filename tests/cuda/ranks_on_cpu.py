"""Ranks as processes that share memory by fork, and what each kernel must give; the CPU's own folds say which bits."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import sys
import traceback
from collections.abc import Callable
from typing import Any

from collectives.cuda import layout as at
from collectives.cuda.arguments import Group
from collectives.cuda.window import Shape
from collectives.dtypes import ITEMSIZE
from collectives.native.library import kernel

SHAPE = Shape(slot_bytes=256, fifo_bytes=192)  # small, so that small messages are many pieces
PATIENCE = 100 * 10**9


class Memory:
    """Memory that all ranks share, given out from the front; `start` is its address in every process."""

    def __init__(self, n_bytes: int) -> None:
        self.map = mmap.mmap(-1, n_bytes)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        self.used = 0

    def take(self, n_bytes: int, align: int = 256) -> int:
        self.used = -(-self.used // align) * align
        address = self.start + self.used
        self.used += n_bytes
        assert self.used <= len(self.map), "more memory is needed"
        return address


class World:
    """Windows of `size` ranks, and room for their data."""

    def __init__(self, size: int, room: int = 1 << 16) -> None:
        self.size, self.room = size, room
        window = SHAPE.window_bytes(size)
        self.memory = Memory(size * (window + 3 * room + 4096) + (1 << 16))
        self.windows = [self.memory.take(window) for _ in range(size)]
        self.reports = [self.memory.take(4 * at.REPORT_WORDS) for _ in range(size)]
        self.inputs = [self.memory.take(room) for _ in range(size)]
        self.outputs = [self.memory.take(room) for _ in range(size)]
        self.data = [self.memory.take(room) for _ in range(size)]
        self.regions = self.memory.take(8 * at.MAX_RANKS)  # number 1 is `data`
        ctypes.memmove(self.regions, (ctypes.c_uint64 * size)(*self.data), 8 * size)

    def group(self, rank: int, patience: int = PATIENCE) -> Group:
        return SHAPE.group(rank, self.windows, patience, self.reports[rank], self.regions)

    def write(self, address: int, content: bytes) -> None:
        ctypes.memmove(address, content, len(content))

    def read(self, address: int, n_bytes: int) -> bytes:
        return ctypes.string_at(address, n_bytes)

    def report(self, rank: int) -> list[int]:
        return list((ctypes.c_uint32 * at.REPORT_WORDS).from_address(self.reports[rank]))


def fork(world: World, work: Callable[[int], None]) -> None:
    """`work(rank)` in a process for each rank; fails if it does anywhere."""
    children = []
    for rank in range(world.size):
        child = os.fork()
        if child == 0:
            try:
                work(rank)
            except BaseException:  # noqa: BLE001 - whatever it is, the parent must hear of it
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
            os._exit(0)
        children.append(child)
    failed = [rank for rank, child in enumerate(children) if os.waitpid(child, 0)[1] != 0]
    assert not failed, f"ranks {failed} of {world.size} failed; see standard error"


def numbers(dtype: str, count: int, seed: int) -> bytes:
    """Elements of any kind: random bits for integers, and for floats numbers of many sizes with some special ones."""
    chance = random.Random(seed)
    size = ITEMSIZE[dtype]
    if not dtype.endswith(("float16", "float32", "float64")):
        return chance.randbytes(count * size)
    special = {
        "float16": (0x7C00, 0xFC00, 0x7E01, 0x8000, 0, 1, 0x7BFF),
        "bfloat16": (0x7F80, 0xFF80, 0x7FC1, 0x8000, 0, 1, 0x7F7F),
        "float32": (0x7F800000, 0xFF800000, 0x7FC00001, 0x80000000, 0, 1, 0x7F7FFFFF),
        "float64": (0x7FF << 52, 0xFFF << 52, (0x7FF8 << 48) + 1, 1 << 63, 0, 1, (0x7FF << 52) - 1),
    }[dtype]  # fmt: skip
    exponent = {"float16": (10, 15), "bfloat16": (7, 127), "float32": (23, 127), "float64": (52, 1023)}[dtype]
    words = []
    for _ in range(count):
        word = chance.getrandbits(exponent[0]) | (exponent[1] + chance.randrange(-6, 7)) << exponent[0]
        word |= chance.getrandbits(1) << (8 * size - 1)
        words.append(chance.choice(special) if chance.random() < 0.03 else word)
    return b"".join(word.to_bytes(size, "little") for word in words)


def folded(dtype: str, op: str, operands: list[bytes]) -> bytes:
    """The fold of the operands in order, by the kernel of the CPU."""
    count = len(operands[0]) // ITEMSIZE[dtype]
    held = [ctypes.create_string_buffer(each, len(each) or 1) for each in operands]
    target = ctypes.create_string_buffer(len(operands[0]) or 1)
    addresses = (ctypes.c_int64 * len(held))(*map(ctypes.addressof, held))
    weights = (ctypes.c_int64 * len(held))(*[1] * len(held))
    run: Any = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(kernel(dtype, op))
    run(ctypes.addressof(target), ctypes.addressof(addresses), len(held), count, ctypes.addressof(weights))
    return target.raw[: len(operands[0])]
