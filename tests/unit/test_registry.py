"""The registry: names, parameters, restrictions, and what other distributions bring in."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from collectives.algorithms import Algorithm, Parameter, every, find, names, register, registry
from collectives.contract import COLLECTIVES
from collectives.proof.sweep import prove
from collectives.schedule import WHOLE, Group, Span, recv_reduce, send


@pytest.fixture
def scratch_registry(monkeypatch):
    """A registry in which a test may register what it likes."""
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))


def exchange(g: Group, span: Span = WHOLE) -> Iterator[list]:
    peer = g[g.rank ^ 1]
    yield [send(span, peer), recv_reduce(span, peer)]


def test_names():
    assert names("allreduce")[:3] == ("ring", "recursive_doubling", "halving_doubling")
    assert {a.collective for a in every()} == set(COLLECTIVES)
    assert every("reduce") == tuple(find("reduce", name) for name in names("reduce"))


def test_unknown_names_list_what_there_is():
    with pytest.raises(ValueError, match="allreduce has no algorithm called 'rings'; it has: ring, recursive_doubling"):
        find("allreduce", "rings")
    for ask in (lambda: find("sum", "ring"), lambda: names("sum")):
        with pytest.raises(ValueError, match="no collective is called 'sum'; there are allreduce"):
            ask()


def test_parameters_are_filled_in_and_checked():
    hierarchical = find("allreduce", "hierarchical")
    full = {"inner": "ring", "leaders": "one", "segment_bytes": None, "slots": 2}
    assert hierarchical.check(leaders="one") == full
    assert hierarchical.check(segment_bytes=12345, slots=17)["segment_bytes"] == 12345
    with pytest.raises(ValueError, match=r"has no parameter 'segments'; it has: inner, leaders, segment_bytes, slots"):
        hierarchical.check(segments=3)
    with pytest.raises(ValueError, match=r"bruck has no parameter 'slots'; it has: none"):
        find("allgather", "bruck").check(slots=2)


@pytest.mark.parametrize(
    "params",
    [
        {"slots": 0},
        {"slots": True},
        {"slots": 2.0},
        {"slots": None},
        {"segment_bytes": -1},
        {"segment_bytes": "64K"},
        {"inner": "double_tree"},
        {"inner": 3},
        {"leaders": None},
    ],
    ids=str,
)
def test_bad_values_are_refused_with_what_is_allowed(params):
    (name,) = params
    with pytest.raises(ValueError, match=rf"{name}=.* is not allowed; {name}: "):
        find("allreduce", "hierarchical").check(**params)


def test_restrictions_are_refused_by_name_with_what_would_serve():
    even = Algorithm("allreduce", "swing", exchange, even=True)
    power = Algorithm("allreduce", "butterfly", exchange, power_of_two=True)
    assert even.refusal(6) is power.refusal(8) is even.refusal(1) is power.refusal(1) is None
    assert (even.refusal(5) or "").startswith(
        "allreduce swing needs an even number of ranks, not 5; ring, recursive_doubling,"
    )
    assert (power.refusal(6) or "").startswith("allreduce butterfly needs a power of two of ranks, not 6; ring, ")
    with pytest.raises(ValueError, match="swing needs an even number of ranks"):
        even.schedule(range(5), 0)


@pytest.mark.parametrize("nodes", [[[0, 1], [2]], [[0, 1], [1, 2, 3]], [[0, 1, 2, 3], [0]]], ids=str)
def test_nodes_must_hold_every_rank_once(nodes):
    with pytest.raises(ValueError, match="hierarchical needs nodes that hold each of the 4 ranks once"):
        find("allreduce", "hierarchical").schedule(range(4), 0, nodes=nodes)


def test_nodes_of_other_ranks_are_refused():
    with pytest.raises(ValueError, match=r"rank 3 is on none of the nodes \[\[0, 1\], \[2, 4\]\]"):
        find("allreduce", "hierarchical").schedule(range(4), 3, nodes=[[0, 1], [2, 4]])


@pytest.mark.parametrize("root", [-1, 4])
def test_a_root_out_of_range_is_refused(root):
    with pytest.raises(ValueError, match=f"root {root} is not one of 4 ranks, 0 to 3"):
        find("reduce", "binomial_tree").schedule(range(4), 0, root=root)


@pytest.mark.usefixtures("scratch_registry")
def test_what_is_registered_is_proved():
    register(Algorithm("allreduce", "exchange", exchange, power_of_two=True))
    assert "exchange" in names("allreduce")
    rows = {row["ranks"]: row for row in prove("allreduce", ranks=(1, 2, 3, 4), algorithms=["exchange"])}
    assert rows.keys() == {1, 2, 4}  # what it says it cannot serve is left out
    assert rows[2]["ok"]
    assert (rows[2]["rounds"], rows[2]["bytes_sent"], rows[2]["order"]) == (1, 1.0, "fixed")
    assert not rows[4]["ok"]
    assert "lacks contributions" in rows[4]["error"]


@pytest.mark.usefixtures("scratch_registry")
def test_a_name_is_registered_once_and_for_a_collective_that_exists():
    with pytest.raises(ValueError, match="allreduce ring is registered already"):
        register(Algorithm("allreduce", "ring", exchange))
    with pytest.raises(ValueError, match="no collective is called 'sum'"):
        register(Algorithm("sum", "ring", exchange))


@pytest.fixture
def entry_points(monkeypatch, scratch_registry):
    """Another distribution's entry points, seen when algorithms are next looked up."""
    points: list[SimpleNamespace] = []
    monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if group == "treering.algorithms"])
    registry.load.cache_clear()
    yield points
    registry.load.cache_clear()


def test_another_distribution_brings_algorithms_in(entry_points):
    def point():
        register(Algorithm("allreduce", "theirs", exchange))

    entry_points.append(SimpleNamespace(load=point, dist=SimpleNamespace(name="their-package"), value="theirs"))
    assert names("allreduce")[-1] == "theirs"
    assert find("allreduce", "theirs").emit is exchange  # and is not loaded twice


def test_another_distribution_that_fails_is_named(entry_points):
    def point():
        raise RuntimeError("no such thing")

    entry_points.append(SimpleNamespace(load=point, dist=SimpleNamespace(name="their-package"), value="their.module"))
    with pytest.raises(ImportError, match=r"their-package declares algorithms in their\.module.*no such thing"):
        every()


def test_a_parameter_says_what_it_takes():
    assert str(Parameter("radix", (2, 4), 2)) == "radix: 2, 4 or another positive number"
    assert str(Parameter("leaders", ("all", "one"), "all")) == "leaders: all, one"
