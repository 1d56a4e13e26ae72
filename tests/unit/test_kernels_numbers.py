"""What reduction kernels compute: halves exhaustively, NaN, zeros, order, and means."""

from __future__ import annotations

import ctypes
import json
import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import pytest
import torch

from collectives.dtypes import ITEMSIZE
from tests.unit.kernel_cases import FLOATS, MANTISSA, NAN, apply, bits, largest, number, python


# ---------------------------------------------------------------- half types, exhaustively
def rounded(dtype: str, value: float) -> int:
    """Python's float (exact here, or rounded to 53 bits, which does no harm) to the nearest even of a half type."""
    if math.isnan(value):
        return NAN[dtype]
    if dtype == "float16":
        try:
            return bits(dtype, value)[0]
        except OverflowError:
            return 0x7C00 | (value < 0) << 15
    word = struct.unpack("<I", ctypes.c_float(value))[0]
    return word + 0x7FFF + (word >> 16 & 1) >> 16


EVERY = range(1 << 16)
PARTNERS = {"reversed": EVERY[::-1], "scattered": [i * 40503 + 977 & 0xFFFF for i in EVERY]}


@pytest.mark.parametrize("partners", PARTNERS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_is_added_in_float32_and_rounded_once(dtype: str, partners: str) -> None:
    numbers = [number(dtype, word) for word in EVERY]
    expected = [rounded(dtype, numbers[a] + numbers[b]) for a, b in zip(EVERY, PARTNERS[partners], strict=True)]
    assert apply(dtype, "sum", [EVERY, PARTNERS[partners]]) == expected
    assert apply(dtype, "sum", [PARTNERS[partners], EVERY]) == expected


@pytest.mark.parametrize("n", [3, 8, 9, 17])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_many_halves_are_rounded_once(dtype: str, n: int) -> None:
    one, bit = 1.0, 2.0 ** -MANTISSA[dtype]
    operands = [bits(dtype, *[one] * 40)] + [bits(dtype, *[bit / 4] * 40)] * (n - 1)
    exact = one + (n - 1) * bit / 4
    assert exact != one
    assert apply(dtype, "sum", operands) == [rounded(dtype, exact)] * 40
    if n > 3:
        assert rounded(dtype, exact) != bits(dtype, one)[0], "rounded at each step it would have stayed 1"


CONVERSIONS = """
import ctypes
from collectives.native import kernels
def convert(source, target, words, kinds):
    a, b = (kinds[0] * len(words))(*words), (kinds[1] * len(words))()
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(kernels.convert(source, target))
    call(ctypes.addressof(b), ctypes.addressof(a), len(words))
    return list(b)
every = list(range(1 << 16))
near = [(w << 16) + d for w in every[::3] for d in (0, 0x0FFF, 0x1000, 0x3000, 0x8000, 0x8001)]
print([convert(half, "float32", every, (ctypes.c_uint16, ctypes.c_uint32)) for half in ("float16", "bfloat16")])
print([convert("float32", half, near, (ctypes.c_uint32, ctypes.c_uint16)) for half in ("float16", "bfloat16")])
"""


@pytest.mark.parametrize("processor", ["host", "generic"])
def test_conversions(processor: str, tmp_path: Path) -> None:
    """On this processor, and as compiled for one that has no instruction for it."""
    plain = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""} if processor == "generic" else {}
    widened, narrowed = map(json.loads, python(CONVERSIONS, tmp_path, **plain).splitlines())
    near = [(w << 16) + d for w in EVERY[::3] for d in (0, 0x0FFF, 0x1000, 0x3000, 0x8000, 0x8001)]
    numbers = struct.unpack(f"<{len(near)}f", struct.pack(f"<{len(near)}I", *near))
    for dtype, wide, narrow in zip(("float16", "bfloat16"), widened, narrowed, strict=True):
        floats = [number(dtype, word) for word in EVERY]
        assert wide == [NAN["float32"] if math.isnan(x) else bits("float32", x)[0] for x in floats]
        assert narrow == [rounded(dtype, x) for x in numbers]


