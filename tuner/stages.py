"""What a tuning run does on its ranks, from the first look to the guidelines, within its budget."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from collectives.contract import REDUCING
from collectives.dtypes import ITEMSIZE
from collectives.selection import ONE_PASS, Table, choose, default
from collectives.tables.conditions import Finding
from collectives.tables.table import SYMMETRIC
from tuner.clock import Clock
from tuner.decision import Measured
from tuner.drift import NBYTES, Watch
from tuner.guidelines import compositions
from tuner.measure import Job, Session
from tuner.search import Search, Study
from tuner.seeding import Seeds
from tuner.space import Candidate, candidate, space

SHARED_TIME = 0.15  # of the budget, for symmetric memory
REFINING, CONFIRMING = 0.5, 0.5  # of what the race leaves, and of the rest; guidelines have what is left then


@dataclass
class Found:
    """What a run brought. `sizes` have those between others too; `shared` are those of symmetric memory, or none."""

    sizes: list[Measured]
    shared: list[Measured]
    findings: list[Finding]
    checked: int  # sizes at which compositions were timed
    watch: Watch
    seeds: Seeds
    given_way: list[Measured]  # whose winner was not faster when it was timed once more
    ended: str | None  # why, where it ended early


def by_thumb(args: argparse.Namespace, session: Session, nbytes: int) -> Candidate:
    """What serves where there is no table."""
    chosen = default(session.comm.topology, args.collective, nbytes, deterministic=args.deterministic)
    return candidate(chosen.algorithm, chosen.params)


def run(
    args: argparse.Namespace,
    session: Session,
    sizes: list[Measured],
    studies: list[Study],
    earlier: Table | None,
    told: Callable[[float, str], None],
) -> Found:
    """Measures; `earlier` has rules for what an allreduce may be made of. What ends it early is noted, not raised."""
    topology, serves = session.comm.topology, partial(by_thumb, args, session)
    whole, asked_for = partial(space, args.collective, topology.nodes), tuple(sizes)
    shares, asked = one_pass_serves(session.comm, args.collective), sizes[0].asked
    warm_up(args, session, sizes[0])
    spaces = {size.nbytes: study.space for size, study in zip(sizes, studies, strict=True)}
    seeds = Seeds(session, args.collective, args.dtype, args.op, spaces, asked.precision)
    search = Search(
        session, args.collective, args.dtype, args.op, Clock(args.budget * (1 - SHARED_TIME * shares)), args.seed,
        args.trials, asked, told, seeds.first, serves, free=whole if args.deterministic else None,
    )  # fmt: skip
    reference = NBYTES // ITEMSIZE[args.dtype] * ITEMSIZE[args.dtype]
    search.watch = Watch(Measured(reference, serves(reference), baseline=False, asked=asked), search.watching)
    search.run(sizes, studies)
    search.refine(sizes, search.clock.part(REFINING))
    search.confirm(sizes, search.clock.part(CONFIRMING))

    def made(nbytes: int) -> list[Candidate]:
        def part(collective: str) -> Candidate:
            op = args.op if collective in REDUCING else None
            chosen = choose(earlier, topology, collective, nbytes, args.dtype, op)
            return candidate(chosen.algorithm, chosen.params)

        return compositions(args.collective, part)

    findings, checked = search.check(asked_for, made)
    search.clock = Clock(args.budget * SHARED_TIME)
    raced = any(size.race for size in sizes)
    shared = search.run_symmetric(asked_for) if shares and raced and search.ended is None else []
    search.refine(shared, search.clock.part(1 - CONFIRMING / 2))
    search.confirm(shared, search.clock)
    return Found(sizes, shared, findings, checked, search.watch, seeds, search.given_way, search.ended)


def one_pass_serves(comm: Any, collective: str) -> bool:
    """Whether single passes over symmetric memory are possible here."""
    return bool(comm.explain(collective, nbytes=1 << 20, storage=SYMMETRIC).algorithm == ONE_PASS)


def warm_up(args: argparse.Namespace, session: Session, size: Measured) -> None:
    """Compile what has to be compiled before the clock runs."""
    job = Job(
        collective=args.collective, dtype=args.dtype, op=args.op, nbytes=size.nbytes, stage="warm-up", blocks=1,
        candidates=[(size.default.algorithm, size.default.params)],
    )  # fmt: skip
    session.measure(job)
