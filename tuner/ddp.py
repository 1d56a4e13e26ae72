"""treering tune --ddp MODULE:FACTORY: which bucket size, and which algorithm, make a model's whole steps fastest.

The factory takes no argument and returns (model, batch) or (model, loss). The model is a torch module, not wrapped in
DDP. With a batch, its arguments (a tuple or a list of them; a dict of keywords; or the only one), the loss is the mean
square of what the model returns; a function `loss(model)` runs the wrapped model forward and returns the loss.

Each way to train is a copy of the model under DDP with treering's hook. A step is forward and backward, timed from a
barrier to its end on the slowest rank; ways take turns in random order, so that a machine which drifts slows all alike.
First bucket sizes are compared; then, unless buckets are symmetric memory, where the algorithm does not matter, the
algorithms that can serve, with the best size. Plain DDP's buckets stay unless another way is faster beyond the noise.
"""

import copy
import importlib
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Any

from collectives.tables.advice import BucketAdvice, Measured
from tuner.commands.common import UsageError
from tuner.space import Candidate, space
from tuner.statistics import holm, median_interval, ratio_interval, signed_rank

CAPS_MB = (1.0, 4.0, 10.0, 25.0, 50.0, 100.0, 200.0)
LEAST_WARM_UP = 6  # steps: buckets are rebuilt and move
BLOCKS = (8, 200)  # turns of all ways
CAPS_SHARE = 0.6  # of the budget, where algorithms are compared too
SIGNIFICANT = 0.01  # chance that a way which is not faster replaces the default
TIE = 0.02  # of a step: a gain of less is none
DIGITS = 4

Loss = Callable[[Any], Any]
Factory = Callable[[], Any]


def factory_of(name: str) -> Factory:
    """The function named MODULE:FACTORY, from the current folder or installed. UsageError says what is missing."""
    module, _, function = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"--ddp {name}: {error}") from error
    if not callable(found):
        raise UsageError(f"--ddp {name}: {function} is a {type(found).__name__}, not a function")
    made: Factory = found
    return made


def made_by(factory: Factory, name: str) -> tuple[Any, Loss]:
    """The model, and how to take its loss once it is wrapped. UsageError where the factory returns something else."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    made: Any = factory()
    if not isinstance(made, tuple) or len(made) != 2 or not isinstance(made[0], nn.Module):
        raise UsageError(f"--ddp {name}: it must return (model, batch) or (model, loss), not a {type(made).__name__}")
    model, second = made
    if isinstance(model, DistributedDataParallel):
        raise UsageError(f"--ddp {name}: return the bare model; it is wrapped in DDP here, once for each bucket size")
    return model, second if callable(second) else mean_square(second)


def mean_square(batch: Any) -> Loss:
    if isinstance(batch, Mapping):
        return lambda model: model(**batch).square().mean()
    arguments = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    return lambda model: model(*arguments).square().mean()


@dataclass
class Way:
    """One way to train, and the seconds of its steps: this rank's until `Steps.run` has made them the slowest's."""

    cap: float | None
    algorithm: Candidate | None
    ddp: Any
    state: Any
    seconds: list[float] = field(default_factory=list)

    @property
    def buckets(self) -> list[int]:
        """Bytes of the buckets of the last steps."""
        rows = self.state.report()
        return [row["bytes"] for row in rows if row["calls"] > 1] or [row["bytes"] for row in rows]

    @property
    def symmetric(self) -> bool:
        return all(row["storage"] == "symmetric" for row in self.state.report() if row["calls"] > 1)


class Steps:
    """Ways to train one model, stepping in turn on all ranks. Collective throughout."""

    def __init__(self, world: Any, comm: Any, model: Any, loss: Loss, told: Callable[[float, str], None]):
        self.world, self.comm, self.model, self.loss, self.told = world, comm, model, loss, told

    def way(self, cap: float | None, algorithm: Candidate | None = None) -> Way:
        """A copy of the model under DDP, warmed up until nothing changes any more."""
        from torch.nn.parallel import DistributedDataParallel

        import collectives
        from integrations.torch_ddp import register

        options: dict[str, Any] = {} if cap is None else {"bucket_cap_mb": cap}
        ddp = DistributedDataParallel(copy.deepcopy(self.model), **options)
        if algorithm is None:
            state = register(ddp, comm=self.comm)
        else:
            given = ",".join(f"{name}={value}" for name, value in algorithm.items)
            with collectives.Communicator(self.world, algorithm=f"{algorithm.algorithm}{given and ':'}{given}") as comm:
                state = register(ddp, comm=comm)
        made, steps = Way(cap, algorithm, ddp, state), 0
        while steps < LEAST_WARM_UP or state.settling:
            self._step(made)
            steps += 1
        made.seconds.clear()
        return made

    def run(self, ways: Sequence[Way], budget: float, doing: str) -> None:
        """All ways in turn, for so many seconds by rank 0's clock."""
        import torch

        shuffle, began, order, blocks = random.Random(len(ways)), monotonic(), list(ways), 0
        while blocks < BLOCKS[0] or (blocks < BLOCKS[1] and self._together(monotonic() - began < budget)):
            shuffle.shuffle(order)
            for way in order:
                self._step(way)
            blocks += 1
            self.told(min(1.0, (monotonic() - began) / budget), doing)
        for way in ways:
            slowest = self.comm.allreduce(torch.tensor(way.seconds, dtype=torch.float64), op="max")
            way.seconds = slowest.tolist()

    def _step(self, way: Way) -> None:
        way.ddp.zero_grad()
        self.comm.barrier()
        began = perf_counter()
        self.loss(way.ddp).backward()
        way.seconds.append(perf_counter() - began)

    def _together(self, mine: bool) -> bool:
        """What rank 0 says."""
        import torch

        said = torch.tensor([int(mine)], dtype=torch.uint8)
        return bool(self.comm.broadcast(said).item())


