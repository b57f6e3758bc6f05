"""All distances of all layers, for few queries at a time.

Shape letters used in this module: M memory length, D hidden width, N heads,
H head width, L layers.
"""

from typing import Any, NamedTuple


class FoldedDistances(NamedTuple):
    """What the distance queries of one token are compared with.

    The product of a query with the projected sinusoids is the product of the
    query, projected, with the sinusoids. For one row that reads one table
    instead of the keys of all distances of all layers.

    Attributes:
        projections: tuple of `L` float tensors `(N, H, D)`.
        sinusoids: float tensor `(D, M + 1)`; column `j` belongs to the distance
            `M - j`.
    """

    projections: tuple[Any, ...]
    sinusoids: Any
