"""Figures of training steps on the device, and the checksum of a batch.

Shape letters: B rows of a replica, T segment length or, for a task, the length of all its ids.
"""

from typing import Any

import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf.distribution.mesh_state import replica_state
from txl_tf.distribution.strategy import AnyStrategy
from txl_tf.training.ledger import StepRecord, StepStatus

# Large odd numbers. Ledgers compare checksums of different runs, so they must not change.
_POSITION_MULTIPLIER = 0x9E3779B1
_ROW_MULTIPLIER = 0x85EBCA6B
_TARGET_MULTIPLIER = 0xC2B2AE35


def batch_checksum(token_ids: Any, target_ids: Any, rows: Any, is_counted: Any) -> Any:
    """Computes a replica's share of the checksum of a batch, an int32 scalar, on the device.

    The checksum is a sum over positions and rows modulo 2**32, so the shares add up to it for any
    split of the rows. Every token has an odd factor, so the change of a single token changes the
    checksum. `token_ids` and `target_ids` are int32 `(B, T)`. `rows`, int32 `(B,)`, are places in
    the global batch; `is_counted`, bool `(B,)`, is false for padding rows.
    """
    # The powers of an odd number are odd, and differ by position.
    multipliers = np.full(token_ids.shape[1], _POSITION_MULTIPLIER, np.uint32)
    factors = np.cumprod(multipliers, dtype=np.uint32)
    factors = ops.convert_to_tensor(factors.view(np.int32))
    target_factor, row_factor = (
        ops.convert_to_tensor(np.uint32(each).astype(np.int32))
        for each in (_TARGET_MULTIPLIER, _ROW_MULTIPLIER)
    )
    sums = ops.sum((token_ids + 1 + (target_ids + 1) * target_factor) * factors, axis=1)
    sums *= 2 * (rows * row_factor) + 1  # [B]
    return ops.sum(ops.where(is_counted, sums, 0))


# Scalars of each step. `loss` is the sum over the replicas, and `gradient_norm` is the norm of the
# summed gradients. `status` is the same on all; each replica has its own share of `checksum`.
_FIGURES = {
    "loss": tf.float32,
    "gradient_norm": tf.float32,
    "checksum": tf.int32,
    "status": tf.int32,
}


class StepRecords:
    """Figures of up to `max_steps` steps of a loop, and a flag that the run must stop.

    The figures stay on the device and are fetched once a loop: fetching after each step would make
    the device wait for the host. The first step with the status `STOPPED` sets the flag. From then
    on `write` changes nothing, so the figures of that step are the last ones of the loop.
    A `MeshProgram` must know all `states`.
    """

    def __init__(self, strategy: AnyStrategy, rows_per_replica: int, max_steps: int) -> None:
        self._max_steps = max_steps
        specs = {name: tf.TensorSpec([max_steps], dtype) for name, dtype in _FIGURES.items()}
        specs["is_stopped"] = tf.TensorSpec([], tf.bool)
        self._steps = replica_state(strategy, 1, specs)
        self._finite_rows = replica_state(
            strategy, rows_per_replica, {"is_finite": tf.TensorSpec([], tf.bool)}
        )
        self.states = [self._steps, self._finite_rows]

    def is_stopped(self) -> Any:
        """True if an earlier step has stopped the run; inside a step only."""
        return self._steps.read()["is_stopped"][0]

    def write(self, index: Any, finite_rows: Any, **figures: Any) -> None:
        """Records the step `index` of the loop, unless the run is stopped; inside a step only.

        `finite_rows`, bool `(B,)`, are true for rows of this replica with a finite loss. `figures`
        are the scalars that `_FIGURES` names.
        """
        state = self._steps.read()
        was_stopped = state["is_stopped"][0]
        here = ops.equal(ops.arange(self._max_steps, dtype="int32"), ops.cast(index, "int32"))
        here = ops.logical_and(here, ops.logical_not(was_stopped))[None]
        new_figures = {name: ops.where(here, value, state[name]) for name, value in figures.items()}
        is_stop = ops.equal(figures["status"], int(StepStatus.STOPPED))
        self._steps.write(
            {**new_figures, "is_stopped": ops.logical_or(state["is_stopped"], is_stop)}
        )
        before = self._finite_rows.read()["is_finite"]
        self._finite_rows.write({"is_finite": ops.where(was_stopped, before, finite_rows)})

    def fetch(self, first_step: int, last_step: int) -> list[StepRecord]:
        """Returns the records of the steps from `first_step` to `last_step`.

        Both count the steps done, before and after the loop. A step that stopped the run is not
        counted, but has the last record.
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
        return np.flatnonzero(~self._finite_rows.to_global()["is_finite"]).tolist()
