"""Recursive doubling: exchange everything with the rank whose number differs in one bit, bit after bit.

With p no power of two, let q be the largest in it: of the first 2 (p - q) ranks, odd ones hand their data to their
even neighbour and get the result back, while the even ones and all later ranks are the q of the core. For p = 6:

    hand over   1 -> 0      3 -> 2
    bit 0       0 <-> 2     4 <-> 5         core {0, 2, 4, 5}
    bit 1       0 <-> 4     2 <-> 5
    hand back   0 -> 1      2 -> 3
"""

from collections.abc import Iterator

from collectives.schedule import WHOLE, Group, Round, Span, mirror, recv_reduce, send


def allreduce(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Exchange and fold the whole message with a partner at distance 1, 2, 4, ...

    The fewest rounds: for short messages. Two rounds more where the ranks are no power of two.
    Cost: log2(q) (alpha + n beta + n gamma), and 2 alpha + 2 n beta + n gamma more if p is not q,
    the largest power of two in it.
    Serves: any number of ranks.
    Paper: Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005.
    """
    q = 1 << g.size.bit_length() - 1
    paired = 2 * (g.size - q)
    core, neighbour = g.ranks[:paired:2] + g.ranks[paired:], g[g.rank ^ 1]
    hand_over: list[Round] = []
    if g.rank < paired:
        hand_over = [[recv_reduce(span, neighbour) if g.me in core else send(span, neighbour)]]

    yield from hand_over
    if g.me in core:
        yield from exchange(Group(core, g.me), span)
    yield from mirror(hand_over)


def exchange(g: Group, span: Span) -> Iterator[Round]:
    """Among a power of two of ranks."""
    for k in range(g.size.bit_length() - 1):
        peer = g[g.rank ^ 1 << k]
        yield [send(span, peer), recv_reduce(span, peer)]
