"""A decoder block that reads the keys and values of memory.

Shape letters used in this module:
  B rows, T segment length, M memory length, K = M + T key length,
  D hidden width, N heads, H head width.
"""

from keras import ops

from txl_tf import functional
from txl_tf.models.inference_block import InferenceBlock


class ProjectedBlock(InferenceBlock):
    """Runs a `DecoderBlock` for inference, with memory that is projected.

    It computes what the block does with `training=False`, from the block's own
    weights. What the block would compute again of its memory for every
    segment, or of the positions, is an argument here.

    Args:
        block: `DecoderBlock` whose positions are relative.
        biases: dict of `content_bias` and `position_bias` where the block has
            none of its own, or empty.

    Attributes:
        keys_axis: int. The axis on which one key follows the other.
    """

    keys_axis = 3

    def project_distances(self, key_length, encoding):
        """The keys of all distances.

        Args:
            key_length: int. `K`.
            encoding: float tensor `(K, D)`, the sinusoids of all distances.

        Returns:
            `DistanceKeys`.
        """
        return self._attention.project_distances(key_length, encoding)

    def project(self, hidden):
        """Keys and values of hidden states.

        Args:
            hidden: float tensor `(B, T, D)`, inputs of this block.

        Returns:
            Tuple of keys `(B, N, H, T)` and values `(B, N, T, H)`.
        """
        attention = self._attention
        hidden = ops.cast(hidden, attention.compute_dtype)
        return self._project_normalized(self._attention_inputs(hidden))

    def _project_normalized(self, hidden):
        attention = self._attention
        keys = self._split_keys(attention.key(hidden))
        values = ops.transpose(attention.split_heads(attention.value(hidden)), [0, 2, 1, 3])
        return keys, values

    def _split_keys(self, keys):
        return ops.transpose(self._attention.split_heads(keys), [0, 2, 3, 1])

    def __call__(self, hidden, keys, values, mask_scores, distance_keys):
        """Reads one segment.

        Args:
            hidden: float tensor `(B, T, D)`.
            keys: float tensor `(B, N, H, M)`.
            values: float tensor `(B, N, M, H)`.
            mask_scores: float tensor that broadcasts to `(B, N, T, K + 1)`, over
                distances: 0 where attention is allowed, very negative elsewhere.
            distance_keys: `DistanceKeys` of `K` distances.

        Returns:
            Tuple of the next hidden states `(B, T, D)`, and keys and values of
            memory and segment, `(B, N, H, K)` and `(B, N, K, H)`.
        """
        inputs = self._attention_inputs(hidden)
        new_keys, new_values = self._project_normalized(inputs)
        keys = ops.concatenate([keys, new_keys], axis=self.keys_axis)  # [B, N, H, K]
        values = ops.concatenate([values, new_values], axis=2)  # [B, N, K, H]
        attended = self._attend(inputs, keys, values, mask_scores, distance_keys)
        hidden = self._transform(hidden, self._attention.output_projection(attended))
        return hidden, keys, values

    def _attend(self, inputs, keys, values, mask_scores, distance_keys):
        """What the heads have read, side by side, `(B, T, N * H)`."""
        scores = self._scores(inputs, keys, mask_scores, distance_keys)
        probabilities = ops.cast(functional.softmax_over_keys(scores), values.dtype)
        attended = ops.transpose(ops.matmul(probabilities, values), [0, 2, 1, 3])
        width = self._attention.num_heads * self._attention.head_dim
        return ops.reshape(attended, [-1, ops.shape(inputs)[1], width])

    def _queries(self, inputs):
        """What is compared with contents, and what with distances, `(B, T, N, H)`."""
        query = ops.matmul(inputs, self._attention.scaled_query_kernel())
        return self._attention.queries(query, **self._biases)

    def _scores(self, inputs, keys, mask_scores, distance_keys):
        content_query, distance_query = self._queries(inputs)
        content_query = ops.transpose(content_query, [0, 2, 1, 3])  # [B, N, T, H]
        distance_query = ops.transpose(distance_query, [0, 2, 1, 3])
        # The mask goes in here, because oneDNN adds it while it multiplies.
        over_distances = ops.matmul(distance_query, distance_keys.keys[None]) + mask_scores
        if distance_keys.scores is not None:
            over_distances = over_distances + distance_keys.scores  # [B, N, T, K + 1]
        over_keys = functional.shift_padded(over_distances)  # [B, N, T, K]
        return functional.at_least_float32(ops.matmul(content_query, keys) + over_keys)
