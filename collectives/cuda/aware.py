"""By an MPI library that takes device memory: point-to-point messages of it, and folds of our own kernels.

The exchange is the one of exchange.cuh: everyone gives each owner its chunk, owners fold in the ranks' order, takers
take. The host waits between the two. Only where the library itself says that it is CUDA-aware.
"""

import ctypes
import time
from typing import Any

from collectives.cuda import layout as at
from collectives.cuda.arguments import Bytes, Places
from collectives.cuda.driver import Driver
from collectives.cuda.launcher import EXCHANGES, Request, grid
from collectives.errors import CollectiveTimeout
from collectives.extents import chunk_offsets

NAP_SECONDS = 2e-5
TAG = 7


def cuda_aware() -> bool:
    """Whether the MPI library says that it takes device memory."""
    from mpi4py import MPI

    query = getattr(ctypes.CDLL(MPI.__file__), "MPIX_Query_cuda_support", None)
    return query is not None and query() == 1


class DoneWork:
    """A call that the host has finished already."""

    def __init__(self, result: Any):
        self.result = result

    def done(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> Any:  # noqa: ARG002 - as other works
        """The result."""
        return self.result


class Aware:
    """Such calls of one communicator; `mpi` is an mpi4py communicator of its own. They block."""

    def __init__(self, driver: Driver, mpi: Any, resident: int):
        self.driver, self.mpi, self.resident = driver, mpi, resident
        self.scratch, self.scratch_bytes = 0, 0

    def run(self, request: Request, stream: int, threads: int, timeout: float) -> None:
        """CollectiveTimeout where a rank does not come."""
        rank, size, until = self.mpi.rank, self.mpi.size, time.monotonic() + timeout
        gives, rooted, taker, packed = EXCHANGES[request.collective]
        item = request.target.itemsize
        owners = [request.root] if rooted else list(range(size))
        offsets = [offset * item for offset in chunk_offsets(request.count, len(owners))]
        spans = {owner: (offsets[i], offsets[i + 1] - offsets[i]) for i, owner in enumerate(owners)}
        mine, n_mine = spans.get(rank, (0, 0))
        source = request.source.address - (mine if packed == at.INPUT_CHUNK else 0)
        target = request.target.address - (mine if packed == at.OUTPUT_CHUNK else 0)
        self.driver.synchronize(stream)
        if gives:
            apart = -(-n_mine // 256) * 256
            self._reserve(apart * size)
            sends = [(owner, source + at_, n) for owner, (at_, n) in spans.items() if owner != rank]
            places = [self.scratch + apart * r if r != rank else source + mine for r in range(size)]
            self._move(sends, [(r, places[r], n_mine) for r in range(size) if r != rank], until)
            if n_mine:
                function = self.driver.function("fold", request.dtype, request.folds)
                blocks = grid(n_mine, self.resident, None)
                arguments = Places.of([target + mine]), Places.of(places), Bytes(n_mine)
                self.driver.launch(function, blocks, threads, arguments, stream)
                self.driver.synchronize(stream)
        elif n_mine and source != target:
            self.driver.copy(target + mine, source + mine, n_mine, stream)
            self.driver.synchronize(stream)
        if taker == at.EVERYONE:
            others = [r for r in range(size) if r != rank]
            receives = [(owner, target + at_, n) for owner, (at_, n) in spans.items() if owner != rank]
            self._move([(r, target + mine, n_mine) for r in others], receives, until)

    def _move(self, sends: list[tuple[int, int, int]], receives: list[tuple[int, int, int]], until: float) -> None:
        from mpi4py import MPI

        def memory(address: int, n_bytes: int) -> Any:
            return [MPI.buffer.fromaddress(address, n_bytes), n_bytes, MPI.BYTE]

        requests = [self.mpi.Irecv(memory(address, n), peer, TAG) for peer, address, n in receives if n]
        requests += [self.mpi.Isend(memory(address, n), peer, TAG) for peer, address, n in sends if n]
        while not MPI.Request.Testall(requests):
            if time.monotonic() > until:
                raise CollectiveTimeout("messages of device memory are late: a rank does not make this call")
            time.sleep(NAP_SECONDS)

    def _reserve(self, n_bytes: int) -> None:
        if n_bytes > self.scratch_bytes:
            if self.scratch:
                self.driver.free(self.scratch)
            self.scratch, self.scratch_bytes = self.driver.allocate(n_bytes), n_bytes

    def close(self) -> None:
        """Collective."""
        if self.scratch:
            self.driver.free(self.scratch)
        self.mpi.Free()
