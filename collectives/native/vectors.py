"""Vectors in registers, and the arithmetic of reductions on them, as code for LLVM.

Everything acts lane by lane, so one lane and sixteen give the same bits. float16 and bfloat16 are widened to float32
when loaded and rounded once, to nearest even, when stored. Floats leave with one NaN (0x7fc00000, 0x7ff8000000000000,
0x7fc0, 0x7e00), and nothing is contracted or reassociated. Vectors are explicit because LLVM does not vectorise a loop
that may run in place; loops over operands are written here, not compiled from Python, because that is five times
faster to compile.
"""

# ruff: noqa: ARG001 - Numba names an intrinsic's parameters, and hands its code generator four, needed or not
import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from collectives.native.memory import intrinsic, pointer

__all__ = ["Kind", "Vector", "kind", "load", "reduce", "store"]

FLOAT, DOUBLE, HALF = ir.FloatType(), ir.DoubleType(), ir.HalfType()
INT16, INT32, INT64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
SMALLER = 2.0**-64  # of operands this much smaller, a sum with int64 weights cannot overflow


class Vector(types.Type):
    """The Numba type of `lanes` values of an LLVM type, in registers."""

    def __init__(self, element: Any, lanes: int) -> None:
        self.element, self.lanes = element, lanes
        super().__init__(name=f"vector({element} x {lanes})")


class Kind(types.Opaque):
    """The Numba type whose only value stands, in compiled code, for (dtype, operation, lanes worked on at once)."""

    def __init__(self, dtype: str, op: str, lanes: int) -> None:
        self.dtype, self.op, self.lanes = dtype, op, lanes
        self.floating, self.signed = "float" in dtype, not dtype.startswith("uint")
        bits = int(dtype.lstrip("abfilnotu"))
        self.element = {16: FLOAT, 32: FLOAT, 64: DOUBLE}[bits] if self.floating else ir.IntType(bits)
        self.stored = INT16 if dtype in ("float16", "bfloat16") else self.element
        super().__init__(name=f"kind({dtype}, {op}, {lanes})")

    def of(self, element: Any) -> Any:
        """The LLVM vector of this many lanes of an element type."""
        return ir.VectorType(element, self.lanes)

    def fill(self, value: Any, element: Any = None) -> Any:
        """A constant in every lane."""
        return ir.Constant(self.of(element or self.element), [value] * self.lanes)

    def words(self, value: int) -> Any:
        """A constant int32 in every lane."""
        return self.fill(value, INT32)


extending.register_model(Kind)(extending.models.OpaqueModel)


