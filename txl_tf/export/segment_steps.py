"""Reads one token per row as the model itself does, within a graph.

Shape letters used in this module: B rows, D hidden width, V vocabulary, L layers.
"""

import tensorflow as tf

from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


class SegmentSteps:
    """Segments of one token, for models whose positions cannot be projected.

    Must be made where the model's weights are those of the graph at hand.

    Args:
        model: `TransformerXL`.
    """

    def __init__(self, model: TransformerXL) -> None:
        self._model = model

    def begin(self, memory: Memory) -> Memory:
        """The state before the first token."""
        return memory

    def step(self, token_ids: tf.Tensor, state: Memory) -> tuple[tf.Tensor, tf.Tensor, Memory]:
        """Reads a token.

        Args:
            token_ids: int32 tensor `(B,)`.
            state: what `begin` or `step` returned.

        Returns:
            Tuple of the log-probabilities `(B, V)` of the next token, what the
            layers read `(L, B, D)`, and the next state.
        """
        hidden, state = self._model.hidden_states(token_ids[:, None], state)
        inputs = tf.stack([each[:, 0] for each in hidden[:-1]])
        return self._model.log_probs_of(hidden[-1])[:, 0], inputs, state
