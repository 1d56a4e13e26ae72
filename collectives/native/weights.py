"""The dry run of a mean: everyone contributes the number 1, and each fold notes what its operands weigh."""

from numba import cfunc

from collectives.native.memory import words


@cfunc("void(int64,int64,int64,int64,int64)", cache=True)
def note_weights(target: int, operands: int, n: int, count: int, weights: int) -> None:
    """A reduction kernel of int64 that adds, and writes the first element of each operand to `weights`."""
    addresses, noted, sums = words(operands), words(weights), words(target)
    for k in range(n):
        noted[k] = words(addresses[k])[0]
    for i in range(count):
        total = 0
        for k in range(n):
            total += words(addresses[k])[i]
        sums[i] = total
