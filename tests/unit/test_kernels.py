"""Reduction kernels against references that share no code with them: Python's floats, struct, fractions and torch."""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

import numba
import pytest
import torch

from collectives.dtypes import DTYPES, ITEMSIZE, check
from collectives.native import kernels

FLOATS = ("float16", "bfloat16", "float32", "float64")
FLOAT_OPS, INTEGER_OPS = ("sum", "avg", "prod", "min", "max"), ("sum", "prod", "min", "max", "and", "or", "xor")
PAIRS = [(dtype, op) for dtype in DTYPES for op in (FLOAT_OPS if dtype in FLOATS else INTEGER_OPS)]
COUNTS = (0, 1, 2, 15, 16, 17, 31, 33, 64, 100, 1003)
OPERANDS = (1, 2, 3, 5, 9, 17)
LARGEST = {"float16": 0x7BFF, "bfloat16": 0x7F7F, "float32": 0x7F7FFFFF, "float64": 0x7FEFFFFFFFFFFFFF}
NAN = {"float16": 0x7E00, "bfloat16": 0x7FC0, "float32": 0x7FC00000, "float64": 0x7FF8000000000000}
CODES = {"float16": ("e", "H"), "float32": ("f", "I"), "float64": ("d", "Q")}  # struct's, for the number and its bits
MANTISSA = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}
WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
GUARD = b"\xa5" * 64


@pytest.fixture(scope="module", autouse=True)
def fresh_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile in this process, so that the assembly can be read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "CACHE_DIR", str(tmp_path_factory.mktemp("numba")))
        kernels._compiled.cache_clear()
        yield


# ---------------------------------------------------------------- calling
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


# ---------------------------------------------------------------- every kernel, count, place
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


@pytest.mark.parametrize("dtype, op", PAIRS)
def test_every_count_and_place(dtype: str, op: str) -> None:
    address, size = kernels.kernel(dtype, op), ITEMSIZE[dtype]
    for n in OPERANDS:
        weights = [1 + (k * k) % 5 for k in range(n)]
        given = (ctypes.c_int64 * n)(*weights)
        words = some_bits(dtype, n, max(COUNTS))
        expected = bytes(reference(dtype, op, words, weights).contiguous().view(torch.uint8).tolist())
        operands = [bytes(w.contiguous().view(torch.uint8).tolist()) for w in words]
        for offset in (0, 13):
            places = Places(operands, offset)
            for count in COUNTS:
                for into in range(-1, n):
                    result = places.run(address, count, count * size, ctypes.addressof(given), into)
                    assert result == expected[: count * size], (n, offset, count, into)


@pytest.mark.parametrize("dtype, op", [("float32", "sum"), ("bfloat16", "avg"), ("float16", "max"), ("int8", "xor")])
def test_many_targets_get_what_one_would(dtype: str, op: str) -> None:
    """In place: every operand is a target."""
    address, size = kernels.kernel(dtype, op, many=True), ITEMSIZE[dtype]
    for n in (2, 3, 5):
        words, weights = some_bits(dtype, n, max(COUNTS)), (ctypes.c_int64 * n)(*range(1, n + 1))
        expected = bytes(reference(dtype, op, words, list(weights)).contiguous().view(torch.uint8).tolist())
        places = Places([bytes(w.contiguous().view(torch.uint8).tolist()) for w in words], 13)
        for count in COUNTS:
            table = ctypes.addressof(places.table)
            call(address, table, table, n, count, ctypes.addressof(weights))
            for k in range(n):
                found = ctypes.string_at(places.at[k], max(COUNTS) * size)
                assert found == expected[: count * size] + places.operands[k][count * size :], (n, count, k)
                places.restore(k)


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


