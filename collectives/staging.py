"""Calls on memory of our own, between the caller's arrays: several packed into one, halves widened to float32."""

import ctypes
import functools
from collections.abc import Sequence

from collectives.buffers import View
from collectives.native.library import convert
from collectives.native.storage import Memory


class Packed:
    """Arrays of one dtype, one behind the other."""

    def __init__(self, views: Sequence[View]):
        self.views, first = views, views[0]
        memory = Memory(sum(view.n_bytes for view in views))
        count = sum(view.count for view in views)
        self.view = View(memory.address, count, first.dtype, first.itemsize, memory)
        at = self.view.address
        for view in views:
            ctypes.memmove(at, view.address, view.n_bytes)
            at += view.n_bytes

    def finish(self) -> None:
        """Unpack into the caller's arrays."""
        at = self.view.address
        for view in self.views:
            ctypes.memmove(view.address, at, view.n_bytes)
            view.restore()
            at += view.n_bytes


@functools.cache
def converter(source: str, target: str) -> "ctypes._FuncPointer":
    kind = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
    return kind(convert(source, target))


class Widened:
    """float16 or bfloat16 as float32, so that it is rounded once, at the end. Takes twice the message's memory."""

    def __init__(self, source: View, target: View):
        self.target = target
        memory = Memory(4 * source.count)
        self.view = View(memory.address, source.count, "float32", 4, memory)
        converter(source.dtype, "float32")(memory.address, source.address, source.count)

    def finish(self) -> None:
        converter("float32", self.target.dtype)(self.target.address, self.view.address, self.target.count)
        self.target.restore()
