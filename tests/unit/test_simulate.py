"""The simulator against closed forms, against itself without symmetry, and against contention counted by hand."""

from math import ceil, log2
from typing import Any

import pytest

from collectives import simulate as simulator
from collectives.algorithms import find
from collectives.errors import UnsupportedError
from collectives.foresight import traffic as traffics
from collectives.foresight.foresee import Foresight
from collectives.foresight.network import MIB, MPI, SHARED_MEMORY, Interface, Level, Network, Torus
from collectives.foresight.traffic import traffic
from collectives.schedule import WHOLE, collect, recv, send
from collectives.simulate import shares, simulate
from collectives.tables.table import LinkCost

A, B, C = 3.0, 96.0, 32.0  # alpha us; beta and gamma, us per MiB; the message is a MiB
LINKS = [
    LinkCost(class_=SHARED_MEMORY, alpha_us=A, beta_us_per_MiB=B, gamma_us_per_MiB=C),
    LinkCost(class_=MPI, alpha_us=A, beta_us_per_MiB=B, gamma_us_per_MiB=C),
]

FORMS = {
    ("allreduce", "ring"): lambda p: 2 * (p - 1) * (A + B / p) + (p - 1) * C / p,
    ("allreduce", "recursive_doubling"): lambda p: log2(p) * (A + B + C),
    ("allreduce", "halving_doubling"): lambda p: 2 * log2(p) * A + (2 * B + C) * (p - 1) / p,
    ("allreduce", "one_shot"): lambda p: A + (p - 1) * (B + C),
    ("allreduce", "two_shot"): lambda p: 2 * A + (2 * B + C) * (p - 1) / p,
    ("reduce_scatter", "ring"): lambda p: (p - 1) * (A + (B + C) / p),
    ("reduce_scatter", "direct"): lambda p: A + (B + C) * (p - 1) / p,
    ("allgather", "ring"): lambda p: (p - 1) * (A + B / p),
    ("allgather", "bruck"): lambda p: ceil(log2(p)) * A + B * (p - 1) / p,
    ("allgather", "direct"): lambda p: A + B * (p - 1) / p,
    ("reduce", "binomial_tree"): lambda p: log2(p) * (A + B + C),
    ("reduce", "direct"): lambda p: A + (p - 1) * B + C,  # operands come one after the other, and are folded meanwhile
    ("broadcast", "direct"): lambda p: A + (p - 1) * B,
    ("broadcast", "binomial_tree"): lambda p: sum(A + k * B for k in range(1, int(log2(p)) + 1)),  # one port a rank
}


def flat(ranks, **more):
    return Network(nodes=1, ranks_per_node=ranks, links=LINKS, **more)


@pytest.mark.parametrize("which", FORMS, ids="-".join)
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_exact_without_contention(which, ranks):
    one_node = Foresight(flat(ranks)).predict(which[0], which[1], MIB).us
    assert one_node == pytest.approx(FORMS[which](ranks), rel=1e-9)
    many = Foresight(Network(nodes=ranks, ranks_per_node=1, links=LINKS)).predict(which[0], which[1], MIB)
    assert many.us == pytest.approx(one_node, rel=1e-9)


def test_ring_by_its_closed_form_at_many_ranks():
    found = Foresight(Network(nodes=512, ranks_per_node=1, links=LINKS)).predict("allreduce", "ring", MIB)
    assert found.alike
    assert found.us == pytest.approx(FORMS["allreduce", "ring"](512), rel=1e-9)


SHARED = Interface(beta_us_per_MiB=50.0)
TREE = [Level(nodes=2, oversubscription=4.0, alpha_us=1.0)]


