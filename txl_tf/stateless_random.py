"""Random bits as hashes of a seed and a position.

Shape letters used in this module: B rows.

It uses only `keras.ops`, so it runs on every Keras backend.
"""

from keras import ops

DRAWN_BITS = 24
"""Random bits per dropout decision; rates are rounded to this precision."""
GOLDEN_RATIO = 0x9E3779B9
"""Fractional part of the golden ratio, in 32 bits."""

_SQUARE_ROOT = 0x6A09E667  # the fractional part of the square root of 2


def random_bits(seeds, sizes):
    """Computes uint32 bits `(B, *sizes)` as a hash of row seeds, int32 `(B, 2)`, and position.

    The bits are the same on any backend. Two rounds of hashing, each keyed by both numbers of the
    seed: with one round, masks of two seeds would be permutations of each other.
    """
    shape = [-1, *[1] * len(sizes)]
    first_key, second_key = (ops.reshape(key, shape) for key in random_keys(seeds))
    counters = _counted_from(first_key, sizes)
    return mixed(ops.bitwise_xor(mixed(counters), second_key))


def random_keys(seeds):
    """Computes the two keys, uint32 `(B,)`, with which `random_bits` hashes positions of a row."""
    seeds = ops.cast(seeds, "uint32")
    first, second = seeds[:, 0], seeds[:, 1]
    return (
        mixed(first + mixed(second + ops.cast(GOLDEN_RATIO, "uint32"))),
        mixed(second + mixed(first + ops.cast(_SQUARE_ROOT, "uint32"))),
    )


def dropout_threshold(rate):
    """Returns the least value of the first `DRAWN_BITS` random bits that keeps a number."""
    return round(rate * 2**DRAWN_BITS)


def _counted_from(starts, sizes):
    """Numbers the elements of each row, beginning with a number per row.

    Adds one axis after another to `(B, 1, ...)`, whose values are known only at run time: a full
    range would be a large constant in every program.
    """
    counters, stride = starts, 1
    for axis in reversed(range(len(sizes))):
        along = ops.cast(ops.arange(sizes[axis], dtype="int32") * stride, "uint32")
        shape = [-1 if each == axis else 1 for each in range(-1, len(sizes))]
        counters = counters + ops.reshape(along, shape)
        stride = stride * sizes[axis]
    return counters


def mixed(bits):
    """Mixes 32-bit numbers by a bijection; every input bit affects all output bits.

    The shifts and factors are from C. Wellons' `lowbias32`, found by a search for the least bias.
    """
    bits = ops.bitwise_xor(bits, ops.right_shift(bits, ops.cast(16, "uint32")))
    bits = bits * ops.cast(0x7FEB352D, "uint32")
    bits = ops.bitwise_xor(bits, ops.right_shift(bits, ops.cast(15, "uint32")))
    bits = bits * ops.cast(0x846CA68B, "uint32")
    return ops.bitwise_xor(bits, ops.right_shift(bits, ops.cast(16, "uint32")))
