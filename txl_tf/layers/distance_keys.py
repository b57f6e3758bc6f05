"""What attention compares with distances instead of contents.

Shape letters used in this module: K key length, N heads, H head width.
"""

from typing import Any, NamedTuple


class DistanceKeys(NamedTuple):
    """The keys of all distances of one layer; they depend on weights alone.

    Column 0 belongs to no distance: reading the products with the rows one
    place shorter makes scores over keys of scores over distances
    (`functional.relative_shift`), and this column is what is left over.
    Column `1 + j` belongs to the distance `K - 1 - j`.

    Attributes:
        keys: float tensor `(N, H, K + 1)`.
        scores: optional float tensor `(N, 1, K + 1)`, the same for all queries.
    """

    keys: Any
    scores: Any = None
