"""Training step of one replica: gradients, sum over replicas, clipping and update."""

from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from txl_tf import functional
from txl_tf.config.training import TrainingConfig
from txl_tf.distribution.remote_hosts import this_host
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.models.memory import Memory, RecurrentMemory
from txl_tf.training.objective import Rows, TrainingObjective
from txl_tf.training.step_guard import GuardedUpdate, SpikeDetector, assign_everywhere
from txl_tf.training.step_records import StepRecords, batch_checksum
from txl_tf.training.step_report import StepStatus
from txl_tf.training.weight_average import WeightAverage


class RowGradients:
    """Losses and gradients of a replica's rows, read in one or several parts.

    Parts are read one after the other and their gradients are added up, so
    that only the activations of one part are held. Nothing in the objective
    goes across rows, so the sum is that of reading them all at once.

    Args:
        objective: `TrainingObjective`.
        variables: the variables to differentiate by.
        num_parts: int. Parts that the rows are read in.
    """

    def __init__(
        self,
        objective: TrainingObjective,
        variables: Sequence[keras.Variable],
        num_parts: int = 1,
    ) -> None:
        self._objective = objective
        self._variables = list(variables)
        self._num_parts = num_parts

    def __call__(self, rows: Rows, step: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor], Memory]:
        """Reads the rows.

        Args:
            rows: `Rows`.
            step: int tensor. Steps done before this one.

        Returns:
            Tuple of the loss of each row, float32 `(B,)`, the gradients of all
            rows together, and the next `Memory`.
        """
        if self._num_parts == 1:
            return self._read(rows, step)
        return self._read_parts(rows, step)

    def _read(self, rows: Rows, step: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor], Memory]:
        with tf.GradientTape() as tape:
            objective, row_losses, memory = self._objective(rows, step)
        gradients = tape.gradient(objective, [variable.value for variable in self._variables])
        return row_losses, [tf.convert_to_tensor(gradient) for gradient in gradients], memory

    def _read_parts(self, rows: Rows, step: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor], Memory]:
        parts = tf.nest.map_structure(self._split, rows)
        gradients = [tf.zeros(variable.shape, variable.dtype) for variable in self._variables]
        results = [
            tf.TensorArray(tensor.dtype, self._num_parts, element_shape=tensor.shape[1:])
            for tensor in tf.nest.flatten((parts.weights, parts.memory))
        ]

        def read_part(
            index: tf.Tensor, gradients: list[tf.Tensor], results: list[tf.TensorArray]
        ) -> tuple:
            part = tf.nest.map_structure(lambda tensor: tensor[index], parts)
            row_losses, more, memory = self._read(part, step)
            gradients = [total + new for total, new in zip(gradients, more, strict=True)]
            values = tf.nest.flatten((row_losses, memory))
            results = [
                array.write(index, value) for array, value in zip(results, values, strict=True)
            ]
            return index + 1, gradients, results

        _, gradients, results = tf.while_loop(
            lambda index, *_: index < self._num_parts,
            read_part,
            (tf.constant(0), gradients, results),
            maximum_iterations=self._num_parts,
            # Several at once would hold the activations of several.
            parallel_iterations=1,
        )
        whole = [tf.concat(tf.unstack(array.stack(), self._num_parts), 0) for array in results]
        row_losses, memory = tf.nest.pack_sequence_as((rows.weights, rows.memory), whole)
        return row_losses, gradients, memory

    def _split(self, tensor: tf.Tensor) -> tf.Tensor:
        num_rows = tensor.shape[0]
        return tf.reshape(tensor, [self._num_parts, num_rows // self._num_parts, *tensor.shape[1:]])


AllReduce = Callable[[list[tf.Tensor]], list[tf.Tensor]]


class TrainStep:
    """Training step: losses, gradients summed over replicas, clipping and update.

    The objective of a replica is the sum of its token losses over the number
    of tokens of all replicas, so the sum of the replicas' gradients is the
    gradient of the mean over the global batch, whatever each replica's share
    is. Clipping comes after that sum: clipping each replica alone would
    make the limit depend on the number of replicas.

    A loss or gradient that is not finite changes no weight. By policy the step
    then stops the run, and changes nothing else either: the steps that follow
    in the same loop do nothing. Or it is skipped: its rows' memory goes on,
    except that rows without a finite loss start anew.

    Args:
        config: `TrainingConfig`.
        row_gradients: `RowGradients`.
        optimizer: Keras optimizer from `create_optimizer`, built with
            `variables`.
        variables: all trainable variables of the run.
        replica_memory: `ReplicaState` of the rows of each replica, with the
            names that `memory_specs` returns.
        records: `StepRecords`, where the figures go.
        clip_norm: float. Largest global norm of the gradients.
        weight_average: optional `WeightAverage`, which is kept up to date.
        spike_detector: optional `SpikeDetector`; spikes are skipped.
        all_reduce: optional function that sums a list of tensors over the
            replicas; by default the strategy's.
    """

    def __init__(
        self,
        *,
        config: TrainingConfig,
        row_gradients: RowGradients,
        optimizer: keras.optimizers.Optimizer,
        variables: Sequence[keras.Variable],
        replica_memory: ReplicaState,
        records: StepRecords,
        clip_norm: float,
        weight_average: WeightAverage | None = None,
        spike_detector: SpikeDetector | None = None,
        all_reduce: AllReduce | None = None,
    ) -> None:
        self._config = config
        self._row_gradients = row_gradients
        self._optimizer = optimizer
        self._variables = list(variables)
        self._replica_memory = replica_memory
        self._records = records
        self._clip_norm = clip_norm
        self._weight_average = weight_average
        self._spike_detector = spike_detector
        self._all_reduce = all_reduce or _sum_over_replicas
        self._guarded_update = GuardedUpdate(self._changed_by_update())
        self._drawn_seed = _drawn_once(config.seed)

    def __call__(self, batch: dict[str, tf.Tensor], first_step: tf.Tensor) -> None:
        """Runs the step; inside `strategy.run` only.

        Args:
            batch: dict of int32 `token_ids` and `target_ids` `(B, T)`, bool
                `start_of_stream` `(B,)` and optionally bool
                `document_starts` `(B, T)`, this replica's rows.
            first_step: int tensor. Steps done before the loop began.
        """
        # Between workers the strategy forgets how many rows a batch has.
        num_rows = self._replica_memory.rows_per_replica
        batch = {
            name: tf.ensure_shape(tensor, [num_rows, *tensor.shape[1:]])
            for name, tensor in batch.items()
        }
        # Read now: the variable counts on further down.
        step = tf.identity(self._optimizer.iterations.value)
        state = self._replica_memory.read()
        places = self._places(num_rows)
        is_counted = places < self._config.global_batch_size
        rows = self._rows(batch, state, is_counted, step)
        row_losses, gradients, memory = self._row_gradients(rows, step)

        loss, *gradients = self._all_reduce([tf.reduce_sum(row_losses), *gradients])
        gradients, norm = tf.clip_by_global_norm(gradients, self._clip_norm)
        status, is_applied, is_advanced = self._judge(loss, norm)
        self._guarded_update(lambda: self._update(gradients, step), is_applied)
        self._advance(step, loss, norm, is_advanced)
        finite_rows = tf.math.is_finite(row_losses)
        self._write_memory(state, memory, finite_rows, is_advanced)
        self._records.write(
            tf.cast(step, tf.int32) - tf.cast(first_step, tf.int32),
            loss=loss,
            gradient_norm=norm,
            checksum=batch_checksum(batch["token_ids"], batch["target_ids"], places, is_counted),
            status=status,
            finite_rows=finite_rows,
        )

    def _places(self, num_rows: int) -> tf.Tensor:
        """Each row's place in the global batch."""
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.cast(replica, tf.int32) * num_rows + tf.range(num_rows)

    def _rows(
        self,
        batch: dict[str, tf.Tensor],
        state: dict[str, tf.Tensor],
        is_counted: tf.Tensor,
        step: tf.Tensor,
    ) -> Rows:
        kind = Memory if "valid_length" in state else RecurrentMemory
        starts = batch.get("document_starts")
        if starts is None:
            starts = tf.zeros(batch["token_ids"].shape, tf.bool)
        return Rows(
            token_ids=batch["token_ids"],
            target_ids=batch["target_ids"],
            document_starts=starts,
            memory=kind.from_tensors(state).forget(batch["start_of_stream"]),
            dropout_seeds=self.dropout_seeds(step),
            weights=tf.cast(is_counted, tf.float32),
        )

    def dropout_seeds(self, step: tf.Tensor) -> tf.Tensor:
        """Computes the dropout seeds of this replica's rows; inside `strategy.run` only.

        Args:
            step: int64 tensor. Steps done before this one.

        Returns:
            Int32 tensor `(B, 2)`. It depends on the row, not on the replica: any
            number of replicas draws the same masks.
        """
        places = self._places(self._replica_memory.rows_per_replica)
        return functional.row_seeds(tf.stack([self._drawn_seed, step]), places)

    def _judge(self, loss: tf.Tensor, norm: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the status, whether weights change, and whether the run continues."""
        is_finite = tf.logical_and(tf.math.is_finite(loss), tf.math.is_finite(norm))
        is_spike = tf.constant(False)
        if self._spike_detector is not None:
            is_spike = self._spike_detector.is_spike(loss, norm)
        stops = self._config.on_non_finite == "stop"
        not_finite = StepStatus.STOPPED if stops else StepStatus.SKIPPED_NON_FINITE
        status = tf.where(is_spike, int(StepStatus.SKIPPED_SPIKE), int(StepStatus.APPLIED))
        status = tf.where(is_finite, status, int(not_finite))
        goes_on = tf.not_equal(status, int(StepStatus.STOPPED))
        is_advanced = tf.logical_and(goes_on, tf.logical_not(self._records.is_stopped()))
        is_applied = tf.logical_and(is_advanced, tf.equal(status, int(StepStatus.APPLIED)))
        return status, is_applied, is_advanced

    def _update(self, gradients: list[tf.Tensor], step: tf.Tensor) -> None:
        # Not `apply`, which counts the step: each replica would ask the first one for its count.
        self._optimizer._backend_apply_gradients(gradients, self._variables)
        if self._weight_average is not None:
            self._weight_average.update(step + 1)

    def _changed_by_update(self) -> list[tf.Variable]:
        changed = [*self._variables, *self._optimizer.variables]
        if self._weight_average is not None:
            changed += self._weight_average.variables.values()
        return [variable.value for variable in changed]

    def _advance(
        self, step: tf.Tensor, loss: tf.Tensor, norm: tf.Tensor, is_advanced: tf.Tensor
    ) -> None:
        """Counts the step, skipped or not: the number decides which batch comes next."""
        variables, values = [self._optimizer.iterations.value], [step + 1]
        if self._spike_detector is not None:
            variables += [each.value for each in self._spike_detector.variables.values()]
            values += self._spike_detector.next_values(loss, norm)
            is_finite = tf.logical_and(tf.math.is_finite(loss), tf.math.is_finite(norm))
            values[1:] = [
                tf.where(is_finite, value, variable)
                for variable, value in zip(variables[1:], values[1:], strict=True)
            ]
        assign_everywhere(variables, values, is_advanced)

    def _write_memory(
        self,
        before: dict[str, tf.Tensor],
        memory: Memory,
        finite_rows: tf.Tensor,
        is_advanced: tf.Tensor,
    ) -> None:
        after = memory.to_tensors()
        for name, tensor in after.items():
            keeps = tf.reshape(finite_rows, [-1, *[1] * (tensor.shape.rank - 1)])
            # A memory of zeros, because a masked value that is not a number would spread.
            kept = tf.where(keeps, tensor, tf.zeros([], tensor.dtype))
            after[name] = tf.where(is_advanced, kept, before[name])
        self._replica_memory.write(after)


def _drawn_once(seed: int) -> int:
    """Derives a number from the run's seed, equal on every platform.

    It is drawn before the run and not in the step, because in the step a TPU
    would draw it with its own generator.
    """
    with tf.init_scope(), this_host():
        drawn = tf.random.stateless_uniform(
            [], seed=[seed, 0], minval=None, maxval=None, dtype=tf.int64, alg="philox"
        )
        return int(drawn.numpy())


def _sum_over_replicas(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    context = tf.distribute.get_replica_context()
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tensors)


def memory_specs(memory: Memory | RecurrentMemory) -> dict[str, tf.TensorSpec]:
    """Returns names and specs of one row of a memory, for a `ReplicaState`.

    Args:
        memory: `Memory` or `RecurrentMemory` with any number of rows.

    Returns:
        Dict of name to `tf.TensorSpec` without the axis of rows.
    """
    return {
        name: tf.TensorSpec(tensor.shape[1:], tensor.dtype)
        for name, tensor in memory.to_tensors().items()
    }
