"""Training step of a replica: loss, gradients summed over the replicas, clipping and update.

Shape letters: B rows of a replica, T segment length.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf import functional
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.remote_hosts import this_host
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.distribution.step_context import (
    assign_everywhere,
    current_value,
    sum_over_replicas,
)
from txl_tf.imports import is_on_jax
from txl_tf.layers.compiled_parts import compiled_part, compiling_parts
from txl_tf.training.ledger import StepStatus
from txl_tf.training.objectives.objective import Batch
from txl_tf.training.row_gradients import RowGradients, row_gradients
from txl_tf.training.step_records import StepRecords, batch_checksum
from txl_tf.training.train_state import TrainState


def guarded_update(
    variables: Sequence[keras.Variable], update: Callable[[], None], is_wanted: Any
) -> None:
    """Runs an update of variables, and undoes it unless `is_wanted`; inside a step only.

    An optimizer cannot compute an update without applying it, and a condition around the update
    cannot be traced where the update sums over replicas. So the variables are read before the
    update and written again after it; XLA makes this a choice between two values. `is_wanted`, a
    bool scalar, is the same on all replicas.
    """
    before = [current_value(variable) for variable in variables]
    if is_on_jax():
        update()
    else:
        # The update depends on one group of all values. Otherwise each operation of the update
        # would wait for every variable, and a deep model would take minutes to trace and to lower.
        with tf.control_dependencies([tf.group(*before)]):
            update()
    assign_everywhere(_where, variables, before, ops.logical_not(is_wanted))


def _where(old: Any, new: Any, is_wanted: Any) -> Any:
    return ops.where(is_wanted, new, old)


def clip_by_global_norm(gradients: list[Any], limit: float) -> tuple[list[Any], Any]:
    """Scales gradients to a global norm of at most `limit`.

    Returns the scaled gradients, and their norm before the scaling.
    """
    norm = ops.sqrt(ops.sum(ops.stack([ops.sum(ops.square(each)) for each in gradients])))
    # The last term is 0 for a finite norm. Otherwise it is NaN, and so are all gradients.
    scale = limit * ops.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)
    return [each * scale for each in gradients], norm


class StepStart(NamedTuple):
    """State of a replica before a step.

    `step` and `first_step`, int scalars, count the steps of the run before this step and before the
    loop. `memory` is the memory of the replica's rows.
    """

    step: Any
    first_step: Any
    memory: Any


class TrainStep:
    """Training step: losses, gradients summed over replicas, clipping and update.

    An objective divides the losses of a replica's rows by the size of the global batch. So the sum
    of the replicas' gradients is the gradient of the mean over the global batch for any split of
    the rows. Gradients are clipped after this sum, because a limit for each replica would depend
    on the number of replicas.

    Each step has one of three outcomes, see `StepStatus`:

    - `APPLIED`: loss and gradients are finite. Weights, count of steps and memory change.
    - `SKIPPED_NON_FINITE`, by the policy `skip`: no weight changes. Count and memory advance, but
      rows without a finite loss get an empty memory.
    - `STOPPED`, by the policy `stop`: nothing changes, and the later steps of the loop change and
      record nothing either. The host finds the status after the loop and ends the run.
    """

    def __init__(
        self,
        experiment: ExperimentConfig,
        state: TrainState,
        replica_memory: ReplicaState,
        records: StepRecords,
        compiles_parts: bool = False,
    ) -> None:
        self._training = experiment.training
        self._compiles_parts = compiles_parts
        self._clip_norm = experiment.optimizer.clip_norm
        self._state = state
        self._variables = state.trainable
        self._replica_memory = replica_memory
        self._records = records
        variables = [*self._variables, *state.optimizer.variables]
        if state.weight_average is not None:
            variables += state.weight_average.variables.values()
        self._changed = variables
        self._drawn_seed = _drawn_once(self._training.seed)

    def __call__(self, inputs: dict[str, Any], first_step: Any) -> None:
        """Runs the step; inside `strategy.run` or a `MeshProgram` only.

        `inputs` are the tensors of this replica's rows by name, see the docstring of the objective.
        `first_step` counts the steps before the loop.
        """
        # 1. The rows of this replica, whose static number the strategy loses with several workers.
        num_rows = self._replica_memory.rows_per_replica
        inputs = {
            name: ops.reshape(tensor, [num_rows, *tensor.shape[1:]])
            for name, tensor in inputs.items()
        }
        step = current_value(self._state.optimizer.iterations)
        before = StepStart(step, first_step, self._replica_memory.read())
        places = self._replica_memory.places()
        is_counted = places < self._training.global_batch_size
        objective = self._state.objective
        weights = ops.cast(is_counted, "float32")
        # Seeds depend on the row, not on the replica: any number of replicas draws the same masks.
        seed = ops.stack([ops.cast(self._drawn_seed, "int32"), ops.cast(step, "int32")])
        dropout_seeds = functional.row_seeds(seed, places)  # [B, 2]
        batch = Batch(inputs, before.memory, dropout_seeds, weights)
        checksum = batch_checksum(*objective.checked_ids(inputs), places, is_counted)
        # 2. Losses and gradients, then the sum over the replicas and the update.
        with compiling_parts(self._compiles_parts):
            num_parts = self._training.gradient_accumulation_steps
            own = row_gradients(objective, self._variables, batch, num_parts)
            # Compiled, so that the gradients are read and written only once.
            compiled_part(self._finish)(own, before, checksum)

    def _finish(self, own: RowGradients, before: StepStart, checksum: Any) -> None:
        """Sums over the replicas, changes the weights, and writes memory and figures.

        `own` are the results of this replica's rows, and `checksum` is the replica's share of the
        checksum, see `batch_checksum`.
        """
        # 1. The mean over all replicas, then clipping.
        loss, *gradients = sum_over_replicas([ops.sum(own.row_losses), *own.gradients])
        gradients, norm = clip_by_global_norm(gradients, self._clip_norm)
        # 2. The update, unless a number is not finite.
        status, is_applied, is_advanced = self._judge(loss, norm)
        guarded_update(self._changed, lambda: self._update(gradients, before.step), is_applied)
        # A skipped step counts too, because the count decides which batch comes next.
        count = self._state.optimizer.iterations
        assign_everywhere(_where, [count], [before.step + 1], is_advanced)
        # 3. Memory and figures.
        finite_rows = ops.isfinite(own.row_losses)

        def next_memory(new: Any, old: Any) -> Any:
            is_kept = ops.reshape(finite_rows, [-1, *[1] * (len(new.shape) - 1)])
            # Other rows become zeros, because NaN would spread even from masked positions.
            finite = ops.where(is_kept, new, ops.zeros([], new.dtype))
            return ops.where(is_advanced, finite, old)

        self._replica_memory.write(tf.nest.map_structure(next_memory, own.memory, before.memory))
        self._records.write(
            ops.cast(before.step, "int32") - ops.cast(before.first_step, "int32"),
            loss=loss,
            gradient_norm=norm,
            checksum=checksum,
            status=status,
            finite_rows=finite_rows,
        )

    def _judge(self, loss: Any, norm: Any) -> tuple[Any, Any, Any]:
        """Returns the status, whether weights change, and whether count and memory advance.

        After a stop in the same loop, the last two are false for any loss.
        """
        # The norm is not finite if one entry is not, which spares a check of each gradient.
        is_finite = ops.logical_and(ops.isfinite(loss), ops.isfinite(norm))
        stops = self._training.on_non_finite == "stop"
        not_finite = StepStatus.STOPPED if stops else StepStatus.SKIPPED_NON_FINITE
        status = ops.where(is_finite, int(StepStatus.APPLIED), int(not_finite))
        # Values are chosen without a branch, because every replica must run all collectives.
        continues = ops.not_equal(status, int(StepStatus.STOPPED))
        is_advanced = ops.logical_and(continues, ops.logical_not(self._records.is_stopped()))
        return ops.cast(status, "int32"), ops.logical_and(is_advanced, is_finite), is_advanced

    def _update(self, gradients: list[Any], step: Any) -> None:
        # `apply` would also increment `iterations`, for which each replica would ask the first.
        # Keras 3.15 has no public method that only updates.
        self._state.optimizer._backend_apply_gradients(gradients, self._variables)
        if self._state.weight_average is not None:
            self._state.weight_average.update(step + 1)


def _drawn_once(seed: int) -> int:
    """Draws an int32 number from the run's seed, the same on every platform.

    The number is drawn before the run, because a TPU would draw it inside the step with its own
    generator.
    """
    with tf.init_scope(), this_host():
        number = tf.random.stateless_uniform(
            [], seed=[seed, 0], minval=None, maxval=None, dtype=tf.int64, alg="philox"
        )
        return int(number.numpy().astype(np.int32))
