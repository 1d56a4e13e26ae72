"""Gloo at the sizes of a tuning run, timed after all else: its threads slow whatever is measured right after it."""

from collections.abc import Sequence

from tuner.clock import Clock
from tuner.contenders import gloo_lacks
from tuner.measure import GLOO, Job, Session, Stopped
from tuner.search import within

STAGE = "gloo"
SHARE = 0.1  # of the budget, in addition to it
BLOCKS = (5, 100)


def time_gloo(
    session: Session, collective: str, dtype: str, op: str, sizes: Sequence[int], seconds: float
) -> str | None:
    """Rank 0: raw samples of Gloo at each size, for a picture. Why there are none at some sizes, or None."""
    if lacks := gloo_lacks(collective, dtype, op):
        return lacks
    clock, seed = Clock(seconds), session.jobs
    try:
        for place, nbytes in enumerate(sizes):
            share, blocks = clock.left / (len(sizes) - place), BLOCKS[0]
            for _ in range(2):
                job = Job(
                    collective=collective, dtype=dtype, op=op, nbytes=nbytes, blocks=blocks, seed=seed, stage=STAGE,
                    candidates=[(GLOO.algorithm, GLOO.params)],
                )  # fmt: skip
                outcome = session.measure(job)
                if outcome.faults or outcome.interrupted:
                    return outcome.faults.get(GLOO, "interrupted")
                blocks = within(int(share / max(outcome.block_seconds, 1e-6)) - blocks, BLOCKS)
    except Stopped as error:
        return str(error)
    return None
