"""Every registered algorithm: proved, priced and computed."""

from fractions import Fraction

import pytest

from collectives.algorithms import double_tree, every, find, radix
from collectives.contract import REDUCING, ROOTED, contract
from collectives.nest import shape
from collectives.proof.reference import check
from collectives.proof.sweep import prove, settings
from collectives.schedule import DATA, INPUT, OUTPUT, SCRATCH, SEND, Group
from collectives.selection import FIXED_ORDER
from collectives.verify import verify

ALL = pytest.mark.parametrize("algorithm", every(), ids=lambda a: f"{a.collective}-{a.name}")
ODD_SHAPES = (
    shape("2+3+2"),
    shape("1+4"),
    [[0, 3, 5], [1], [2, 4]],
    [[4, 2], [0, 3, 1]],
    [[i, i + 4] for i in range(4)],
)


@ALL
def test_proved_for_1_to_17_ranks_and_shapes(algorithm):
    rows = list(prove(algorithm.collective, algorithms=[algorithm.name]))
    assert [row["error"] for row in rows if not row["ok"]] == []
    fours = {p: [range(i, min(i + 4, p)) for i in range(0, p, 4)] for p in range(1, 18)}
    served = {p for p, nodes in fours.items() if not algorithm.lack(p, nodes if algorithm.needs_nodes else None)}
    assert {row["ranks"] for row in rows} >= served


@pytest.mark.parametrize("nodes", ODD_SHAPES, ids=str)
def test_hierarchical_is_proved_on_uneven_and_interleaved_nodes(nodes):
    rows = list(prove("allreduce", ranks=(), shapes=[nodes], algorithms=["hierarchical"]))
    assert [row["error"] for row in rows if not row["ok"]] == []
    assert {(row["params"]["inner"], row["params"]["leaders"]) for row in rows} >= {
        ("ring", "all"),
        ("two_shot", "one"),
        ("ring", 2),
    }


@ALL
def test_proved_at_33_to_35_ranks_with_many_segments(algorithm):
    p = 34 if algorithm.even else 35 if algorithm.regular else 33
    nodes = [list(range(i, min(i + 7, p))) for i in range(0, p, 7)]
    for params in [{}, {"segment_bytes": 4096, "slots": 3}] if algorithm.pipelined else [{}]:
        verify(algorithm.schedules(p, nodes=nodes, **params), contract(algorithm.collective, p), segments=2)


@ALL
def test_computes_the_right_numbers_whenever_messages_move(algorithm):
    shapes = [None, shape("2x2"), shape("2+3")] if algorithm.needs_nodes else [None]
    seed = 0
    sizes = [p for p in (1, 2, 3, 5, 6) if algorithm.needs_nodes or not algorithm.lack(p)]
    groups = [(p, None) for p in sizes] + [(sum(map(len, x)), x) for x in shapes if x]
    for p, nodes in [(p, nodes) for p, nodes in groups if not algorithm.lack(p, nodes)]:
        root = p - 1 if algorithm.collective in ROOTED else 0
        promise = contract(algorithm.collective, p, root)
        for params in settings(algorithm):
            schedules = algorithm.schedules(p, nodes=nodes, root=root, **params)
            canonical = verify(schedules, promise).canonical
            for segments in (1, 4) if "slots" in params else (1,):
                check(schedules, promise, 29 + seed % 7, segments=segments, canonical=canonical, seed=seed)
                seed += 1


# What it costs: rounds along the longest chain, message lengths sent and folded by the rank that does most


def bits(p):
    """ceil(log2 p)"""
    return (p - 1).bit_length()


def depth(p):
    """Of a binomial tree: as many edges as the place in it has bits."""
    return max(v.bit_count() for v in range(p))


def largest_subtree(p):
    """Of those below the root of a binomial tree."""
    return max((min(v & -v, p - v) for v in range(1, p)), default=0)


def log(p):
    return p.bit_length() - 1


def share(p):
    return Fraction(p - 1, p)


def is_power(p):
    return p.bit_count() == 1


