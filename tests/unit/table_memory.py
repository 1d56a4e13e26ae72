"""Memory that maps intervals of bytes to numbers, so that a message of gigabytes costs no more than its pieces."""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence

from collectives.proof.reference import Number, Wrong

Owner = tuple[int, int, int] | None  # the lane, slot and segment that slot memory belongs to
Parts = list[tuple[int, Number]]  # runs of bytes with one value


class Memory:
    """Numbers by intervals of bytes. `frozen`: it may not be written."""

    def __init__(self, n_bytes: int, frozen: bool = False):
        self.n_bytes, self.frozen = n_bytes, frozen
        self.cuts: list[int] = [0]
        self.cells: list[tuple[Number | None, Owner]] = [(None, None)]

    def check(self, lo: int, n: int) -> None:
        if lo < 0 or lo + n > self.n_bytes:
            raise Wrong(f"bytes {lo} to {lo + n} of a buffer of {self.n_bytes}")

    def runs(self, lo: int, n: int) -> Iterator[tuple[int, Number | None, Owner]]:
        self.check(lo, n)
        i, place = bisect_right(self.cuts, lo) - 1, lo
        while place < lo + n:
            end = min(lo + n, self.cuts[i + 1] if i + 1 < len(self.cuts) else self.n_bytes)
            yield end - place, *self.cells[i]
            place, i = end, i + 1

    def read(self, lo: int, n: int, owner: Owner = None) -> Parts:
        parts = []
        for length, value, written_by in self.runs(lo, n):
            if value is None or written_by != owner:
                raise Wrong(f"{owner} reads at byte {lo} what nobody has written, or {written_by}")
            parts.append((length, value))
        return parts

    def write(self, lo: int, parts: Parts, owner: Owner = None) -> None:
        n = sum(length for length, _ in parts)
        self.check(lo, n)
        if self.frozen:
            raise Wrong("an input is written")
        cuts, cells, place = [], list[tuple[Number | None, Owner]](), lo
        for length, value in parts:
            cuts.append(place)
            cells.append((value, owner))
            place += length
        i, j = bisect_left(self.cuts, lo), bisect_left(self.cuts, place)
        if place < self.n_bytes and (j == len(self.cuts) or self.cuts[j] != place):
            cuts.append(place)
            cells.append(self.cells[j - 1])
        self.cuts[i:j], self.cells[i:j] = cuts, cells


def beside(operands: Sequence[Parts]) -> Iterator[tuple[int, list[Number]]]:
    """Runs of bytes in which every operand has one value."""
    queues = [deque(parts) for parts in operands]
    while all(queues):
        n = min(queue[0][0] for queue in queues)
        yield n, [queue[0][1] for queue in queues]
        for queue in queues:
            length, value = queue.popleft()
            if length > n:
                queue.appendleft((length - n, value))
    if any(queues):
        raise Wrong("operands differ in length")