@pytest.mark.parametrize("shape", [(4, 2), (6, 3), (8, 4)], ids=str)
@pytest.mark.parametrize("levels", [[], TREE], ids=["crossbar", "tree"])
def test_one_block_of_nodes_stands_for_all(shape, levels, monkeypatch):
    links = [LINKS[0], LinkCost(class_=MPI, alpha_us=5.0, beta_us_per_MiB=70.0, gamma_us_per_MiB=C, gap_us=0.5)]
    network = Network(nodes=shape[0], ranks_per_node=shape[1], links=links, interface=SHARED, levels=levels)
    settings: list[tuple[str, dict[str, Any]]] = [
        ("ring", {}), ("ring", {"segment_bytes": 1 << 14, "slots": 3}), ("two_shot", {}), ("halving_doubling", {}),
        ("hierarchical", {}), ("hierarchical", {"inner": "recursive_doubling"}), ("binomial_tree", {}),
    ]  # fmt: skip

    def all_of_them():
        foresight = Foresight(network)
        return [foresight.predict("allreduce", name, MIB, **params) for name, params in settings]

    short = all_of_them()
    monkeypatch.setattr(traffics, "alike", lambda _: None)
    whole = all_of_them()
    assert [each.us for each in short] == pytest.approx([each.us for each in whole], rel=0.02)
    assert [each.alike for each in short][:3] == [True] * 3
    assert short[3].alike == (shape[0] != 6)  # halving flips bits of a number
    assert not short[-1].alike
    assert not any(each.alike for each in whole)


def run(schedules, network, nbytes=MIB):
    return simulate(traffic(network, lambda rank: collect(schedules[rank]), None, 1 << 30), nbytes)


def between(pairs, ranks):
    """One round, in which each pair's first rank sends everything to its second."""
    return [
        [[send(WHOLE, b) for a, b in pairs if a == rank] + [recv(WHOLE, a) for a, b in pairs if b == rank]]
        for rank in range(ranks)
    ]


def test_messages_of_a_node_share_its_interface_and_its_switch_the_up_links():
    network = Network(nodes=4, ranks_per_node=2, links=LINKS, interface=Interface(beta_us_per_MiB=B))
    across = between([(0, 4), (1, 5)], 8)
    assert run(across, network).us == pytest.approx(A + 2 * B)
    assert run(between([(0, 4), (5, 1)], 8), network).us == pytest.approx(A + B)  # full duplex
    assert run(between([(0, 4), (2, 6)], 8), network).us == pytest.approx(A + B)
    tree = Network(**{name: getattr(network, name) for name in ("nodes", "ranks_per_node", "links", "interface")},
                   levels=[Level(nodes=2, oversubscription=4.0, alpha_us=1.0)])  # fmt: skip
    assert run(between([(0, 4), (2, 6)], 8), tree).us == pytest.approx(A + 1 + 2 * 2 * B)
    assert run(between([(0, 2), (4, 6)], 8), tree).us == pytest.approx(A + B)  # under one switch
    found = run(across, tree)
    assert found.busy["up-link of level 0"] == pytest.approx(4 * B / found.us)


def test_a_torus_is_crossed_hop_by_hop_the_shorter_way():
    torus = Torus(shape=[3, 4], beta_us_per_MiB=2 * B, alpha_us=0.5)
    network = Network(nodes=12, ranks_per_node=1, links=LINKS, torus=torus)
    assert run(between([(0, 7)], 12), network).us == pytest.approx(A + 2 * 0.5 + 2 * B)  # down one, left one
    assert run(between([(0, 6)], 12), network).us == pytest.approx(A + 3 * 0.5 + 2 * B)
    both = run(between([(0, 2), (1, 3)], 12), network)  # both go over the link from 1 to 2
    assert both.us == pytest.approx(A + 2 * 0.5 + 4 * B)
    assert "torus link" in both.busy


def test_a_half_duplex_port_does_one_thing_at_a_time():
    half = [LinkCost(class_=SHARED_MEMORY, alpha_us=A, beta_us_per_MiB=B, gamma_us_per_MiB=C, half_duplex=True)]
    network = Network(nodes=1, ranks_per_node=2, links=half)
    assert run(between([(0, 1)], 2), network).us == pytest.approx(A + B)
    assert run(between([(0, 1), (1, 0)], 2), network).us == pytest.approx(2 * B)


def test_long_messages_wait_for_their_receiver():
    """Rank 0 takes from rank 2, which is late, before it posts what rank 1 has sent long ago."""
    schedules = [
        [[recv(WHOLE, 2)], [recv(WHOLE, 1)]],
        [[send(WHOLE, 0)]],
        [[recv(WHOLE, 3)], [send(WHOLE, 0)]],
        [[send(WHOLE, 2)]],
    ]
    assert run(schedules, flat(4)).us == pytest.approx(2 * (A + B))
    waits = [LinkCost(class_=SHARED_MEMORY, alpha_us=A, beta_us_per_MiB=B, gamma_us_per_MiB=C, eager_bytes=1 << 19)]
    assert run(schedules, Network(nodes=1, ranks_per_node=4, links=waits)).us == pytest.approx(3 * (A + B))


