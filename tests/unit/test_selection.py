"""Which rule serves a call, and what serves one that has none."""

import pytest

from collectives.errors import TableError
from collectives.selection import Choice, choose, default, parse_overrides
from collectives.tables.table import Place, RunnerUp
from tests.unit.rules import FOUR, SQUARE, TWO, Topology, rich_table, rule, table


def test_each_size_gets_the_rule_whose_interval_holds_it():
    made = table(rule(0, 100, "one_shot"), rule(101, 101, "two_shot"), rule(102, None, "ring")).check()
    served = {
        nbytes: choose(made, TWO, "allreduce", nbytes, "float32", "sum") for nbytes in (0, 100, 101, 102, 1 << 60)
    }
    assert [c.algorithm for c in served.values()] == ["one_shot", "one_shot", "two_shot", "ring", "ring"]
    assert served[101].rule == made.rules[1]
    assert served[0].origin == "table (not saved)"


def test_the_most_exact_key_decides():
    made = table(
        rule(0, None, "ring", dtype="any", op="any"),
        rule(0, None, "two_shot", dtype="float", op="any"),
        rule(0, None, "one_shot", dtype="float64", op="sum"),
    ).check()
    asked = [("int8", "xor"), ("float32", "sum"), ("float64", "max"), ("float64", "sum")]
    assert [choose(made, TWO, "allreduce", 8, *a).algorithm for a in asked] == [
        "ring",
        "two_shot",
        "two_shot",
        "one_shot",
    ]


def test_without_a_rule_for_the_call_the_default_serves_and_says_why():
    made = table(rule(0, None, "ring"))
    choice = choose(made, TWO, "allreduce", 8, "int32", "sum")
    assert (choice.origin, choice.rule) == ("default", None)
    assert "has no rule for allreduce of int32 with sum" in choice.reason
    assert "no rule for broadcast of float32" in choose(made, TWO, "broadcast", 8, "float32", None).reason
    assert choose(None, TWO, "allreduce", 8, "float32", "sum").reason.startswith("no tuning table")


def test_a_table_for_two_by_two_does_not_serve_one_by_four():
    made = table(rule(0, None, "one_shot"), place=Place(nodes=2, ranks_per_node=[2, 2], fingerprint="2x2"))
    assert choose(made, SQUARE, "allreduce", 8 << 20, "float32", "sum").algorithm == "one_shot"
    choice = choose(made, FOUR, "allreduce", 8 << 20, "float32", "sum")
    assert choice.origin == "default"
    assert "it is for 2 nodes of 2 ranks, and this is 1 node of 4 ranks" in choice.reason
    uneven = Topology(((0, 1, 2), (3,)), "3+1")
    assert "this is 2 nodes of 3+1 ranks" in choose(made, uneven, "allreduce", 8, "float32", "sum").reason
    other_machine = Topology(((0, 1), (2, 3)), "other")
    assert "its fingerprint is 2x2, and this topology's is other" in choose(
        made, other_machine, "allreduce", 8, "float32", "sum").reason  # fmt: skip


def test_the_margin_is_how_much_longer_the_runner_up_took():
    choice = choose(rich_table().check(), TWO, "allreduce", 64, "float32", "sum")
    assert choice.runner_up is not None
    assert choice.runner_up.algorithm == "recursive_doubling"
    assert (choice.margin, choice.margin_bounds) == (0.75, (0.5, 1.0))
    assert choice.reason.endswith("tuned in a fixed order (which costs 25.0%), by what 95 % of calls stay within")
    bare = table(rule(0, None, median_us=1.5, runner_up=RunnerUp(algorithm="one_shot", median_us=2.5)))
    old = choose(bare, TWO, "allreduce", 64, "float32", "sum")
    assert old.margin == pytest.approx(2.5 / 1.5 - 1)
    assert old.margin_bounds is None
    assert "1.5 us at 4096 bytes, runner-up recursive_doubling 2.5 us" in choice.reason


def test_the_native_collective_serves_only_where_it_is_allowed():
    second = RunnerUp(algorithm="ring", params={"slots": 2}, median_us=3.0)
    made = table(rule(0, 10, "native", runner_up=second), rule(11, None, "native")).check()
    allowed = choose(made, TWO, "allreduce", 5, "float32", "sum", allow_native=True)
    assert allowed.algorithm == "native"
    assert "keeps none of treering's promises" in allowed.reason
    refused = choose(made, TWO, "allreduce", 5, "float32", "sum")
    assert (refused.algorithm, refused.params) == ("ring", {"slots": 2})
    assert "not allowed" in refused.reason
    assert choose(made, TWO, "allreduce", 50, "float32", "sum").origin == "default"
    fixed = choose(made, TWO, "allreduce", 5, "float32", "sum", allow_native=True, deterministic=True)
    assert fixed.algorithm == "one_shot"


