"""From a call to a kernel's grid and arguments. No driver is asked here, so all of it is tested without one."""

from dataclasses import dataclass

from collectives.buffers import View
from collectives.cuda import layout as at
from collectives.cuda.arguments import Call
from collectives.cuda.choice import BLOCK_BYTES, ONE_SHOT, DeviceChoice
from collectives.cuda.window import Shape

# (gives, has a single owner, taker, packed) of each collective by `exchange`: exchange.cuh says what they mean.
EXCHANGES = {
    "allreduce": (1, False, at.EVERYONE, 0),
    "reduce_scatter": (1, False, at.NOBODY, at.OUTPUT_CHUNK),
    "allgather": (0, False, at.EVERYONE, at.INPUT_CHUNK),
    "broadcast": (0, True, at.EVERYONE, 0),
    "reduce": (1, True, at.NOBODY, 0),
}
SHARES_OUTPUT = ("allreduce", "allgather", "broadcast")  # whose kernels write others' memory where it is symmetric


@dataclass(frozen=True)
class Request:
    """A call on device memory, looked at and found well."""

    collective: str
    op: str  # NO_OP where nothing is reduced
    root: int
    count: int  # of the whole message
    source: View
    target: View

    @property
    def dtype(self) -> str:
        return self.target.dtype

    @property
    def nbytes(self) -> int:
        return self.count * self.target.itemsize

    @property
    def folds(self) -> str:
        """The operation of the kernels' module; those of what reduces nothing are a sum's."""
        return self.op if self.op != "none" else "sum"

    @property
    def shared(self) -> View | None:
        """What others read or write of my memory where all of it is symmetric; None where that cannot be."""
        if self.collective == "allreduce" and self.source.address != self.target.address:
            return None
        return self.target if self.collective in SHARES_OUTPUT else self.source


def grid(nbytes: int, resident: int, wanted: int | None) -> int:
    """Blocks of a kernel. resident: that all ranks' devices can hold at once, beside those of ranks on the same GPU."""
    most = min(at.MAX_BLOCKS, resident)
    return max(1, min(most, wanted if wanted is not None else -(-nbytes // BLOCK_BYTES)))


def call(request: Request, choice: DeviceChoice, shape: Shape, place: tuple[int, int]) -> Call:
    """The arguments of one_shot and exchange. place: region and offset of what I share, zeros if it is ordinary."""
    piece = min(choice["chunk_bytes"], shape.slot_bytes)
    source, target = request.source.address, request.target.address
    if choice.algorithm == ONE_SHOT:
        return Call(source, target, request.count, piece=piece)
    gives, rooted, taker, packed = EXCHANGES[request.collective]
    owner = request.root if rooted else at.EVERYONE
    unit = 1 if packed else 16 // request.target.itemsize
    return Call(source, target, request.count, unit, piece, gives, owner, taker, *place, packed)
