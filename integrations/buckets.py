"""What the hook knows of each of DDP's buckets: how it is averaged, and what that took."""

from collections import Counter
from typing import TYPE_CHECKING, Any, TypedDict

import torch

from collectives.errors import UnsupportedError
from collectives.settings import folds_once
from collectives.tables.advice import Measured

if TYPE_CHECKING:
    import collectives

SPARSE = "treering averages dense gradients, not sparse ones"


class BucketReport(TypedDict):
    """What one bucket did: `bytes` of one call, and over all `calls`:

    seconds: of communication, waiting for slower ranks included. waited: those of them, and of starting it, for which
    the backward pass stood still. overlap: the part of `seconds` during which it went on, 0 to 1. share: `waited` as
    part of the time from the state's first bucket to its last, all that happens between steps included. waits_for: in
    how many calls each rank came last, on the node's own clock; None where that is not known (one rank, several nodes,
    no shared memory). storage: that of the last call, "symmetric" or "ordinary".
    """

    bucket: int
    bytes: int
    dtype: str
    algorithm: str
    storage: str
    calls: int
    seconds: float
    waited: float
    overlap: float
    share: float
    waits_for: dict[int, int] | None


class Bucket:
    """One bucket of a state, of one size and dtype; DDP rebuilds its buckets after the first step."""

    def __init__(
        self, comm: "collectives.Communicator", tensor: torch.Tensor, index: int, advised: Measured | None = None
    ):
        """TypeError for a sparse tensor, UnsupportedError for a device other than the CPU.

        advised: whose algorithm is to average it.
        """
        check(tensor)
        self.index, self.bytes, self.dtype = index, tensor.nbytes, str(tensor.dtype).removeprefix("torch.")
        self.how: dict[str, Any] = {}  # keywords of the call
        if advised is not None and advised.algorithm and "allreduce" not in comm._settings.overrides:
            self.how = {"algorithm": advised.algorithm, **advised.params}
        self.op, self.scale = averaging(comm, tensor, self.how.get("algorithm"))
        self.algorithm = self.storage = ""
        self.calls, self.seconds, self.waited = 0, 0.0, 0.0
        self.last_ranks: Counter[int] = Counter()

    def came(self, arrivals: dict[int, int] | None) -> None:
        """When the ranks came to a call."""
        if arrivals is not None:
            self.last_ranks[max(arrivals, key=arrivals.__getitem__)] += 1

    def report(self, elapsed: float) -> BucketReport:
        """`elapsed`: seconds from the state's first bucket to its last."""
        return BucketReport(
            bucket=self.index,
            bytes=self.bytes,
            dtype=self.dtype,
            algorithm=self.algorithm,
            storage=self.storage,
            calls=self.calls,
            seconds=self.seconds,
            waited=self.waited,
            overlap=max(0.0, 1 - self.waited / self.seconds) if self.seconds else 0.0,
            share=self.waited / elapsed if elapsed else 0.0,
            waits_for=dict(sorted(self.last_ranks.items())) if self.last_ranks else None,
        )


def as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Complex numbers as pairs of real ones."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def averaging(
    comm: "collectives.Communicator", tensor: torch.Tensor, algorithm: str | None
) -> tuple[str, float | None]:
    """The operation that averages, and what each rank multiplies by before, or None.

    A mean in one pass where it has the bits of a sum of operands each multiplied by 1/size: on two ranks, and on any
    power of two by an algorithm that folds all ranks at once. There both scalings are exact.
    """
    size = comm.size
    if size <= 2:
        return "avg", None
    dtype = str(as_numbers(tensor).dtype).removeprefix("torch.")
    chosen = algorithm or comm.explain("allreduce", tensor.nbytes, dtype, "avg").algorithm
    if size & (size - 1) == 0 and folds_once("allreduce", chosen):
        return "avg", None
    return "sum", 1 / size


def check(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"{SPARSE}: build the layer with sparse=False (nn.Embedding, nn.EmbeddingBag), or leave the hook out"
        )
    if tensor.device.type != "cpu":
        raise UnsupportedError(device_refusal("a bucket", tensor.device))


def device_refusal(what: str, device: torch.device) -> str:
    serves = "treering's hook averages on the CPU or an NVIDIA GPU"
    return f"{what} is on {device}, and {serves}: keep the model there, or plain DDP"
