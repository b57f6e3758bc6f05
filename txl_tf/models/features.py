"""Features of a text: the layer they come from, and how its hidden states are reduced."""

from typing import Literal, get_args

from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig

Pooling = Literal["tokens", "segments", "last", "mean"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
"""Reductions of the hidden states of tokens to features of a text."""


def hidden_layer(config: ModelConfig | LSTMConfig | QRNNConfig, layer: int | None) -> int:
    """Returns the index of a layer; ValueError if its hidden states do not exist.

    0 is the embedding layer, `L` or `None` the last block; negative ones count from the last, -1.
    A recurrent model only has the last.
    """
    last = config.num_layers
    number = last if layer is None else layer + (last + 1 if layer < 0 else 0)
    first = 0 if isinstance(config, ModelConfig) else last
    if not first <= number <= last:
        valid_range = f"0 to {last} or {-last - 1} to -1" if first < last else f"{last} or -1"
        raise ValueError(f"`layer` must be {valid_range} for this model. Received: layer={layer}")
    return number
