"""Records of training steps on the device, and checksums of their batches.

Shape letters used in this module: S largest number of steps of a loop, b rows of a replica, B
rows, T segment length.
"""

import numpy as np
import tensorflow as tf

from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.training.step_report import StepRecord, StepStatus


class StepRecords:
    """Figures of the steps of a loop, and a flag that the run must stop.

    They stay on the device and are fetched once a loop: fetching after each step would make the
    device wait for the host. `rows_per_replica` is `b`, and `max_steps` is `S`.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, rows_per_replica: int, max_steps: int
    ) -> None:
        self._max_steps = max_steps
        self._steps = ReplicaState(
            strategy,
            1,
            {
                "loss": tf.TensorSpec([max_steps], tf.float32),
                "gradient_norm": tf.TensorSpec([max_steps], tf.float32),
                "checksum": tf.TensorSpec([max_steps], tf.int32),
                "status": tf.TensorSpec([max_steps], tf.int32),
                "is_stopped": tf.TensorSpec([], tf.bool),
            },
        )
        self._rows = ReplicaState(
            strategy, rows_per_replica, {"is_finite": tf.TensorSpec([], tf.bool)}
        )

    def is_stopped(self) -> tf.Tensor:
        """True if an earlier step has stopped the run; inside `strategy.run` only."""
        return self._steps.read()["is_stopped"][0]

    def write(
        self,
        index: tf.Tensor,
        *,
        loss: tf.Tensor,
        gradient_norm: tf.Tensor,
        checksum: tf.Tensor,
        status: tf.Tensor,
        finite_rows: tf.Tensor,
    ) -> None:
        """Records a step, unless the run is stopped; inside `strategy.run` only.

        `index` counts the steps of this loop before this one. `loss` and `gradient_norm` are
        float32 scalars of all replicas; `checksum`, an int32 scalar, and `finite_rows`, bool
        `(b,)`, are of this replica. `status` is an int32 scalar, a `StepStatus`.
        """
        state = self._steps.read()
        was_stopped = state["is_stopped"][0]
        here = tf.equal(tf.range(self._max_steps), tf.cast(index, tf.int32))
        here = tf.logical_and(here, tf.logical_not(was_stopped))[None]
        values = {
            "loss": loss,
            "gradient_norm": gradient_norm,
            "checksum": checksum,
            "status": status,
        }
        written = {name: tf.where(here, value, state[name]) for name, value in values.items()}
        is_stopped = tf.logical_or(state["is_stopped"], tf.equal(status, int(StepStatus.STOPPED)))
        self._steps.write({**written, "is_stopped": is_stopped})
        before = self._rows.read()["is_finite"]
        self._rows.write({"is_finite": tf.where(was_stopped, before, finite_rows)})

    def fetch(self, first_step: int, last_step: int) -> list[StepRecord]:
        """Returns the records of a loop in order, with the step that stopped the run, if any.

        `first_step` and `last_step` count the steps done before and after the loop.
        """
        state = self._steps.to_global()
        num_steps = last_step - first_step + int(state["is_stopped"][0])
        # The checksums of all replicas add up, modulo 2**32, to the checksum of the batch.
        checksums = state["checksum"].view(np.uint32).sum(axis=0, dtype=np.uint32)
        return [
            StepRecord(
                step=first_step + index + 1,
                nats_per_token=float(state["loss"][0, index]),
                gradient_norm=float(state["gradient_norm"][0, index]),
                checksum=int(checksums[index]),
                status=StepStatus(int(state["status"][0, index])),
            )
            for index in range(num_steps)
        ]

    def non_finite_rows(self) -> list[int]:
        """Returns the rows of the global batch whose loss was not finite in the last step."""
        return np.flatnonzero(~self._rows.to_global()["is_finite"]).tolist()


_MULTIPLIER = 0x9E3779B1
ROW_MULTIPLIER = 0x85EBCA6B
TARGET_MULTIPLIER = 0xC2B2AE35


def batch_checksum(
    token_ids: tf.Tensor, target_ids: tf.Tensor, rows: tf.Tensor, is_counted: tf.Tensor
) -> tf.Tensor:
    """Computes a replica's share of the checksum of a batch, an int32 scalar, on the device.

    The checksum is a sum over tokens, positions and rows modulo 2**32, so the shares add up for
    any split of the rows. Every factor is odd, so a change of any one token changes it. The ids
    are int32 `(B, T)`; `rows`, int32 `(B,)`, are positions in the global batch; `is_counted`, bool
    `(B,)`, is false for padding rows. The bits of the result are an unsigned number.
    """
    factors = tf.constant(position_factors(token_ids.shape[1]).view(np.int32))
    target_factor = tf.constant(np.uint32(TARGET_MULTIPLIER).astype(np.int32))
    row_factor = tf.constant(np.uint32(ROW_MULTIPLIER).astype(np.int32))
    sums = tf.reduce_sum((token_ids + 1 + (target_ids + 1) * target_factor) * factors, axis=1)
    sums *= 2 * (rows * row_factor) + 1  # [B]
    return tf.reduce_sum(tf.where(is_counted, sums, 0))


def position_factors(length: int) -> np.ndarray:
    """Returns odd factors that differ by position."""
    return np.cumprod(np.full(length, _MULTIPLIER, np.uint32), dtype=np.uint32)
