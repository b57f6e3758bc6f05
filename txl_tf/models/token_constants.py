"""What reading one token at a time needs of the weights of a model.

Shape letters used in this module: D hidden width, N heads, H head width,
L layers.
"""

from typing import Any, NamedTuple


class TokenConstants(NamedTuple):
    """Computed once, for as long as weights and sizes stay what they are.

    Attributes:
        kernels: tuple of `L` float tensors `(D, 3 * N * H)`, from inputs to
            query, key and value.
        distances: `FoldedDistances`, or a tuple of `L` `DistanceKeys`.
    """

    kernels: tuple[Any, ...]
    distances: Any
