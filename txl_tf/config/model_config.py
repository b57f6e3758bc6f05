"""The configuration of a model: everything that decides its numbers."""

import dataclasses

from txl_tf.config.frozen_config import FrozenConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(FrozenConfig):
    """Sizes and options of a `TransformerXL`.

    Weights depend neither on `segment_length` nor on `memory_length`, so a
    trained model can be evaluated with others:
    `config.replace(memory_length=1600)`.

    Raises:
        ValueError: If a value is out of its range.
    """

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
    dropout: float = 0.1
    """Rate on embeddings, positions, layer outputs and inner activations."""
    attention_dropout: float = 0.0
    """Rate on attention probabilities."""
    clamp_length: int | None = None
    """Distances above this share one position encoding; None is no clamp."""
    same_length: bool = False
    """Whether every query sees exactly the `M` positions before it and itself."""
    share_attention_biases: bool = False
    """Whether all layers share one content bias `u` and one position bias `v`."""
    layer_norm_epsilon: float = 1e-12
    """Added to the variance; the default is the official TensorFlow code's."""
    initializer_stddev: float = 0.02
    """Standard deviation of the normal distribution of all initial weights."""

    def validate(self) -> None:
        positive = (
            "vocabulary_size",
            "num_layers",
            "hidden_dim",
            "num_heads",
            "head_dim",
            "intermediate_dim",
            "segment_length",
            "layer_norm_epsilon",
            "initializer_stddev",
        )
        for name in positive:
            if getattr(self, name) <= 0:
                raise ValueError(
                    f"`{name}` must be positive. Received: {name}={getattr(self, name)}"
                )
        if self.hidden_dim % 2:
            raise ValueError(
                "`hidden_dim` must be even, because half of a position encoding is sines "
                f"and half cosines. Received: hidden_dim={self.hidden_dim}"
            )
        if self.memory_length < 0:
            raise ValueError(
                "`memory_length` must not be negative. "
                f"Received: memory_length={self.memory_length}"
            )
        if self.clamp_length is not None and self.clamp_length <= 0:
            raise ValueError(
                "`clamp_length` must be positive, or None for no clamp. "
                f"Received: clamp_length={self.clamp_length}"
            )
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise ValueError(
                    f"`{name}` must be in [0, 1). Received: {name}={getattr(self, name)}"
                )
