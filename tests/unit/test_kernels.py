"""Reduction kernels at every count and place, as they are compiled, and what they refuse."""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Iterator
from pathlib import Path

import numba
import pytest
import torch

from collectives.dtypes import DTYPES, ITEMSIZE, check
from collectives.native import kernels
from tests.unit.kernel_cases import FLOATS, WORDS, Places, call, reference, some_bits, start

FLOAT_OPS, INTEGER_OPS = ("sum", "avg", "prod", "min", "max"), ("sum", "prod", "min", "max", "and", "or", "xor")
PAIRS = [(dtype, op) for dtype in DTYPES for op in (FLOAT_OPS if dtype in FLOATS else INTEGER_OPS)]
COUNTS = (0, 1, 2, 15, 16, 17, 31, 33, 64, 100, 1003)
OPERANDS = (1, 2, 3, 5, 9, 17)


@pytest.fixture(scope="module", autouse=True)
def fresh_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compile in this process, so that the assembly can be read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numba.config, "CACHE_DIR", str(tmp_path_factory.mktemp("numba")))
        kernels._compiled.cache_clear()
        yield


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
