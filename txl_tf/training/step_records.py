"""What every step leaves behind for the host, kept on the device until a loop ends.

Letters: S largest number of steps of a loop, b rows of a replica.
"""

import numpy as np
import tensorflow as tf

from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.training.step_record import StepRecord
from txl_tf.training.step_status import StepStatus


class StepRecords:
    """Figures of the steps of a loop, and whether the run must stop.

    Fetching figures after each step would make the device wait for the host.
    These stay on the device, and are fetched once a loop.

    Args:
        strategy: `tf.distribute.Strategy`.
        rows_per_replica: int. `b`.
        max_steps: int. `S`.
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
        """Whether an earlier step has stopped the run; inside `strategy.run` only."""
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

        Args:
            index: int tensor. Steps of this loop before this one.
            loss: float32 scalar tensor of all replicas.
            gradient_norm: float32 scalar tensor of all replicas.
            checksum: int32 scalar tensor of this replica.
            status: int32 scalar tensor, a `StepStatus`.
            finite_rows: bool tensor `(b,)` of this replica.
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
        """The records of a loop.

        Args:
            first_step: int. Steps done before the loop.
            last_step: int. Steps done after it.

        Returns:
            List of `StepRecord`, in order; after those that were done, the one
            that stopped the run, if one did.
        """
        state = self._steps.to_global()
        num_steps = last_step - first_step + int(state["is_stopped"][0])
        # Each replica has the checksum of its own rows; the sum is that of all, modulo 2**32.
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
        """Rows of the global batch whose loss was not finite in the last step."""
        return np.flatnonzero(~self._rows.to_global()["is_finite"]).tolist()
