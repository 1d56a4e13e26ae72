"""What a tuning run is asked for by its flags, and how its table says so afterwards."""

import argparse
from collections.abc import Sequence
from typing import Any

from collectives.proof.canonical import canonical
from collectives.tables.conditions import MEDIAN, OBJECTIVES, PRECISIONS, Conditions, Finding
from tuner import units
from tuner.cases import HALVES
from tuner.commands.common import UsageError, value
from tuner.decision import Constraints, Measured, price
from tuner.rules import key_of, rounded
from tuner.space import Candidate


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allow-native", action="store_true",
                        help="let rules choose the MPI library's own collective (no promises of ours)")  # fmt: skip
    parser.add_argument("--deterministic", action="store_true",
                        help="only what folds all ranks in order, by proof, and what that costs")  # fmt: skip
    parser.add_argument("--precision", choices=PRECISIONS, default=PRECISIONS[0],
                        help="of halves: rounded at each hop, or summed in float32 (default: %(default)s)")  # fmt: skip
    parser.add_argument("--objective", choices=OBJECTIVES, default=MEDIAN,
                        help="the median, or what 95 %% of calls stay within (default: %(default)s)")  # fmt: skip
    parser.add_argument("--interval", type=value(units.parse_percent), default="1%", metavar="PERCENT",
                        help="half the 95 %% interval of a time that is known well (default: %(default)s)")  # fmt: skip


def check(args: argparse.Namespace) -> None:
    """UsageError where flags contradict each other, or say nothing about what is tuned."""
    if args.allow_native and args.deterministic:
        raise UsageError("--allow-native contradicts --deterministic: the MPI library promises no order; leave one out")
    if args.precision != PRECISIONS[0] and args.dtype not in HALVES:
        raise UsageError(
            f"--precision {args.precision} is about float16 and bfloat16; {args.dtype} is never summed in less: leave "
            "it out, or name one of these with --dtype"
        )
    elsewhere = next((flag for flag, is_so in (
        (f"--target {args.target}", args.target), ("--ddp", args.ddp), ("--device cuda", args.device == "cuda"),
    ) if is_so), None)  # fmt: skip
    given = [
        name for name, is_so in (
            ("--allow-native", args.allow_native), ("--deterministic", args.deterministic),
            ("--precision", args.precision != PRECISIONS[0]), ("--objective", args.objective != MEDIAN),
        ) if is_so
    ]  # fmt: skip
    if elsewhere and given:
        raise UsageError(f"{given[0]} is not for {elsewhere}, which tunes by other measures; leave one out")


def constraints(args: argparse.Namespace, topology: Any) -> Constraints:
    from tuner.objective import OBJECTIVES as MEASURES

    def in_order(each: Candidate) -> bool:
        return canonical(args.collective, each.algorithm, each.params, topology.nodes)

    return Constraints(
        MEASURES[args.objective], args.precision, args.allow_native, in_order if args.deterministic else None,
        args.interval,
    )  # fmt: skip


def conditions(
    args: argparse.Namespace, sizes: Sequence[Measured], findings: Sequence[Finding], drift: float | None
) -> Conditions:
    """What the table says of it."""
    costs = price(sizes) if args.deterministic else None
    key = key_of(args.collective, args.dtype, args.op)
    return Conditions(
        collective=key["collective"], dtype=key["dtype"], op=key["op"], deterministic=args.deterministic,
        price=rounded(costs) if costs else None, precision=args.precision, objective=args.objective,
        allow_native=args.allow_native, drift=rounded(drift) if drift else None, findings=list(findings),
    )  # fmt: skip


def price_told(sizes: Sequence[Measured]) -> str:
    """What folding in order costs, size by size where it costs something."""
    dear = [(units.size(size.nbytes), found) for size in sizes if (found := size.price()) and found > 1]
    whole = price(sizes)
    if whole is None:
        return "a fixed order costs nothing here: whatever was tried folds all ranks in order"
    each = ", ".join(f"{name} {found - 1:+.0%}" for name, found in dear)
    return f"a fixed order costs {whole - 1:.1%} in the geometric mean over sizes{f': {each}' if each else ''}"
