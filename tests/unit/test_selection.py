"""Tables: what is written is read back; what is wrong is an error that names the place; a call gets the right rule."""

import json
import os
import random
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from collectives.conditions import Conditions, Finding
from collectives.errors import TableError
from collectives.selection import Choice, Table, choose, default, load, parse, parse_overrides
from collectives.table import LinkCost, Place, Rule, RunnerUp


@dataclass(frozen=True)
class Topology:
    nodes: tuple[tuple[int, ...], ...]
    fingerprint: str

    @property
    def ranks_per_node(self) -> tuple[int, ...]:
        return tuple(len(node) for node in self.nodes)


TWO = Topology(((0, 1),), "1x2")
FOUR = Topology(((0, 1, 2, 3),), "1x4")
SQUARE = Topology(((0, 1), (2, 3)), "2x2")


def rule(low, high, algorithm="ring", **more):
    given = {"collective": "allreduce", "dtype": "float", "op": "arithmetic", **more}
    return Rule(**given, min_bytes=low, max_bytes=high, algorithm=algorithm)


def table(*rules, place=None):
    place = place or Place(nodes=1, ranks_per_node=[2], links=["shared-memory"], cpu="a", mpi="b", fingerprint="1x2")
    return Table(treering="0.1.0", created="2026-01-01", topology=place, rules=list(rules))


def rich_table():
    """One of everything that a table may hold."""
    over = (1.5, 1.75, 2.0)
    best: dict[str, Any] = {"algorithm": "recursive_doubling", "params": {}, "median_us": 2.5, "over_best": over}
    timed: dict[str, Any] = {
        "measured_bytes": 4096,
        "median_us": 1.5,
        "low_us": 1.25,
        "high_us": 2.0,
        "native_us": 1.75,
    }
    made = table(
        rule(5793, None, "ring", params={"segment_bytes": 65536, "slots": 2, "spin": None, "eager": True, "gain": 0.5}),
        rule(0, 5792, "one_shot", **timed, runner_up=RunnerUp(**best)),
        rule(0, None, "halving_doubling", dtype="half", op="any"),
        rule(0, None, "binomial_tree", collective="broadcast", dtype="any", op="any"),
    )
    made.links = [LinkCost(class_="shared-memory", alpha_us=0.5, beta_us_per_MiB=100, gamma_us_per_MiB=20.5)]
    made.samples = "table.samples.jsonl"
    found = Finding(guideline="native", bytes=64, ratio=1.5, low=1.25, high=2.0)
    key: dict[str, Any] = {"collective": "allreduce", "dtype": "float", "op": "arithmetic"}
    made.tuned = [Conditions(**key, deterministic=True, price=1.25, objective="p95", findings=[found])]
    return made


def test_saved_is_loaded_again_sorted_and_a_rule_a_line(tmp_path):
    path = tmp_path / "table.json"
    saved = rich_table()
    saved.save(path)
    again = load(path)
    assert again == saved
    assert again.digest() == saved.digest()
    assert [r.min_bytes for r in again.rules if r.dtype == "float"] == [0, 5793]
    lines = path.read_text().splitlines()
    assert sum(line.startswith("  {") for line in lines) == len(saved.rules)
    assert list(json.loads(path.read_text())) == [
        "schema", "treering", "created", "topology", "links", "samples", "target", "tuned", "rules", "ddp"
    ]  # fmt: skip
    assert os.listdir(tmp_path) == ["table.json"]


def test_the_digest_changes_with_what_a_table_decides_and_with_nothing_else():
    later = rich_table()
    later.created = "2027"
    assert later.check().digest() == rich_table().check().digest()
    different = [
        rich_table().check(),
        table(rule(0, None, "ring")),
        table(rule(0, None, "two_shot")),
        table(rule(0, None, "ring", params={"slots": 2})),
        table(rule(0, 10, "ring"), rule(11, None, "ring")),
        table(rule(0, None, "ring", dtype="half")),
        table(rule(0, None, "ring"), place=Place(nodes=1, ranks_per_node=[4], fingerprint="1x4")),
    ]
    assert len({made.digest() for made in different}) == len(different)


