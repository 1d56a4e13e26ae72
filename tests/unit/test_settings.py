"""What a communicator goes by: arguments before environment before table; and what is refused."""

import json
import pickle
import socket
from types import SimpleNamespace

import pytest

from collectives.algorithms import every
from collectives.contract import contract
from collectives.errors import CollectiveError, MismatchError, TableError, UnsupportedError
from collectives.settings import Settings, agree, folds_once, seconds
from collectives.tables.table import Place, Rule, Table
from collectives.topology import Topology
from collectives.verify import verify

VARIABLES = ("TREERING_TABLE", "TREERING_TIMEOUT", "TREERING_ALGORITHM", "TREERING_LINKS", "TREERING_KERNELS")
HERE = Topology(((0, 1, 2, 3),), ("shared-memory",), "a processor", "an MPI")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def table():
    place = Place(nodes=1, ranks_per_node=[4], fingerprint=HERE.fingerprint)
    rules = [
        Rule(collective="allreduce", min_bytes=0, max_bytes=99, algorithm="binomial_tree"),
        Rule(collective="allreduce", min_bytes=100, max_bytes=None, algorithm="ring", params={"segment_bytes": 4096}),
    ]
    return Table(treering="0", created="2026-01-01", topology=place, rules=rules)


def chosen(settings, nbytes=8, algorithm=None, params=None, fixed=False, collective="allreduce", op="sum"):
    return settings.choose(HERE, collective, nbytes, "float32", op, algorithm, params or {}, fixed)


# ---------------------------------------------------------------- where settings come from
def test_arguments_go_before_the_environment(monkeypatch, table, tmp_path):
    table.save(tmp_path / "t.json")
    monkeypatch.setenv("TREERING_TABLE", str(tmp_path / "t.json"))
    monkeypatch.setenv("TREERING_TIMEOUT", "5")
    monkeypatch.setenv("TREERING_ALGORITHM", "one_shot")
    from_environment = Settings.read(None, None, None)
    assert from_environment.timeout == 5
    assert from_environment.table is not None
    assert from_environment.overrides == {"allreduce": ("one_shot", {})}
    assert (chosen(from_environment).algorithm, chosen(from_environment).origin) == ("one_shot", "environment")
    given = Settings.read(table, 7, "ring:segment_bytes=64,slots=3;broadcast=binomial_tree")
    assert (given.table, given.timeout) == (table, 7)
    assert given.overrides["allreduce"] == ("ring", {"segment_bytes": 64, "slots": 3})
    assert given.overrides["broadcast"] == ("binomial_tree", {})
    assert (chosen(given).algorithm, chosen(given).origin) == ("ring", "argument")


def test_without_any_there_are_defaults():
    settings = Settings.read(None, None, None)
    assert (settings.table, settings.timeout, settings.overrides) == (None, 1800, {})
    assert chosen(settings).origin == "default"


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("TREERING_TIMEOUT", "soon", "TREERING_TIMEOUT is 'soon'; it is a number of seconds"),
        ("TREERING_TIMEOUT", "-1", "TREERING_TIMEOUT is -1.0; it is a number of seconds above 0"),
        ("TREERING_TIMEOUT", "nan", "a number of seconds above 0"),
        ("TREERING_ALGORITHM", "rong", "allreduce has no algorithm called 'rong'; it has: ring, "),
        ("TREERING_ALGORITHM", "broadcast=ring", "broadcast has no algorithm called 'ring'; it has: binomial_tree"),
        ("TREERING_ALGORITHM", "allredcue=ring", "'allredcue' is not a collective; use one of allreduce, "),
        ("TREERING_ALGORITHM", "ring:segment_bytes", "is not a parameter"),
        ("TREERING_ALGORITHM", "ring:bogus=1", "allreduce ring has no parameter 'bogus'; it has: segment_bytes, slots"),
        ("TREERING_ALGORITHM", "ring:slots=none", "slots=None is not allowed"),
    ],
)
def test_a_wrong_environment_is_named_at_start(monkeypatch, name, value, says):
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=says):
        Settings.read(None, None, None)


def test_a_table_that_is_not_there_is_named():
    with pytest.raises(TableError, match=r"/nowhere/t\.json: No such file"):
        Settings.read("/nowhere/t.json", None, None)


@pytest.mark.parametrize("wrong", [0, -3, 1e10, float("inf"), float("nan"), "x", None, [], True + 1j])
def test_seconds_are_a_number_above_0(wrong):
    with pytest.raises(ValueError, match=r"timeout is .*; it is a number of seconds"):
        seconds(wrong, "timeout")


def test_seconds_may_be_written_as_text():
    assert [seconds(x, "timeout") for x in (3, 0.5, "2.5")] == [3, 0.5, 2.5]


# ---------------------------------------------------------------- choosing
def test_the_call_goes_before_the_communicator_before_the_table(table):
    plain, fixed = Settings.read(table, None, None), Settings.read(table, None, "halving_doubling:slots=4")
    assert chosen(plain, 8).algorithm == "binomial_tree"
    assert (chosen(plain, 100).algorithm, dict(chosen(plain, 100).params)) == ("ring", {"segment_bytes": 4096})
    assert (chosen(fixed).algorithm, dict(chosen(fixed).params)) == ("halving_doubling", {"slots": 4})
    choice = chosen(fixed, algorithm="one_shot", params={"segment_bytes": 64})
    assert (choice.algorithm, dict(choice.params), choice.origin) == ("one_shot", {"segment_bytes": 64}, "argument")


