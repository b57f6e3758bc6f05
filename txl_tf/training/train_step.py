"""Training step of one replica: gradients, sum over replicas, clipping and update."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from txl_tf import functional
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.remote_hosts import this_host
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.layers.compiled_parts import compiled_part, compiling_parts
from txl_tf.models.memory import Memory
from txl_tf.training.fine_tuning import NoMemory
from txl_tf.training.objective import RowGradients
from txl_tf.training.step_records import StepRecords, batch_checksum
from txl_tf.training.step_report import StepStatus
from txl_tf.training.train_state import TrainState


class GuardedUpdate:
    """Update of variables that is undone unless the step is accepted.

    An optimizer cannot compute an update without applying it, and a condition around it cannot be
    traced where it sums over replicas. So the variables are read before and written again after.
    In a step that is compiled as one program, as on TPUs, this becomes a choice between two values
    in the update itself.
    """

    def __init__(self, variables: Sequence[tf.Variable]) -> None:
        self._variables = list(variables)

    def __call__(self, update: Callable[[], None], is_wanted: tf.Tensor) -> None:
        """Runs `update`, which changes the variables; inside `strategy.run` only.

        `is_wanted` is a bool scalar tensor, the same on all replicas.
        """
        before = [tf.identity(variable) for variable in self._variables]
        # One dependency for all: otherwise each operation of the update would wait for every
        # variable, and a deep model takes minutes to trace and to lower.
        with tf.control_dependencies([tf.group(*before)]):
            update()
        assign_everywhere(self._variables, before, tf.logical_not(is_wanted))


def assign_everywhere(
    variables: Sequence[tf.Variable], values: Sequence[tf.Tensor], is_wanted: tf.Tensor
) -> None:
    """Assigns values that are equal on all replicas, if `is_wanted`; inside `strategy.run` only."""

    def assign_one(variable: tf.Variable, value: tf.Tensor, is_wanted: tf.Tensor) -> None:
        variable.assign(tf.where(is_wanted, value, variable))

    def assign_all(strategy: tf.distribute.Strategy, is_wanted: tf.Tensor, *values) -> None:
        for variable, value in zip(variables, values, strict=True):
            strategy.extended.update(variable, assign_one, args=(value, is_wanted), group=False)

    context = tf.distribute.get_replica_context()
    context.merge_call(assign_all, args=(is_wanted, *values))


class TrainStep:
    """Training step: losses, gradients summed over replicas, clipping and update.

    The objective of a replica is the sum of its token losses over the number of tokens of all
    replicas, so the sum of the replicas' gradients is the gradient of the mean over the global
    batch, whatever each replica's share is. Clipping comes after that sum: clipping each replica
    alone would make the limit depend on the number of replicas.

    A loss or gradient that is not finite changes no weight. By policy the step then stops the run,
    and later steps of the loop change nothing either. Or it is skipped: the memory advances,
    except that rows without a finite loss start with an empty memory. The names of
    `replica_memory` are those in `memory_specs`.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        state: TrainState,
        replica_memory: ReplicaState,
        records: StepRecords,
        compiles_parts: bool = False,
    ) -> None:
        self._config = config.training
        self._compiles_parts = compiles_parts
        self._clip_norm = config.optimizer.clip_norm
        self._state = state
        self._variables = state.trainable
        self._row_gradients = RowGradients(
            state.objective, self._variables, self._config.gradient_accumulation_steps
        )
        self._replica_memory = replica_memory
        self._records = records
        self._guarded_update = GuardedUpdate(self._changed_by_update())
        self._drawn_seed = _drawn_once(self._config.seed)

    def __call__(self, inputs: dict[str, tf.Tensor], first_step: tf.Tensor) -> None:
        """Runs the step; inside `strategy.run` only.

        `inputs` are this replica's rows: int32 `token_ids` and `target_ids` `(B, T)`, bool
        `start_of_stream` `(B,)` and optionally bool `document_starts` `(B, T)`; for a task the
        fields of `TaskBatch`. `first_step` counts the steps before the loop.
        """
        # With several workers the strategy loses the static number of rows.
        num_rows = self._replica_memory.rows_per_replica
        inputs = {
            name: tf.ensure_shape(tensor, [num_rows, *tensor.shape[1:]])
            for name, tensor in inputs.items()
        }
        # A copy, because the variable is incremented later in the step.
        step = tf.identity(self._state.optimizer.iterations.value)
        before = self._replica_memory.read()
        places = self._places(num_rows)
        is_counted = places < self._config.global_batch_size
        batch_type = self._state.objective.batch_type
        weights = tf.cast(is_counted, tf.float32)
        batch = batch_type.of(inputs, before, self.dropout_seeds(step), weights)
        checksum = batch_checksum(*batch_type.checked_ids(inputs), places, is_counted)
        with compiling_parts(self._compiles_parts):
            row_losses, gradients, memory = self._row_gradients(batch, step)
            # Compiled, so that the gradients are read and written only once.
            finish = compiled_part(self._finish)
            finish(row_losses, gradients, memory, before, step, first_step, checksum)

    def _finish(
        self,
        row_losses: tf.Tensor,
        gradients: list[tf.Tensor],
        memory: Memory | NoMemory,
        before: dict[str, tf.Tensor],
        step: tf.Tensor,
        first_step: tf.Tensor,
        checksum: tf.Tensor,
    ) -> None:
        """Sums over the replicas, changes the weights, and writes memory and figures."""
        # In one call, so that the strategy can pack the tensors. The norm is of the summed
        # gradients.
        loss, *gradients = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, [tf.reduce_sum(row_losses), *gradients]
        )
        gradients, norm = tf.clip_by_global_norm(gradients, self._clip_norm)
        status, is_applied, is_advanced = self._judge(loss, norm)
        self._guarded_update(lambda: self._update(gradients, step), is_applied)
        self._advance(step, loss, norm, is_advanced)
        finite_rows = tf.math.is_finite(row_losses)
        self._write_memory(before, memory, finite_rows, is_advanced)
        self._records.write(
            tf.cast(step, tf.int32) - tf.cast(first_step, tf.int32),
            loss=loss,
            gradient_norm=norm,
            checksum=checksum,
            status=status,
            finite_rows=finite_rows,
        )

    def _places(self, num_rows: int) -> tf.Tensor:
        """Returns the position of each row in the global batch."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.cast(replica, tf.int32) * num_rows + tf.range(num_rows)

    def dropout_seeds(self, step: tf.Tensor) -> tf.Tensor:
        """Computes int32 dropout seeds `(B, 2)` of this replica; inside `strategy.run` only.

        They depend on the row, not on the replica: any number of replicas draws the same masks.
        `step` counts the steps before this one.
        """
        places = self._places(self._replica_memory.rows_per_replica)
        return functional.row_seeds(tf.stack([self._drawn_seed, step]), places)

    def _judge(self, loss: tf.Tensor, norm: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the status, True if weights change, and True if the run continues."""
        # One entry that is not finite makes the norm so, which spares a check of each gradient.
        is_finite = tf.logical_and(tf.math.is_finite(loss), tf.math.is_finite(norm))
        is_spike = tf.constant(False)
        if self._state.spike_detector is not None:
            is_spike = self._state.spike_detector.is_spike(loss, norm)
        stops = self._config.on_non_finite == "stop"
        not_finite = StepStatus.STOPPED if stops else StepStatus.SKIPPED_NON_FINITE
        status = tf.where(is_spike, int(StepStatus.SKIPPED_SPIKE), int(StepStatus.APPLIED))
        status = tf.where(is_finite, status, int(not_finite))
        # A choice of values, not a branch: the replicas' collectives must all run.
        goes_on = tf.not_equal(status, int(StepStatus.STOPPED))
        is_advanced = tf.logical_and(goes_on, tf.logical_not(self._records.is_stopped()))
        is_applied = tf.logical_and(is_advanced, tf.equal(status, int(StepStatus.APPLIED)))
        return status, is_applied, is_advanced

    def _update(self, gradients: list[tf.Tensor], step: tf.Tensor) -> None:
        # Not `apply`, which also increments `iterations`: each replica would ask the first for it.
        self._state.optimizer._backend_apply_gradients(gradients, self._variables)
        if self._state.weight_average is not None:
            self._state.weight_average.update(step + 1)

    def _changed_by_update(self) -> list[tf.Variable]:
        changed = [*self._variables, *self._state.optimizer.variables]
        if self._state.weight_average is not None:
            changed += self._state.weight_average.variables.values()
        return [variable.value for variable in changed]

    def _advance(
        self, step: tf.Tensor, loss: tf.Tensor, norm: tf.Tensor, is_advanced: tf.Tensor
    ) -> None:
        """Counts the step, skipped or not: the count decides which batch comes next."""
        variables, values = [self._state.optimizer.iterations.value], [step + 1]
        if self._state.spike_detector is not None:
            variables += [each.value for each in self._state.spike_detector.variables.values()]
            values += self._state.spike_detector.next_values(loss, norm)
            is_finite = tf.logical_and(tf.math.is_finite(loss), tf.math.is_finite(norm))
            # A running mean that is not finite would never recover.
            values[1:] = [
                tf.where(is_finite, value, variable)
                for variable, value in zip(variables[1:], values[1:], strict=True)
            ]
        assign_everywhere(variables, values, is_advanced)

    def _write_memory(
        self,
        before: dict[str, tf.Tensor],
        memory: Memory | NoMemory,
        finite_rows: tf.Tensor,
        is_advanced: tf.Tensor,
    ) -> None:
        after = memory.to_tensors()
        for name, tensor in after.items():
            keeps = tf.reshape(finite_rows, [-1, *[1] * (tensor.shape.rank - 1)])
            # Zeros, because NaN would spread even from masked positions.
            kept = tf.where(keeps, tensor, tf.zeros([], tensor.dtype))
            after[name] = tf.where(is_advanced, kept, before[name])
        self._replica_memory.write(after)


def _drawn_once(seed: int) -> int:
    """Derives a number from the run's seed, equal on every platform.

    It is drawn before the run, because a TPU would draw it in the step with its own generator.
    """
    with tf.init_scope(), this_host():
        drawn = tf.random.stateless_uniform(
            [], seed=[seed, 0], minval=None, maxval=None, dtype=tf.int64, alg="philox"
        )
        return int(drawn.numpy())


def memory_specs(memory: Memory | NoMemory) -> dict[str, tf.TensorSpec]:
    """Returns the specs of a memory by name, without the axis of rows, for a `ReplicaState`."""
    return {
        name: tf.TensorSpec(tensor.shape[1:], tensor.dtype)
        for name, tensor in memory.to_tensors().items()
    }
