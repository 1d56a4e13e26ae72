"""Symmetric memory that is lent for a while, as FSDP2 takes buffers and lets them go at every layer.

Making symmetric memory is collective, and whether a loan has come back is not the same on all ranks at any one time. So
a rank that has none to lend gives ordinary memory, with which a call goes the ordinary way for all; and after the first
calls of a size ranks ask each other whether one of them had too few, and then all make one more.
"""

import ctypes
import math
import weakref
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch

import collectives

ASKED = 32  # calls of a size after which ranks ask


class Loans:
    """Buffers of one communicator, by their size."""

    def __init__(self, comm: "collectives.Communicator"):
        self.comm = comm
        self.serves = comm.size > 1 and len(comm.topology.nodes) == 1
        self._made: list[torch.Tensor] = []
        self._here: defaultdict[int, list[int]] = defaultdict(list)  # addresses by bytes: what is not lent now
        self._missed: set[int] = set()
        self._asked: Counter[int] = Counter()

    def lend(self, shape: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        """A tensor, not initialised, whose memory comes back when no tensor uses it any more."""
        n_bytes = math.prod(shape) * dtype.itemsize
        here = self._here[n_bytes]
        if not here:
            self._missed.add(n_bytes)
            return torch.empty(*shape, dtype=dtype)
        address = here.pop()
        memory = (ctypes.c_char * n_bytes).from_address(address)
        weakref.finalize(memory, here.append, address).atexit = False
        return torch.frombuffer(memory, dtype=dtype).view(*shape)

    def see(self, x: torch.Tensor) -> None:
        """Behind a call on x, which may have been lent. Collective at the first calls of that size."""
        n_bytes = x.nbytes
        if not self.serves or not n_bytes or self._asked[n_bytes] >= ASKED:
            return
        self._asked[n_bytes] += 1
        missed = torch.tensor([n_bytes in self._missed], dtype=torch.uint8)
        self._missed.discard(n_bytes)
        if self.comm.allreduce(missed, op="max").item():
            self._made.append(self.comm.empty(n_bytes, "uint8"))
            self._here[n_bytes].append(self._made[-1].data_ptr())
