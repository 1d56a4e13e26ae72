"""DDP's buckets as symmetric memory: moved into shared memory where they are, so that an average is one pass over them.

DDP makes its buckets twice, before the first step and again after it, and a rebuilt bucket may look like the old one.
So at the first calls of a bucket all ranks ask each other whether it lies elsewhere now; later calls ask nothing. Where
a bucket has moved unseen, or is a new tensor at each step (as PyTorch's compressing wrappers make), every call finds
out by itself that ranks' memories do not correspond, and goes the ordinary way.
"""

from typing import Literal

import torch

import collectives
from collectives.errors import UnsupportedError

ASKED = 3  # calls of a bucket at which ranks ask
Wanted = Literal["auto", True, False]


class SharedBuckets:
    """Which buckets of one communicator are symmetric."""

    def __init__(self, comm: "collectives.Communicator", wanted: Wanted):
        self.comm = comm
        self.tries = wanted is not False and comm.size > 1 and len(comm.topology.nodes) == 1
        self.insists = wanted is True
        if self.insists and not self.tries:
            raise UnsupportedError("zero_copy=True needs several ranks, all on one node")
        self._calls: dict[tuple[int, int, torch.dtype], int] = {}
        self._held: dict[int, torch.Tensor] = {}

    def see(self, bucket: torch.Tensor, index: int) -> None:
        """Look at a bucket that is about to be averaged, and share it at its first calls. Collective."""
        key = index, bucket.nbytes, bucket.dtype
        calls = self._calls.get(key, 0)
        if not self.tries or calls >= ASKED or not bucket.nbytes:
            return
        self._calls[key] = calls + 1
        held = self._held.get(index)
        moved = torch.tensor([held is None or held.data_ptr() != bucket.data_ptr()], dtype=torch.uint8)
        if self.comm.allreduce(moved, op="max").item():
            self._let_go(index)
            self._share(bucket, index)

    def symmetric(self, bucket: torch.Tensor, index: int) -> bool:
        held = self._held.get(index)
        return held is not None and held.data_ptr() == bucket.data_ptr()

    def _share(self, bucket: torch.Tensor, index: int) -> None:
        try:
            self.comm.register(bucket)
        except UnsupportedError:  # on all ranks, since they agreed on it
            if self.insists:
                raise
            self.tries = False
        else:
            self._held[index] = bucket

    def _let_go(self, index: int) -> None:
        held = self._held.pop(index, None)
        if held is not None:
            self.comm.release(held)
