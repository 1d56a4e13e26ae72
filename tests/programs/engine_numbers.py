"""Inputs whose reductions are known to the bit, whatever the order of the operands; and those results."""

import ctypes
from hashlib import blake2b

import torch

from collectives.dtypes import FLOATS, INTEGERS, ITEMSIZE

WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
FLOAT_OPS = ("sum", "avg", "prod", "min", "max")
PAIRS = [(d, op) for d in FLOATS for op in FLOAT_OPS] + [
    (d, op) for d in INTEGERS for op in ("sum", "prod", "min", "max", "and", "or", "xor")
]
GUARD = 5  # elements before and behind an array, which nobody may touch


def torch_dtype(dtype: str) -> torch.dtype:
    found: torch.dtype = getattr(torch, dtype)
    return found


def bits(x: torch.Tensor) -> torch.Tensor:
    """The tensor's bit patterns."""
    return x.contiguous().view(WORDS[x.element_size()])


def contents(x: torch.Tensor) -> bytes:
    x = x.contiguous()
    return ctypes.string_at(x.data_ptr(), x.numel() * x.element_size()) if x.numel() else b""


def digest(x: torch.Tensor) -> bytes:
    return blake2b(contents(x), digest_size=8).digest()


def noise(dtype: str, count: int, generator: torch.Generator) -> torch.Tensor:
    """Any bits."""
    raw = torch.randint(0, 256, (count * ITEMSIZE[dtype],), dtype=torch.uint8, generator=generator)
    return raw.view(torch_dtype(dtype))


def inputs(dtype: str, op: str, ranks: int, count: int, seed: int) -> list[torch.Tensor]:
    """Every rank's input. Sums, products and means of any of them, in any order, are exact in every dtype."""
    generator = torch.Generator().manual_seed(seed)
    if dtype in INTEGERS:
        return [noise(dtype, count, generator) for _ in range(ranks)]

    def draw(low: int, high: int) -> torch.Tensor:
        return torch.randint(low, high, (ranks, count), generator=generator).to(torch.float64)

    match op:
        case "prod":
            values = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5], dtype=torch.float64)[draw(0, 5).long()]
        case "avg":
            values = 60 * draw(-4, 5)  # means of up to five of them are whole numbers, and have eight bits
        case "min" | "max":
            values = draw(-3, 4) * torch.tensor([1.0, -1.0])[draw(0, 2).long()]  # zeros of both signs
            values[draw(0, 200) == 0] = torch.nan
        case _:
            values = draw(-8, 9)
    return list(narrowed(values, dtype))


def narrowed(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """With NaN as it is written: conversions give others."""
    narrow = values.to(torch_dtype(dtype))
    narrow[narrow.isnan()] = torch.nan
    return narrow


def result(dtype: str, op: str, given: list[torch.Tensor]) -> torch.Tensor:
    """Of the reduction."""
    return of_floats(dtype, op, given) if dtype in FLOATS else of_integers(dtype, op, given)


def of_floats(dtype: str, op: str, given: list[torch.Tensor]) -> torch.Tensor:
    x = torch.stack(given).to(torch.float64)
    match op:
        case "prod":
            found = x.prod(0)
        case "avg":
            found = x.sum(0) / len(given)
        case "min":
            found = x.amin(0)
            found[(x == 0).logical_and(x.signbit()).any(0).logical_and(found == 0)] = -0.0
        case "max":
            found = x.amax(0)
            found[(found == 0)] = -0.0
            found[(x == 0).logical_and(~x.signbit()).any(0).logical_and(found == 0)] = 0.0
        case _:
            found = x.sum(0)
    return narrowed(found, dtype)


def of_integers(dtype: str, op: str, given: list[torch.Tensor]) -> torch.Tensor:
    """As 64 bits, cut to the dtype's; unsigned ones are ordered with the sign turned."""
    signed = WORDS[ITEMSIZE[dtype]]
    turn = -(2**63) if dtype == "uint64" else 0
    wide = [x.view(signed).to(torch.int64) for x in given]
    if dtype in ("uint8", "uint16", "uint32"):
        wide = [x & ((1 << 8 * ITEMSIZE[dtype]) - 1) for x in wide]
    found = wide[0] ^ turn if op in ("min", "max") else wide[0]
    for x in wide[1:]:
        match op:
            case "sum":
                found = found + x
            case "prod":
                found = found * x
            case "min":
                found = torch.minimum(found, x ^ turn)
            case "max":
                found = torch.maximum(found, x ^ turn)
            case "and":
                found = found & x
            case "or":
                found = found | x
            case "xor":
                found = found ^ x
    if op in ("min", "max"):
        found = found ^ turn
    width = 8 * ITEMSIZE[dtype]
    found = (found << 64 - width) >> 64 - width  # the sign of the narrow word, so that the conversion is exact
    return found.to(signed).view(torch_dtype(dtype))


def differences(x: torch.Tensor, wanted: torch.Tensor) -> str:
    """Where two tensors differ in a bit; empty where they are equal."""
    if x.dtype != wanted.dtype or x.numel() != wanted.numel():
        return f"{x.numel()} {x.dtype}, not {wanted.numel()} {wanted.dtype}"
    found, there = bits(x).reshape(-1), bits(wanted).reshape(-1)
    wrong = (found != there).nonzero().reshape(-1).tolist()
    shown = [f"[{i}] is {x.reshape(-1)[i].item()}, not {wanted.reshape(-1)[i].item()}" for i in wrong[:3]]
    return f"{len(wrong)} of {x.numel()} elements: {', '.join(shown)}" if wrong else ""


class Guarded:
    """A tensor in the middle of another one, so that what is written beside it shows."""

    def __init__(self, x: torch.Tensor, offset: int = GUARD):
        self.whole = torch.full((x.numel() + 2 * GUARD,), 77, dtype=torch.int64).to(x.dtype)
        self.x = self.whole[offset : offset + x.numel()]
        self.x.copy_(x)
        self.rest = torch.cat([self.whole[:offset], self.whole[offset + x.numel() :]])
        self.at = offset

    def intact(self) -> bool:
        rest = torch.cat([self.whole[: self.at], self.whole[self.at + self.x.numel() :]])
        return torch.equal(bits(rest), bits(self.rest))
