"""Order in which examples of a task are read, and their reader.

Shape letters used in this module: B rows, b rows of one replica, L positions of a text.
"""

import dataclasses
import functools
import hashlib

import numpy as np
import tensorflow as tf

from txl_tf.evaluation.task_evaluator import gather_texts
from txl_tf.tasks.encoding import EncodedExamples

_PREFETCHED_BATCHES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamplePlan:
    """Order in which examples are read, shuffled for each epoch.

    Each epoch reads every example once. Its last batch is filled with the first examples of the
    next epoch. SHA-256 makes a key for Philox from fingerprint, seed and epoch. The raw numbers of
    Philox, which decide the order, are the same in every version of NumPy.
    """

    num_examples: int
    num_rows: int
    seed: int
    fingerprint: str

    @property
    def steps_per_epoch(self) -> float:
        """Steps of an epoch; a fraction if epochs share a batch."""
        return self.num_examples / self.num_rows

    def examples_of(self, first_step: int, num_steps: int) -> np.ndarray:
        """Returns the examples of consecutive steps, int64 `[num_steps, B]`.

        `first_step` counts from 0 over all epochs.
        """
        begin = first_step * self.num_rows
        end = begin + num_steps * self.num_rows
        epochs = range(begin // self.num_examples, -(-end // self.num_examples))
        keys = [f"{self.fingerprint}:{self.seed}:{epoch}" for epoch in epochs]
        orders = [_shuffled(self.num_examples, key) for key in keys]
        stream = np.concatenate([np.zeros(0, np.int64), *orders])
        num_skipped = epochs.start * self.num_examples
        return stream[begin - num_skipped : end - num_skipped].reshape(num_steps, self.num_rows)


# Consecutive steps mostly use the same epoch.
@functools.lru_cache(maxsize=4)
def _shuffled(num_examples: int, text: str) -> np.ndarray:
    """Sorts the examples by random numbers, whose key is the hash of a text."""
    key = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
    return np.argsort(np.random.Philox(key=key).random_raw(num_examples), kind="stable")


class ExampleReader:
    """Reader of encoded examples in the order of a plan.

    All batches have the length of the longest text, rounded up to whole segments, so that one
    compiled program reads all of them. The model skips segments without tokens. The data sets use
    only TensorFlow operations, see `TrainingSegments`.
    """

    def __init__(self, encoded: EncodedExamples, plan: ExamplePlan, segment_length: int) -> None:
        self._encoded = encoded
        self._plan = plan
        self.length = encoded.padded_length(segment_length)
        """Positions `L` of every text of a batch."""

    @tf.autograph.experimental.do_not_convert
    def dataset_fn(
        self, first_step: int, rows: range, per_replica_rows: int, num_steps: int
    ) -> tf.data.Dataset:
        """Creates the data set of one host, like `TrainingSegments.dataset_fn`.

        An element is a batch of one replica: `token_ids`, int32 `(b, L)`; `num_tokens`, int32
        `(b,)`; and `targets` `(b,)`, see `TaskObjective`.
        """
        order = self._plan.examples_of(first_step, num_steps)
        # Padding rows, which make all shares equal, repeat rows of the plan.
        order = order[:, np.arange(rows.start, rows.stop) % self._plan.num_rows]
        numbers = order.reshape(-1, per_replica_rows)
        encoded, length = self._encoded, self.length
        stream, offsets = tf.constant(encoded.token_ids), tf.constant(encoded.offsets)
        targets = tf.constant(encoded.targets)

        def gather(numbers: tf.Tensor) -> dict[str, tf.Tensor]:
            token_ids, counts = gather_texts(stream, offsets, numbers, length)
            targets_of_rows = tf.gather(targets, numbers)
            return {"token_ids": token_ids, "num_tokens": counts, "targets": targets_of_rows}

        dataset = tf.data.Dataset.from_tensor_slices(numbers).map(gather)
        options = tf.data.Options()
        options.deterministic = True
        options.autotune.enabled = False  # see `TrainingSegments`
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.prefetch(_PREFETCHED_BATCHES).with_options(options)

    def describe_row(self, step: int, row: int) -> str:
        """Names the example in a row at a step, both counted from 0."""
        example = self._encoded.examples[self._plan.examples_of(step, 1)[0, row]]
        return f"row {row} ({example.where})"

    def count_tokens(self, first_step: int, last_step: int) -> int:
        """Counts the tokens of the texts in a range of steps."""
        numbers = self._plan.examples_of(first_step, last_step - first_step)
        return int(self._encoded.num_tokens[numbers].sum())
