"""A decoder block whose weights do not change.

Shape letters used in this module: B rows, T segment length, D hidden width.
"""

from keras import ops

from txl_tf import functional


class InferenceBlock:
    """What all ways to run a `DecoderBlock` with `training=False` have in common.

    Args:
        block: `DecoderBlock` whose positions are relative.
        biases: dict of `content_bias` and `position_bias` where the block has
            none of its own, or empty.
    """

    def __init__(self, block, biases):
        self._block = block
        self._attention = block.attention
        self._biases = biases

    def _attention_inputs(self, hidden):
        block = self._block
        return _normalized(block.attention_norm, hidden) if block.pre_norm else hidden

    def _transform(self, hidden, attended):
        """What the block does of `(B, T, D)` after its attention."""
        block = self._block
        hidden = hidden + attended
        if not block.pre_norm:
            hidden = _normalized(block.attention_norm, hidden)
        transformed = _normalized(block.feed_forward_norm, hidden) if block.pre_norm else hidden
        # Where rows are not apart, the kernels add and rectify while they multiply.
        rows = ops.reshape(transformed, [-1, transformed.shape[-1]])  # [B * T, D]
        hidden = hidden + ops.reshape(self._feed_forward(rows), ops.shape(hidden))
        return hidden if block.pre_norm else _normalized(block.feed_forward_norm, hidden)

    def _feed_forward(self, rows):
        return self._block.feed_forward(rows)


def _normalized(layer, inputs):
    """What a `LayerNormalization` gives, with `inputs` read and written fewer times."""
    tensor = functional.at_least_float32(inputs)
    centered = tensor - ops.mean(tensor, axis=-1, keepdims=True)
    variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)
    outputs = centered * ops.rsqrt(variance + layer.epsilon) * layer.gamma + layer.beta
    return ops.cast(outputs, layer.compute_dtype)
