"""Alltoall: every rank has a block for every other. Block (s, d) is part d of what s sends, its chunk of the message.

n is what one rank sends. Bruck passes a block on by the bits of its distance d - s; of 6 ranks, block (0, 5) goes

    bit 0    0 -> 1        bit 1    stays at 1        bit 2    1 -> 5
"""

from collections.abc import Iterator

from collectives.schedule import INPUT, OUTPUT, SCRATCH, WHOLE, Group, Round, Span, copy, recv, send


def pairwise(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """In round t, send to the rank t places to the right, and receive from t places to the left.

    Nobody sends or receives more than one block at a time: for long messages.
    Cost: (p-1) (alpha + n/p beta).
    Serves: any number of ranks; any counts.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    me, p = g.rank, g.size
    yield [copy(block(span, me, me, p), INPUT, OUTPUT)]
    for t in range(1, p):
        to, source = (me + t) % p, (me - t) % p
        yield [send(block(span, me, to, p), g[to], INPUT), recv(block(span, source, me, p), g[source], OUTPUT)]


def direct(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Everybody sends everybody its block at once.

    One round, many messages: for ranks that share memory, or short messages.
    Cost: alpha + n (p-1)/p beta.
    Serves: any number of ranks; any counts.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    yield [step for steps in pairwise(g, span) for step in steps]


def bruck(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """In round k, pass 2^k places to the right all blocks whose way still has the bit k.

    Few rounds, and few partners; a block travels once for each bit of its way. Blocks of different sources are not
    neighbours in the message, so each is a message of its own.
    Cost: ceil(log2 p) alpha + at most ceil(log2 p) n/2 beta.
    Serves: any number of ranks; no counts.
    Paper: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997.
    """
    me, p = g.rank, g.size

    def passed(holder: int, bit: int) -> list[tuple[int, Span]]:
        """What a rank passes on in a round: (way of the block, block)."""
        ways = [way for way in range(p) if way & bit]
        sources = [(holder - way % bit) % p for way in ways]
        return [(way, block(span, s, (s + way) % p, p)) for way, s in zip(ways, sources, strict=True)]

    yield [copy(block(span, me, me, p), INPUT, OUTPUT)]
    for bit in (1 << k for k in range((p - 1).bit_length())):
        sends = [send(x, g[me + bit], SCRATCH if way % bit else INPUT) for way, x in passed(me, bit)]
        home = [recv(x, g[me - bit], OUTPUT if way < 2 * bit else SCRATCH) for way, x in passed(me - bit, bit)]
        yield sends + home


def block(span: Span, source: int, to: int, p: int) -> Span:
    return span.part(source * p + to, p * p)