@pytest.mark.parametrize(
    "rules, said",
    [
        ([rule(1, None)], r"rules\[0\].*no rule serves 0 to 0 bytes; start it at 0"),
        ([rule(0, 10), rule(12, None)], r"rules\[1\].*no rule serves 11 to 11 bytes; start it at 11"),
        ([rule(12, None), rule(0, 10)], r"rules\[0\].*start it at 11"),
        ([rule(0, 10), rule(10, None)], r"rules\[1\].*overlaps rules\[0\]; start it at 11"),
        ([rule(0, None), rule(0, None)], r"rules\[1\].*overlaps rules\[0\]"),
        ([rule(0, 10), rule(11, 20)], r"rules\[1\].*no rule serves 21 bytes and more; set its max_bytes to null"),
        ([rule(5, 4)], r"rules\[0\].*max_bytes 4 is below min_bytes 5"),
        ([rule(0, None, collective="allduce")], r"rules\[0\].*collective is 'allduce'; use one of allreduce"),
        ([rule(0, None, dtype="float8")], r"rules\[0\].*dtype is 'float8'; use one of .*float32"),
        ([rule(0, None, op="mean")], r"rules\[0\].*op is 'mean'; use one of .*avg"),
        ([rule(0, None, median_us=float("nan"))], r"rules\[0\].*median_us is nan"),
        ([rule(0, None, native_us=float("inf"))], r"rules\[0\].*native_us is inf"),
        ([rule(0, None, low_us=-1.0)], r"rules\[0\].*low_us is -1"),
        ([rule(0, None, low_us=2.0, median_us=1.0, high_us=3.0)], r"rules\[0\].*does not hold its median"),
        ([rule(0, None, params={"slots": float("nan")})], r"rules\[0\].*parameter slots is nan"),
        (
            [rule(0, None, runner_up=RunnerUp(algorithm="ring", over_best=(2, 1, 3)))],
            r"over_best .* is not low, middle",
        ),
    ],
)
def test_a_wrong_rule_is_named_with_its_mend_and_is_not_saved(tmp_path, rules, said):
    with pytest.raises(TableError, match=said):
        table(*rules).check("T")
    with pytest.raises(TableError, match=said):
        table(*rules).save(tmp_path / "t.json")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "more, said",
    [
        ({"objective": "mode"}, r"tuned\[1\] \(broadcast any any\): objective is 'mode'; use one of median, p95"),
        ({"precision": "exact"}, "precision is 'exact'; use one of fast, accurate"),
        ({"price": float("inf")}, "a ratio is not finite"),
        ({"collective": "allreduce", "dtype": "float", "op": "arithmetic"}, "a second one of this key; keep one"),
        ({"findings": [Finding(guideline="native", bytes=8, ratio=3.0, low=1.0, high=2.0)]}, "does not hold its ratio"),
    ],
)
def test_wrong_conditions_are_named(more, said):
    made = rich_table()
    made.tuned.append(Conditions(**{"collective": "broadcast", "dtype": "any", "op": "any", **more}))
    with pytest.raises(TableError, match=said):
        made.check("T")


def test_a_rule_that_the_registry_refuses_is_named():
    refusal = {"ring": None, "swing": "swing needs an even number of ranks"}
    made = table(rule(0, 10, "ring"), rule(11, None, "swing"))
    with pytest.raises(TableError, match=r"rules\[1\].*swing needs an even number"):
        made.check("T", lambda r: refusal[r.algorithm])


def test_the_example_of_the_documentation_is_a_table():
    text = (Path(__file__).parents[2] / "tuning_tables" / "README.md").read_text()
    example = text.partition("```json\n")[2].partition("```")[0]
    assert len(parse(example.encode()).rules) == 2


def edited(**changes):
    raw = json.loads(good_text())
    raw.update(changes)
    return json.dumps(raw).encode()


def good_text() -> bytes:
    raw = {
        "schema": 1, "treering": "0.1.0", "created": "now",
        "topology": {"nodes": 1, "ranks_per_node": [2], "links": [], "cpu": "", "mpi": "", "device": None,
                     "fingerprint": "1x2"},
        "links": [], "samples": None,
        "rules": [{"collective": "allreduce", "dtype": "float", "op": "arithmetic", "min_bytes": 0, "max_bytes": None,
                   "algorithm": "ring", "params": {}, "median_us": 1.0, "low_us": 1.0, "high_us": 1.0,
                   "runner_up": None, "native_us": 2.0}],
    }  # fmt: skip
    return json.dumps(raw).encode()


