"""Configurations of the models Transformer-XL, LSTM and QRNN, and the clusters of a vocabulary.

Shape letters of clusters: V vocabulary, D hidden width, E embedding width, W width of one
cluster, R token ids of one cluster.
"""

import dataclasses
import itertools
import math
from typing import Annotated, ClassVar, Literal

from txl_tf.config.base import FRACTION_BELOW_ONE, FrozenConfig, not_negative, positive
from txl_tf.config.limits import (
    MAX_CLUSTERS,
    MAX_DISTANCE,
    MAX_LAYERS,
    MAX_TOKEN_IDS,
    MAX_TOKENS,
    MAX_WIDTH,
)

_EULER_GAMMA = 0.5772156649


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyClusters(FrozenConfig):
    """Clusters of an adaptive embedding and softmax: their ids and the shapes of their tables.

    The fields mean the same as in `ModelConfig`. Ids are sorted by falling frequency. Cluster 0 is
    the head, the others are tails. Cluster `i` holds the ids from `cutoffs[i - 1]` up to
    `cutoffs[i]` and is `embedding_dim // division_factor**i` wide. With a factor of 1, all clusters
    are rows of one table with one projection.
    """

    vocabulary_size: Annotated[int, positive()]
    hidden_dim: Annotated[int, positive()]
    embedding_dim: Annotated[int, positive()]
    cutoffs: tuple[int, ...] = ()
    division_factor: Annotated[int, positive()] = 1
    project_same_dim: bool = True

    def validate(self) -> None:
        ends = (0, *self.cutoffs, self.vocabulary_size)
        if any(first >= last for first, last in itertools.pairwise(ends)):
            self.refuse(
                "`cutoffs` must ascend, above 0 and below `vocabulary_size`.",
                "cutoffs",
                "vocabulary_size",
            )
        if min(self.widths) == 0:
            self.refuse(
                "`embedding_dim // division_factor**i` must be above 0 for every cluster `i`.",
                "embedding_dim",
                "division_factor",
                "cutoffs",
            )

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """First id of every cluster, and the id after its last."""
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
        """Shapes of the embedding's tables: one `(V, E)`, or an `(R, W)` for every cluster."""
        if self.division_factor == 1:
            return ((self.vocabulary_size, self.embedding_dim),)
        return tuple(zip(self.sizes, self.widths, strict=True))

    @property
    def projection_shapes(self) -> tuple[tuple[int, int] | None, ...]:
        """Shape of the projection of each table of the embedding; `None` if it has none."""
        if self.division_factor == 1:
            return (self._projection_shape(self.embedding_dim, project_same_dim=False),)
        return tuple(self._projection_shape(width, self.project_same_dim) for width in self.widths)

    @property
    def output_projection_shapes(self) -> tuple[tuple[int, int] | None, ...]:
        """Shape of the projection of each cluster in the softmax; `None` if it has none.

        These are the shapes if the softmax does not share the projections of the embedding.
        """
        project_same_dim = self.project_same_dim and self.division_factor > 1
        return tuple(self._projection_shape(width, project_same_dim) for width in self.widths)

    def _projection_shape(self, width: int, project_same_dim: bool) -> tuple[int, int] | None:
        if width == self.hidden_dim and not project_same_dim:
            return None
        return (width, self.hidden_dim)

    def tail_capacities(self, num_tokens: int) -> tuple[int, ...]:
        """Returns how many of `num_tokens` tokens a chunk of each tail cluster should hold.

        By Zipf's law with exponent 1 the share of a cluster is proportional to the difference of
        the harmonic numbers of its bounds. A chunk holds the expected number and two standard
        deviations more, so that one chunk is enough for most batches. The numbers are rounded up
        to multiples of 8, but are at most `num_tokens`.
        """
        total = _harmonic_number(self.vocabulary_size)
        capacities = []
        for first, end in self.spans[1:]:
            num_expected = num_tokens * (_harmonic_number(end) - _harmonic_number(first)) / total
            # A count of rare events has a variance of about its mean.
            enough = num_expected + 2.0 * math.sqrt(num_expected)
            capacities.append(min(8 * math.ceil(enough / 8), num_tokens))
        return tuple(capacities)