def test_a_gap_lies_between_messages_and_what_goes_together_shares_the_port():
    gaps = [LinkCost(class_=SHARED_MEMORY, alpha_us=A, beta_us_per_MiB=B, gamma_us_per_MiB=C, gap_us=7.0)]
    network = Network(nodes=1, ranks_per_node=4, links=gaps)
    assert run(between([(0, 1)], 4), network).us == pytest.approx(A + B)
    assert run(between([(0, 1), (0, 2), (0, 3)], 4), network).us == pytest.approx(A + 3 * B + 2 * 7.0)
    assert shares([2.0, 6.0, 4.0]) == [6.0, 12.0, 10.0]
    assert shares([5.0, 5.0]) == [10.0, 10.0]


def test_slots_let_a_pipeline_flow_and_a_long_one_goes_on_as_it_began(monkeypatch):
    chain = Foresight(flat(8))

    def us(nbytes, **params):
        return chain.predict("allreduce", "double_tree", nbytes, **params).us

    assert us(64 * MIB, segment_bytes=1 << 18, slots=8) < 0.6 * us(64 * MIB)
    assert us(4 * MIB, segment_bytes=1 << 14, slots=8) < us(4 * MIB, segment_bytes=1 << 14, slots=2)
    settings = [(name, {"segment_bytes": 1 << 14, "slots": w}) for name in ("double_tree", "binomial_tree", "ring")
                for w in (2, 3, 8)]  # fmt: skip
    short = [chain.predict("allreduce", name, 8 * MIB, **params).us for name, params in settings]
    monkeypatch.setattr(simulator, "LONG", 1 << 20)
    whole = [chain.predict("allreduce", name, 8 * MIB, **params).us for name, params in settings]
    assert short == pytest.approx(whole, rel=0.01)


def test_schedules_that_hang_are_an_error():
    with pytest.raises(ValueError, match="rank 1 waits for what nobody sends"):
        run([[[]], [[recv(WHOLE, 0)]]], flat(2))


def test_what_does_not_fit_in_memory_says_so_before_it_starts():
    uneven = Network(nodes=2, ranks_per_node=[70, 30], links=LINKS)
    with pytest.raises(UnsupportedError, match=r"100 ranks on 70\+30 would take about .* GiB .* fewer ranks"):
        Foresight(uneven, memory=1 << 20).predict("allreduce", "ring", MIB)


def test_a_prediction_has_its_links_interval_and_the_refusal_of_what_cannot_serve():
    links = [LinkCost(class_=SHARED_MEMORY, alpha_us=A, beta_us_per_MiB=B, gamma_us_per_MiB=C, error=1.25)]
    found = Foresight(Network(nodes=1, ranks_per_node=2, links=links)).predict("allreduce", "ring", MIB)
    assert (found.low_us, found.high_us) == pytest.approx((found.us / 1.25, found.us * 1.25))
    assert Foresight(flat(2)).predict("allreduce", "ring", MIB).low_us is None
    with pytest.raises(ValueError, match="no parameter 'slos'"):
        Foresight(flat(2)).predict("allreduce", "ring", MIB, slos=2)


def test_a_kernels_class_counts_where_a_node_kernel_would_run():
    cheap = LinkCost(class_="staged", alpha_us=4.0, beta_us_per_MiB=1.0, gamma_us_per_MiB=1.0, gap_us=2.0)
    foresight = Foresight(Network(nodes=1, ranks_per_node=2, links=[*LINKS, cheap]))
    assert foresight.predict("allreduce", "two_shot", MIB, kernel_bytes=MIB).us == pytest.approx(8 + 1 + 0.5)
    pieces = foresight.predict("allreduce", "two_shot", MIB, kernel_bytes=MIB // 8).us
    assert pieces == pytest.approx(8 + 1 + 0.5 + 2 * 3 * 2)  # 4 pieces of a chunk, with 3 gaps between
    plain = FORMS["allreduce", "two_shot"](2)
    assert foresight.predict("allreduce", "ring", MIB).us == pytest.approx(plain)
    assert find("allreduce", "ring").check() == {"segment_bytes": None, "slots": 2}
