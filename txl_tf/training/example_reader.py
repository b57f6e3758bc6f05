"""Reader of task examples as a `tf.data.Dataset`.

Shape letters used in this module: b rows of one replica, C texts of an example, L positions of a
text.
"""

import numpy as np
import tensorflow as tf

from txl_tf.tasks.example_encoding import NO_LABEL, EncodedExamples
from txl_tf.tasks.example_plan import ExamplePlan

_PREFETCHED_BATCHES = 4


class ExampleReader:
    """Reader of encoded examples in the order of a plan.

    All batches have the length of the longest text, in whole segments, so that a compiled program
    sees one shape; segments without a token cost nothing. The data sets are made of TensorFlow
    operations only, see `SegmentReader`.
    """

    def __init__(self, encoded: EncodedExamples, plan: ExamplePlan, segment_length: int) -> None:
        self._encoded = encoded
        self._plan = plan
        self._tokens_of_example = encoded.num_tokens.sum(axis=1)
        self.length = encoded.padded_length(segment_length)
        """Positions `L` of every text of a batch."""

    @tf.autograph.experimental.do_not_convert
    def dataset_fn(
        self, first_step: int, rows: range, per_replica_rows: int, num_steps: int
    ) -> tf.data.Dataset:
        """Makes the data set of one host, as `SegmentReader.dataset_fn`.

        An element is a batch of one replica: `token_ids`, int32 `(b, L)`, or `(b, C, L)` of a
        choice; `num_tokens`, int32 `(b,)` or `(b, C)`; and `targets`, see `TaskObjective`.
        """
        order = self._plan.examples_of(first_step, num_steps)
        # Rows beyond the plan repeat its rows, as padding of equal shares.
        order = order[:, np.arange(rows.start, rows.stop) % self._plan.num_rows]
        numbers = order.reshape(-1, per_replica_rows)
        dataset = tf.data.Dataset.from_tensor_slices(numbers).map(self._gatherer())
        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False  # see `SegmentReader`
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.prefetch(_PREFETCHED_BATCHES).with_options(options)

    def describe_row(self, step: int, row: int) -> str:
        """Names the example in a row at a step, both counted from 0."""
        example = self._encoded.examples[int(self._plan.positions(step)[row])]
        return f"row {row} ({example.where})"

    def count_tokens(self, first_step: int, last_step: int) -> int:
        """Counts the tokens of the texts in a range of steps."""
        numbers = self._plan.examples_of(first_step, last_step - first_step)
        return int(self._tokens_of_example[numbers].sum())

    def _gatherer(self):
        encoded, length = self._encoded, self.length
        stream, offsets = tf.constant(encoded.token_ids), tf.constant(encoded.offsets)
        num_choices, targets = encoded.num_choices, tf.constant(encoded.targets)

        def gather(numbers: tf.Tensor) -> dict[str, tf.Tensor]:
            texts = numbers[:, None] * num_choices + tf.range(num_choices, dtype=numbers.dtype)
            starts = tf.gather(offsets, texts)  # [b, C]
            counts = tf.gather(offsets, texts + 1) - starts
            places = starts[..., None] + tf.range(length, dtype=starts.dtype)  # [b, C, L]
            is_token = tf.range(length, dtype=counts.dtype) < counts[..., None]
            places = tf.where(is_token, places, 0)
            token_ids = tf.where(is_token, tf.cast(tf.gather(stream, places), tf.int32), 0)
            counts = tf.cast(counts, tf.int32)
            if encoded.kind == "tokens":
                found = tf.where(is_token[:, 0], tf.gather(targets, places[:, 0]), NO_LABEL)
            else:
                found = tf.gather(targets, numbers)
            if encoded.kind != "choice":
                token_ids, counts = token_ids[:, 0], counts[:, 0]
            return {"token_ids": token_ids, "num_tokens": counts, "targets": found}

        return gather