def _harmonic_number(count: int) -> float:
    # About `1 + 1/2 + ... + 1/count`, by its asymptotic expansion.
    return math.log(count + 0.5) + _EULER_GAMMA


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LanguageModelConfig(FrozenConfig):
    """Sizes and options of all language models."""

    vocabulary_size: Annotated[int, positive(MAX_TOKEN_IDS)]
    """Number of token ids, `V`."""
    num_layers: Annotated[int, positive(MAX_LAYERS)]
    """Number of decoder blocks or recurrent layers, `L`."""
    hidden_dim: Annotated[int, positive(MAX_WIDTH)]
    """Width of the hidden states, `D`. It is even in a Transformer-XL, for the sinusoids."""
    segment_length: Annotated[int, positive(MAX_TOKENS)]
    """Tokens that a row reads in one step, `T`. Gradients flow within these tokens."""
    embedding_dim: Annotated[int | None, positive(MAX_WIDTH)] = None
    """Width of the embeddings of frequent tokens, and of the last recurrent layer, `E`. None means
    `hidden_dim`."""
    dropout: Annotated[float, FRACTION_BELOW_ONE] = 0.1
    """Dropout rate of embeddings, positions, layer outputs and inner activations."""
    initializer_stddev: Annotated[float, positive()] = 0.02
    """Standard deviation of the normal distribution of the initial kernels."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(_LanguageModelConfig):
    """Sizes and options that an `LSTMLanguageModel` and a `QRNNLanguageModel` share.

    Neither weights nor memory depend on `segment_length`, so a trained model can be evaluated with
    another.
    """

    # A recurrent model remembers only its state after the last token. These are the values that
    # the fields and properties of `ModelConfig` have for such a model.
    memory_length: ClassVar[int] = 0
    effective_memory_length: ClassVar[int] = 0
    has_relative_positions: ClassVar[bool] = False
    clamp_length: ClassVar[None] = None
    same_length: ClassVar[bool] = False

    @property
    def layer_dims(self) -> tuple[int, ...]:
        """Output width of each recurrent layer, in the order of the layers."""
        return (self.hidden_dim,) * (self.num_layers - 1) + (self.table_dim,)

    @property
    def table_dim(self) -> int:
        """Width `E` of the embedding table, which the softmax shares."""
        return self.hidden_dim if self.embedding_dim is None else self.embedding_dim


@dataclasses.dataclass(frozen=True, kw_only=True)
class LSTMConfig(RecurrentConfig):
    """Sizes and options of an `LSTMLanguageModel`."""

    kind: Literal["lstm"] = "lstm"
    """Tells the model of a file apart from others."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class QRNNConfig(RecurrentConfig):
    """Sizes and options of a `QRNNLanguageModel`."""

    kind: Literal["qrnn"] = "qrnn"
    """Tells the model of a file apart from others."""


