"""A table's rules measured anew: what is slower is found, what is as fast within the noise is not."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from collectives.tables.table import Place, Rule, RunnerUp, Table
from tests.unit.test_search import Machine
from tuner.commands.check import public, show
from tuner.moved import DEFAULT, RUNNER_UP, again, measure, representative, sample, size
from tuner.space import Candidate

HERE = SimpleNamespace(nodes=((0, 1),), ranks_per_node=(2,), fingerprint="1x2")
COMMON = {"collective": "allreduce", "dtype": "float", "op": "arithmetic"}
SECOND = RunnerUp(algorithm="halving_doubling", median_us=12.0)


def rule(low, high, algorithm="ring", **more):
    return Rule(**{**COMMON, "min_bytes": low, "max_bytes": high, "algorithm": algorithm, **more})


def check(us, *rules, **options):
    """Findings of a table's rules on a machine on which candidates take `us(candidate, nbytes)`."""
    place = Place(nodes=1, ranks_per_node=[2], fingerprint="1x2")
    table = Table(topology=place, rules=list(rules)).check()
    machine: Any = Machine(us, **options)
    return measure(machine, sample(table, HERE, 0), 0.3, 0, lambda *_: None)


def test_what_became_slower_is_named_and_what_holds_is_not(capsys):
    def us(each, nbytes):
        slow = {"ring": 13 if nbytes > 1000 else 10, "one_shot": 12, "two_shot": 11.5, "halving_doubling": 10.2}
        return slow[each.algorithm]

    rules = [
        rule(0, 1000, measured_bytes=512, median_us=10.0, runner_up=SECOND),
        rule(1001, None, measured_bytes=4096, median_us=10.0, runner_up=SECOND),
    ]
    (small, large), ended = check(us, *rules)
    assert ended is None
    assert (small.slower_than, large.slower_than) == ([], [DEFAULT, RUNNER_UP])
    assert large.again.others == {DEFAULT: Candidate("one_shot"), RUNNER_UP: Candidate("halving_doubling")}
    assert large.over[DEFAULT].median == pytest.approx(13 / 12, rel=0.03)
    assert large.moved is not None
    show([small, large], 2)
    out = " ".join(capsys.readouterr().out.split())
    assert "holds" in out
    assert "SLOWER than its runner-up halving_doubling by 2" in out
    assert json.loads(json.dumps(public(large)))["slower_than"] == [DEFAULT, RUNNER_UP]


def test_equals_are_seldom_called_slower():
    wrong = 0
    for seed in range(20):
        findings, _ = check(lambda *_: 10.0, *(rule(n, n + 9) for n in range(0, 100, 10)), rule(100, None), seed=seed)
        wrong += sum(bool(each.slower_than) for each in findings)
    assert wrong <= 2  # of 220


def test_a_rule_that_cannot_serve_is_named_and_the_rest_is_measured():
    (first, second), ended = check(lambda *_: 1.0, rule(0, 9, "ring"), rule(10, None, "swing"), failing=("swing",))
    assert ended is None
    assert (first.fault, second.fault) == ("", "rank 1: no")
    assert second.now is None


def test_an_interrupt_keeps_what_was_measured():
    place = Place(nodes=1, ranks_per_node=[2], fingerprint="1x2")
    table = Table(topology=place, rules=[rule(0, 9), rule(10, None)]).check()
    machine: Any = Machine(lambda *_: 1.0)
    machine.interrupt_after = 1
    findings, ended = measure(machine, sample(table, HERE, 0), 0.3, 0, lambda *_: None)
    assert ended == "interrupted"
    assert sorted(each.now is not None for each in findings) == [False, True]


def test_a_sample_has_every_kind_of_call_and_no_gpu():
    rules = [rule(n, n + 9) for n in range(0, 500, 10)]
    rules += [rule(500, None), rule(0, None, "one_pass", storage="symmetric"), rule(0, None, storage="gpu")]
    rules.append(rule(0, None, "binomial_tree", collective="broadcast", dtype="any", op="any"))
    table = Table(topology=Place(nodes=1, ranks_per_node=[2], fingerprint="1x2"), rules=rules).check()
    found = sample(table, HERE, 0, most=8)
    assert len(found) == 8
    assert {each.rule.key for each in found} == {r.key for r in rules if r.storage != "gpu"}
    assert len(sample(table, HERE, 0, most=99)) == len(rules) - 1


@pytest.mark.parametrize(
    "dtype, op, expected",
    [
        ("float", "arithmetic", ("float32", "sum")),
        ("half", "any", ("bfloat16", "sum")),
        ("any", "bitwise", ("int32", "xor")),
        ("float64", "max", ("float64", "max")),
        ("integer", "bitwise", ("int32", "xor")),
        ("any", "any", ("float32", "sum")),
    ],
)
def test_a_class_is_measured_by_one_of_its_own(dtype, op, expected):
    assert representative(rule(0, None, dtype=dtype, op=op)) == expected


def test_sizes_are_whole_elements_that_the_rule_serves():
    assert size(rule(0, None), 4) == 4
    assert size(rule(0, None, measured_bytes=4096), 8) == 4096
    assert size(rule(5793, None), 4) == 5796
    assert again(rule(0, None), HERE).job(3, 1).candidates[0] == ("ring", {})