def test_deterministic_takes_only_what_folds_in_order():
    second = RunnerUp(algorithm="two_shot", median_us=3.0)
    made = table(rule(0, 10, "one_shot"), rule(11, 20, "ring", runner_up=second), rule(21, None, "ring")).check()
    choices = [choose(made, TWO, "allreduce", n, "float32", "sum", deterministic=True) for n in (1, 11, 21)]
    assert [c.algorithm for c in choices] == ["one_shot", "two_shot", "one_shot"]
    assert [c.origin for c in choices] == [made.origin, made.origin, "default"]
    asked = []

    def proof(*what):
        asked.append(what)
        return True

    proved = choose(
        table(rule(0, None, "ring", params={"slots": 3})), TWO, "allreduce", 30, "float32", "sum",
        deterministic=True, proof=proof,
    )  # fmt: skip
    assert (proved.algorithm, asked) == ("ring", [("allreduce", "ring", {"slots": 3})])
    assert default(TWO, "reduce", 8, deterministic=True).algorithm == "direct"
    assert default(TWO, "broadcast", 8, deterministic=True).algorithm


def test_storage_is_an_axis_of_its_own():
    """A rule for symmetric memory says whether one_pass is tried there; all else is left to the ordinary rules."""
    made = table(
        rule(0, None, "ring"),
        rule(0, 999, "two_shot", storage="symmetric"),
        rule(1000, None, "one_pass", storage="symmetric"),
    ).check()
    ordinary = [choose(made, TWO, "allreduce", n, "float32", "sum").algorithm for n in (8, 4096)]
    symmetric = [choose(made, TWO, "allreduce", n, "float32", "sum", storage="symmetric") for n in (8, 4096)]
    assert ordinary == ["ring", "ring"]
    assert [each.algorithm for each in symmetric] == ["ring", "one_pass"]
    assert symmetric[1].rule == made.rules[2]
    assert "symmetric memory" in symmetric[1].reason
    plain = choose(table(rule(0, None, "ring")).check(), TWO, "allreduce", 4096, "float32", "sum", storage="symmetric")
    assert (plain.algorithm, plain.origin) == ("one_pass", "default")
    assert choose(None, SQUARE, "allreduce", 4096, "float32", "sum", storage="symmetric").algorithm != "one_pass"
    with pytest.raises(TableError, match=r"storage is 'both'; use one of ordinary, symmetric"):
        table(rule(0, None, "ring", storage="both")).check()


def test_the_default_depends_on_size_and_nodes():
    choices = [default(FOUR, "allreduce", n) for n in (8, 64 << 10, 8 << 20)]
    assert len({(choice.algorithm, *choice.params.items()) for choice in choices}) == 3
    assert default(SQUARE, "allreduce", 8 << 20).algorithm == "hierarchical"
    assert isinstance(default(FOUR, "alltoall", 8), Choice)


# TREERING_ALGORITHM


def test_overrides_are_read():
    assert parse_overrides("allreduce=ring:segment_bytes=65536,slots=2; broadcast=binomial_tree ;") == {
        "allreduce": ("ring", {"segment_bytes": 65536, "slots": 2}),
        "broadcast": ("binomial_tree", {}),
    }
    assert parse_overrides("allreduce=hierarchical:inner=ring,segment_bytes=none,x=true") == {
        "allreduce": ("hierarchical", {"inner": "ring", "segment_bytes": None, "x": True})
    }
    assert parse_overrides("") == {}


@pytest.mark.parametrize(
    "text, said",
    [
        ("ring", "'ring' is not an algorithm; write COLLECTIVE=ALGORITHM"),
        ("allreduce=", "is not an algorithm"),
        ("allreduce=ring:", "is not an algorithm"),
        ("allred=ring", "'allred' is not a collective; use one of allreduce"),
        ("allreduce=ring;allreduce=ring", "allreduce stands twice"),
        ("allreduce=ring:slots", "'slots' in .* is not a parameter"),
        ("allreduce=ring:slots=", "is not a parameter"),
        ("allreduce=ring:slots=1,slots=2", "stands twice"),
        ("allreduce=ring:slots=1,,x=2", "is not a parameter"),
    ],
)
def test_wrong_overrides_say_what_to_write(text, said):
    with pytest.raises(ValueError, match=said):
        parse_overrides(text)