def tune(
    name: str, world: Any, comm: Any, budget: float, told: Callable[[float, str], None], caps: Sequence[float] = CAPS_MB
) -> BucketAdvice:
    """The advice for the model that the factory called `name` makes, the same on all ranks. Collective."""
    from integrations.bucket_advice import signature

    model, loss = made_by(factory_of(name), name)
    n_bytes = sum(each.nbytes for each in model.parameters() if each.requires_grad)
    steps = Steps(world, comm, model, loss, told)
    ways = distinct([steps.way(None), *(steps.way(cap) for cap in useful(caps, n_bytes))])
    compares = comm.size > 1 and not all(way.symmetric for way in ways)
    steps.run(ways, budget * (CAPS_SHARE if compares else 1.0), "bucket sizes")
    best = fastest(ways)
    if compares:
        others = space("allreduce", comm.topology.nodes, max(best.buckets)).simplest()
        rivals = [steps.way(best.cap, candidate) for candidate in others]
        first = [way for way in ways if way is ways[0] or way is best]
        for way in first:
            way.seconds.clear()
        ways = [*first, *rivals]
        steps.run(ways, budget * (1 - CAPS_SHARE), "algorithms")
        best = fastest(ways)
    advice = BucketAdvice(
        model=name, signature=signature(model), best=ways.index(best), measured=[measured(way, ways[0]) for way in ways]
    )
    for way in ways:
        way.state.close()
    return advice


def useful(caps: Sequence[float], n_bytes: int) -> list[float]:
    """Those that part the model, and one that does not."""
    parting = [cap for cap in caps if cap * 2**20 < n_bytes]
    return [*parting, *[cap for cap in caps if cap not in parting][:1]]


def distinct(ways: Sequence[Way]) -> list[Way]:
    """Without those whose buckets are another's."""
    kept: list[Way] = []
    for way in ways:
        if any(way.buckets == other.buckets for other in kept):
            way.state.close()
        else:
            kept.append(way)
    return kept


def fastest(ways: Sequence[Way]) -> Way:
    """The first, unless others are faster beyond the noise: then the fastest of these."""
    default, *others = ways
    ratios = [ratio_interval(way.seconds, default.seconds).median for way in others]
    chances = holm([signed_rank(way.seconds, default.seconds) for way in others])
    sure = [
        (ratio, place)
        for place, (ratio, chance) in enumerate(zip(ratios, chances, strict=True))
        if ratio < 1 - TIE and chance < SIGNIFICANT
    ]
    return others[min(sure)[1]] if sure else default


def measured(way: Way, default: Way) -> Measured:
    ms, ratio = median_interval([1e3 * each for each in way.seconds]), ratio_interval(way.seconds, default.seconds)
    return Measured(
        bucket_cap_mb=way.cap,
        algorithm=way.algorithm.algorithm if way.algorithm else None,
        params=way.algorithm.params if way.algorithm else {},
        buckets=way.buckets,
        median_ms=short(ms.median),
        low_ms=short(ms.low),
        high_ms=short(ms.high),
        over_default=short(ratio.median),
        over_default_low=short(ratio.low),
        over_default_high=short(ratio.high),
    )


def short(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def shown(advice: BucketAdvice) -> str:
    """The ways for a person, a line each, the advice marked."""
    lines = [f"DDP steps of {advice.model}", f"{'bucket_cap_mb':>15}  {'ms a step':>24}  {'over plain DDP buckets':24}"]
    for place, way in enumerate(advice.measured):
        cap = "-" if way.bucket_cap_mb is None else f"{way.bucket_cap_mb:g}"
        ms = f"{way.median_ms:g} [{way.low_ms:g}, {way.high_ms:g}]"
        ratio = f"{way.over_default:.3f} [{way.over_default_low:.3f}, {way.over_default_high:.3f}]"
        of = f"{len(way.buckets)} buckets" + (f", {Candidate(way.algorithm)}" if way.algorithm else "")
        lines.append(f"{cap:>15}  {ms:>24}  {ratio:24}  {of}{'  <- best' if place == advice.best else ''}")
    return "\n".join(lines)
