"""Which table serves a topology: exact, near, or none; and that a choice says which."""

from itertools import pairwise

import pytest

from collectives.algorithms import registry
from collectives.errors import TableError
from collectives.selection import choose
from collectives.settings import Settings
from collectives.tables.kinship import EXACT, NEAR, distance, kinship, nearest
from collectives.tables.table import LinkCost, Place, Rule, Table
from collectives.topology import Topology

COSTS = [LinkCost(class_="mpi", alpha_us=60, beta_us_per_MiB=8400, gamma_us_per_MiB=100)]


def topology(*sizes, cpu="C", mpi="M 1", network="tcp at 1 Gbit/s", device=None):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    nodes = tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True))
    links = ("shared-memory",) * (max(sizes) > 1) + ("mpi",) * (len(sizes) > 1)
    return Topology(nodes, links, cpu, mpi, device, network if len(sizes) > 1 else "")


def table(where, algorithm="ring", costs=COSTS):
    place = Place(
        nodes=len(where.nodes), ranks_per_node=list(where.ranks_per_node), links=list(where.links), cpu=where.cpu,
        mpi=where.mpi, network=where.network, device=where.device, fingerprint=where.fingerprint,
    )  # fmt: skip
    rule = Rule(collective="allreduce", min_bytes=0, max_bytes=None, algorithm=algorithm, median_us=1.0)
    return Table(topology=place, links=list(costs), rules=[rule])


SQUARE = topology(2, 2)


def test_a_table_is_exact_on_its_own_topology_alone():
    assert kinship(table(SQUARE), SQUARE) == EXACT
    assert kinship(table(SQUARE, costs=[]), SQUARE) == EXACT
    choice = choose(table(SQUARE), SQUARE, "allreduce", 1 << 20, "float32", "sum")
    assert (choice.algorithm, choice.basis) == ("ring", EXACT)


@pytest.mark.parametrize(
    "other, kin",
    [
        (topology(4), None),  # one node of four is no two of two
        (topology(2, 2, network="verbs at 1 Gbit/s"), None),
        (topology(2, 2, device="a GPU"), None),
        (topology(1, 1, 1, 1), None),  # all of its links are others
        (topology(*[2] * 5), None),  # too many
        (topology(8, 8), None),
        (topology(*[2] * 4), NEAR),
        (topology(4, 4), NEAR),
        (topology(3, 1), NEAR),
        (topology(2, 2, cpu="another"), NEAR),
        (topology(2, 2, network="tcp at 10 Gbit/s"), NEAR),
    ],
    ids=lambda x: getattr(x, "fingerprint", x),
)
def test_near_is_what_is_of_one_kind_and_not_far(other, kin):
    assert kinship(table(SQUARE), other) == kin
    assert kinship(table(SQUARE, costs=[]), other) is None  # without measured links nothing is near
    choice = choose(table(SQUARE), other, "allreduce", 1 << 20, "float32", "sum")
    if kin is None:
        assert (choice.origin, choice.basis) == ("default", "")
        assert "is not used: it " in choice.reason
    else:
        assert (choice.algorithm, choice.basis, choice.margin) == ("ring", NEAR, None)
        assert choice.reason.startswith("the nearest topology that was measured (it ")


def test_of_several_the_nearest_serves_and_an_exact_one_before_all():
    tables = [table(topology(4, 4)), table(topology(2, 2, cpu="another")), table(topology(4)), table(SQUARE, costs=[])]
    assert nearest(tables, SQUARE) is tables[3]
    assert nearest(tables[:3], SQUARE) is tables[1]
    assert nearest(tables[:1], SQUARE) is tables[0]
    assert nearest(tables[2:3], SQUARE) is None
    assert nearest([], SQUARE) is None
    further = [SQUARE, topology(2, 2, cpu="another"), topology(2, 2, 2), topology(4, 4), topology(4, 4, 4, 4)]
    assert all(a < b for a, b in pairwise(distance(table(SQUARE), each) for each in further))


def test_a_folder_of_tables_gives_each_topology_its_own(tmp_path):
    for name, where, algorithm in (("four", topology(4), "two_shot"), ("square", SQUARE, "hierarchical")):
        table(where, algorithm).save(tmp_path / f"{name}.json")
    settings = Settings.read(tmp_path, None, None)
    for where, algorithm in ((topology(4), "two_shot"), (SQUARE, "hierarchical"), (topology(2, 2, 2), "hierarchical")):
        taken = settings.on(where)
        assert taken.choose(where, "allreduce", 1024, "float32", "sum", None, {}, False).algorithm == algorithm
    assert settings.on(topology(9)).table is None
    assert settings.described()["table (argument or TREERING_TABLE)"][1].count("with digest") == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(TableError, match="empty: a folder without tables"):
        Settings.read(tmp_path / "empty", None, None)


def test_a_near_tables_algorithm_that_cannot_serve_here_is_not_taken(monkeypatch):
    needy = registry.Algorithm("allreduce", "needy", lambda *_: iter(()), power_of_two=True)
    monkeypatch.setitem(registry._registry, ("allreduce", "needy"), needy)
    settings = Settings.read(table(SQUARE, "needy"), None, None)
    four, six = topology(4, 4), topology(2, 2, 2)
    chosen = settings.choose(four, "allreduce", 1024, "float32", "sum", None, {}, False)
    assert (chosen.algorithm, chosen.basis) == ("needy", NEAR)
    chosen = settings.choose(six, "allreduce", 1024, "float32", "sum", None, {}, False)
    assert chosen.origin == "default"
    assert "its needy needs a power of two of ranks, not 6; by default" in chosen.reason
