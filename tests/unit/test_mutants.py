"""A thousand seeded mutants: what the verifier lets pass must compute the right thing, however messages stream."""

from collections import Counter
from random import Random

from collectives.algorithms import every, find
from collectives.proof.mutants import cases, mutants
from collectives.proof.mutate import edited, mutate

COUNT = 1000  # `treering verify --mutants 5000` makes more


def test_mutants_are_refused_or_right():
    made = list(mutants(COUNT))
    assert [m for m in made if m.wrong] == []
    for ends in (1, 2):
        outcomes = Counter(m.outcome for m in made if m.ends == ends)
        assert outcomes["refused"] > outcomes.total() * 0.9
    assert {m.algorithm for m in made} == {f"{a.collective} {a.name}" for a in every()}
    assert list(mutants(40)) == made[:40]  # a seed says which


def test_a_mutant_differs_where_it_says():
    (schedules, _) = next(cases(find("reduce_scatter", "ring"), Random(0)))
    assert edited(schedules, {}) == schedules
    kinds = {mutate(random, schedules, ends)[0] for seed in range(200) for random in [Random(seed)] for ends in (1, 2)}
    assert {"drop", "span", "peer", "later", "kind", "own", "slots"} <= kinds
