"""What is measured is checked to the bit: right results pass, and results that are nearly right do not."""

from fractions import Fraction
from functools import reduce
from operator import and_, mul, or_, xor
from typing import Any

import pytest

from collectives.dtypes import BITWISE, DTYPES, FLOATS, ITEMSIZE, OPS
from collectives.tables.table import COLLECTIVES
from tuner.cases import Case, chunk, decode, encode

POSSIBLE = [
    (dtype, op) for dtype in DTYPES for op in OPS
    if not (op in BITWISE and dtype in FLOATS) and not (op == "avg" and dtype not in FLOATS)
]  # fmt: skip
COUNT = 1021


def read(memory, dtype, count):
    item = ITEMSIZE[dtype]
    parts = [bytes(memory[k * item : (k + 1) * item]) for k in range(count)]
    return [decode(part, dtype) if dtype in FLOATS else int.from_bytes(part, "little") for part in parts]


def combine(values, dtype, op):
    if op == "avg":
        return float(sum(map(Fraction, values)) / len(values))
    if dtype in FLOATS:
        values = [int(value) for value in values]
    signed = dtype.startswith("int")
    width = 8 * ITEMSIZE[dtype]
    if signed:
        values = [value - (1 << width) if value >> (width - 1) else value for value in values]
    ways: dict[str, Any] = {
        "sum": sum, "min": min, "max": max, "prod": lambda v: reduce(mul, v), "and": lambda v: reduce(and_, v),
        "or": lambda v: reduce(or_, v), "xor": lambda v: reduce(xor, v),
    }  # fmt: skip
    return ways[op](values)


@pytest.mark.parametrize("size", [1, 2, 3, 9])
@pytest.mark.parametrize("dtype, op", POSSIBLE)
def test_the_expected_result_is_that_of_the_contributions(dtype, op, size):
    cases = [Case("allreduce", dtype, op, COUNT * ITEMSIZE[dtype], rank, size) for rank in range(size)]
    for case in cases:
        case.write()
    columns = zip(*(read(case._in, dtype, COUNT) for case in cases), strict=True)
    right = b"".join(encode(combine(list(column), dtype, op), dtype) for column in columns)
    for case in cases:
        case._in[: len(right)] = right
        assert case.wrong() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_are_exact_and_a_missing_or_doubled_contribution_shows(dtype):
    size, count = 5, 40
    cases = [Case("allreduce", dtype, "sum", count * ITEMSIZE[dtype], rank, size) for rank in range(size)]
    for case in cases:
        case.write()
    values = [read(case._in, dtype, count) for case in cases]
    for weights in ([1, 1, 1, 1, 0], [2, 1, 1, 1, 0], [1, 2, 1, 1, 1], [0, 1, 2, 1, 1]):
        sums = [sum(w * int(v[k]) for w, v in zip(weights, values, strict=True)) for k in range(count)]
        cases[0]._in[: count * ITEMSIZE[dtype]] = b"".join(encode(value, dtype) for value in sums)
        assert cases[0].wrong() == count


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_an_untouched_or_shifted_result_is_wrong(collective):
    for rank in range(3):
        case = Case(collective, "float32", "sum", 4 * 3000, rank, 3)
        case.write()
        case.spoil()
        untouched = (collective in ("reduce", "gather") and rank > 0) or (collective == "broadcast" and rank == 0)
        assert (case.wrong() == 0) == untouched
        case._result[: case._result_bytes] = case._expected[: case._result_bytes]
        assert case.wrong() == 0
        case._result[: case._result_bytes] = case._expected[4 : case._result_bytes] + case._expected[:4]
        assert case.wrong() > case._result_bytes // 16


def test_memory_is_what_the_collectives_take():
    sizes = [(case.x.nbytes, None if case.out is None else case.out.nbytes) for case in
             (Case(name, "int32", "sum", 40, 1, 3) for name in COLLECTIVES)]  # fmt: skip
    assert dict(zip(COLLECTIVES, sizes, strict=True)) == {
        "allreduce": (40, None), "reduce": (40, None), "broadcast": (40, None), "reduce_scatter": (40, 12),
        "allgather": (12, 40), "gather": (12, None), "scatter": (0, 12), "alltoall": (40, 36),
    }  # fmt: skip
    assert [chunk(10, 3, rank) for rank in range(3)] == [slice(0, 4), slice(4, 7), slice(7, 10)]
    empty = Case("reduce_scatter", "bfloat16", "sum", 2, 2, 3).out
    assert empty is not None
    assert (empty.numel(), str(empty.dtype)) == (0, "torch.bfloat16")
