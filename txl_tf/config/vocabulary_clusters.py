"""Division of a vocabulary into clusters of frequent and rare tokens.

Shape letters used in this module: V vocabulary, D hidden width, E embedding
width, W width of one cluster, R token ids of one cluster.
"""

import dataclasses
import itertools
import math

_EULER_GAMMA = 0.5772156649


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyClusters:
    """Cluster sizes of an adaptive embedding and of its adaptive softmax.

    Ids are sorted by falling frequency. Cluster 0 is the head, the others are
    tails; cluster `i` holds the ids from `cutoffs[i - 1]` up to `cutoffs[i]`.

    Args:
        vocabulary_size: int. Number of token ids, `V`.
        hidden_dim: int. Width `D` of hidden states.
        embedding_dim: int. Width `E` of the first cluster.
        cutoffs: ascending ints. The first id of every tail cluster.
        division_factor: int. Cluster `i` is `E // division_factor**i` wide.
            With 1, all clusters are rows of one table with one projection.
        project_same_dim: bool. Whether a cluster that is `D` wide already has
            a projection too; without effect if `division_factor` is 1.

    Raises:
        ValueError: If a size is not positive, a cluster would have no width,
            or `cutoffs` do not ascend within the vocabulary.
    """

    vocabulary_size: int
    hidden_dim: int
    embedding_dim: int
    cutoffs: tuple[int, ...] = ()
    division_factor: int = 1
    project_same_dim: bool = True

    def __post_init__(self) -> None:
        for name in ("vocabulary_size", "hidden_dim", "embedding_dim", "division_factor"):
            if getattr(self, name) <= 0:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={getattr(self, name)}"
                )
        ends = (0, *self.cutoffs, self.vocabulary_size)
        if any(first >= last for first, last in itertools.pairwise(ends)):
            raise ValueError(
                "`cutoffs` must ascend between 0 and `vocabulary_size`. "
                f"Received: cutoffs={self.cutoffs}, vocabulary_size={self.vocabulary_size}"
            )
        if min(self.widths) == 0:
            raise ValueError(
                "`embedding_dim // division_factor**i` must be positive for every cluster. "
                f"Received: embedding_dim={self.embedding_dim}, "
                f"division_factor={self.division_factor}, cutoffs={self.cutoffs}"
            )

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First id and end of the ids of every cluster."""
        return tuple(zip((0, *self.cutoffs), (*self.cutoffs, self.vocabulary_size), strict=True))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of ids `R` of every cluster."""
        return tuple(end - first for first, end in self.spans)

    @property
    def widths(self) -> tuple[int, ...]:
        """Width `W` of every cluster."""
        count = len(self.cutoffs) + 1
        return tuple(self.embedding_dim // self.division_factor**i for i in range(count))

    @property
    def table_shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes of the embedding's tables: `(V, E)`, or `(R, W)` of every cluster."""
        if self.division_factor == 1:
            return ((self.vocabulary_size, self.embedding_dim),)
        return tuple(zip(self.sizes, self.widths, strict=True))

    @property
    def projection_shapes(self) -> tuple[tuple[int, int] | None, ...]:
        """Shapes of the embedding's projections, `None` where there is none."""
        if self.division_factor == 1:
            return (self._projection_shape(self.embedding_dim, project_same_dim=False),)
        return tuple(self._projection_shape(width, self.project_same_dim) for width in self.widths)

    @property
    def output_projection_shapes(self) -> tuple[tuple[int, int] | None, ...]:
        """Shapes of a softmax's own projections of every cluster, `None` where there is none."""
        project_same_dim = self.project_same_dim and self.division_factor > 1
        return tuple(self._projection_shape(width, project_same_dim) for width in self.widths)

    def _projection_shape(self, width: int, project_same_dim: bool) -> tuple[int, int] | None:
        if width == self.hidden_dim and not project_same_dim:
            return None
        return (width, self.hidden_dim)

    def tail_capacities(self, num_tokens: int) -> tuple[int, ...]:
        """Expected number of tokens in each tail cluster, with a margin.

        By Zipf's law with exponent 1 the share of a cluster is the difference
        of the harmonic numbers of its bounds. Two standard deviations more make
        one chunk enough for most batches of such text.

        Args:
            num_tokens: int. Number of tokens of all clusters.

        Returns:
            Tuple of ints, multiples of 8 but no more than `num_tokens`.
        """
        total = _harmonic_number(self.vocabulary_size)
        capacities = []
        for first, end in self.spans[1:]:
            expected = num_tokens * (_harmonic_number(end) - _harmonic_number(first)) / total
            enough = expected + 2.0 * math.sqrt(expected)
            capacities.append(min(8 * math.ceil(enough / 8), num_tokens))
        return tuple(capacities)


def _harmonic_number(count: int) -> float:
    return math.log(count + 0.5) + _EULER_GAMMA