def test_a_calls_parameters_add_to_what_was_chosen(table):
    settings = Settings.read(table, None, None)
    assert dict(chosen(settings, 100, params={"slots": 8}).params) == {"segment_bytes": 4096, "slots": 8}
    assert dict(chosen(settings, 100, params={"segment_bytes": 64}).params) == {"segment_bytes": 64}
    assert dict(table.rules[1].params) == {"segment_bytes": 4096}


def test_a_fixed_order_takes_only_what_folds_in_order(table):
    settings = Settings.read(table, None, None)
    for nbytes in (8, 1 << 30):
        assert folds_once("allreduce", chosen(settings, nbytes, fixed=True).algorithm)
    assert chosen(settings, algorithm="two_shot", fixed=True).algorithm == "two_shot"
    for fixed_by in ({"algorithm": "ring"}, {}):
        settings = Settings.read(table, None, None if fixed_by else "ring")
        with pytest.raises(UnsupportedError, match=r"allreduce ring folds ranks in no fixed order; .*one_shot"):
            chosen(settings, fixed=True, **fixed_by)
    assert chosen(Settings.read(None, None, None), collective="reduce", fixed=True).algorithm == "direct"


def test_what_folds_once_is_what_the_verifier_finds_canonical():
    found = [a for a in every() if folds_once(a.collective, a.name)]
    assert {a.name for a in found} >= {"one_shot", "two_shot", "direct"}
    for algorithm in found:
        for segment in (None, 64):
            schedules = algorithm.schedules(5, segment_bytes=segment)
            assert verify(schedules, contract(algorithm.collective, 5), segments=3).canonical, algorithm.name


# ---------------------------------------------------------------- agreement
def ranks(*others, hosts=None):
    """The peers of rank 0, as agreement sees them."""
    hosts = hosts or [socket.gethostname()] * len(others)
    said = [json.dumps([host, other]).encode() for host, other in zip(hosts, others, strict=True)]
    return SimpleNamespace(size=1 + len(others), exchange=lambda mine: [mine, *said])


def described(*args):
    return Settings.read(*args).described()


def test_equal_settings_agree(table, tmp_path):
    table.save(tmp_path / "a.json")
    table.save(tmp_path / "b.json")
    mine = Settings.read(tmp_path / "a.json", 5, "ring")
    assert agree(ranks(described(tmp_path / "b.json", 5.0, "allreduce=ring")), mine) is mine, "names do not matter"


@pytest.mark.parametrize(
    "other, field, value",
    [
        ((None, 6, "ring"), "timeout", "6 s"),
        ((None, 5, "one_shot"), "algorithm", "allreduce=one_shot {}"),
        ((None, 5, "ring:slots=3"), "algorithm", "allreduce=ring {'slots': 3}"),
        ((None, 5, None), "algorithm", "none"),
    ],
)
def test_other_settings_are_named_with_their_rank(other, field, value):
    mine = Settings.read(None, 5, "ring")
    with pytest.raises(MismatchError) as caught:
        agree(ranks(mine.described(), described(*other)), mine)
    assert caught.value.field.startswith(field)
    assert caught.value.values[2] == value
    assert f"rank 2: {value}); give all ranks the same" in str(caught.value)


def test_hosts_are_named_where_there_are_several():
    mine = Settings.read(None, 5, None)
    with pytest.raises(MismatchError, match=r"timeout \(.*rank 0: 5 s on .*, rank 1: 6 s on there"):
        agree(ranks(described(None, 6, None), hosts=["there"]), mine)
    with pytest.raises(MismatchError, match=r"on treering \(rank 0: .*sources .*, rank 1: not known there on there"):
        agree(ranks({}, hosts=["there"]), mine)


def test_other_tables_and_links_are_named(monkeypatch, table):
    mine = Settings.read(None, None, None)
    with pytest.raises(MismatchError, match=r"table \(.*rank 0: none, rank 1: .*with digest"):
        agree(ranks(described(table, None, None)), mine)
    monkeypatch.setenv("TREERING_LINKS", "mpi")
    other = described(None, None, None)
    monkeypatch.delenv("TREERING_LINKS")
    with pytest.raises(MismatchError, match=r"TREERING_LINKS \(rank 0: not set, rank 1: mpi\)"):
        agree(ranks(other), mine)


def test_a_mismatch_may_be_sent_to_another_process():
    error = MismatchError("count", [0, 2], [5, 6], "rank 0: allreduce", "give all ranks the same")
    again = pickle.loads(pickle.dumps(error))
    assert (again.field, again.ranks, again.values) == ("count", (0, 2), (5, 6))
    assert (
        str(again)
        == str(error)
        == ("rank 0: allreduce: ranks disagree on count (rank 0: 5, rank 2: 6); give all ranks the same")
    )


def test_a_rank_that_cannot_read_its_settings_tells_the_others():
    mine = Settings.read(None, None, None)
    with pytest.raises(CollectiveError, match=r"rank 2 cannot start: t\.json is torn"):
        agree(ranks(mine.described(), "t.json is torn"), mine)
    with pytest.raises(TableError, match="torn"):
        agree(ranks(mine.described()), TableError("t.json is torn"))
