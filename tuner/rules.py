"""From what was measured at each size to the rules of a table: neighbours with the same winner become one interval."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby, pairwise
from typing import Any

from collectives.contract import REDUCING
from collectives.tables.advice import BucketAdvice
from collectives.tables.conditions import Conditions
from collectives.tables.table import ANY, DTYPE_CLASS, OP_CLASS, LinkCost, Place, Rule, RunnerUp, Table
from tuner.decision import Measured
from tuner.objective import TAIL
from tuner.space import BASELINE, Candidate
from tuner.statistics import Interval, quantile

DIGITS = 4


def rules_of(collective: str, dtype: str, op: str, sizes: Sequence[Measured]) -> list[Rule]:
    """Rules that cover every size. Between two sizes with different winners the border is their geometric mean.

    The times of a rule are those at the largest size asked for that it was measured at, which is named.
    """
    key: dict[str, Any] = key_of(collective, dtype, op) | {"storage": sizes[0].storage}
    groups = [list(group) for _, group in groupby(sizes, key=lambda size: size.winner)]
    borders = [border(left[-1].nbytes, right[0].nbytes) for left, right in pairwise(groups)]
    rules = []
    for place, group in enumerate(groups):
        low = borders[place - 1] + 1 if place else 0
        high = borders[place] if place < len(borders) else None
        raced = [size for size in group if size.race]
        at = max(raced, key=lambda size: (not size.between, size.nbytes), default=None)
        winner = group[0].winner
        assert winner is not None
        found: dict[str, Any] = times(at, winner) if at else {}
        found |= {"algorithm": winner.algorithm, "params": winner.params}
        rules.append(Rule(**key, min_bytes=low, max_bytes=high, **found))
    return rules


def key_of(collective: str, dtype: str, op: str) -> dict[str, str]:
    """Which calls rules are for that were measured with these: without arithmetic any dtype is as good as another."""
    if collective not in REDUCING:
        return {"collective": collective, "dtype": ANY, "op": ANY}
    return {"collective": collective, "dtype": DTYPE_CLASS[dtype], "op": OP_CLASS[op]}


def border(low: int, high: int) -> int:
    """The last size that the lower rule serves: the geometric mean, in a word at a time from 64 bytes on."""
    middle = math.isqrt(low * high)
    return max(low, min(middle - middle % 8 if middle >= 64 else middle, high - 1))


def times(size: Measured, winner: Candidate) -> dict[str, Any]:
    known = size.interval(winner)
    if known is None:
        return {}
    medians = {each: size.beside(each, winner) for each in size.race}
    others = [each for each in medians if each not in (winner, BASELINE) and size.asked.allow(each)]
    second = min(others, key=medians.__getitem__, default=None)
    over = size.over(second, winner) if second else Interval(1, 1, 1)
    return {
        "measured_bytes": size.nbytes,
        "median_us": rounded(known.median),
        "low_us": rounded(known.low),
        "high_us": rounded(known.high),
        "p95_us": rounded(quantile(size.race[winner], TAIL)),
        "runner_up": None if second is None else RunnerUp(
            algorithm=second.algorithm, params=second.params, median_us=rounded(medians[second]),
            over_best=(rounded(over.low), rounded(over.median), rounded(over.high)),
        ),
        "native_us": rounded(medians[BASELINE]) if BASELINE in medians else None,
    }  # fmt: skip


def rounded(us: float) -> float:
    return float(f"{us:.{DIGITS}g}")


def place_of(topology: Any) -> Place:
    return Place(
        nodes=len(topology.nodes),
        ranks_per_node=list(topology.ranks_per_node),
        links=list(topology.links),
        cpu=topology.cpu,
        mpi=topology.mpi,
        network=topology.network,
        device=topology.device,
        fingerprint=topology.fingerprint,
    )


def table_of(
    topology: Any,
    release: str,
    samples: str | None,
    rules: Sequence[Rule],
    earlier: Table | None,
    advice: BucketAdvice | None = None,
    links: Sequence[LinkCost] = (),
    tuned: Conditions | None = None,
) -> Table:
    """A table of these rules, advice and costs, and of what an earlier one for the same topology has beside them."""
    kept, advised, costs = list[Rule](), [advice] if advice else [], list(links)
    conditions = [tuned] if tuned else []
    if earlier is not None and earlier.topology.fingerprint == topology.fingerprint:
        new = {rule.key for rule in rules}
        kept = [rule for rule in earlier.rules if rule.key not in new]
        advised += [each for each in earlier.ddp if advice is None or each.signature != advice.signature]
        conditions += [each for each in earlier.tuned if tuned is None or each.key != tuned.key]
        samples = samples or earlier.samples
        costs += [each for each in earlier.links if each.class_ not in {link.class_ for link in links}]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    place = place_of(topology)
    whole = [*kept, *rules]
    return Table(
        treering=release, created=now, topology=place, links=costs, samples=samples, tuned=conditions, rules=whole,
        ddp=advised,
    ).check()  # fmt: skip
