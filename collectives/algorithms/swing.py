"""Swing: partners swing from side to side at distances 1, -1, 3, -5, 11, ..., and so stay near each other on a torus.

At step s rank r meets a peer, and gives it the blocks that the peer can still bring home. For block 0, backwards:

    p = 6    step 2: 3 gives to 0    step 1: 5 gives to 0, 4 to 3    step 0: 1 gives to 0, 2 to 3; 5 and 4 meet idly

Other blocks follow by symmetry: places count from the block's owner, to the right if it is even, else to the left.
"""

from collections.abc import Iterator

from collectives.schedule import WHOLE, Group, Round, Span, recv_reduce, send, there_and_back


def allreduce(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Reduce-scatter with partners that swing from side to side, and allgather back the same way.

    As little data in as few rounds as halving and doubling, and half of its distance on a ring or torus.
    Cost: 2 ceil(log2 p) alpha + 2 n (p-1)/p beta + n (p-1)/p gamma.
    Serves: even numbers of ranks; blocks are single messages where they are no power of two.
    Paper: De Sensi et al., Swing: short-cutting rings for higher bandwidth allreduce, 2024.
    """
    yield from there_and_back(scatter(g, span))


def scatter(g: Group, span: Span) -> Iterator[Round]:
    p, steps = g.size, (g.size - 1).bit_length()
    gives = {0: steps}  # the step at which a place gives the block of place 0
    for s in reversed(range(steps)):
        gives |= {meets(r, s, p): s for r in list(gives) if meets(r, s, p) not in gives}
    chunk = dict(zip(order(p), span.split(p), strict=True))

    def given(rank: int, s: int) -> list[Span]:
        """As one span for powers of two. For others the weights in it differ, so that it stays in chunks."""
        blocks = sorted(chunk[b] for b in range(p) if gives[(b - rank if b % 2 else rank - b) % p] == s)
        return blocks if p & (p - 1) else [Span(blocks[0].lo, blocks[-1].hi)]

    for s in range(steps):
        other = meets(g.rank, s, p)
        yield [send(x, g[other]) for x in given(g.rank, s)] + [recv_reduce(x, g[other]) for x in given(other, s)]


def meets(r: int, s: int, p: int) -> int:
    """Rank r's peer at step s."""
    distance: int = (1 - (-2) ** (s + 1)) // 3
    return (r - distance if r % 2 else r + distance) % p


def order(p: int) -> list[int]:
    """How the blocks lie: for powers of two, so that whatever is given at a step is contiguous."""

    def visit(r: int, s: int) -> list[int]:
        return [r] if 1 << s >= p else visit(r, s + 1) + visit(meets(r, s, p), s + 1)

    return list(dict.fromkeys(visit(0, 0)))
