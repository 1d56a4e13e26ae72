"""Which candidates are worth a trial first: what the simulator says, with costs fitted to a first look at the machine.

The ranking only says in which order candidates are tried. What is measured decides, and how early the winner came is
told at the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from collectives.errors import UnsupportedError
from collectives.foresight.foresee import Foresight
from collectives.foresight.network import of_links
from collectives.tables.table import LinkCost
from tuner.decision import Measured
from tuner.measure import Job, Session
from tuner.model import Timing, fit
from tuner.search import FEW
from tuner.space import BASELINE, Candidate, Space

LOOKS = 5  # sizes of the first look, at most
BLOCKS = 3
MOST_MESSAGES = 10_000  # of a candidate that is simulated
SEEDS = 12  # candidates that are tried first at a size
MEMORY = 1 << 28


@dataclass
class Seeds:
    """The simulator's ranking for one tuning run, whose sizes have these spaces; only rank 0 has one."""

    session: Session
    collective: str
    dtype: str
    op: str
    spaces: Mapping[int, Space]
    precision: str | None = None
    foresight: Foresight | None = None
    ranks: dict[int, dict[Candidate, int]] = field(default_factory=dict)  # by size: a candidate's place

    def look(self) -> None:
        """Time every algorithm at a few of the sizes that have many candidates, and fit costs to that."""
        many = [(nbytes, space) for nbytes, space in self.spaces.items() if len(space.every()) > FEW]
        chosen = many[:: max(1, -(-len(many) // LOOKS))]
        found = []
        for nbytes, space in chosen:
            job = Job(
                collective=self.collective, dtype=self.dtype, op=self.op, nbytes=nbytes, blocks=BLOCKS,
                stage="look", precision=self.precision,
                candidates=[(each.algorithm, each.params) for each in space.typical()], seed=self.session.jobs,
            )  # fmt: skip
            outcome = self.session.measure(job)
            found += [timing(self.collective, nbytes, each, median(us)) for each, us in outcome.times.items()]
        nodes = self.session.comm.topology.nodes
        self.foresight = Foresight(of_links(fit(nodes, found) if found else [], nodes), MEMORY)

    def first(self, nbytes: int) -> list[Candidate]:
        """Candidates to try first, the fastest first; none where all of them will be tried."""
        every = self.spaces[nbytes].every()
        if len(every) <= FEW:
            return []
        if self.foresight is None:
            self.look()
        assert self.foresight is not None
        us, messages = dict[Candidate, float](), dict[str, int]()
        for each in every:
            segment = each.params.get("segment_bytes")
            if segment and messages.get(each.algorithm, 0) * min(48, -(-nbytes // segment)) > MOST_MESSAGES:
                continue
            try:
                found = self.foresight.predict(self.collective, each.algorithm, nbytes, **each.params)
            except UnsupportedError:
                continue
            us[each] = found.us
            messages.setdefault(each.algorithm, found.messages)
        ordered = sorted(us, key=us.__getitem__)
        self.ranks[nbytes] = {each: place for place, each in enumerate(ordered)}
        return ordered[:SEEDS]

    def saved(self, sizes: Sequence[Measured]) -> str | None:
        """How early the winners came, where there was a ranking; None where there was none."""
        places = [
            (self.ranks[size.nbytes].get(size.winner, len(self.ranks[size.nbytes])) + 1, len(self.ranks[size.nbytes]))
            for size in sizes
            if size.nbytes in self.ranks and size.race and size.winner is not None and size.winner != size.default
        ]
        if not places:
            return None
        part = fmean(place / total for place, total in places)
        return (
            f"the simulator's ranking had the winner at place {median(place for place, _ in places):g} of "
            f"{median(total for _, total in places):g} (median of {len(places)} sizes); trying candidates in its order "
            f"takes {part:.0%} of them, where chance takes half"
        )


def timing(collective: str, nbytes: int, each: Candidate, us: float) -> Timing:
    return Timing(collective, nbytes, each.algorithm, each.params, us)


def links_of(nodes: Sequence[Sequence[int]], collective: str, sizes: Sequence[Measured]) -> list[LinkCost]:
    """Costs fitted to what a search has measured: a candidate's ratio to the default, times the default's median."""
    found = []
    for size in sizes:
        known = size.interval(size.default)
        if known is not None:
            found += [
                timing(collective, size.nbytes, each, ratio * known.median)
                for each, ratio in size.ratios.items()
                if each != BASELINE and 0 < ratio < float("inf")
            ]
    return fit(nodes, found) if found else []
