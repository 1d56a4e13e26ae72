"""Recursive halving and doubling: fold halves, quarters, eighths, and come back the same way.

With p no power of two, let q be the largest in it. The first 2 (p - q) ranks pair up, and a pair is one of q members:
its ranks exchange halves, so that each holds one half of the pair's sum and speaks for the pair about it. For p = 3,
where member 0 is the pair of ranks 0 and 1, and member 1 is rank 2:

    the pair    0 --high half--> 1      1 --low half--> 0
    members     1 --high half--> 2      2 --low half--> 0       and back the same way

That adds 2 alpha + n beta + n/2 gamma, where handing over whole messages adds 2 alpha + 2 n beta + n gamma.
"""

from collections.abc import Iterator

from collectives.schedule import WHOLE, Group, Round, Span, recv_reduce, send, there_and_back


def allreduce(g: Group, span: Span = WHOLE) -> Iterator[Round]:
    """Reduce-scatter by recursive halving, then allgather by recursive doubling.

    As little data as a ring in far fewer rounds; partners are far apart, and most of the data goes the farthest.
    Cost: 2 log2(p) alpha + 2 n (p-1)/p beta + n (p-1)/p gamma for powers of two; else as for the largest power of
    two in p, and 2 alpha + n beta + n/2 gamma more.
    Serves: any number of ranks.
    Paper: Rabenseifner, Optimization of collective reduction operations, 2004.
    """
    yield from there_and_back(halve(g, span))


def halve(g: Group, span: Span) -> Iterator[Round]:
    q = 1 << g.size.bit_length() - 1
    pairs, half = g.size - q, span.split(2)
    member = g.rank // 2 if g.rank < 2 * pairs else g.rank - pairs

    def holder(member: int, part: Span) -> int:
        """The rank that speaks for a member about a part of the message."""
        return g[2 * member + (part in half[1])] if member < pairs else g[member + pairs]

    if member < pairs:
        keep, give, peer = half[g.rank % 2], half[1 - g.rank % 2], g[g.rank ^ 1]
        yield [send(give, peer), recv_reduce(keep, peer)]

    window, distance = span, q // 2
    while distance:
        keep, give = window.split(2)[:: -1 if member & distance else 1]
        other = member ^ distance
        gives = [send(give, holder(other, give))] if g.me == holder(member, give) else []
        keeps = [recv_reduce(keep, holder(other, keep))] if g.me == holder(member, keep) else []
        yield gives + keeps
        window, distance = keep, distance // 2
