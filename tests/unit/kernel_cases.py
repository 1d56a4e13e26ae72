"""Numbers as bits, a place to call kernels on, and references that share no code with them."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from collectives.dtypes import ITEMSIZE
from collectives.native import kernels

FLOATS = ("float16", "bfloat16", "float32", "float64")
LARGEST = {"float16": 0x7BFF, "bfloat16": 0x7F7F, "float32": 0x7F7FFFFF, "float64": 0x7FEFFFFFFFFFFFFF}
NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
CODES = {"float16": ("e", "H"), "float32": ("f", "I"), "float64": ("d", "Q")}  # struct's, for the number and its bits
MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
GUARD = b"\xa5" * 64


def call(address: int, *arguments: int) -> None:
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arguments))(address)(*arguments)


class Places:
    """Room for operands at byte offsets of one's choice, and for a target between guards."""

    def __init__(self, operands: Sequence[bytes], offset: int) -> None:
        self.offsets = [(k * 7 * offset + offset) % 64 for k in range(len(operands) + 1)]
        self.rooms = [ctypes.create_string_buffer(len(operands[0]) + 256) for _ in self.offsets]
        bases = [(ctypes.addressof(room) + 63) // 64 * 64 + 64 for room in self.rooms]
        self.at = [base + offset for base, offset in zip(bases, self.offsets, strict=True)]
        self.operands = list(operands)
        self.table = (ctypes.c_int64 * len(operands))(*self.at[:-1])
        for k in range(len(operands)):
            self.restore(k)

    def restore(self, k: int) -> None:
        ctypes.memmove(self.at[k], self.operands[k], len(self.operands[k]))

    def run(self, address: int, count: int, n_bytes: int, weights: int, into: int = -1) -> bytes:
        """The result for the first `count` elements, written over operand `into`, or apart (-1)."""
        target = self.at[into]
        around = GUARD if into < 0 else self.operands[into][n_bytes : n_bytes + 64]
        ctypes.memmove(target + n_bytes, around, len(around))
        ctypes.memmove(target - 64, GUARD, 64)
        call(address, target, ctypes.addressof(self.table), len(self.operands), count, weights)
        assert ctypes.string_at(target - 64, 64) == GUARD, "written before the target"
        assert ctypes.string_at(target + n_bytes, len(around)) == around, "written past the target"
        result = ctypes.string_at(target, n_bytes)
        if into >= 0:
            self.restore(into)
        return result


def apply(dtype: str, op: str, operands: Sequence[Sequence[int]], weights: Sequence[int] = ()) -> list[int]:
    """The bits that a kernel makes of operands given as bits."""
    code = {1: "B", 2: "H", 4: "I", 8: "Q"}[ITEMSIZE[dtype]]
    count = len(operands[0])
    places = Places([struct.pack(f"<{count}{code}", *bits) for bits in operands], offset=3)
    given = (ctypes.c_int64 * len(operands))(*(weights or [1] * len(operands)))
    size = count * ITEMSIZE[dtype]
    result = places.run(kernels.kernel(dtype, op), count, size, ctypes.addressof(given))
    return list(struct.unpack(f"<{count}{code}", result))


def bits(dtype: str, *values: float) -> list[int]:
    """The bits of numbers that the dtype holds exactly."""
    if dtype == "bfloat16":
        return [word >> 16 for word in bits("float32", *values)]
    code, word = CODES[dtype]
    return list(struct.unpack(f"<{len(values)}{word}", struct.pack(f"<{len(values)}{code}", *values)))


def number(dtype: str, word: int) -> float:
    if dtype == "bfloat16":
        return number("float32", word << 16)
    code, held = CODES[dtype]
    return float(struct.unpack(f"<{code}", struct.pack(f"<{held}", word))[0])


def largest(dtype: str) -> float:
    return number(dtype, LARGEST[dtype])


def some_bits(dtype: str, n: int, count: int) -> list[torch.Tensor]:
    """n operands as words: any bits for integers; for floats numbers of moderate size and of every special kind."""
    generator = torch.Generator().manual_seed(n)
    word, size = WORDS[ITEMSIZE[dtype]], ITEMSIZE[dtype]
    if dtype not in FLOATS:
        raw = torch.randint(0, 256, (n, count * size), generator=generator, dtype=torch.uint8)
        return [row.view(word) for row in raw]
    values = torch.randn(n, count, generator=generator, dtype=torch.float64)
    values *= 2.0 ** torch.randint(-4, 4, (n, count), generator=generator)
    rows = values.to(getattr(torch, dtype)).view(word)
    sign, nan, infinity = torch.iinfo(word).min, NAN[dtype], LARGEST[dtype] + 1
    special = [0, sign, 1, nan, nan + 5, nan + sign, infinity, infinity + sign]
    chosen = torch.tensor(special, dtype=word)[torch.randint(0, len(special), (n, count), generator=generator)]
    return list(torch.where(torch.rand(n, count, generator=generator) < 0.05, chosen, rows))


def ordered(words: torch.Tensor, floating: bool) -> torch.Tensor:
    """Signed integers in the order of floats with -0 below +0 (its own inverse), or of unsigned integers."""
    low = torch.iinfo(words.dtype).max
    return torch.where(words < 0, words ^ low, words) if floating else words ^ ~low


INTEGER_STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "prod": torch.mul,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
}


def reference(dtype: str, op: str, words: Sequence[torch.Tensor], weights: Sequence[int]) -> torch.Tensor:
    """Folded from the left by torch, one operation at a time."""
    if len(words) == 1:
        return words[0]
    floating = dtype in FLOATS
    if op in ("min", "max"):
        best = torch.minimum if op == "min" else torch.maximum
        keyed = floating or dtype.startswith("u")
        keys = [ordered(w, floating) if keyed else w for w in words]
        result = keys[0]
        for key in keys[1:]:
            result = best(result, key)
        result = ordered(result, floating) if keyed else result
        lost = torch.stack([w.view(getattr(torch, dtype)).isnan() for w in words]).any(0) if floating else None
    elif floating:
        wide = torch.float64 if dtype == "float64" else torch.float32
        terms = [w.view(getattr(torch, dtype)).to(wide) for w in words]
        if op == "avg":
            terms = [t * torch.tensor(float(w), dtype=wide) for t, w in zip(terms, weights, strict=True)]
        total = terms[0]
        for term in terms[1:]:
            total = total * term if op == "prod" else total + term
        if op == "avg":
            total = total / torch.tensor(float(sum(weights)), dtype=wide)
        lost, result = total.isnan(), total.to(getattr(torch, dtype)).view(words[0].dtype)
    else:
        result, lost = words[0], None
        for word in words[1:]:
            result = INTEGER_STEPS[op](result, word)
    return result if lost is None else torch.where(lost, torch.tensor(NAN[dtype], dtype=result.dtype), result)


def start(program: str, folder: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    home = str(Path(kernels.__file__).parents[2])
    given = {**os.environ, "PYTHONPATH": home, "NUMBA_CACHE_DIR": str(folder), **environment}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def python(program: str, folder: Path, **environment: str) -> str:
    process = start(program, folder, **environment)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out
