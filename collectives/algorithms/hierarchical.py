"""Hierarchical: within nodes, between nodes, within nodes. Any allreduce that emits rounds serves between nodes.

All ranks lead: each carries its chunk of the node's sum between nodes. Uneven nodes have uneven chunks; between all
their cuts lie pieces which have one owner on every node, and whose owners do the allreduce, all pieces together:

    node {0, 1, 2}    | rank 0 | rank 1 | rank 2 |
    node {3}          |          rank 3          |
    pieces            | {0, 3} | {1, 3} | {2, 3} |

One rank leads: a node's first rank folds what its node has, and the first ranks do the allreduce.
"""

from bisect import bisect
from collections.abc import Iterator, Sequence
from itertools import chain
from operator import attrgetter

from collectives.algorithms import direct, doubling, halving, ring, tree
from collectives.schedule import WHOLE, Group, Phase, Round, Span, lane, mirror, together

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
    leaders: str = "all",
    slots: int = 0,
) -> Iterator[Phase]:
    """Reduce within each node, allreduce between nodes, and spread the result within each node.

    What crosses between nodes is one message for each node, not one for each rank. In a pipeline one segment goes
    between nodes while others are within; without, each of the three is a phase, which on a node may be a kernel's.
    Cost: on m nodes of k ranks 2 alpha + 2 n (k-1)/k beta + n (k-1)/k gamma, and inner's for m ranks and n/k, if all
    lead; 2 ceil(log2 k) (alpha + n beta) + ceil(log2 k) n gamma, and inner's for m ranks and n, if one leads.
    Serves: any number of ranks, any nodes, uneven and interleaved ones too.
    Paper: Bayatpour et al., Scalable reduction collectives with data partitioning-based multi-leader design, 2017.
    """
    node = next((Group(node, g.me) for node in nodes if g.me in node), None)
    if node is None:
        raise ValueError(f"rank {g.me} is on none of the nodes {[list(node) for node in nodes]}")
    if leaders == "all":
        within, between = list(direct.scatter(node, span)), all_lead(g, span, nodes, node, inner)
    else:
        within, between = list(tree.up(node, tree.binomial(node), span)), one_leads(g, span, nodes, inner)
    levels = within, between, mirror(within)
    if slots:
        yield Phase({0: lane(chain.from_iterable(levels), cells=[span], slots=slots)})
    else:
        yield from (Phase({0: lane(rounds)}) for rounds in levels)


def all_lead(g: Group, span: Span, nodes: Sequence[Sequence[int]], node: Group, inner: str) -> list[Round]:
    shares = {len(ranks): span.split(len(ranks)) for ranks in nodes}
    cuts = sorted({end for share in shares.values() for chunk in share for end in chunk})
    pieces = [piece for piece in map(Span, cuts, cuts[1:]) if piece in shares[node.size][node.rank]]

    def owners(piece: Span) -> Group:
        """The rank of each node whose chunk the piece lies in."""
        place = {n: bisect(share, piece.lo, key=attrgetter("lo")) - 1 for n, share in shares.items()}
        return Group((ranks[place[len(ranks)]] for ranks in nodes), g.me)

    return together(*(INNER[inner](owners(piece), piece) for piece in pieces))


def one_leads(g: Group, span: Span, nodes: Sequence[Sequence[int]], inner: str) -> list[Round]:
    firsts = [ranks[0] for ranks in nodes]
    return list(INNER[inner](Group(firsts, g.me), span)) if g.me in firsts else []
