"""Matrices stored as pairs of bfloat16 numbers, and their products with few rows on a CPU.

A token needs the time in which its weights and memory are read, and bfloat16 halves their bytes.
XLA's own products of bfloat16 are slow on a CPU. So a product reads pairs of bfloat16 numbers,
unpacks them to float32, which XLA does as fast as it reads them, and sums in float32. A bfloat16
number is the upper half of a float32 number, so a shift or a mask of a uint32 unpacks one of two:

    float32 (X, Y)            rows 0 to X / 2 - 1    rows X / 2 to X - 1
    in uint32 (X / 2, Y)      lower 16 bits          upper 16 bits

A *stored* tensor is either float32 or pairs in uint32; its dtype tells which.
"""

import math
from typing import Any

from keras import ops

# A matrix product unpacks its kernel into memory first. For at most this many rows it takes less
# time to read the kernel again for each row, from a cache.
_MOST_ROWS_APART = 4


def in_pairs(tensor: Any) -> Any:
    """Rounds `(..., X, Y)` to bfloat16, and returns pairs `(..., X / 2, Y)` in uint32."""
    bits = ops.cast(ops.view(ops.cast(tensor, "bfloat16"), "uint16"), "uint32")
    first, second = ops.split(bits, 2, axis=-2)
    return ops.bitwise_or(first, ops.left_shift(second, 16))


def numbers_of(stored: Any) -> list[Any]:
    """Returns the numbers of a stored tensor in float32: one tensor, or the halves of its pairs."""
    if stored.dtype != "uint32":
        return [stored]
    upper = ops.bitwise_and(stored, ops.full((), 0xFFFF0000, "uint32"))
    return [ops.view(ops.left_shift(stored, 16), "float32"), ops.view(upper, "float32")]


def product_of_stored(inputs: Any, kernel: Any) -> Any:
    """Multiplies float32 inputs `(..., Q, X)` with a stored kernel `(..., X, Y)`: `(..., Q, Y)`.

    For few rows it is a sum of elementwise products, which XLA computes without a copy of the
    kernel. XLA makes loops over vectors from sums of few products, but not of many. So up to 8
    slices of the kernel are multiplied and added first, and then the rest of `X` is summed.
    """
    if kernel.dtype == "uint32":
        # XLA would unpack a constant kernel before the loop over layers and read float32 in the
        # loop. It does not know that this number, which depends on the inputs, is 0.
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
