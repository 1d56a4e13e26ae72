"""Hierarchical: within nodes, between nodes, within nodes. Any allreduce that emits rounds serves between nodes.

All ranks lead: each carries its chunk of the node's sum between nodes. Uneven nodes have uneven chunks; between all
their cuts lie pieces which have one owner on every node, and whose owners do the allreduce, all pieces together:

    node {0, 1, 2}    | rank 0 | rank 1 | rank 2 |
    node {3}          |          rank 3          |
    pieces            | {0, 3} | {1, 3} | {2, 3} |

Several lead: as if all did, but only so many first ranks of a node have a chunk, which all others send them.

One rank leads: a tree of the node's ranks folds what the node has, and the first ranks do the allreduce.
"""

from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter

from collectives.algorithms import direct, doubling, halving, ring, tree
from collectives.schedule import WHOLE, Group, Phase, Round, Span, lane, mirror, together

ALL, ONE = "all", "one"  # of a node's ranks, as leaders
INNER = {
    "ring": ring.allreduce,
    "recursive_doubling": doubling.allreduce,
    "halving_doubling": halving.allreduce,
    "binomial_tree": tree.allreduce,
    "one_shot": direct.one_shot,
    "two_shot": direct.two_shot,
}


def allreduce(
    g: Group,
    span: Span = WHOLE,
    nodes: Sequence[Sequence[int]] = (),
    inner: str = "ring",
    leaders: str | int = ALL,
    slots: int = 0,
) -> Iterator[Phase]:
    """Reduce within each node, allreduce between the nodes' leaders, and spread the result within each node.

    What crosses between nodes is one message for each node, not one for each rank. In a pipeline one segment goes
    between nodes while others are within; without, each of the three is a phase, which on a node may be a kernel's.
    Cost: on m nodes of k ranks 2 alpha + 2 n (k-1)/k beta + n (k-1)/k gamma, and inner's for m ranks and n/k, if all
    lead; 2 alpha + n (k+l-2)/l beta + n (k-1)/l gamma, and inner's for m ranks and n/l, if l of them do;
    2 ceil(log2 k) (alpha + n beta) + ceil(log2 k) n gamma, and inner's for m ranks and n, if one leads.
    Serves: any number of ranks, any nodes, uneven and interleaved ones too.
    Paper: Bayatpour et al., Scalable reduction collectives with data partitioning-based multi-leader design, 2017.
    """
    node = next((Group(node, g.me) for node in nodes if g.me in node), None)
    if node is None:
        raise ValueError(f"rank {g.me} is on none of the nodes {[list(node) for node in nodes]}")
    if leaders == ONE:
        within, between = list(tree.up(node, tree.binomial(node), span)), one_leads(g, span, nodes, inner)
    else:
        within = list(direct.scatter(node, span, leading(leaders, node.size)))
        between = several_lead(g, span, nodes, node, leaders, inner)
    levels = within, between, mirror(within)
    if slots:
        yield Phase({0: lane(chain.from_iterable(levels), cells=[span], slots=slots)})
    else:
        yield from (Phase({0: lane(rounds)}) for rounds in levels)


def leading(leaders: str | int, ranks: int) -> int:
    """How many of a node's ranks have a chunk of the message."""
    return 1 if leaders == ONE else ranks if leaders == ALL else min(int(leaders), ranks)


def several_lead(
    g: Group, span: Span, nodes: Sequence[Sequence[int]], node: Group, leaders: str | int, inner: str
) -> list[Round]:
    shares = {len(ranks): span.split(leading(leaders, len(ranks))) for ranks in nodes}
    mine = shares[node.size][node.rank : node.rank + 1]
    cuts = sorted({end for share in shares.values() for chunk in share for end in chunk})
    pieces = [piece for piece in map(Span, cuts, cuts[1:]) if any(piece in chunk for chunk in mine)]

    def owners(piece: Span) -> Group:
        """The rank of each node whose chunk the piece lies in."""
        place = {n: bisect(share, piece.lo, key=attrgetter("lo")) - 1 for n, share in shares.items()}
        return Group((ranks[place[len(ranks)]] for ranks in nodes), g.me)

    return together(*(INNER[inner](owners(piece), piece) for piece in pieces))


def one_leads(g: Group, span: Span, nodes: Sequence[Sequence[int]], inner: str) -> list[Round]:
    firsts = [ranks[0] for ranks in nodes]
    return list(INNER[inner](Group(firsts, g.me), span)) if g.me in firsts else []
