"""Calls made again on tensors of the same kind: their programs are found with little of Python in between."""

import sys
from typing import Any

from collectives.calls import Choices
from collectives.engine import Prepared
from collectives.native.program import Program
from collectives.plans import Plans

Quick = tuple[Program, Choices]


class Repeats:
    """Programs by the kind of tensors that they were made for, wherever their memory lies."""

    def __init__(self, plans: Plans):
        self.found: dict[tuple[Any, ...], Quick] = {}
        self._plans, self._forgotten = plans, 0

    def remember(self, key: tuple[Any, ...], prepared: Prepared) -> None:
        if self._forgotten != self._plans.forgotten:
            self.found.clear()
            self._forgotten = self._plans.forgotten
        self.found[key] = prepared.program, prepared.choices

    def keep(self, prepared: Prepared, collective: str, x: Any, out: Any, *op: str) -> None:
        """For calls of its kind to come, if it is on tensors as they lie."""
        key = self.kind(collective, x, out, *op)
        if key is not None and prepared.finish is None:
            self.remember(key, prepared)

    def find(self, collective: str, x: Any, out: Any, *op: str) -> tuple[Quick, int, int] | None:
        """What serves a call from x to out, apart from each other, and their addresses; None where it is not known."""
        key = self.kind(collective, x, out, *op)
        quick = None if key is None else self.found.get(key)
        if quick is None or not (x.is_cpu and out.is_cpu and x.is_contiguous() and out.is_contiguous()):
            return None
        source, target = x.data_ptr(), out.data_ptr()
        if not source or not target or (source < target + out.nbytes and target < source + x.nbytes):
            return None
        return quick, source, target

    @staticmethod
    def kind(collective: str, x: Any, out: Any, *op: str) -> tuple[Any, ...] | None:
        """What calls of one program have in common, where x and out are tensors. (A single element may be negated.)"""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(x, torch.Tensor) or not isinstance(out, torch.Tensor):
            return None
        here, there = x.numel(), out.numel()
        if x.layout is not torch.strided or out.layout is not torch.strided or here < 2 or there < 2:
            return None
        return collective, x.dtype, here, out.dtype, there, op
