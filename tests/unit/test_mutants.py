"""1,000 seeded mutants: what the verifier lets pass must compute the right thing, with messages that stream at will."""

from random import Random

import pytest

from collectives.algorithms import Algorithm, every
from collectives.contract import ROOTED, contract
from collectives.verify import Fault, settings, shape, verify
from tests.unit.mutate import edited, mutate
from tests.unit.reference import check

EACH = 64  # mutants of each algorithm: one-ended and two-ended in turn
SIZES = (3, 4, 6)
NODES = ("2x2", "3+1", "2+3+1")


def cases(algorithm: Algorithm, random: Random):
    """An endless supply of schedules and their contracts."""
    while True:
        nodes = shape(random.choice(NODES)) if algorithm.needs_nodes else None
        p = sum(map(len, nodes)) if nodes else random.choice([p for p in SIZES if not algorithm.lack(p)])
        root = random.randrange(p) if algorithm.collective in ROOTED else 0
        params = random.choice(list(settings(algorithm)))
        yield algorithm.schedules(p, nodes=nodes, root=root, **params), contract(algorithm.collective, p, root)


@pytest.mark.parametrize("algorithm", every(), ids=lambda a: f"{a.collective}-{a.name}")
def test_mutants_are_refused_or_right(algorithm):
    random = Random(f"{algorithm.collective} {algorithm.name}")
    refused, made = 0, 0
    for schedules, promise in cases(algorithm, random):
        if made == EACH:
            break
        kind, mutant = mutate(random, schedules, ends=1 + made % 2)
        if mutant == edited(schedules, {}):
            continue
        made += 1
        try:
            report = verify(mutant, promise)
        except Fault:
            refused += 1
            continue
        for segments in (1, 4):
            print(
                f"proved: mutant {made} ({kind}), {len(schedules)} ranks, {segments} segments"
            )  # shown if it is wrong
            count, seed = random.randrange(20, 60), random.randrange(1000)
            check(mutant, promise, count, segments=segments, canonical=report.canonical, seed=seed)
    assert refused > EACH * 0.75


def test_there_are_a_thousand():
    assert len(every()) * EACH >= 1000


def test_a_mutant_differs_where_it_says():
    (schedules, _) = next(cases(next(a for a in every() if a.name == "ring"), Random(0)))
    assert edited(schedules, {}) == schedules
    kinds = {mutate(random, schedules, ends)[0] for seed in range(200) for random in [Random(seed)] for ends in (1, 2)}
    assert {"drop", "span", "peer", "later", "kind", "own", "slots"} <= kinds
