"""What a tuning run was asked for, and what it found out beside its rules: kept in its table, for its readers."""

import math
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from collectives.tables.advice import Name

OBJECTIVES = MEDIAN, P95 = "median", "p95"  # what of a candidate's times counts
PRECISIONS = ("fast", "accurate")
DRIFTED = 1.1  # times its best: less is no drift, but noise
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Ratio = Annotated[float, msgspec.Meta(gt=0)]


class Finding(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A guideline that does not hold at one size: how many times longer than it allows a call takes, with 95 %."""

    guideline: Name
    bytes: Count
    ratio: Ratio
    low: Ratio
    high: Ratio


class Conditions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Of the rules for one collective, dtype and operation, as these name them.

    deterministic: rules name only what folds all ranks in order, once, on the table's topology; price: how many times
    longer they take than the fastest without that condition, the geometric mean over sizes. precision: of the calls
    that were timed. objective: the median, or the time within which 95 % of calls end. allow_native: rules may name the
    MPI library's own collective. drift: how many times slower a candidate that was timed again and again was in its
    worst minute than in its best. findings: guidelines that do not hold.
    """

    collective: Name
    dtype: Name
    op: Name
    deterministic: bool = False
    price: Ratio | None = None
    precision: Name = PRECISIONS[0]
    objective: Name = MEDIAN
    allow_native: bool = False
    drift: Ratio | None = None
    findings: list[Finding] = []

    @property
    def key(self) -> tuple[str, str, str]:
        return self.collective, self.dtype, self.op

    def __str__(self) -> str:
        """What was asked for, for a person; empty where it was nothing but the fastest."""
        price = f" (which costs {self.price - 1:.1%})" if self.price else ""
        asked = (
            (f"in a fixed order{price}", self.deterministic),
            (f"for {self.precision} precision", self.precision != PRECISIONS[0]),
            ("by what 95 % of calls stay within", self.objective == P95),
            ("with the MPI library's own collective allowed", self.allow_native),
        )
        said = ", ".join(text for text, is_so in asked if is_so)
        return f"tuned {said}" if said else ""


def wrong(conditions: Sequence[Conditions]) -> Iterator[str]:
    """What is wrong with a table's conditions, each with the place named."""
    for index, each in enumerate(conditions):
        where = f"tuned[{index}] ({' '.join(each.key)})"
        for field, value, names in (
            ("objective", each.objective, OBJECTIVES), ("precision", each.precision, PRECISIONS),
        ):  # fmt: skip
            if value not in names:
                yield f"{where}: {field} is {value!r}; use one of {', '.join(names)}"
        if any(other.key == each.key for other in conditions[:index]):
            yield f"{where}: a second one of this key; keep one"
        numbers = [
            each.price or 1.0,
            each.drift or 1.0,
            *(number for f in each.findings for number in (f.ratio, f.high)),
        ]
        if not all(map(math.isfinite, numbers)):
            yield f"{where}: a ratio is not finite"
        if any(not finding.low <= finding.ratio <= finding.high for finding in each.findings):
            yield f"{where}: a finding's interval does not hold its ratio"