PositionEncoding = Literal["transformer_xl", "shaw", "shaw_two_terms", "sinusoidal", "learned"]
"""Names of position encodings, see `ModelConfig.position_encoding`."""
RELATIVE_ENCODINGS = ("transformer_xl", "shaw", "shaw_two_terms")
"""Encodings of the distance between a query and a key."""
LEARNED_ENCODINGS = ("shaw", "shaw_two_terms", "learned")
"""Encodings that are a learned table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(_LanguageModelConfig):
    """Sizes and options of a `TransformerXL`.

    With the position encodings `"transformer_xl"` and `"sinusoidal"`, weights depend neither on
    `segment_length` nor on `memory_length`, so a trained model can be evaluated with other
    lengths: `config.replace(memory_length=1600)`.

    Raises:
        ValueError: If a value is out of its range.
    """

    num_heads: Annotated[int, positive(MAX_WIDTH)]
    """Number of attention heads, `N`."""
    head_dim: Annotated[int, positive(MAX_WIDTH)]
    """Width of one head, `H`."""
    intermediate_dim: Annotated[int, positive(MAX_WIDTH)]
    """Inner width of the feed-forward layers, `F`."""
    memory_length: Annotated[int, not_negative(MAX_TOKENS)]
    """Tokens that each layer remembers, `M`. 0 switches recurrence off."""
    position_encoding: PositionEncoding = "transformer_xl"
    """Position encoding: of Dai et al. ("transformer_xl"), of Shaw et al. with the biases of the
    official code ("shaw") or without them ("shaw_two_terms"), of Vaswani et al. ("sinusoidal"), or
    of Al-Rfou et al. ("learned")."""
    num_positions: Annotated[int | None, positive(2 * MAX_TOKENS)] = None
    """Number of learned positions, only for "shaw", "shaw_two_terms" and "learned". Positions that
    are farther away share the last one."""
    recurrence: bool = True
    """Whether the model has a memory. If not, `memory_length` has no effect."""
    pre_norm: bool = False
    """Whether layer normalisation precedes attention and feed-forward."""
    residual_gate: Literal["gru"] | None = None
    """Gates in the place of residual connections. "gru" is the gate of GTrXL (Parisotto et al.,
    2019), which needs `pre_norm`. None means no gates."""
    variational_dropout: bool = False
    """Whether a dropout mask is the same for all positions of a row."""
    attention_dropout: Annotated[float, FRACTION_BELOW_ONE] = 0.0
    """Dropout rate of attention probabilities."""
    clamp_length: Annotated[int | None, positive(MAX_DISTANCE)] = None
    """Largest distance with a position encoding of its own; larger distances share that encoding.
    None means no limit."""
    same_length: bool = False
    """Whether every query sees the same number of keys, at every place in the segment."""
    same_length_keys: Literal["memory_and_self", "memory"] = "memory_and_self"
    """Number of keys with `same_length`: `M + 1` as in the official TensorFlow code, or `M` as in
    PyTorch."""
    share_attention_biases: bool = False
    """Whether all layers share one content bias `u` and one position bias `v`."""
    layer_norm_epsilon: Annotated[float, positive()] = 1e-12
    """Added to the variance in layer normalisation. The official TensorFlow code has 1e-12."""
    cutoffs: tuple[int, ...] = ()
    """First id of each cluster of rare tokens. An empty list means one full softmax."""
    division_factor: Annotated[int, positive(MAX_WIDTH)] = 1
    """Cluster `i` of the vocabulary is `embedding_dim // division_factor**i` wide."""
    share_tail_projections: bool = False
    """Whether embedding and softmax share the projections of all but cluster 0. Without `cutoffs`
    they share the only projection."""
    project_same_dim: bool = True
    """Whether clusters that are `hidden_dim` wide are projected too."""
    tie_weights: bool = True
    """Whether embedding and softmax share their tables."""
    initializer: Literal["normal", "uniform"] = "normal"
    """Distribution of the initial weights."""
    initializer_range: Annotated[float, positive()] = 0.1
    """Largest initial weight if `initializer` is "uniform"; the smallest is its negative."""
    projection_stddev: Annotated[float, positive()] = 0.01
    """Standard deviation of the initial projections of embedding and softmax, if `initializer` is
    "normal"."""

    @property
    def clusters(self) -> VocabularyClusters:
        """Clusters of embedding and softmax."""
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
        """Remembered tokens: `memory_length`, or 0 without recurrence."""
        return self.memory_length if self.recurrence else 0

    @property
    def has_relative_positions(self) -> bool:
        """True if positions are distances, so that memory does not depend on positions."""
        return self.position_encoding in RELATIVE_ENCODINGS

    def farthest(self, memory_length: int) -> int | None:
        """Returns the largest distance at which a query sees a key; None means no limit."""
        if not self.same_length:
            return None
        return memory_length - (self.same_length_keys == "memory")

    def validate(self) -> None:
        is_even = self.hidden_dim % 2 == 0
        self.require(
            "hidden_dim",
            is_even,
            "be even, because half of a position encoding is sines and half cosines",
        )
        has_table = self.position_encoding in LEARNED_ENCODINGS
        if has_table != (self.num_positions is not None):
            encodings = ", ".join(LEARNED_ENCODINGS)
            self.refuse(
                f"`num_positions` must be set with {encodings}, and None with other positions.",
                "position_encoding",
                "num_positions",
            )
        if self.clamp_length is not None and has_table:
            self.refuse(
                "`clamp_length` must be None with these positions; use `num_positions`.",
                "clamp_length",
                "position_encoding",
            )
        if self.share_attention_biases and self.position_encoding != "transformer_xl":
            self.refuse(
                '`share_attention_biases` needs `position_encoding="transformer_xl"`.',
                "position_encoding",
            )
        if self.residual_gate is not None and not self.pre_norm:
            self.refuse("`residual_gate` needs `pre_norm=True`.", "residual_gate", "pre_norm")
        self.require("cutoffs", len(self.cutoffs) < MAX_CLUSTERS, f"be fewer than {MAX_CLUSTERS}")
        _ = self.clusters  # refuses cutoffs and widths that do not fit


AnyModelConfig = ModelConfig | LSTMConfig | QRNNConfig
"""Configuration of any of the models."""