def halving(p):
    q = 1 << log(p)
    if is_power(p):
        return 2 * log(p), 2 * share(p), share(p)
    return 2 * log(p) + 2, Fraction(5, 2) - Fraction(2, q), Fraction(3, 2) - Fraction(1, q)


def doubling(p):
    extra = not is_power(p)
    return log(p) + 2 * extra, log(p) + extra, log(p) + extra


def levels(p):
    """How many factors p has, at most 2 where it is even."""
    return len(radix.factors(p, 2))


def digits(p, k):
    """The most that a place has in base k that are not 0: the depth of the k-nomial tree."""
    return max(sum(v // k**i % k > 0 for i in range(9)) for v in range(p))


def children(p, k):
    """Of the root of a k-nomial tree."""
    return sum(min(k - 1, (p - 1) // k**i) for i in range(9))


def height(p, k):
    """Of a k-ary tree."""
    v, edges = p - 1, 0
    while v:
        v, edges = (v - 1) // k, edges + 1
    return edges


def table(p):
    """Rows and columns of the torus."""
    rows = max(r for r in range(1, p + 1) if r * r <= p and p % r == 0)
    return rows, p // rows


COSTS = {
    ("allreduce", "bidirectional_ring"): lambda p: (2 * (p - 1), 2 * share(p), share(p)),
    ("allreduce", "torus"): lambda p: (2 * (sum(table(p)) - 2), 2 * share(p), share(p)),
    ("allreduce", "mixed_radix"): lambda p: (2 * levels(p), 2 * share(p), share(p)),
    ("allreduce", "bruck"): lambda p: (2 * bits(p), 2 * share(p), share(p)),
    ("allreduce", "pat"): lambda p: (2 * bits(p), 2 * share(p), share(p)),
    ("allreduce", "swing"): lambda p: (2 * bits(p), 2 * share(p), share(p)),
    ("allreduce", "knomial_tree"): lambda p: (2 * digits(p, 4), children(p, 4), children(p, 4)),
    ("allreduce", "kary_tree"): lambda p: (2 * height(p, 2), min(p - 1, 2 + (p > 4)), min(p - 1, 2)),
    ("allreduce", "chain"): lambda p: (2 * (p - 1), min(p - 1, 2), p > 1),
    ("allreduce", "linear"): lambda p: (2 * (p > 1), p - 1, p - 1),
    ("allreduce", "weighted"): lambda p: (2 * (p > 1), 2 * share(p), share(p)),
    ("reduce_scatter", "mixed_radix"): lambda p: (levels(p), share(p), share(p)),
    ("reduce_scatter", "bruck"): lambda p: (bits(p), share(p), share(p)),
    ("reduce_scatter", "pat"): lambda p: (bits(p), share(p), share(p)),
    ("allgather", "mixed_radix"): lambda p: (levels(p), share(p), 0),
    ("allgather", "pat"): lambda p: (bits(p), share(p), 0),
    ("reduce", "mixed_radix"): lambda p: (levels(p) + depth(p), share(p) + Fraction(largest_subtree(p), p), share(p)),
    ("reduce", "knomial_tree"): lambda p: (digits(p, 4), p > 1, children(p, 4)),
    ("reduce", "kary_tree"): lambda p: (height(p, 2), p > 1, min(p - 1, 2)),
    ("reduce", "chain"): lambda p: (p - 1, p > 1, p > 1),
    ("broadcast", "knomial_tree"): lambda p: (digits(p, 4), children(p, 4), 0),
    ("broadcast", "kary_tree"): lambda p: (height(p, 2), min(p - 1, 2), 0),
    ("broadcast", "chain"): lambda p: (p - 1, p > 1, 0),
    ("allreduce", "ring"): lambda p: (2 * (p - 1), 2 * share(p), share(p)),
    ("allreduce", "recursive_doubling"): doubling,
    ("allreduce", "halving_doubling"): halving,
    ("allreduce", "binomial_tree"): lambda p: (2 * depth(p), bits(p), bits(p)),
    ("allreduce", "one_shot"): lambda p: (p > 1, p - 1, p - 1),
    ("allreduce", "two_shot"): lambda p: (2 * (p > 1), 2 * share(p), share(p)),
    ("allreduce", "single_copy"): lambda p: (2 * (p > 1), 2 * share(p), share(p)),
    ("reduce_scatter", "ring"): lambda p: (p - 1, share(p), share(p)),
    ("reduce_scatter", "direct"): lambda p: (p > 1, share(p), share(p)),
    ("allgather", "ring"): lambda p: (p - 1, share(p), 0),
    ("allgather", "bruck"): lambda p: (bits(p), share(p), 0),
    ("allgather", "direct"): lambda p: (p > 1, share(p), 0),
    ("allgather", "single_copy"): lambda p: (p > 1, share(p), 0),
    ("reduce", "binomial_tree"): lambda p: (depth(p), p > 1, bits(p)),
    ("reduce", "direct"): lambda p: (p > 1, p > 1, p - 1),
    ("reduce", "two_shot"): lambda p: (2 * (p > 1), p > 1, share(p)),
    ("broadcast", "binomial_tree"): lambda p: (depth(p), bits(p), 0),
    ("broadcast", "direct"): lambda p: (p > 1, p - 1, 0),
    ("broadcast", "scatter_allgather"): lambda p: (depth(p) + p - 1, 2 * share(p), 0),
    ("allreduce", "one_pass"): lambda p: (2 * (p > 1), 2 * share(p), share(p)),
    ("reduce_scatter", "one_pass"): lambda p: (p > 1, share(p), share(p)),
    ("allgather", "one_pass"): lambda p: (p > 1, share(p), 0),
    ("reduce", "one_pass"): lambda p: (2 * (p > 1), share(p) + Fraction(p > 1, p), share(p)),
    ("broadcast", "one_pass"): lambda p: (p > 1, p - 1, 0),
    ("gather", "direct"): lambda p: (p > 1, Fraction(p > 1, p), 0),
    ("gather", "binomial_tree"): lambda p: (depth(p), Fraction(largest_subtree(p), p), 0),
    ("scatter", "direct"): lambda p: (p > 1, share(p), 0),
    ("scatter", "binomial_tree"): lambda p: (depth(p), share(p), 0),
    ("alltoall", "direct"): lambda p: (p > 1, share(p) / p, 0),  # of what all ranks send
    ("alltoall", "pairwise"): lambda p: (p - 1, share(p) / p, 0),
    ("alltoall", "bruck"): lambda p: (bits(p), Fraction(sum(way.bit_count() for way in range(p)), p * p), 0),
    ("barrier", "dissemination"): lambda p: (bits(p), share(p), 0),
}


@pytest.mark.parametrize("collective, name", COSTS)
def test_costs_what_its_closed_form_says(collective, name):
    algorithm = find(collective, name)
    served = [p for p in (*range(1, 10), 12, 13, 16, 17) if not algorithm.lack(p)]
    reports = {p: verify(algorithm.schedules(p), contract(collective, p)) for p in served}
    found = {p: (report.rounds, report.sent, report.folded) for p, report in reports.items()}
    assert found == {p: COSTS[collective, name](p) for p in served}


@pytest.mark.parametrize("p", range(2, 18))
def test_the_double_tree_sends_at_most_twice_and_folds_at_most_once(p):
    report = verify(find("allreduce", "double_tree").schedules(p), contract("allreduce", p))
    assert report.sent <= 2
    assert report.folded <= 1
    assert report.rounds <= 2 * bits(p + 1)


@pytest.mark.parametrize("p", range(2, 18))
@pytest.mark.parametrize("collective", ["reduce", "broadcast"])
def test_the_double_tree_of_one_root_sends_and_folds_at_most_once(collective, p):
    report = verify(find(collective, "double_tree").schedules(p), contract(collective, p))
    assert report.sent <= 1
    assert report.folded <= (collective == "reduce")
    assert report.rounds <= 1 + bits(p)


def test_non_powers_of_two_send_no_more_than_twice_the_message():
    """Where handing over whole messages makes halving and doubling send 2.75 of them at 13 ranks."""
    for name, most in (("halving_doubling", Fraction(9, 4)), ("bruck", 2 * share(13)), ("mixed_radix", 2 * share(13))):
        assert verify(find("allreduce", name).schedules(13), contract("allreduce", 13)).sent == most


@pytest.mark.parametrize("weights", ["1:2:3", "4:0:1", "0:0:1", "7:5:1"])
def test_chunks_in_proportion_to_weights(weights):
    """What a rank folds, and sends back, is as much as it weighs; bits are those of any fold in rank order."""
    algorithm, numbers = find("allreduce", "weighted"), [int(w) for w in weights.split(":")]
    schedules = algorithm.schedules(3, weights=weights)
    report = verify(schedules, contract("allreduce", 3))
    part = Fraction(max(numbers), sum(numbers))
    assert (report.folded, report.canonical) == (2 * part, True)
    assert report.sent == max(1 + Fraction(w, sum(numbers)) for w in numbers)
    check(schedules, contract("allreduce", 3), 61, segments=1, canonical=True, seed=1)
    with pytest.raises(ValueError, match=r"weights='1:2' are for 2 ranks, and these are 3"):
        algorithm.schedules(3, weights="1:2")
    with pytest.raises(ValueError, match=r"weights='1:x' is not allowed; weights: equal or "):
        algorithm.schedules(3, weights="1:x")


@pytest.mark.parametrize("m, k", [(2, 2), (2, 3), (3, 4), (4, 1), (1, 5)])
def test_the_hierarchical_cost_is_that_of_its_parts(m, k):
    nodes, hierarchical = [range(i * k, i * k + k) for i in range(m)], find("allreduce", "hierarchical")
    for inner in ("ring", "recursive_doubling", "halving_doubling", "one_shot", "two_shot", "binomial_tree"):
        between = COSTS["allreduce", inner](m)
        r = verify(hierarchical.schedules(m * k, nodes=nodes, inner=inner), contract("allreduce", m * k))
        assert r.rounds == 2 * (k > 1) + between[0]
        assert (r.sent, r.folded) == (2 * share(k) + between[1] / Fraction(k), share(k) + between[2] / Fraction(k))
        r = verify(hierarchical.schedules(m * k, nodes=nodes, inner=inner, leaders="one"), contract("allreduce", m * k))
        assert (r.rounds, r.folded) == (2 * depth(k) + between[0], bits(k) + between[2])
        assert bits(k) <= r.sent <= bits(k) + between[1] + (k > 1)
        lead = min(2, k)
        r = verify(hierarchical.schedules(m * k, nodes=nodes, inner=inner, leaders=2), contract("allreduce", m * k))
        assert r.rounds == 2 * (k > 1) + between[0]
        assert r.folded == Fraction(k - 1, lead) + between[2] / Fraction(lead)
        assert r.sent == Fraction(k + lead - 2 + between[1], lead)


def test_every_algorithm_has_a_closed_form_or_bounds_of_its_own():
    others = {(collective, "double_tree") for collective in ("allreduce", "reduce", "broadcast")}
    others |= {("allreduce", name) for name in ("hierarchical", "nested", "themis")}
    assert {(a.collective, a.name) for a in every()} == COSTS.keys() | others


def test_which_have_the_canonical_tree():
    fixed = {(a.collective, a.name) for a in every() if verify(a.schedules(6), contract(a.collective, 6)).canonical}
    moves = {(a.collective, a.name) for a in every() if a.collective not in REDUCING}
    one_node = {("allreduce", name) for name in ("hierarchical", "nested", "themis")}  # 6 ranks, and no nodes given
    in_order = {(collective, name) for collective, names in FIXED_ORDER.items() for name in names}
    assert fixed == moves | one_node | in_order


# How algorithms are put together


def test_no_rank_is_an_inner_node_of_both_trees():
    for p in range(2, 70):
        trees = [double_tree.trees(Group(range(p), me)) for me in range(p)]
        for pick in (0, 1):
            assert sum(tree[pick].parent is None for tree in trees) == 1
            for me, tree in enumerate(trees):
                assert all(trees[child][pick].parent == me for child in tree[pick].children)
        assert not any(first.children and second.children for first, second in trees)


def test_hierarchical_is_proved_on_one_node():
    hierarchical = find("allreduce", "hierarchical")
    for p in range(1, 10):
        for params in settings(hierarchical):
            verify(hierarchical.schedules(p, **params), contract("allreduce", p), segments=3)


def rounds_of(schedule):
    return [steps for phase in schedule.phases for lane in phase.lanes.values() for steps in lane.rounds]


def test_hierarchical_is_two_shot_on_one_node_and_the_inner_one_on_nodes_of_one():
    hierarchical = find("allreduce", "hierarchical")
    two_shot = find("allreduce", "two_shot").schedules(5)
    assert [rounds_of(mine) for mine in hierarchical.schedules(5)] == [rounds_of(mine) for mine in two_shot]
    single = [[rank] for rank in range(6)]
    for leaders in ("all", "one", 2):
        alone = hierarchical.schedules(6, nodes=single, inner="halving_doubling", leaders=leaders)
        assert alone == find("allreduce", "halving_doubling").schedules(6)


@ALL
def test_talks_to_its_group_alone(algorithm):
    ranks = (3, 8, 9, 20, 21, 30)
    nodes = [[3, 8, 9], [20, 21, 30]] if algorithm.regular else [[3, 8], [9, 20, 21, 30]]
    for me in ranks:
        schedule = algorithm.schedule(ranks, me, nodes=nodes)
        steps = [s for phase in schedule.phases for lane in phase.lanes.values() for r in lane.rounds for s in r]
        assert {s.peer for s in steps} - {None} <= set(ranks) - {me}
        assert any(s.peer is not None for s in steps)


@ALL
def test_emits_few_steps_at_1024_ranks(algorithm):
    schedule = algorithm.schedule(range(1024), 517, nodes=[range(i, i + 8) for i in range(0, 1024, 8)])
    steps = sum(len(r) for phase in schedule.phases for lane in phase.lanes.values() for r in lane.rounds)
    assert 0 < steps <= 11 * 1024


@pytest.mark.parametrize("algorithm", [a for a in every() if a.pipelined], ids=lambda a: f"{a.collective}-{a.name}")
def test_a_pipeline_is_the_same_rounds_in_cells_and_slots(algorithm):
    nodes = shape("2x3")
    plain = algorithm.schedule(range(6), 4, nodes=nodes)
    piped = algorithm.schedule(range(6), 4, nodes=nodes, segment_bytes=1 << 12, slots=5)
    lanes = [lane for phase in piped.phases for lane in phase.lanes.values()]
    assert [lane.slots for lane in lanes] == [5] * len(lanes)
    assert all(lane.cells for lane in lanes)
    assert not any(lane.cells for phase in plain.phases for lane in phase.lanes.values())
    if algorithm.name == "hierarchical":  # whose levels are phases where they do not overlap
        assert rounds_of(piped) == rounds_of(plain)
    else:
        assert [lane.rounds for lane in lanes] == [
            lane.rounds for phase in plain.phases for lane in phase.lanes.values()
        ]


@ALL
def test_is_documented(algorithm):
    first, *rest = algorithm.doc.splitlines()
    assert first.endswith((".", ","))
    assert algorithm.cost
    assert all(any(line.startswith(word) for line in rest) for word in ("Cost: ", "Serves: ", "Paper: "))
    assert all(parameter.doc and parameter.default in parameter.choices for parameter in algorithm.parameters)


# The registry


@ALL
def test_works_on_data_or_on_input_scratch_and_output(algorithm):
    steps = [
        s
        for schedule in algorithm.schedules(6, nodes=shape("2x3"))
        for phase in schedule.phases
        for lane in phase.lanes.values()
        for r in lane.rounds
        for s in r
    ]
    in_place = algorithm.collective in ("allreduce", "broadcast")
    assert {s.buffer for s in steps} <= ({DATA} if in_place else {INPUT, SCRATCH, OUTPUT})
    assert INPUT not in {s.buffer for s in steps if s.kind != SEND}
