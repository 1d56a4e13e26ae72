"""Tables: what is written is read back; what is wrong is an error that names the place."""

import json
import os
import stat
from pathlib import Path

import pytest

from collectives.errors import TableError
from collectives.selection import load, parse
from collectives.tables.conditions import Conditions, Finding
from collectives.tables.table import Place, RunnerUp
from tests.unit.rules import rich_table, rule, table


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