@pytest.mark.parametrize(
    "text, said",
    [
        (b"", "line 1: not JSON"),
        (b"{\n\n x}", "line 3: not JSON"),
        (b"\xff\xfe{}", "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "Expected `object`"),
        (b"null", "Expected `object`"),
        (b"{}", "missing required field `topology`"),
        (edited(schema=2), "schema 2 is newer than this treering reads"),
        (edited(schema=3, rules={"a": "shape of tomorrow"}), "schema 3 is newer"),
        (edited(schema=0), "schema is 0"),
        (edited(schema="1"), r"Expected `int`, got `str` - at `\$.schema`"),
        (edited(comment="x"), "unknown field `comment`"),
        (edited(rules=[{"collective": "allreduce"}]), r"missing required field.*\$.rules\[0\]"),
        (edited(topology={"nodes": 2, "ranks_per_node": [2], "fingerprint": "f"}), "has 1 entries for 2 nodes"),
        (good_text().replace(b'"min_bytes": 0', b'"min_bytes": -1'), r"rules\[0\].min_bytes"),
        (good_text().replace(b'"min_bytes": 0', b'"min_bytes": 0.5'), r"rules\[0\].min_bytes"),
        (good_text().replace(b'"min_bytes": 0', b'"min_bytes": true'), r"rules\[0\].min_bytes"),
        (good_text().replace(b'"min_bytes": 0', b'"min_bytes": 1e400'), r"rules\[0\].min_bytes|range"),
        (good_text().replace(b'"min_bytes": 0', b'"min_bytes": 0, "min_bytes": 0'), "'min_bytes' stands twice"),
        (good_text().replace(b'"median_us": 1.0', b'"median_us": NaN'), "NaN is not a number"),
        (good_text().replace(b'"median_us": 1.0', b'"median_us": -Infinity'), "-Infinity is not a number"),
        (good_text().replace(b'"median_us": 1.0', b'"median_us": -1'), r"rules\[0\].median_us"),
        (good_text().replace(b'"median_us": 1.0', b'"median_us": 1e999'), r"rules\[0\].median_us"),
        (good_text().replace(b'"median_us": 1.0', b'"median_us": 1.5'), "does not hold its median"),
        (good_text().replace(b'"params": {}', b'"params": {"x": [1]}'), r"rules\[0\].params"),
        (
            good_text().replace(b'"params": {}', b'"params": {}, "speed": 1'),
            r"unknown field `speed` - at `\$.rules\[0\]`",
        ),
        (good_text().replace(b'"ring"', b'""'), r"rules\[0\].algorithm"),
    ],
)
def test_a_file_that_is_no_table_is_an_error_with_file_and_place(tmp_path, text, said):
    path = tmp_path / "broken.json"
    path.write_bytes(text)
    with pytest.raises(TableError, match=said) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_what_is_no_readable_file_is_an_error_that_says_so(tmp_path):
    with pytest.raises(TableError, match="a directory"):
        load(tmp_path)
    with pytest.raises(TableError, match=r"No such file.*treering tune"):
        load(tmp_path / "absent.json")
    with pytest.raises(TableError, match="not a regular file"):
        load("/dev/zero")
    with pytest.raises(TableError, match="null"):
        load("bad\0name")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TableError, match="not a regular file"):
        load(pipe)
    with pytest.raises(TableError, match="cannot be written"):
        rich_table().save(tmp_path / "absent" / "table.json")
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(TableError, match="cannot be written"):
        rich_table().save(tmp_path / "folder.json")
    assert sorted(os.listdir(tmp_path)) == ["folder.json", "pipe"]


def test_a_saved_table_can_be_read_by_others(tmp_path):
    """A temporary file for its owner alone must not become the table."""
    rich_table().save(tmp_path / "t.json")
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((tmp_path / "t.json").stat().st_mode) == 0o666 & ~mask


def test_a_thousand_mutants_load_equal_or_raise(tmp_path):
    """Truncated at each byte, reordered, with bytes changed, with values and keys exchanged: never anything else."""
    path = tmp_path / "t.json"
    rich_table().save(path)
    whole = path.read_bytes()
    good = parse(whole)
    rng = random.Random(7)
    mutants = [whole[:length] for length in range(len(whole) - 1)]
    mutants += [bytes(_flip(whole, rng)) for _ in range(500)]
    mutants += [_mutate(json.loads(whole), rng) for _ in range(1000)]
    equal = raised = loads = 0
    for text in mutants:
        try:
            loaded = parse(text)
        except TableError as error:
            raised += str(error).startswith("the table: ")
            continue
        loaded.check()
        loads += 1
        equal += loaded == good
        covered = {r.key for r in loaded.rules}
        for collective, dtype, op, storage in covered:
            for nbytes in (0, 1, 5792, 5793, 1 << 62):
                assert loaded.find(collective, nbytes, dtype, op, storage) is not None
    assert len(mutants) > 2000
    assert raised + loads == len(mutants)  # every error names the table
    assert raised > len(mutants) * 0.6
    assert equal > 10
    assert all(_raises(whole[:length]) for length in range(len(whole) - 2))


def _raises(text):
    try:
        parse(text)
    except TableError:
        return True
    return False


def _flip(text, rng):
    changed = bytearray(text)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return changed


def _mutate(raw, rng):
    """One change to a table's tree."""
    place = rng.choice((raw, raw["topology"], raw["rules"][rng.randrange(len(raw["rules"]))]))
    key = rng.choice(sorted(place))
    kind = rng.randrange(6)
    if kind == 0:
        del place[key]
    elif kind == 1:
        place[key] = rng.choice((None, -1, 0, 2**70, 0.5, "x", "", [], {}, True, float("nan"), float("inf")))
    elif kind == 2:
        place[key + "x"] = place[key]
    elif kind == 3:
        rng.shuffle(raw["rules"])
    elif kind == 4:
        raw["rules"].append(dict(rng.choice(raw["rules"])))
    else:
        items = list(place.items())
        rng.shuffle(items)
        place.clear()
        place.update(items)
    return json.dumps(raw).encode()


# Choosing


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
