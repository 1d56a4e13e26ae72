"""What a tuning table knows of a model's DDP buckets, and what `register` says of it."""

import hashlib
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from collectives.says import say
from collectives.tables.advice import BucketAdvice, Measured

if TYPE_CHECKING:
    import collectives

WORTH_SAYING = 0.02  # of a step


def signature(model: nn.Module) -> str:
    """16 hexadecimal digits that stand for the shapes and dtypes of what is trained, in order."""
    trained = [(tuple(each.shape), str(each.dtype)) for each in model.parameters() if each.requires_grad]
    return hashlib.sha256(repr(trained).encode()).hexdigest()[:16]


def cap_of(model: DistributedDataParallel) -> float | None:
    """The bucket_cap_mb that the model was wrapped with; None where none was given."""
    return None if model.bucket_bytes_cap_default else model.bucket_bytes_cap / 2**20


def advice_for(comm: "collectives.Communicator", model: DistributedDataParallel) -> BucketAdvice | None:
    """Of the communicator's table, if that was measured on this topology."""
    table = comm._settings.table
    if table is None or table.topology.fingerprint != comm.topology.fingerprint:
        return None
    return table.advice(signature(model.module))


def advised(comm: "collectives.Communicator", model: DistributedDataParallel) -> Measured | None:
    """How to average this model's buckets: the advice, where the model has its bucket size; None elsewhere.

    Rank 0 says it where another bucket size was measurably faster.
    """
    advice = advice_for(comm, model)
    if advice is None:
        return None
    if cap_of(model) == advice.chosen.bucket_cap_mb:
        return advice.chosen
    if comm.rank == 0 and (text := faster(advice, cap_of(model))):
        say(text)
    return None


def faster(advice: BucketAdvice, cap: float | None) -> str | None:
    """What is said to a model with this bucket_cap_mb; None where its way was measured and is as good."""
    best = advice.chosen
    now = next((way for way in advice.measured if way.bucket_cap_mb == cap), None)
    ratio = best.over_default / (now.over_default if now else 1.0)
    if 1 - ratio < WORTH_SAYING:
        return None
    beside = shown(cap) if now else f"plain DDP's buckets ({shown(cap)} was not measured)"
    step = f"{best.median_ms:.3g} ms a step" + (f" instead of {now.median_ms:.3g}" if now else "")
    return f"{shown(best.bucket_cap_mb)} was {1 - ratio:.0%} faster than {beside} for this model: {step}"


def shown(cap: float | None) -> str:
    return "no bucket_cap_mb" if cap is None else f"bucket_cap_mb={cap:g}"
