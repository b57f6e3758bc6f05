"""Matrices stored as pairs of bfloat16 numbers, and vectors multiplied with them on a CPU.

The time of a token is the time in which weights and memory are read, and bfloat16 halves their
bytes. But XLA's own products of bfloat16 are slow on a CPU, so sums are float32: a stored matrix is
unpacked to float32 while a product reads it. Two numbers lie in one uint32, because a shift or a
mask then unpacks each of them: a bfloat16 number is the upper half of a float32 number.

    matrix (X, Y)      rows 0 to X / 2 - 1      rows X / 2 to X - 1
    pairs (X / 2, Y)   lower 16 bits            upper 16 bits

A *stored* tensor is a float32 tensor as it is, or pairs in uint32: its dtype tells which.
"""

import math
from typing import Any

from keras import ops

# A matrix product unpacks its kernel into memory first. Up to this many rows, it costs less to read
# the pairs again for each row, from a cache.
_MOST_ROWS_APART = 4


def in_pairs(tensor: Any) -> Any:
    """Rounds `(..., X, Y)` to bfloat16: rows of the first and the second half in a uint32 each.

    XLA unpacks them as fast as it reads them, and its own products of bfloat16 are slow.
    """
    bits = ops.cast(ops.view(ops.cast(tensor, "bfloat16"), "uint16"), "uint32")
    first, second = ops.split(bits, 2, axis=-2)
    return ops.bitwise_or(first, ops.left_shift(second, 16))


def numbers_of(stored: Any) -> list[Any]:
    """Returns float32 numbers as they are, or both halves of those `in_pairs`."""
    if stored.dtype != "uint32":
        return [stored]
    upper = ops.bitwise_and(stored, ops.full((), 0xFFFF0000, "uint32"))
    return [ops.view(ops.left_shift(stored, 16), "float32"), ops.view(upper, "float32")]


def product_of_stored(inputs: Any, kernel: Any) -> Any:
    """Multiplies float32 `(..., Q, X)` with a kernel `(..., X, Y)` or its pairs: `(..., Q, Y)`.

    XLA makes loops over vectors of a sum of few products, but not of many.
    """
    if kernel.dtype == "uint32":
        # Zero, but not to XLA, which would unpack constants before the loop and read float32 in it.
        zero = ops.cast(ops.reshape(inputs, [-1])[0] * 0, "uint32")
        kernel = ops.bitwise_xor(kernel, zero)
    halves = numbers_of(kernel)
    parts = list(zip(ops.split(inputs, len(halves), axis=-1), halves, strict=True))
    num_rows = inputs.shape[-2]
    if num_rows > _MOST_ROWS_APART:
        return sum(ops.matmul(part, numbers) for part, numbers in parts)
    if num_rows > 1:
        rows = ops.split(inputs, num_rows, axis=-2)
        return ops.concatenate([product_of_stored(row, kernel) for row in rows], axis=-2)
    length, width = kernel.shape[-2:]
    count = math.gcd(length, 8 // len(parts))
    sums = 0.0
    for part, numbers in parts:
        shape = [*kernel.shape[:-2], count, length // count]
        part = ops.reshape(part, [*shape, 1])
        numbers = ops.reshape(numbers, [*shape, width])
        sums = sums + sum(part[..., i, :, :] * numbers[..., i, :, :] for i in range(count))
    return ops.reshape(ops.sum(sums, axis=-2), [*inputs.shape[:-1], width])
