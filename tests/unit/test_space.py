"""The space holds what can serve, each once, and nothing that cannot help; a study can name every candidate."""

import random

import pytest

from collectives.algorithms import every, find
from collectives.contract import contract
from collectives.proof.canonical import canonical
from collectives.selection import FIXED_ORDER
from collectives.verify import verify
from tuner.space import Candidate, candidate, space

ONE_NODE = [[0, 1, 2, 3]]
SQUARE = [[0, 1], [2, 3]]


class Trial:
    """Answers as an Optuna trial would, by fixed answers or by chance, and refuses a name with other choices."""

    def __init__(self, answers=None, seed=0):
        self.answers, self.rng, self.asked = answers, random.Random(seed), {}

    def suggest_categorical(self, name, choices):
        assert self.asked.setdefault(name, list(choices)) == list(choices)
        if self.answers is None:
            return self.rng.choice(list(choices))
        assert self.answers[name] in choices
        return self.answers[name]


@pytest.mark.parametrize("nodes", [ONE_NODE, SQUARE, [[0, 1, 2], [3]]])
@pytest.mark.parametrize("nbytes", [8, 4096, 1 << 20, 64 << 20])
@pytest.mark.parametrize("collective", ["allreduce", "reduce_scatter", "allgather", "reduce", "broadcast"])
def test_every_candidate_is_named_once_can_be_suggested_and_is_allowed(collective, nbytes, nodes):
    whole = space(collective, nodes, nbytes)
    candidates = whole.every()
    assert len(set(candidates)) == len(candidates)
    known = {algorithm.name: algorithm for algorithm in every(collective)}
    for each in candidates:
        trial = Trial(whole.distributions(each))
        assert whole.suggest(trial) == each
        assert set(trial.asked) == set(trial.answers)
        assert known[each.algorithm].schedule(range(4), 1, nodes=nodes, **each.params).phases
    suggested = {whole.suggest(Trial(seed=seed)) for seed in range(200)}
    assert suggested <= set(candidates)


def test_small_messages_are_not_cut_and_long_ones_are():
    assert not any("segment_bytes" in each.params for each in space("allreduce", ONE_NODE, 8).every())
    segments = {
        each.params["segment_bytes"] for each in space("allreduce", ONE_NODE, 1 << 18).every()
        if each.algorithm == "ring" and "segment_bytes" in each.params
    }  # fmt: skip
    assert segments == {1 << 14}  # a chunk has 64 KiB
    slots = {
        each.params["slots"] for each in space("allreduce", ONE_NODE, 3 << 16).every()
        if each.algorithm == "ring" and each.items
    }  # fmt: skip
    assert slots == {2, 3}  # a chunk of 48 KiB makes three segments of 16 KiB


def test_what_emits_the_same_schedules_is_tried_once():
    two = {str(each) for each in space("allreduce", [[0, 1]], 8).every()}
    assert {"ring", "recursive_doubling", "one_shot", "two_shot"} <= two
    assert not {"weighted", "pat:radix=4", "kary_tree:radix=4", "swing"} & two, (
        two
    )  # of two ranks there is one exchange
    assert "swing" in {each.algorithm for each in space("allreduce", [list(range(8))], 8).every()}


def test_the_simplest_come_first_and_have_nothing_set():
    simplest = space("allreduce", ONE_NODE, 1 << 20).simplest()
    assert Candidate("ring") in simplest
    assert len({each.algorithm for each in simplest}) == len(simplest)
    assert candidate("ring", {"segment_bytes": None, "slots": 4}) == Candidate("ring")


def test_hierarchies_are_tried_where_there_are_several_nodes():
    def names(nodes):
        return {branch.algorithm for branch in space("allreduce", nodes, 1 << 20).branches}

    assert names(SQUARE) - names(ONE_NODE) == {"hierarchical", "nested", "themis"}
    assert names([[0, 1], [2]]) - names([[0, 1, 2]]) == {"hierarchical", "nested"}
    sockets = space("allreduce", ONE_NODE, 1 << 20, groups=[[[0, 1], [2, 3]]])  # of one node
    assert {branch.algorithm for branch in sockets.branches} - names(ONE_NODE) == {"nested", "themis"}
    assert names([[0], [1], [2], [3]]) == names(ONE_NODE)
    inner = {each.params["inner"] for each in space("allreduce", SQUARE, 8).every() if each.algorithm == "hierarchical"}
    assert {"ring", "recursive_doubling", "halving_doubling"} <= inner


@pytest.mark.parametrize(
    "nodes, leaders",
    [
        (SQUARE, {"all", "one"}),
        ([[0, 1, 2], [3]], {"all", "one", 2}),
        ([[*range(4)], [*range(4, 8)]], {"all", "one", 2}),
    ],
)
def test_values_that_change_nothing_on_the_nodes_at_hand_are_left_out(nodes, leaders):
    tried = [each for each in space("allreduce", nodes, 1 << 20).every() if each.algorithm == "hierarchical"]
    assert {each.params["leaders"] for each in tried} == leaders


def test_only_and_deterministic_narrow_it():
    assert [b.algorithm for b in space("allreduce", ONE_NODE, 8, only=["two_shot"]).branches] == ["two_shot"]
    fixed = {branch.algorithm for branch in space("allreduce", ONE_NODE, 1 << 20, deterministic=True).branches}
    assert fixed == {"one_shot", "two_shot", "single_copy", "knomial_tree"}  # and what emits their schedules
    with pytest.raises(ValueError, match="allreduce has no algorithm called 'rign'; it has: ring"):
        space("allreduce", ONE_NODE, 8, only=["rign"])
    known = {b.algorithm for b in space("reduce", [[*range(5)]], 8, deterministic=True).branches}
    assert known & {"direct", "two_shot", "binomial_tree", "chain"} == {"direct", "two_shot"}
    with pytest.raises(ValueError, match="no algorithm of reduce can serve 4 ranks in a fixed order"):
        space("reduce", ONE_NODE, 8, deterministic=True, only=["binomial_tree"])


@pytest.mark.parametrize("nodes", [[[0, 1]], ONE_NODE, SQUARE, [[0, 1, 2], [3]]])
@pytest.mark.parametrize("collective", ["allreduce", "reduce", "reduce_scatter"])
def test_deterministic_candidates_are_those_whose_proof_says_so(collective, nodes):
    ranks = sum(map(len, nodes))
    whole = space(collective, nodes, 1 << 18)
    admitted = set(space(collective, nodes, 1 << 18, deterministic=True).every())
    for each in whole.every():
        roots = range(ranks) if collective == "reduce" else (0,)
        found = find(collective, each.algorithm)
        proofs = [
            verify(found.schedules(ranks, nodes=nodes, root=root, **each.params), contract(collective, ranks, root))
            for root in roots
        ]
        assert (each in admitted) == all(proof.canonical for proof in proofs), each
    assert admitted <= set(whole.every())


def test_every_rule_that_a_fixed_order_may_name_is_admitted_everywhere():
    for collective, names in FIXED_ORDER.items():
        for name in names:
            for nodes in (((0, 1),), ((0, 1, 2, 3),), ((0, 1, 2), (3,))):
                assert canonical(collective, name, {}, nodes)
    assert not canonical("allreduce", "ring", {}, ((0, 1, 2),))
    assert canonical("allreduce", "ring", {"segment_bytes": 1 << 14, "slots": 2}, ((0, 1),))
    assert canonical("allgather", "ring", {}, ((0, 1, 2),))  # nothing is folded
