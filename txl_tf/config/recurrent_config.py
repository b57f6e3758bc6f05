"""The configuration of the recurrent baselines."""

import dataclasses

from txl_tf.config.frozen_config import FrozenConfig
from txl_tf.config.limits import MAX_LAYERS, MAX_TOKEN_IDS, MAX_TOKENS, MAX_WIDTH

_LIMITS = {
    "vocabulary_size": MAX_TOKEN_IDS,
    "num_layers": MAX_LAYERS,
    "hidden_dim": MAX_WIDTH,
    "embedding_dim": MAX_WIDTH,
    "segment_length": MAX_TOKENS,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentConfig(FrozenConfig):
    """Sizes and options that an `LSTMLanguageModel` and a `QRNNLanguageModel` share.

    Neither weights nor memory depend on `segment_length`, so a trained model
    can be evaluated with another.

    Raises:
        ValueError: If a value is out of its range.
    """

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

    def validate(self) -> None:
        self.check_at_most(_LIMITS)
        for name in (
            "vocabulary_size",
            "num_layers",
            "hidden_dim",
            "segment_length",
            "initializer_stddev",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={getattr(self, name)}"
                )
        if self.embedding_dim is not None and self.embedding_dim <= 0:
            raise ValueError(
                "`embedding_dim` must be positive, or None for the hidden width. "
                f"Received: embedding_dim={self.embedding_dim}"
            )
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"`dropout` must be in [0, 1). Received: dropout={self.dropout}")

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
