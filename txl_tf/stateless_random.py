"""Random bits as hashes of a seed and a position, and the seeds of rows and places.

A step of training has one seed. `row_seeds` derives a seed for each row of its batch, `fold_seed`
one for each place that draws, and `random_bits` the bits of each number there.

Shape letters used in this module: B rows.

It uses only `keras.ops`, so it runs on every Keras backend.
"""

from keras import ops

# Random bits per dropout decision; rates are rounded to this precision.
DRAWN_BITS = 24
# Fractional parts of the golden ratio and of the square root of 2, in 32 bits.
_GOLDEN_RATIO = 0x9E3779B9
_SQUARE_ROOT = 0x6A09E667


def fold_seed(seed, site):
    """Derives a seed for one place that draws random numbers.

    Seeds are int32 `(2,)` or `(B, 2)`, or `None`, which stays `None`. Each place has its own
    `site`. Only the first number changes, by large steps, so that neighbouring seeds with different
    sites do not meet. Folding twice adds the sites.
    """
    if seed is None:
        return None
    change = (site * _GOLDEN_RATIO + 2**31) % 2**32 - 2**31  # as int32 wraps around
    return ops.cast(seed, "int32") + ops.convert_to_tensor([change, 0], dtype="int32")


def row_seeds(seed, rows):
    """Derives a seed for each row, int32 `(B, 2)`, from one `(2,)` and the rows' indices `(B,)`.

    All rows share the first number, see `common_seed`; the second depends on the row's index.
    """
    seed = ops.cast(seed, "int32")
    first = ops.broadcast_to(ops.reshape(_common_number(seed), [1]), ops.shape(rows))
    second = mixed(mixed(ops.cast(seed[1], "uint32")) + ops.cast(rows, "uint32"))
    return ops.stack([first, ops.cast(second, "int32")], axis=1)


def _common_number(seed):
    """Returns a number of a seed `(2,)`; `fold_seed` changes it as it changes the seed."""
    return seed[0] + ops.cast(mixed(ops.cast(seed[1], "uint32")), "int32")


def common_seed(seed):
    """Derives the seed `(2,)` that all rows share, the same from a seed and from its `row_seeds`.

    The seed is int32 `(2,)`, or `(B, 2)` from `row_seeds`, folded or not, or `None`.
    """
    if seed is None:
        return None
    seed = ops.cast(seed, "int32")
    first = _common_number(seed) if len(seed.shape) == 1 else seed[0, 0]
    return ops.stack([first, ops.zeros_like(first)])


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
        mixed(first + mixed(second + ops.cast(_GOLDEN_RATIO, "uint32"))),
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
