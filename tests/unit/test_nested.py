"""Groups of groups: what nested and themis make of them, and where they come from."""

from fractions import Fraction
from itertools import product
from math import prod

import pytest

from collectives import nest
from collectives.algorithms import every, find, themis
from collectives.contract import contract
from collectives.nest import shape
from collectives.proof.reference import check
from collectives.verify import verify

NESTED, THEMIS = find("allreduce", "nested"), find("allreduce", "themis")
UNEVEN = [[[6, 0], [3], [8, 7, 9]], [[1, 4, 2]], [[5], [10, 11]]]
OUTERMOST = [a for a in every("allreduce") if not a.needs_nodes]
INNER = (*every("reduce_scatter"), *every("reduce"))


def proved(algorithm, groups, **params):
    p = nest.count(groups)
    return verify(algorithm.schedules(p, nodes=groups, **params), contract("allreduce", p))


@pytest.mark.parametrize("name", dict.fromkeys(a.name for a in INNER))
def test_every_algorithm_serves_inner_levels_of_any_shape(name):
    for levels in (f"{name}:ring", f"direct:{name}:ring", f"{name}:binomial_tree:two_shot"):
        proved(NESTED, UNEVEN, levels=levels)


@pytest.mark.parametrize("name", [a.name for a in OUTERMOST])
def test_every_algorithm_serves_the_outermost_level_of_any_shape(name):
    size = 4 if find("allreduce", name).lack(3) else 3
    groups = UNEVEN if size == 3 else [*UNEVEN, [[12]]]
    proved(NESTED, groups, levels=f"ring:{name}")
    proved(NESTED, groups, levels=f"binomial_tree:direct:{name}")


def test_uneven_groups_compute_the_right_numbers_also_as_pipelines():
    p = nest.count(UNEVEN)
    for levels, more in product(("bruck:direct:bruck", "mixed_radix:swing"), ({}, {"segment_bytes": 1, "slots": 3})):
        groups = UNEVEN if "swing" not in levels else UNEVEN[:1] + [[[1, 4, 2], [5], [10, 11]]]
        schedules = NESTED.schedules(p, nodes=groups, levels=levels, **more)
        check(schedules, contract("allreduce", p), 97, segments=4 if more else 1, canonical=False, seed=3)


@pytest.mark.parametrize("text", ["2x2x2", "2x3x4", "3x2x2x2"])
def test_nested_costs_what_its_levels_do(text):
    *inner, outer = reversed([len(level[0]) for level in nest.levels(shape(text))])
    p, inside = nest.count(shape(text)), prod(inner)
    for name in ("ring", "halving_doubling"):
        report = proved(NESTED, shape(text), levels=f"direct:{name}")
        top = verify(find("allreduce", name).schedules(outer), contract("allreduce", outer))
        assert report.rounds == 2 * len(inner) + top.rounds
        assert report.sent == 2 * Fraction(inside - 1, inside) + top.sent / inside
        assert report.folded == Fraction(inside - 1, inside) + top.folded / inside
    assert proved(NESTED, shape(text), levels="ring").sent == 2 * Fraction(p - 1, p)


@pytest.mark.parametrize("speeds", [1, 8, "1:2:4"])
def test_themis_moves_no_more_and_balances_the_time_of_its_dimensions(speeds):
    groups, sizes = shape("2x3x4"), (4, 3, 2)
    report = proved(THEMIS, groups, speeds=speeds)
    assert (report.sent, report.folded) == (2 * Fraction(23, 24), Fraction(23, 24))
    assert report.rounds == 6
    fast = themis.fast(speeds, 3)
    busy = {order: time(sizes, fast, {order: 64}) for order in product(range(3), repeat=3) if len(set(order)) == 3}
    ours = time(sizes, fast, themis.balanced(sizes, fast))
    assert ours <= min(busy.values())
    assert speeds == 8 or ours < 0.75 * busy[0, 1, 2]  # of the ordinary order


def time(sizes, speeds, shares):
    """How long the busiest dimension's links work, for parts by their order."""
    busy = [Fraction(0)] * len(sizes)
    for order, parts in shares.items():
        left = Fraction(parts)
        for dimension in order:
            busy[dimension] += left * (1 - Fraction(1, sizes[dimension])) / speeds[dimension]
            left /= sizes[dimension]
    return max(busy)


def test_what_cannot_serve_is_named():
    for levels, why in {
        "direct:rings": "no allreduce that can serve a level is called 'rings'; there are ring, recursive_doubling",
        "swing:ring": "no reduce_scatter or reduce that can serve a level is called 'swing'; there are ring, direct",
        "direct:hierarchical": "no allreduce that can serve a level is called 'hierarchical'",
        "direct:ring:ring:ring": "levels='direct:ring:ring:ring' names 4 levels, and there are 3",
        "direct:swing": "a level of 3: allreduce swing needs an even number of ranks, not 3; ring, ",
        "direct ring": r"levels='direct ring' is not allowed; levels: direct:ring, ",
    }.items():
        with pytest.raises(ValueError, match=why):
            NESTED.schedules(12, nodes=UNEVEN, levels=levels)
    with pytest.raises(ValueError, match="needs groups of as many levels everywhere, not"):
        NESTED.schedules(3, nodes=[[0, 1], [[2]]])
    with pytest.raises(ValueError, match=r"themis needs groups of one size at each level, not 3\+1; ring, .*nested"):
        THEMIS.schedules(4, nodes=shape("3+1"))
    with pytest.raises(ValueError, match="speeds='2:1' are of 2 levels, and there are 3; none may be 0"):
        THEMIS.schedules(8, nodes=shape("2x2x2"), speeds="2:1")
