"""Mean attention by distance for each head.

Shape letters used in this module: M memory length, L layers, N heads.
"""

import dataclasses
from typing import Any

import numpy as np

TERMS = {
    "a": "content and content",
    "b": "content and position",
    "d": "position bias",
}
"""Score terms that are averaged separately; (c) does not depend on positions."""

HIGHEST_SHARE = 0.2
"""Share of the memory's tokens that Figure 6 marks: those with the highest attention."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AttentionProfile:
    """Mean attention by distance, for every head of every layer.

    Dai et al. (2019), Appendix D. The distance of a query to itself is 0.
    Layers and heads are counted from 0.
    """

    attention: np.ndarray
    """Float64 `(L, N, M + 1)`: mean probability of each distance. Sums to 1 over them."""
    terms: dict[str, np.ndarray]
    """Mean attention by the softmax of one term of the score alone, by the keys of `TERMS`.

    Empty for a model whose scores have no such terms."""
    entropy: np.ndarray
    """Float64 `(L, N)`: mean entropy of the distribution of a query, in nats."""
    memory_attention: np.ndarray
    """Float64 `(L, N)`: mean probability of the `M` tokens before a query together."""
    highest_attention: np.ndarray
    """Float64 `(L, N)`: mean probability of the share `HIGHEST_SHARE` of them that a query
    attends to most."""
    num_queries: int
    """Number of averaged queries."""

    @property
    def mean_distance(self) -> np.ndarray:
        """Float64 `(L, N)`: mean distance that a head attends to, in tokens."""
        return self.attention @ np.arange(self.attention.shape[-1])

    @property
    def highest_share(self) -> np.ndarray:
        """Float64 `(L, N)`: share of the attention to memory that the highest tokens get."""
        return self.highest_attention / self.memory_attention

    @property
    def farthest_head(self) -> tuple[int, int]:
        """Layer and head with the largest mean distance."""
        distance = self.mean_distance
        layer, head = np.unravel_index(np.argmax(distance), distance.shape)
        return int(layer), int(head)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Returns all arrays by name, for an `.npz` file."""
        return {
            "attention": self.attention,
            **{f"term_{name}": array for name, array in self.terms.items()},
            "mean_distance": self.mean_distance,
            "entropy": self.entropy,
            "memory_attention": self.memory_attention,
            "highest_attention": self.highest_attention,
        }

    def to_dict(self) -> dict[str, Any]:
        """Returns the figures of heads and layers as plain JSON types; layers and heads from 0."""
        layer, head = self.farthest_head
        return {
            "num_queries": self.num_queries,
            "num_distances": self.attention.shape[-1],
            "mean_distance": self.mean_distance.tolist(),
            "layer_mean_distance": self.mean_distance.mean(axis=1).tolist(),
            "entropy_nats": self.entropy.tolist(),
            "memory_attention": self.memory_attention.tolist(),
            "highest_share": self.highest_share.tolist(),
            "farthest_head": {
                "layer": layer,
                "head": head,
                "mean_distance": float(self.mean_distance[layer, head]),
            },
        }