# ---------------------------------------------------------------- NaN, zeros, order
@pytest.mark.parametrize("dtype", FLOATS)
def test_specials(dtype: str) -> None:
    nan, inf = NAN[dtype], math.inf
    negative_nan = nan | 1 << 8 * ITEMSIZE[dtype] - 1
    odd_nan = nan + 1
    zero, minus_zero, one, up, down = bits(dtype, 0.0, -0.0, 1.0, inf, -inf)
    for op, a, b, expected in [
        ("sum", nan, one, nan), ("sum", odd_nan, negative_nan, nan), ("sum", up, down, nan), ("sum", up, one, up),
        ("sum", minus_zero, minus_zero, minus_zero), ("sum", zero, minus_zero, zero),
        ("prod", odd_nan, zero, nan), ("prod", up, zero, nan), ("prod", minus_zero, one, minus_zero),
        ("min", zero, minus_zero, minus_zero), ("max", zero, minus_zero, zero), ("min", down, one, down),
        ("min", odd_nan, one, nan), ("max", negative_nan, one, nan), ("min", nan, down, nan), ("max", nan, up, nan),
        ("avg", odd_nan, one, nan), ("avg", up, down, nan), ("avg", up, one, up),
        ("avg", minus_zero, minus_zero, minus_zero),
    ]:  # fmt: skip
        for count in (1, 16, 100):
            for x, y in ((a, b), (b, a)):
                assert apply(dtype, op, [[x] * count, [y] * count]) == [expected] * count, (op, hex(x), hex(y), count)


@pytest.mark.parametrize("op", ["sum", "avg", "prod", "min", "max"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_first_two_operands_may_be_exchanged(dtype: str, op: str) -> None:
    size = ITEMSIZE[dtype]
    raw = torch.randint(0, 256, (3, 20_000 * size), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    code = {2: "H", 4: "I", 8: "Q"}[size]
    a, b, c = (struct.unpack(f"<20000{code}", bytes(row.tolist())) for row in raw)
    assert apply(dtype, op, [a, b, c], [3, 5, 1]) == apply(dtype, op, [b, a, c], [5, 3, 1])


def test_operands_are_folded_from_the_left() -> None:
    big, small = bits("float32", 2.0**24, 1.0)
    after = apply("float32", "sum", [[big]] + [[small]] * 11)
    before = apply("float32", "sum", [[small]] * 11 + [[big]])
    assert (after, before) == (bits("float32", 2.0**24), bits("float32", 2.0**24 + 12))


# ---------------------------------------------------------------- means
@pytest.mark.parametrize("count", [1, 16, 100])
def test_means_do_not_overflow_nor_underflow(count: int) -> None:
    def mean(dtype: str, *values: float, weights: Sequence[int] = ()) -> float:
        found = apply(dtype, "avg", [bits(dtype, *[value] * count) for value in values], weights)
        assert len(set(found)) == 1
        return number(dtype, found[0])

    assert mean("float16", 40000, 40000) == 40000
    for dtype in FLOATS:
        most, least = largest(dtype), number(dtype, 1)
        for n in (2, 3, 4, 5, 7, 11, 13, 17):
            rounding = most * n * 2.0 ** -(MANTISSA[dtype] + 1) if dtype in ("float32", "float64") else 0
            assert most - rounding <= mean(dtype, *[most] * n) <= most
            assert -most <= mean(dtype, *[-most] * n) <= -most + rounding
            assert mean(dtype, *[least] * n) == least
        assert mean(dtype, most, most, weights=[2**40, 2**40]) == most
        assert mean(dtype, most, most, -most, -most) == 0
        assert mean(dtype, most, most, -most, most) == most / 2
        assert mean(dtype, least, least, weights=[3, 1]) == least
        assert mean(dtype, -most, -most, math.inf) == math.inf
        assert mean(dtype, most, most, -math.inf) == -math.inf


@pytest.mark.parametrize("dtype", FLOATS)
def test_means_are_as_exact_as_their_arithmetic(dtype: str) -> None:
    """Also beside lanes whose sum overflows."""
    most, n = largest(dtype), 5
    generator = torch.Generator().manual_seed(5)
    values = torch.rand(n, 640, generator=generator, dtype=torch.float64) * 2 - 1
    values *= torch.tensor([most, 1.0, 1.0, 1.0] * 160, dtype=torch.float64)
    words = [bits(dtype, *row.to(getattr(torch, dtype)).tolist()) for row in values]
    weights = [3, 1, 4, 1, 5]
    epsilon = Fraction(1, 2 ** (53 if dtype == "float64" else 24))
    for lane, word in enumerate(apply(dtype, "avg", words, weights)):
        terms = [w * Fraction(number(dtype, row[lane])) for w, row in zip(weights, words, strict=True)]
        exact, size = sum(terms, Fraction(0)) / sum(weights), sum(map(abs, terms), Fraction(0)) / sum(weights)
        allowed = 2 * n * epsilon * size + Fraction(number(dtype, 1))
        if dtype in ("float16", "bfloat16"):
            allowed += abs(exact) / 2 ** (MANTISSA[dtype] + 1)
        assert abs(Fraction(number(dtype, word)) - exact) <= allowed
