"""What a tuning table advises for a PyTorch model under DDP: bucket size and algorithm, by the time of whole steps."""

import math
from typing import Annotated

import msgspec

Value = bool | int | float | str | None
Name = Annotated[str, msgspec.Meta(min_length=1)]
Bytes = Annotated[int, msgspec.Meta(ge=1, le=(1 << 63) - 1)]
Amount = Annotated[float, msgspec.Meta(gt=0)]


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to train the model, and its step: median and 95 % interval of the slowest rank's milliseconds.

    bucket_cap_mb: DDP's; None where it is not given. algorithm: by which buckets are averaged where they are not
    symmetric memory; None: what the rules choose. buckets: bytes of each. over_default: the step's ratio to that of the
    first way, paired, with its interval.
    """

    bucket_cap_mb: Amount | None
    algorithm: Name | None = None
    params: dict[str, Value] = {}
    buckets: list[Bytes]
    median_ms: Amount
    low_ms: Amount
    high_ms: Amount
    over_default: Amount
    over_default_low: Amount
    over_default_high: Amount


class BucketAdvice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one model: `measured[0]` is plain DDP's buckets with the algorithms of the rules, `measured[best]` the advice.

    model: how it was named to `treering tune --ddp`. signature: what stands for its parameters' shapes and dtypes.
    """

    model: str
    signature: Name
    best: Annotated[int, msgspec.Meta(ge=0)]
    measured: Annotated[list[Measured], msgspec.Meta(min_length=1)]

    @property
    def chosen(self) -> Measured:
        return self.measured[self.best]

    def wrong(self) -> str | None:
        """What is wrong with it by itself."""
        if self.best >= len(self.measured):
            return f"best is {self.best}, and {len(self.measured)} ways were measured; the first is 0"
        for place, way in enumerate(self.measured):
            times = way.low_ms, way.median_ms, way.high_ms
            ratios = way.over_default_low, way.over_default, way.over_default_high
            for name, (low, middle, high) in (("median_ms", times), ("over_default", ratios)):
                if not (math.isfinite(high) and low <= middle <= high):
                    return f"measured[{place}]: {name} {middle} does not lie in {low} to {high}, or is not finite"
        return None
