"""Memory whose address compiled code may keep."""

import ctypes
import mmap


class Memory:
    """Zeroed memory of our own, aligned to a page."""

    def __init__(self, n_bytes: int):
        self._map = mmap.mmap(-1, max(n_bytes, 1))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.n_bytes = n_bytes

    def words(self, offset: int, count: int) -> "ctypes.Array[ctypes.c_int64]":
        return (ctypes.c_int64 * count).from_address(self.address + offset)
