"""Configurations of the models: Transformer-XL, LSTM and QRNN; clusters of a vocabulary.

Shape letters of clusters: V vocabulary, D hidden width, E embedding width, W width of one
cluster, R token ids of one cluster.
"""

import dataclasses
import itertools
import math
from typing import ClassVar, Literal

from txl_tf.config.base import (
    MAX_CLUSTERS,
    MAX_DISTANCE,
    MAX_LAYERS,
    MAX_TOKEN_IDS,
    MAX_TOKENS,
    MAX_WIDTH,
    FrozenConfig,
)
from txl_tf.config.settings import FRACTION_BELOW_ONE, not_negative, positive

_EULER_GAMMA = 0.5772156649


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyClusters(FrozenConfig):
    """Cluster sizes of an adaptive embedding and of its adaptive softmax.

    Ids are sorted by falling frequency. Cluster 0 is the head, the others are
    tails; cluster `i` holds the ids from `cutoffs[i - 1]` up to `cutoffs[i]`.

    Raises:
        ValueError: If a size is not positive, a cluster would have no width,
            or `cutoffs` do not ascend within the vocabulary.
    """

    RANGES: ClassVar = {
        "vocabulary_size": positive(),
        "hidden_dim": positive(),
        "embedding_dim": positive(),
        "division_factor": positive(),
    }

    vocabulary_size: int
    """Number of token ids, `V`."""
    hidden_dim: int
    """Width `D` of hidden states."""
    embedding_dim: int
    """Width `E` of the first cluster."""
    cutoffs: tuple[int, ...] = ()
    """The first id of every tail cluster, ascending."""
    division_factor: int = 1
    """Cluster `i` is `E // division_factor**i` wide; with 1, all clusters are rows of one table
    with one projection."""
    project_same_dim: bool = True
    """Whether a cluster that is `D` wide already has a projection too; without effect if
    `division_factor` is 1."""

    def validate(self) -> None:
        ends = (0, *self.cutoffs, self.vocabulary_size)
        if any(first >= last for first, last in itertools.pairwise(ends)):
            raise ValueError(
                "`cutoffs` must ascend between 0 and `vocabulary_size`; () is one full softmax. "
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
            num_tokens: int. Tokens of all clusters together.

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


# Of the settings that all models have.
_RANGES = {
    "vocabulary_size": positive(MAX_TOKEN_IDS),
    "num_layers": positive(MAX_LAYERS),
    "hidden_dim": positive(MAX_WIDTH),
    "segment_length": positive(MAX_TOKENS),
    "embedding_dim": positive(MAX_WIDTH),
    "dropout": FRACTION_BELOW_ONE,
    "initializer_stddev": positive(),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(FrozenConfig):
    """Sizes and options that an `LSTMLanguageModel` and a `QRNNLanguageModel` share.

    Neither weights nor memory depend on `segment_length`, so a trained model
    can be evaluated with another.

    Raises:
        ValueError: If a value is out of its range.
    """

    RANGES: ClassVar = _RANGES

    vocabulary_size: int
    """Number of token ids, `V`."""
    num_layers: int
    """Number of recurrent layers, `L`."""
    hidden_dim: int
    """Width of all recurrent layers but the last, `D`."""
    segment_length: int
    """Tokens per row per step, `T`; gradients flow no further back."""
    embedding_dim: int | None = None
    """Width of the embedding and of the last layer, `E`; None is `hidden_dim`."""
    dropout: float = 0.1
    """Rate on embeddings and layer outputs."""
    initializer_stddev: float = 0.02
    """Standard deviation of the normal distribution of all initial kernels."""

    @property
    def memory_length(self) -> int:
        """0, because no token is remembered, only the state after the last."""
        return 0

    @property
    def effective_memory_length(self) -> int:
        """0, as `memory_length`."""
        return 0

    @property
    def has_relative_positions(self) -> bool:
        """False, because there are no positions."""
        return False

    @property
    def clamp_length(self) -> None:
        """None, because there are no distances."""
        return None

    @property
    def same_length(self) -> bool:
        """False, because there is no attention."""
        return False

    @property
    def layer_dims(self) -> tuple[int, ...]:
        """Output widths of the recurrent layers, the first layer's first."""
        return (self.hidden_dim,) * (self.num_layers - 1) + (self.table_dim,)

    @property
    def table_dim(self) -> int:
        """Width `E` of the embedding table, which the softmax shares."""
        return self.hidden_dim if self.embedding_dim is None else self.embedding_dim


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSTMConfig(RecurrentConfig):
    """Sizes and options of an `LSTMLanguageModel`.

    Raises:
        ValueError: If a value is out of its range.
    """

    kind: Literal["lstm"] = "lstm"
    """Tells the model of a file apart from others."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QRNNConfig(RecurrentConfig):
    """Sizes and options of a `QRNNLanguageModel`.

    Raises:
        ValueError: If a value is out of its range.
    """

    kind: Literal["qrnn"] = "qrnn"
    """Tells the model of a file apart from others."""


PositionEncoding = Literal["transformer_xl", "shaw", "shaw_two_terms", "sinusoidal", "learned"]
"""Ways of positions, see `Positions`."""
RELATIVE_ENCODINGS = ("transformer_xl", "shaw", "shaw_two_terms")
"""Those whose positions are distances."""
LEARNED_ENCODINGS = ("shaw", "shaw_two_terms", "learned")
"""Those with a table of learned positions."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(FrozenConfig):
    """Sizes and options of a `TransformerXL`.

    With the positions `"transformer_xl"` and `"sinusoidal"`, weights depend
    neither on `segment_length` nor on `memory_length`, so a trained model can
    be evaluated with others: `config.replace(memory_length=1600)`.

    Raises:
        ValueError: If a value is out of its range.
    """

    RANGES: ClassVar = {
        **_RANGES,
        "num_heads": positive(MAX_WIDTH),
        "head_dim": positive(MAX_WIDTH),
        "intermediate_dim": positive(MAX_WIDTH),
        "memory_length": not_negative(MAX_TOKENS),
        "num_positions": positive(2 * MAX_TOKENS),
        "attention_dropout": FRACTION_BELOW_ONE,
        "clamp_length": positive(MAX_DISTANCE),
        "layer_norm_epsilon": positive(),
        "division_factor": positive(MAX_WIDTH),
        "initializer_range": positive(),
        "projection_stddev": positive(),
    }

    vocabulary_size: int
    """Number of token ids, `V`."""
    num_layers: int
    """Number of decoder blocks, `L`."""
    hidden_dim: int
    """Width of the hidden states, `D`; even, for the sinusoids."""
    num_heads: int
    """Number of attention heads, `N`."""
    head_dim: int
    """Width of one head, `H`."""
    intermediate_dim: int
    """Inner width of the feed-forward layers, `F`."""
    segment_length: int
    """Tokens per row per step, `T`."""
    memory_length: int
    """Tokens that are remembered per layer, `M`; 0 switches recurrence off."""
    embedding_dim: int | None = None
    """Width of the embeddings of frequent tokens; None is `hidden_dim`."""
    position_encoding: PositionEncoding = "transformer_xl"
    """Positions of Dai et al., Shaw et al. ("shaw" has the biases of the official code, too; of
    "shaw_two_terms" see the paper), Vaswani et al., or Al-Rfou et al."""
    num_positions: int | None = None
    """Learned positions of "shaw", "shaw_two_terms" and "learned"; farther ones share the last."""
    recurrence: bool = True
    """Whether there is a memory at all; without, `memory_length` has no effect."""
    pre_norm: bool = False
    """Whether layer normalisation comes before attention and feed-forward."""
    dropout: float = 0.1
    """Rate on embeddings, positions, layer outputs and inner activations."""
    variational_dropout: bool = False
    """Whether a dropout mask is the same for all positions of a row."""
    attention_dropout: float = 0.0
    """Rate on attention probabilities."""
    clamp_length: int | None = None
    """Distances above this share one position encoding; None is no clamp."""
    same_length: bool = False
    """Whether every query sees equally many keys, however late in the segment."""
    same_length_keys: Literal["memory_and_self", "memory"] = "memory_and_self"
    """How many: `M + 1` as in the official TensorFlow code, or `M` as in PyTorch."""
    share_attention_biases: bool = False
    """Whether all layers share one content bias `u` and one position bias `v`."""
    layer_norm_epsilon: float = 1e-12
    """Added to the variance; the default is the official TensorFlow code's."""
    cutoffs: tuple[int, ...] = ()
    """First ids of the clusters of rare tokens; none is one full softmax."""
    division_factor: int = 1
    """Cluster `i` of the vocabulary is `embedding_dim // division_factor**i` wide."""
    share_tail_projections: bool = False
    """Whether embedding and softmax share the projections of all but cluster 0."""
    project_same_dim: bool = True
    """Whether clusters that are `hidden_dim` wide are projected nevertheless."""
    tie_weights: bool = True
    """Whether embedding and softmax share their tables."""
    initializer: Literal["normal", "uniform"] = "normal"
    """Distribution of the initial weights."""
    initializer_stddev: float = 0.02
    """Standard deviation of the normal distribution."""
    initializer_range: float = 0.1
    """The uniform distribution is from minus this to this."""
    projection_stddev: float = 0.01
    """Standard deviation of the projections of embedding and softmax, if normal."""

    @property
    def clusters(self) -> VocabularyClusters:
        """How embedding and softmax cut the vocabulary."""
        return VocabularyClusters(
            vocabulary_size=self.vocabulary_size,
            hidden_dim=self.hidden_dim,
            embedding_dim=self.embedding_dim or self.hidden_dim,
            cutoffs=self.cutoffs,
            division_factor=self.division_factor,
            project_same_dim=self.project_same_dim,
        )

    @property
    def effective_memory_length(self) -> int:
        """Tokens that are remembered: `memory_length`, or 0 without recurrence."""
        return self.memory_length if self.recurrence else 0

    @property
    def has_relative_positions(self) -> bool:
        """Whether a position is a distance, so that memory does not depend on it."""
        return self.position_encoding in RELATIVE_ENCODINGS

    @property
    def has_position_table(self) -> bool:
        """Whether positions are learned, `num_positions` of them."""
        return self.position_encoding in LEARNED_ENCODINGS

    def validate(self) -> None:
        is_even = self.hidden_dim % 2 == 0
        rule = "be even, because half of a position encoding is sines and half cosines"
        self.require("hidden_dim", is_even, rule)
        self._check_positions()
        self._check_vocabulary()

    def _check_positions(self) -> None:
        has_table = self.has_position_table
        if has_table != (self.num_positions is not None):
            raise ValueError(
                f"`num_positions` is for the positions {', '.join(LEARNED_ENCODINGS)}, "
                "and needed there. "
                f"Received: position_encoding={self.position_encoding!r}, "
                f"num_positions={self.num_positions}"
            )
        if self.clamp_length is not None and has_table:
            raise ValueError(
                "`clamp_length` is for sinusoids; `num_positions` limits a table. "
                f"Received: clamp_length={self.clamp_length}"
            )
        if self.share_attention_biases and self.position_encoding != "transformer_xl":
            raise ValueError(
                '`share_attention_biases` is for `position_encoding="transformer_xl"`. '
                f"Received: position_encoding={self.position_encoding!r}"
            )

    def _check_vocabulary(self) -> None:
        if len(self.cutoffs) >= MAX_CLUSTERS:
            raise ValueError(
                f"`cutoffs` must be fewer than {MAX_CLUSTERS}. "
                f"Received: {len(self.cutoffs)} cutoffs"
            )
        _ = self.clusters  # refuses cutoffs and widths that do not fit
