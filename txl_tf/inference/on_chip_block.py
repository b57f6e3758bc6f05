"""Decoder block in inference whose attention scores stay on the chip of a TPU.

Shape letters used in this module: B rows, T tokens, P places of memory, R rows of the table of
distances, D hidden width, N heads, H head width.
"""

from keras import ops

from txl_tf.inference.blocks import BatchedBlock
from txl_tf.inference.memory import SideBySideMemory
from txl_tf.tpu_kernels.inference_plan import InferencePlan


class OnChipBlock(BatchedBlock):
    """Block that reads segments by the attention kernel for TPUs, mainly for long memories.

    Moving scores `(B, N, T, K)` through the memory of a TPU takes longer than all arithmetic. The
    kernel computes them tile by tile, shifts them on the chip, and also writes the next memory.
    `keys` and `values` are `(B, P, N * H)`, `mask_scores` are `VisibleKeys`, and `distance_keys`
    `(R, N * H)` come from `distance_table`.
    """

    memory_class = SideBySideMemory

    def plan_of_table(self, kernel, num_tokens, num_places):
        """Returns an `InferencePlan` for the table of distances of `T` tokens."""
        return InferencePlan(
            num_rows=1,
            segment_length=num_tokens,
            memory_length=num_places,
            num_heads=self._attention.num_heads,
            head_dim=self._attention.head_dim,
            dtype=self._attention.compute_dtype,
            **kernel.of_plans,
        )

    def distance_table(self, plan, encoding):
        """Returns the keys `(R, N * H)` of all distances.

        Row `j` of `encoding` `(K, D)` encodes the distance `K - 1 - j`; `K` includes padding.
        """
        table = self._attention.distance_table(encoding)
        return ops.pad(table, [[0, plan.table_length - plan.padded_key_length], [0, 0]])

    def __call__(self, hidden, keys, values, mask_scores, distance_keys, lengths=None):
        # Imported here, as it needs TensorFlow and JAX.
        from txl_tf.tpu_kernels.attention_call import attend_in_inference

        inputs = self._attention_inputs(hidden)
        query = self._attention.query(inputs)  # [B, T, N * H]
        new = self._project_normalized(inputs)
        num_tokens, num_places = query.shape[1], keys.shape[1]
        plan = mask_scores.inference_plan(query, self._attention.num_heads)
        attended, *next_memory = attend_in_inference(
            plan,
            mask_scores.kernel.platform,
            mask_scores.first_keys(num_tokens),
            (query, *new),
            (keys, values),
            distance_keys,
            self._attention.side_by_side_biases(**self._biases),
        )
        if lengths is not None or not plan.writes_memory:
            together = self._put_together((keys, values), new)
            next_memory = self._remembered(*together, lengths, num_places)
        hidden = self._transform(hidden, self._attention.output_projection(attended))
        return hidden, *next_memory