@extending.register_model(Vector)
class _VectorModel(extending.models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        super().__init__(manager, vector, ir.VectorType(vector.element, vector.lanes))


def _kind(typing: Any, dtype: Any, op: Any, lanes: Any) -> Any:
    """The Kind of a dtype, an operation and a number of lanes, all literals."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return context.get_dummy_value()

    return Kind(dtype.literal_value, op.literal_value, lanes.literal_value)(dtype, op, lanes), code


kind: Any = extending.intrinsic(prefer_literal=True)(_kind)


def _indices(start: int, n: int) -> Any:
    return ir.Constant(ir.VectorType(INT32, n), list(range(start, start + n)))


def _halves(b: Any, value: Any, lanes: int) -> list[Any]:
    return [b.shuffle_vector(value, value, _indices(start, lanes // 2)) for start in (0, lanes // 2)]


# ---------------------------------------------------------------- float16 and bfloat16 as float32
def _widen(context: Any, b: Any, k: Kind, value: Any) -> Any:
    """Exactly, as float32."""
    if k.dtype == "bfloat16":
        return _widen_bfloat16(b, k, value)
    if k.dtype == "float16":
        return b.fpext(b.bitcast(value, k.of(HALF)), k.of(FLOAT)) if _f16c(context) else _widen_float16(b, k, value)
    return value


def _narrow(context: Any, b: Any, k: Kind, value: Any) -> Any:
    """To nearest even; a NaN is the canonical one already."""
    if k.dtype == "bfloat16":
        return _narrow_bfloat16(b, k, value)
    if k.dtype == "float16":
        return b.bitcast(b.fptrunc(value, k.of(HALF)), k.of(INT16)) if _f16c(context) else _narrow_float16(b, k, value)
    return value


def _pairs(k: Kind) -> Kind | None:
    """bfloat16 is widened two by two, which is half the work, the even ones first: lanes are in another order then."""
    return Kind("uint32", k.op, k.lanes // 2) if k.lanes > 1 and k.op != "convert" else None


def _widen_bfloat16(b: Any, k: Kind, value: Any) -> Any:
    pairs = _pairs(k)
    if pairs is None:
        return b.bitcast(b.shl(b.zext(value, k.of(INT32)), k.words(16)), k.of(FLOAT))
    both = b.bitcast(value, pairs.of(INT32))
    even, odd = b.shl(both, pairs.words(16)), b.and_(both, pairs.words(0xFFFF0000))
    return b.bitcast(b.shuffle_vector(even, odd, _indices(0, k.lanes)), k.of(FLOAT))


def _narrow_bfloat16(b: Any, k: Kind, value: Any) -> Any:
    word, pairs = b.bitcast(value, k.of(INT32)), _pairs(k)
    odd = b.and_(b.lshr(word, k.words(16)), k.words(1))
    word = b.add(b.or_(word, odd), k.words(0x7FFF))  # the upper half is that of word + odd + 0x7FFF
    if pairs is None:
        return b.trunc(b.lshr(word, k.words(16)), k.of(INT16))
    even, odd = _halves(b, word, k.lanes)
    return b.bitcast(b.or_(b.lshr(even, pairs.words(16)), b.and_(odd, pairs.words(0xFFFF0000))), k.of(INT16))


def _f16c(context: Any) -> bool:
    """Whether the processor converts float16; where it does not, LLVM would call a function for each number."""
    triple, _, features = context.codegen().magic_tuple()
    return "+f16c" in features.split(",") or triple.startswith(("aarch64", "arm64"))


def _widen_float16(b: Any, k: Kind, value: Any) -> Any:
    word = b.zext(value, k.of(INT32))
    sign = b.shl(b.and_(word, k.words(0x8000)), k.words(16))
    magnitude = b.shl(b.and_(word, k.words(0x7FFF)), k.words(13))
    scaled = b.bitcast(b.fmul(b.bitcast(magnitude, k.of(FLOAT)), k.fill(2.0**112)), k.of(INT32))
    special = b.icmp_unsigned(">=", magnitude, k.words(0x1F << 23))
    return b.bitcast(b.or_(sign, b.select(special, b.or_(scaled, k.words(0xFF << 23)), scaled)), k.of(FLOAT))


def _narrow_float16(b: Any, k: Kind, value: Any) -> Any:
    word = b.bitcast(value, k.of(INT32))
    sign = b.and_(b.lshr(word, k.words(16)), k.words(0x8000))
    word = b.and_(word, k.words(0x7FFFFFFF))
    odd = b.and_(b.lshr(word, k.words(13)), k.words(1))
    normal = b.lshr(b.add(word, b.add(odd, k.words(0xFFF - (112 << 23)))), k.words(13))
    half = b.bitcast(k.fill(0.5), k.of(INT32))  # its last bit weighs what float16's last subnormal bit weighs
    subnormal = b.sub(b.bitcast(b.fadd(b.bitcast(word, k.of(FLOAT)), k.fill(0.5)), k.of(INT32)), half)
    small = b.icmp_unsigned("<", word, k.words((127 - 14) << 23))
    nan = b.icmp_unsigned(">", word, k.words(0xFF << 23))
    special = b.select(nan, k.words(0x7E00), k.words(0x7C00))
    large = b.icmp_unsigned(">=", word, k.words((127 + 16) << 23))
    return b.trunc(b.or_(sign, b.select(large, special, b.select(small, subnormal, normal))), k.of(INT16))


# ---------------------------------------------------------------- operations
def _instruction(whole: str, floating: str = "") -> Callable[..., Any]:
    def emit(b: Any, k: Kind, x: Any, y: Any) -> Any:
        return getattr(b, floating if k.floating else whole)(x, y)

    return emit


def _extreme(name: str) -> Callable[..., Any]:
    """minimum or maximum: NaN wins, and -0 is less than +0."""

    def emit(b: Any, k: Kind, x: Any, y: Any) -> Any:
        if not k.floating:
            less = (b.icmp_signed if k.signed else b.icmp_unsigned)("<", x, y)
            return b.select(less, x, y) if name == "minimum" else b.select(less, y, x)
        full = f"llvm.{name}.v{k.lanes}f{32 if k.element is FLOAT else 64}"
        return b.call(cgutils.get_or_insert_function(b.module, ir.FunctionType(x.type, [x.type] * 2), full), [x, y])

    return emit


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "sum": _instruction("add", "fadd"),
    "avg": _instruction("", "fadd"),  # of operands that were multiplied by their weights
    "prod": _instruction("mul", "fmul"),
    "min": _extreme("minimum"),
    "max": _extreme("maximum"),
    "and": _instruction("and_"),
    "or": _instruction("or_"),
    "xor": _instruction("xor"),
}


# ---------------------------------------------------------------- memory
def _read(context: Any, b: Any, k: Kind, address: Any) -> Any:
    return _widen(context, b, k, b.load(pointer(b, address, k.of(k.stored)), align=1))


def _canonical(b: Any, k: Kind, value: Any) -> Any:
    """The same NaN wherever there is one."""
    return b.select(b.fcmp_unordered("uno", value, value), k.fill(math.nan), value) if k.floating else value


@intrinsic
def load(typing: Any, kind: Any, address: Any) -> Any:
    """The lanes that lie at an address of any alignment: widened, NaN made canonical."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _canonical(builder, kind, _read(context, builder, kind, args[1]))

    return Vector(kind.element, kind.lanes)(kind, types.int64), code


@intrinsic
def store(typing: Any, kind: Any, address: Any, vector: Any) -> Any:
    """Round lanes, and write them to an address of any alignment."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value = _narrow(context, builder, kind, args[2])
        builder.store(value, pointer(builder, args[1], kind.of(kind.stored)), align=1)
        return context.get_dummy_value()

    return types.void(kind, types.int64, vector), code


# ---------------------------------------------------------------- reductions
def _word(b: Any, array: Any, index: Any) -> Any:
    return b.load(b.gep(pointer(b, array), [index]), align=8)


def _folded(b: Any, k: Kind, n: Any, term: Callable[[Any], Any]) -> Any:
    """((term(0) + term(1)) + term(2)) + ..., with the kind's operation for +."""
    total = cgutils.alloca_once_value(b, term(INT64(0)))
    with cgutils.for_range(b, n, start=INT64(1), intp=INT64) as loop:
        b.store(_OPERATIONS[k.op](b, k, b.load(total), term(loop.index)), total)
    return b.load(total)


def _everywhere(b: Any, k: Kind, number: Any) -> Any:
    """A number in every lane."""
    nothing = ir.Constant(k.of(k.element), ir.Undefined)
    return b.shuffle_vector(b.insert_element(nothing, number, INT32(0)), nothing, k.words(0))


def _over(b: Any, k: Kind, value: Any, whole: Any) -> Any:
    """value / whole, which for a power of two is a multiplication, with the same bits."""
    out, divisor = cgutils.alloca_once_value(b, value), b.sitofp(whole, k.element)
    with b.if_else(b.icmp_unsigned("==", b.and_(whole, b.sub(whole, INT64(1))), INT64(0))) as (power, other):
        with power:
            b.store(b.fmul(value, _everywhere(b, k, b.fdiv(k.element(1.0), divisor))), out)
        with other:
            b.store(b.fdiv(value, _everywhere(b, k, divisor)), out)
    return b.load(out)


def _not_finite(b: Any, value: Any) -> Any:
    rest = b.fsub(value, value)  # 0, or NaN where the value is infinite or NaN
    return b.fcmp_unordered("uno", rest, rest)


def _suspicious(b: Any, k: Kind, value: Any) -> Any:
    """False only if every lane is finite: lanes are added up before they are looked at."""
    lanes = k.lanes
    while lanes > 16:
        value = b.fadd(*_halves(b, value, lanes))
        lanes //= 2
    mask = ir.IntType(lanes)
    return b.icmp_unsigned("!=", b.bitcast(_not_finite(b, value), mask), mask(0))


def _mean(b: Any, k: Kind, n: Any, read: Callable[[Any], Any], weights: Any, whole: Any) -> Any:
    """The weighted mean; in lanes where its sum is not finite, that of operands made smaller, made larger again.

    It is finite if the operands are. Rounding is monotone, so it is enough to see that the mean of the largest number,
    m = 2**24 - 1 last places, is not more than m: where weights add up to W < 2**24, the sum falls short of 2**24 W by
    at least W before rounding, hence after it, since W is at least half of what sums of that size are multiples of.
    """

    def weight(index: Any) -> Any:
        return _everywhere(b, k, b.sitofp(_word(b, weights, index), k.element))

    def weighted(index: Any) -> Any:
        return b.fmul(read(index), weight(index))

    def smaller(index: Any) -> Any:
        return b.fmul(b.fmul(read(index), k.fill(SMALLER)), weight(index))

    mean = cgutils.alloca_once_value(b, _over(b, k, _folded(b, k, n, weighted), whole))
    with cgutils.if_unlikely(b, _suspicious(b, k, b.load(mean))):
        if k.dtype != "float16":  # whose sums cannot overflow in float32
            small = _over(b, k, _folded(b, k, n, smaller), whole)
            large = b.fmul(small, k.fill(1 / SMALLER))
            b.store(b.select(_not_finite(b, b.load(mean)), large, b.load(mean)), mean)
        b.store(_canonical(b, k, b.load(mean)), mean)
    return b.load(mean)


@intrinsic
def reduce(typing: Any, kind: Any, operands: Any, n: Any, at: Any, weights: Any, whole: Any) -> Any:
    """What the kind's operation makes of the lanes at byte `at` of n operands, from the left; NaN is made canonical.

    `operands`: the address of n addresses. `weights`, `whole`: for avg, the address of n positive int64, and their sum.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, operands_, n_, at_, weights_, whole_ = args

        def read(index: Any) -> Any:
            return _read(context, builder, kind, builder.add(_word(builder, operands_, index), at_))

        if kind.op == "avg":
            return _mean(builder, kind, n_, read, weights_, whole_)
        return _canonical(builder, kind, _folded(builder, kind, n_, read))

    return Vector(kind.element, kind.lanes)(kind, *[types.int64] * 5), code
