"""What kernels take, as structures: the same words in the same order as in window.cuh, exchange.cuh and steps.cuh."""

import ctypes
from ctypes import c_int32, c_uint32, c_uint64

from collectives.cuda import layout as at

Pointer = c_uint64


class Places(ctypes.Structure):
    """Of one span in several memories: operands of a fold, or its targets."""

    _fields_ = [("at", Pointer * at.MAX_RANKS), ("n", c_int32)]

    @classmethod
    def of(cls, addresses: list[int]) -> "Places":
        return cls((Pointer * at.MAX_RANKS)(*addresses), len(addresses))


class Group(ctypes.Structure):
    """The ranks, as one of them sees them."""

    _fields_ = [
        ("rank", c_int32), ("size", c_int32), ("patience", c_uint64), ("slot_bytes", c_uint32),
        ("fifo_bytes", c_uint32), ("staging_at", c_uint64), ("fifos_at", c_uint64), ("report", Pointer),
        ("regions", Pointer), ("window", Pointer * at.MAX_RANKS),
    ]  # fmt: skip


class Call(ctypes.Structure):
    """One collective by `one_shot` or `exchange`."""

    _fields_ = [
        ("input", Pointer), ("output", Pointer), ("count", c_uint64), ("unit", c_uint32), ("piece", c_uint32),
        ("gives", c_int32), ("owner", c_int32), ("taker", c_int32), ("region", c_uint32), ("offset", c_uint64),
        ("packed", c_int32),
    ]  # fmt: skip


class Steps(ctypes.Structure):
    """One collective by a lowered schedule."""

    _fields_ = [
        ("table", Pointer * 2), ("parts", c_int32), ("slots", c_int32), ("part_bytes", c_uint64), ("data", Pointer),
        ("input", Pointer), ("output", Pointer), ("scratch", Pointer), ("scratch_bytes", c_uint64),
        ("slot_bytes", c_uint64),
    ]  # fmt: skip


class Rounds(ctypes.Structure):
    """How many meetings `signals` makes."""

    _fields_ = [("n", c_int32)]


class Bytes(ctypes.Structure):
    _fields_ = [("n", c_uint64)]
