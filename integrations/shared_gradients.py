"""DDP's buckets as symmetric memory where they have no names, as a backend gets them: tensors to be summed.

A call is known by its kind, bytes and dtype. Of some calls of a kind each rank says, without waiting, whether its
memory is symmetric, or could be: it comes from the end of a parameter's gradient, where DDP reduces its buckets, and is
the whole of a storage of torch's own. Once all ranks have said so they are in DDP's backward pass, where they may wait
for each other; so at the kind's next calls they ask again and move their buckets, until there is nothing to move. Of a
tensor from elsewhere a rank says no, and then knows the answer without waiting for it.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch

import collectives
from collectives.engine import Work
from collectives.errors import UnsupportedError

LEAST_BYTES = 1 << 16  # that are worth it
LONGEST_PAUSE = 64  # calls of a kind between two at which ranks ask
MOST_LOST = 8  # storages of a kind that were moved and thrown away without having been seen again
HAS, WOULD, WILL_NOT = range(3)  # what a rank says of its memory: symmetric already, could be, remains as it is
GRADIENT_ENDS = "torch::autograd::AccumulateGrad"


@dataclass
class Kind:
    """What all ranks know of calls of some bytes and dtype, and (lost) this rank."""

    pause: int = 0  # calls from one question to the next
    until: int = 0  # of them to come
    said: int = WILL_NOT
    asked: Work | None = None
    moving: bool = False  # all ranks could, when they last asked
    lost: int = 0


class SharedGradients:
    """Which tensors of a communicator's sums are symmetric by themselves."""

    def __init__(self, comm: "collectives.Communicator"):
        self.comm = comm
        self.tries = comm.size > 1 and len(comm.topology.nodes) == 1
        self._kinds: defaultdict[tuple[int, torch.dtype], Kind] = defaultdict(Kind)
        self._held: dict[int, tuple[Kind, torch.UntypedStorage]] = {}  # by address

    def see(self, x: torch.Tensor) -> None:
        """Look at a tensor that is about to be summed. All ranks do, in the order of their calls."""
        if not self.tries or x.layout is not torch.strided or not x.is_cpu or x.nbytes < LEAST_BYTES:
            return
        kind = self._kinds[x.nbytes, x.dtype]
        if kind.asked is not None:
            asked, kind.asked = kind.asked, None
            kind.moving = kind.said != WILL_NOT and asked.wait().item() == WOULD
            self._next(kind)
        if kind.moving:
            kind.moving = self._ask(kind, x, blocking=True).item() == WOULD and self._share(kind, x)
            self._next(kind)
        elif kind.until:
            kind.until -= 1
        else:
            kind.asked = self._ask(kind, x, blocking=False)

    @staticmethod
    def _next(kind: Kind) -> None:
        kind.pause = 0 if kind.moving else min(2 * kind.pause + 1, LONGEST_PAUSE)
        kind.until = kind.pause

    def _ask(self, kind: Kind, x: torch.Tensor, blocking: bool) -> Any:
        """The most that a rank says; or the work that finds it."""
        self._let_go()
        if x.data_ptr() in self._held:
            kind.said, kind.lost = HAS, 0
        else:
            kind.said = WOULD if kind.lost < MOST_LOST and movable(x) else WILL_NOT
        return self.comm.allreduce(torch.tensor([kind.said], dtype=torch.uint8), op="max", blocking=blocking)

    def _share(self, kind: Kind, x: torch.Tensor) -> bool:
        try:
            self.comm.register(x)
        except UnsupportedError:  # on all ranks, since they agreed on it
            self.tries = False
        else:
            self._held[x.data_ptr()] = kind, x.untyped_storage()
        return self.tries

    def _let_go(self) -> None:
        """What nobody else uses."""
        for address, (kind, storage) in list(self._held.items()):
            if torch._C._storage_Use_Count(storage._cdata) == 1:
                kind.lost += 1
                del self._held[address]
                self.comm.release(torch.empty(0, dtype=torch.uint8).set_(storage))


def movable(x: torch.Tensor) -> bool:
    """Whether x is a bucket of DDP's, or as good as one: nobody resizes it, and nobody else knows its address."""
    node: Any = torch._C._current_autograd_node()
    if node is None or node.name() != GRADIENT_ENDS:
        return False
    storage = x.untyped_storage()
    return x.is_contiguous() and storage.nbytes() == x.nbytes and storage.resizable()
