"""Transformer-XL for inference with one row, or few.

Shape letters used in this module:
  B rows, T segment length, M memory length, C tokens that attend together.
"""

from keras import ops

from txl_tf.models.headwise_block import HeadwiseBlock
from txl_tf.models.projected_transformer_xl import ProjectedTransformerXL

# Scores of so many queries of a head stay in a cache, and their products are large enough.
_TOKENS_AT_ONCE = 256


class HeadwiseTransformerXL(ProjectedTransformerXL):
    """A `ProjectedTransformerXL` that attends head by head, and in parts.

    It gives the same numbers. It is faster where TensorFlow's own kernels run
    on a processor with caches, rows are few and memory is long. Many segments
    are best read at once: only as many attend together as is good for that.

    The keys of its `ProjectedMemory` are `(B, N, M, H)`, like the values.

    Args:
        model: `TransformerXL`.

    Call arguments:
        position_keys: optional result of `position_keys(M + C)`, where `C` is
            `tokens_at_once(T, segment_length)`.
        Others are those of `ProjectedTransformerXL`.

    Raises:
        ValueError: If the positions of the model are absolute.
    """

    _block_class = HeadwiseBlock

    def tokens_at_once(self, num_tokens, segment_length=None):
        """How many tokens attend together.

        Args:
            num_tokens: int. `T`.
            segment_length: as in a call.

        Returns:
            A positive int.
        """
        if segment_length is None:
            return num_tokens
        num_segments = max(1, _TOKENS_AT_ONCE // segment_length)
        return min(num_tokens, num_segments * segment_length)

    def _masks(self, num_tokens, memory_length, valid_length, segment_length=None):
        at_once = self.tokens_at_once(num_tokens, segment_length)
        masks = []
        for start in range(0, num_tokens, at_once):
            length = min(at_once, num_tokens - start)
            filled = ops.minimum(valid_length + start, memory_length)
            scores = self.mask_scores(length, memory_length, filled, segment_length)
            masks.append(ops.squeeze(scores, axis=1))  # [B, C, M + C + 1]
        return tuple(masks)
