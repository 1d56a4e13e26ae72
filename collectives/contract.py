"""What each collective promises: whose contributions lie where, before and after.

The promise belongs to the collective, not to the algorithm. A buffer holds just the spans that its contract names,
packed in the order given; so the contract is also the layout of what a caller hands over.
"""

from typing import NamedTuple, TypeAlias

from collectives.schedule import DATA, INPUT, OUTPUT, WHOLE, Span

Holding: TypeAlias = tuple[str, Span, tuple[int, ...]]  # buffer, span, the ranks whose contributions it holds

COLLECTIVES = (
    "allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "gather", "scatter", "alltoall", "barrier",
)  # fmt: skip
ROOTED = ("reduce", "broadcast", "gather", "scatter")
REDUCING = ("allreduce", "reduce", "reduce_scatter")  # the others only move


class Contract(NamedTuple):
    """For each rank, what it holds before and what it must hold after."""

    before: list[list[Holding]]
    after: list[list[Holding]]

    def layout(self, rank: int) -> dict[str, list[Span]]:
        """The spans of each of the rank's buffers, in the order in which they lie."""
        held: dict[str, dict[Span, None]] = {}
        for buffer, span, _ in self.before[rank] + self.after[rank]:
            held.setdefault(buffer, {})[span] = None
        return {buffer: list(spans) for buffer, spans in held.items()}


def contract(collective: str, p: int, root: int = 0) -> Contract:
    """The contract of a collective over ranks 0 to p - 1.

    allreduce and broadcast work in place, on `data`; the others read `input`, which stays as it is, and write `output`.
    The message of an alltoall is everything that anyone sends, by source and then by destination. A barrier is kept
    when every rank holds a sign of life of every other.
    """
    if not 0 <= root < p:
        raise ValueError(f"root {root} is not one of {p} ranks, 0 to {p - 1}")
    ranks, chunk, everyone = range(p), WHOLE.split(p), tuple(range(p))

    def mine(buffer: str) -> list[list[Holding]]:
        return [[(buffer, WHOLE, (r,))] for r in ranks]

    def only(held: Holding) -> list[list[Holding]]:
        return [[held] if r == root else [] for r in ranks]

    own: list[list[Holding]] = [[(INPUT, chunk[r], (r,))] for r in ranks]
    everything: list[Holding] = [(OUTPUT, chunk[source], (source,)) for source in ranks]
    match collective:
        case "allreduce":
            return Contract(mine(DATA), [[(DATA, WHOLE, everyone)] for _ in ranks])
        case "reduce":
            return Contract(mine(INPUT), only((OUTPUT, WHOLE, everyone)))
        case "broadcast":
            source: Holding = (DATA, WHOLE, (root,))
            return Contract(only(source), [[source] for _ in ranks])
        case "reduce_scatter":
            return Contract(mine(INPUT), [[(OUTPUT, chunk[r], everyone)] for r in ranks])
        case "allgather" | "barrier":
            return Contract(own, [everything for _ in ranks])
        case "gather":
            return Contract(own, [everything if r == root else [] for r in ranks])
        case "scatter":
            return Contract(only((INPUT, WHOLE, (root,))), [[(OUTPUT, chunk[r], (root,))] for r in ranks])
        case "alltoall":
            return Contract(own, [[(OUTPUT, chunk[source].split(p)[r], (source,)) for source in ranks] for r in ranks])
    raise ValueError(f"no collective is called {collective!r}; there are {', '.join(COLLECTIVES)}")
