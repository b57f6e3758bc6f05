"""Order of examples: the examples that every row reads at every step, without state.

Letters: B rows over all replicas, E examples.
"""

import dataclasses
import functools
import hashlib

import numpy as np

from txl_tf.errors import DataDamagedError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExamplePlan:
    """Order in which examples are read, shuffled for each epoch.

    Each epoch reads every example once; its last batch is filled with the first examples of the
    next epoch. The order is derived by SHA-256 and integer arithmetic from fingerprint, seed and
    epoch, so it never changes. Raises DataDamagedError without examples, ValueError without rows.
    """

    num_examples: int
    num_rows: int
    seed: int
    fingerprint: str

    def __post_init__(self) -> None:
        if self.num_rows <= 0:
            raise ValueError(f"`num_rows` must be positive. Received: {self.num_rows}")
        if self.num_examples <= 0:
            raise DataDamagedError(
                "There is no example to train on.", where="train", remedy="Name a longer file."
            )

    @property
    def steps_per_epoch(self) -> float:
        """Steps that read every example once; a fraction if the last batch is shared."""
        return self.num_examples / self.num_rows

    def positions(self, step: int) -> np.ndarray:
        """Returns the example of every row, int64 `[B]`; `step` counts from 0 over all epochs."""
        if step < 0:
            raise ValueError(f"`step` must not be negative. Received: {step}")
        return self.examples_of(step, 1)[0]

    def examples_of(self, first_step: int, num_steps: int) -> np.ndarray:
        """Returns the examples of some steps, int64 `[num_steps, B]`."""
        begin = first_step * self.num_rows
        end = begin + num_steps * self.num_rows
        epochs = range(begin // self.num_examples, -(-end // self.num_examples))
        orders = [self._order(epoch) for epoch in epochs]
        stream = np.concatenate(orders) if orders else np.zeros(0, np.int64)
        skipped = epochs.start * self.num_examples
        return stream[begin - skipped : end - skipped].reshape(num_steps, self.num_rows)

    def _order(self, epoch: int) -> np.ndarray:
        return _shuffled(self.num_examples, f"{self.fingerprint}:{self.seed}:{epoch}")


# Consecutive steps use the same epoch.
@functools.lru_cache(maxsize=4)
def _shuffled(num_examples: int, key: str) -> np.ndarray:
    """Sorts the examples by a hash of the key and their index."""
    begin = np.frombuffer(hashlib.sha256(key.encode()).digest()[:8], "<u8")[0]
    numbers = begin + (np.arange(num_examples, dtype=np.uint64) + np.uint64(1)) * _GOLDEN
    for shift, factor in zip((30, 27), _FACTORS, strict=True):  # SplitMix64
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * factor
    return np.argsort(numbers ^ (numbers >> np.uint64(31)), kind="stable")
