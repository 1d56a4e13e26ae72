"""A window's extents, and the structure by which kernels know the group (window.cuh)."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.cuda import layout as at
from collectives.cuda.arguments import Group


@dataclass(frozen=True)
class Shape:
    """How much of a message is staged at once: bytes of a slot, and of a piece in a FIFO. Multiples of 64."""

    slot_bytes: int = 1 << 15
    fifo_bytes: int = 1 << 15

    def fifos_at(self, size: int) -> int:
        return at.STAGING_AT + at.MAX_BLOCKS * 2 * (size + 1) * self.slot_bytes

    def window_bytes(self, size: int) -> int:
        """Of each rank's window in a group of `size`."""
        return self.fifos_at(size) + at.MAX_BLOCKS * size * at.FIFO_DEPTH * self.fifo_bytes

    def group(self, rank: int, windows: Sequence[int], patience_ns: int, report: int, regions: int) -> Group:
        """The group as `rank` sees it. windows: addresses, here, of each rank's; report: of pinned words of the host;
        regions: of a table of symmetric memory in device memory."""
        size = len(windows)
        addresses = (*windows, *[0] * (at.MAX_RANKS - size))
        return Group(
            rank, size, patience_ns, self.slot_bytes, self.fifo_bytes, at.STAGING_AT, self.fifos_at(size), report,
            regions, addresses,
        )  # fmt: skip
