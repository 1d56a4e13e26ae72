"""The element types and operations that there are, in the order of their codes."""

FLOATS = ("float16", "bfloat16", "float32", "float64")
HALVES = ("float16", "bfloat16")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = FLOATS + INTEGERS
ITEMSIZE = dict(zip(DTYPES, (2, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8), strict=True))
BITWISE = ("and", "or", "xor")
OPS = ("sum", "avg", "prod", "min", "max", *BITWISE)


def check(dtype: str, op: str) -> None:
    """Raise TypeError, saying what is possible, unless this operation is defined for this dtype."""
    if dtype not in DTYPES:
        raise TypeError(f"dtype {dtype!r} cannot be reduced; possible are {', '.join(DTYPES)}")
    possible = [name for name in OPS if not (name in BITWISE if dtype in FLOATS else name == "avg")]
    if op not in OPS:
        raise TypeError(f"op {op!r} does not exist; for {dtype} there are {', '.join(possible)}")
    if op not in possible:
        why = "sum and divide yourself, or convert to a float dtype" if op == "avg" else "bits are those of integers"
        raise TypeError(f"op {op!r} is not for {dtype} ({why}); for {dtype} there are {', '.join(possible)}")