# ---------------------------------------------------------------- what is compiled
@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86 assembly")
@pytest.mark.parametrize("dtype, op", PAIRS)
def test_assembly(dtype: str, op: str) -> None:
    """Wide registers; no call but memcpy, for a single operand; nothing contracted."""
    kernels.kernel(dtype, op)
    assembly = kernels._compiled(dtype, op, False)._library.get_asm_str()
    features = numba.core.registry.cpu_target.target_context.codegen().magic_tuple()[2].split(",")
    wide = "zmm" if "+avx512f" in features else "ymm" if "+avx" in features else "xmm"
    assert len(re.findall(wide, assembly)) > 20
    called = re.findall(r"(?:movabsq\s+\$|call\w*\s+)([A-Za-z_]\w*)", assembly)
    assert {name for name in called if "kernels" not in name} == {"memcpy"}
    assert not re.search(r"vf(m|nm)(add|sub)", assembly)


CACHE = """
import ctypes, sys
from collectives.dtypes import ITEMSIZE
from collectives.native import kernels
hits = 0
for name in sys.argv[1:]:
    dtype, op = name.split(":")
    address, size = kernels.kernel(dtype, op), ITEMSIZE[dtype]
    hits += kernels._compiled(dtype, op, False).cache_hits
    rooms = [ctypes.create_string_buffer(data, 8) for data in (b"\\x03\\x45" * 4, b"\\x02\\x41" * 4)]
    table = (ctypes.c_int64 * 2)(*map(ctypes.addressof, rooms))
    weights = (ctypes.c_int64 * 2)(1, 1)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)(address)
    call(table[0], ctypes.addressof(table), 2, 8 // size, ctypes.addressof(weights))
    print(name, rooms[0].raw.hex())
print(hits, file=sys.stderr)
"""


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


def test_cached_kernels_are_never_confused(tmp_path: Path) -> None:
    """Two processes fill a new cache at once, in another order; a third must find every kernel, each the right one."""
    names = [f"{dtype}:{op}" for dtype in ("bfloat16", "int16", "uint16") for op in ("sum", "max")]
    expected = [f"{d}:{op} {cache_result(d, op)}" for d, op in (name.split(":") for name in names)]
    both = [start(CACHE, tmp_path, *names), start(CACHE, tmp_path, *names[::-1])]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [out.splitlines() for out, _ in outputs] == [expected, expected[::-1]], outputs
    assert len(list(tmp_path.rglob("*.nbi"))) == len(names), "kernels share an index, so its file numbers can clash"
    third = start(CACHE, tmp_path, *names)
    out, err = third.communicate(timeout=300)
    assert out.splitlines() == expected
    assert int(err) == len(names), "compiled again"


def cache_result(dtype: str, op: str) -> str:
    given = (bytearray(b"\x03\x45" * 4), bytearray(b"\x02\x41" * 4))
    words = [torch.frombuffer(data, dtype=WORDS[ITEMSIZE[dtype]]) for data in given]
    return bytes(reference(dtype, op, words, [1, 1]).view(torch.uint8).tolist()).hex()


# ---------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    "dtype, op, says",
    [
        ("int32", "avg", "'avg' is not for int32 .*sum and divide.*there are sum, prod, min, max, and, or, xor"),
        ("bfloat16", "xor", "'xor' is not for bfloat16 .*there are sum, avg, prod, min, max$"),
        ("float32", "mean", "'mean' does not exist; for float32 there are sum, avg"),
        ("complex64", "sum", "dtype 'complex64' cannot be reduced; possible are float16, bfloat16"),
    ],
)
def test_refusals(dtype: str, op: str, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        check(dtype, op)
    with pytest.raises(TypeError, match=says):
        kernels.kernel(dtype, op)


@pytest.mark.parametrize("source, target", [("float32", "float64"), ("float16", "bfloat16"), ("int8", "float32")])
def test_refused_conversions(source: str, target: str) -> None:
    with pytest.raises(TypeError, match=f"no conversion from '{source}' to '{target}'.*float32 and back"):
        kernels.convert(source, target)
