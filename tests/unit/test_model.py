"""Costs that are fitted to times of a known machine, the choice by costs alone, and the order of a tuner's trials."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from collectives.foresight.forecast import Forecast
from collectives.foresight.foresee import Foresight
from collectives.foresight.network import of_links
from collectives.selection import FIXED_ORDER
from collectives.settings import Settings
from collectives.tables.table import LinkCost, Place, Rule, Table
from tuner.decision import Measured
from tuner.model import Timing, fit, quantiles
from tuner.seeding import Seeds, links_of
from tuner.space import Candidate, candidate, space

NODE = [[0, 1, 2, 3]]
TRUE = [
    LinkCost(class_="shared-memory", alpha_us=2.0, beta_us_per_MiB=60.0, gamma_us_per_MiB=30.0, gap_us=0.3,
             half_duplex=True, up_to_bytes=1 << 17),
    LinkCost(class_="shared-memory", alpha_us=2.0, beta_us_per_MiB=120.0, gamma_us_per_MiB=30.0, gap_us=0.3,
             half_duplex=True),
    *(LinkCost(class_=name, alpha_us=1.0, beta_us_per_MiB=80.0, gamma_us_per_MiB=20.0, half_duplex=True)
      for name in ("one-shot", "staged", "single-copy")),
]  # fmt: skip
MACHINE = Foresight(of_links(TRUE, NODE))


def timed(sizes, noise=0.03, nodes=NODE, machine=MACHINE, links_apart=7):
    drawn, found = random.Random(1), []
    for nbytes in sizes:
        every = space("allreduce", nodes, nbytes).every()
        for each in every[::links_apart] if len(every) > 24 else every:
            us = machine.predict("allreduce", each.algorithm, nbytes, **each.params).us
            found.append(Timing("allreduce", nbytes, each.algorithm, each.params, us * drawn.lognormvariate(0, noise)))
    return found


def test_a_fit_finds_costs_that_foresee_other_sizes_and_candidates():
    links = fit(NODE, timed([8 << (2 * k) for k in range(11)]))
    known = Foresight(of_links(links, NODE))
    for each in timed([8 << (2 * k + 1) for k in range(10)], noise=0.0, links_apart=5):
        foreseen = known.predict(each.collective, each.algorithm, each.nbytes, **each.params).us
        assert foreseen == pytest.approx(each.us, rel=0.25)
    own = [each for each in links if each.class_ == "shared-memory"]
    assert own[-1].up_to_bytes is None
    assert own[-1].beta_us_per_MiB > 1.3 * own[0].beta_us_per_MiB
    for each in links:
        assert each.error is not None
        assert 1 <= each.error < 1.5
        assert each.alpha_bounds is not None
        assert each.alpha_bounds[0] <= each.alpha_us <= each.alpha_bounds[1]
    assert links == fit(NODE, timed([8 << (2 * k) for k in range(11)]))  # nothing is left to chance


def test_between_nodes_both_classes_are_fitted():
    nodes = [[0, 1], [2, 3]]
    links = [TRUE[1], LinkCost(class_="mpi", alpha_us=20.0, beta_us_per_MiB=400.0, gamma_us_per_MiB=30.0)]
    machine = Foresight(of_links(links, nodes))
    found = fit(nodes, timed([64, 1 << 12, 1 << 16, 1 << 20], 0.01, nodes, machine))
    (between,) = [each for each in found if each.class_ == "mpi"][-1:]
    assert between.beta_us_per_MiB == pytest.approx(400, rel=0.3)


def test_without_times_there_is_no_fit():
    with pytest.raises(ValueError, match="no times"):
        fit(NODE, [])
    assert quantiles(range(41)) == (1, 39)


@pytest.mark.parametrize(
    "nodes", [[[0, 1]], [[0, 1, 2], [3]], [[4 * n + r for r in range(4)] for n in range(16)]], ids=len
)
def test_a_forecast_is_the_best_that_was_foreseen_and_may_be_kept_to_a_fixed_order(nodes):
    forecast = Forecast([], nodes)
    for collective in ("allreduce", "broadcast", "allgather", "reduce", "reduce_scatter"):
        for nbytes in (8, 1 << 24):
            best = forecast.best(collective, nbytes)
            assert best == Forecast([], nodes).best(collective, nbytes)
            rival = Foresight(forecast._foresight.network).predict(collective, best.algorithm, nbytes, **best.params)
            assert rival.us == best.us
    assert forecast.best("allreduce", 1 << 24, deterministic=True).algorithm in FIXED_ORDER["allreduce"]
    quick, slow = forecast.best("allreduce", 8), forecast.best("allreduce", 1 << 24)
    assert quick.algorithm != "ring"
    assert slow.us > 100 * quick.us


def test_a_forecast_on_many_ranks_leaves_out_what_takes_long_to_look_at():
    forecast = Forecast([], [range(8 * n, 8 * n + 8) for n in range(128)])
    found = forecast.best("allreduce", 1 << 20)
    assert found.us <= Foresight(forecast._foresight.network).predict("allreduce", "hierarchical", 1 << 20).us
    assert found.messages <= 60_000


def test_a_table_for_another_topology_serves_by_the_costs_of_its_links():
    place = Place(nodes=1, ranks_per_node=[4], links=["shared-memory"], fingerprint="1x4")
    rule = Rule(collective="allreduce", min_bytes=0, max_bytes=None, algorithm="ring")
    links = [replace(each, error=1.2) for each in TRUE]
    settings = Settings.read(Table(topology=place, links=links, rules=[rule]), 1.0, None)
    here: Any = SimpleNamespace(nodes=(tuple(range(16)),), ranks_per_node=(16,), fingerprint="1x16", ranks=16)

    def chosen(nbytes, topology=here, **more):
        return settings.choose(topology, "allreduce", nbytes, "float32", "sum", None, {}, False, **more)

    found = chosen(3 << 20)
    assert (found.basis, found.origin) == ("model", "links of table (not saved)")
    assert found.algorithm == Forecast(links, here.nodes).best("allreduce", 4 << 20).algorithm
    assert "is not used: it is for 1 node of 4 ranks" in found.reason
    assert "us (" in found.reason
    assert chosen(3 << 20, storage="symmetric").algorithm == "one_pass"
    away: Any = SimpleNamespace(nodes=((0,), (1,)), ranks_per_node=(1, 1), fingerprint="2x1", ranks=2)
    assert chosen(8, away).origin == "default"  # nothing is known of links between nodes


class Session:
    """Times of the machine above."""

    jobs = 0
    comm = SimpleNamespace(topology=SimpleNamespace(nodes=NODE))

    def measure(self, job):
        wanted = [candidate(name, params) for name, params in job.candidates]
        us = {each: MACHINE.predict("allreduce", each.algorithm, job.nbytes, **each.params).us for each in wanted}
        return SimpleNamespace(times={each: [time] for each, time in us.items()})


def test_the_first_trials_are_those_that_the_simulator_ranks_first():
    sizes = [64, 1 << 18, 1 << 20, 1 << 22]
    spaces = {nbytes: space("allreduce", NODE, nbytes) for nbytes in sizes}
    session: Any = Session()
    seeds = Seeds(session, "allreduce", "float32", "sum", spaces)
    assert seeds.first(64) == []  # all are tried anyway
    measured = []
    for nbytes in sizes[1:]:
        us = {
            each: MACHINE.predict("allreduce", each.algorithm, nbytes, **each.params).us
            for each in spaces[nbytes].every()
        }
        first = seeds.first(nbytes)
        assert min(us[each] for each in first) <= 1.05 * min(us.values())
        default = Candidate("ring")
        size = Measured(nbytes, default, False, race={default: [us[default]] * 3})
        size.ratios = {each: us[each] / us[default] for each in first}
        size.winner = min(us, key=us.__getitem__)
        measured.append(size)
    said = seeds.saved(measured)
    assert said is not None
    assert "where chance takes half" in said
    assert seeds.saved([]) is None
    assert {each.class_ for each in links_of(NODE, "allreduce", measured)} <= {each.class_ for each in TRUE}
    assert links_of(NODE, "allreduce", []) == []
