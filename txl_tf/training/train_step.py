"""Training step of a replica: loss, gradients summed over the replicas, clipping and update.

`TrainingObjective` is the loss. `TrainStep` repeats on the device, and `StepRecords` keep its
figures there. Shape letters: B rows of a replica, T segment length, S largest number of steps of a
loop.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf

from txl_tf import functional
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.remote_hosts import this_host
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.layers.compiled_parts import compiled_part, compiling_parts
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.ledger import StepRecord, StepStatus
from txl_tf.training.train_state import TrainState


class Batch(NamedTuple):
    """Rows of a replica, the first axis of every tensor.

    `token_ids` and `target_ids` are int32 `(B, T)`; `document_starts`, bool `(B, T)`, mark the
    first token of each document if documents are separated. `dropout_seeds` are int32 `(B, 2)`,
    and `weights` float32 `(B,)`, 0 for padding rows.
    """

    token_ids: tf.Tensor
    target_ids: tf.Tensor
    document_starts: tf.Tensor
    memory: Memory
    dropout_seeds: tf.Tensor
    weights: tf.Tensor

    @classmethod
    def of(
        cls,
        inputs: dict[str, tf.Tensor],
        memory: Memory,
        dropout_seeds: tf.Tensor,
        weights: tf.Tensor,
    ) -> Self:
        """Creates the batch of a step from its inputs by name, and the memory before it."""
        starts = inputs.get("document_starts")
        if starts is None:
            # Not `None`, which cannot be split into parts like the other tensors.
            starts = tf.zeros(inputs["token_ids"].shape, tf.bool)
        return cls(
            token_ids=inputs["token_ids"],
            target_ids=inputs["target_ids"],
            document_starts=starts,
            memory=memory.forget(inputs["start_of_stream"]),
            dropout_seeds=dropout_seeds,
            weights=weights,
        )

    @staticmethod
    def checked_ids(inputs: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the two int32 tensors `(B, T)` that the checksum of a step covers."""
        return inputs["token_ids"], inputs["target_ids"]


class TrainingObjective:
    """Mean loss of a batch of text over the positions that `loss_positions` counts.

    The others, at the beginning of a segment, only pass their hidden states on.
    """

    batch_type = Batch

    def __init__(self, model: TransformerXL, config: ExperimentConfig) -> None:
        self._model = model
        training = config.training
        self._global_batch_size = training.global_batch_size
        length = config.model.segment_length
        self._first_position = length // 2 if training.loss_positions == "last_half" else 0
        self._masks_documents = training.document_boundaries == "mask"

    @property
    def head_variables(self) -> list:
        """Empty: the language model has no head."""
        return []

    def initial_memory(self) -> Memory:
        """Returns the memory of a row before the first step."""
        return self._model.initial_memory(1)

    def __call__(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor, Memory]:
        """Computes the share of some rows; the shares of all rows add up.

        Returns the objective, the loss of each row, float32 `(B,)`, and the next memory.
        """
        options = {"dropout_seed": batch.dropout_seeds, "training": True}
        if self._masks_documents:
            options["document_starts"] = batch.document_starts
        hidden, memory = self._model(batch.token_ids, batch.memory, **options)
        target_ids, first = batch.target_ids, self._first_position
        if first > 0:
            hidden, target_ids = hidden[:, first:], target_ids[:, first:]
        nll = self._model.negative_log_likelihood(hidden, target_ids)
        # Tokens of all replicas, so that their shares add up to the mean for any split of the rows.
        num_tokens = self._global_batch_size * target_ids.shape[1]
        row_losses = tf.reduce_sum(nll, axis=1) * batch.weights / num_tokens
        return tf.reduce_sum(row_losses), row_losses, memory


def row_gradients(
    objective: Any,
    variables: Sequence[keras.Variable],
    batch: Any,
    num_parts: int = 1,
) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
    """Computes the row losses, float32 `(B,)`, the summed gradients, and the next memory.

    Rows are read in `num_parts` parts, so that only the activations of one part are held. The
    objective has no term across rows, so the sum of the parts equals a single pass.
    """

    def read(rows: Any) -> tuple[tf.Tensor, list[tf.Tensor], Any]:
        with tf.GradientTape() as tape:
            loss, row_losses, memory = objective(rows)
        # The tape knows TensorFlow's variables, not their Keras wrappers. Gradients of gathered
        # tables are sparse; dense ones can be summed and reduced with the others.
        gradients = tape.gradient(loss, [variable.value for variable in variables])
        return row_losses, [tf.convert_to_tensor(gradient) for gradient in gradients], memory

    def split(tensor: tf.Tensor) -> tf.Tensor:
        return tf.reshape(tensor, [num_parts, tensor.shape[0] // num_parts, *tensor.shape[1:]])

    if num_parts == 1:
        return read(batch)
    parts = tf.nest.map_structure(split, batch)
    gradients = [tf.zeros(variable.shape, variable.dtype) for variable in variables]
    results = [
        tf.TensorArray(tensor.dtype, num_parts, element_shape=tensor.shape[1:])
        for tensor in tf.nest.flatten((parts.weights, parts.memory))
    ]

    def read_part(
        index: tf.Tensor, gradients: list[tf.Tensor], results: list[tf.TensorArray]
    ) -> tuple:
        row_losses, more, memory = read(tf.nest.map_structure(lambda each: each[index], parts))
        gradients = [total + new for total, new in zip(gradients, more, strict=True)]
        values = tf.nest.flatten((row_losses, memory))
        results = [array.write(index, value) for array, value in zip(results, values, strict=True)]
        return index + 1, gradients, results

    _, gradients, results = tf.while_loop(
        lambda index, *_: index < num_parts,
        read_part,
        (tf.constant(0), gradients, results),
        maximum_iterations=num_parts,
        # Parallel parts would hold the activations of several parts.
        parallel_iterations=1,
    )
    # Parts are consecutive rows, so concatenating them restores the batch.
    whole = [tf.concat(tf.unstack(array.stack(), num_parts), 0) for array in results]
    row_losses, memory = tf.nest.pack_sequence_as((batch.weights, batch.memory), whole)
    return row_losses, gradients, memory


def guarded_update(
    variables: Sequence[tf.Variable], update: Callable[[], None], is_wanted: tf.Tensor
) -> None:
    """Runs an update of variables, and undoes it unless wanted; inside `strategy.run` only.

    An optimizer cannot compute an update without applying it, and a condition around it cannot be
    traced where it sums over replicas. So the variables are read before and written again after;
    XLA makes this a choice between two values. `is_wanted` is the same on all replicas.
    """
    before = [tf.identity(variable) for variable in variables]
    # One dependency for all: otherwise each operation of the update would wait for every variable,
    # and a deep model takes minutes to trace and to lower.
    with tf.control_dependencies([tf.group(*before)]):
        update()
    assign_everywhere(variables, before, tf.logical_not(is_wanted))


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


class RowResults(NamedTuple):
    """Results of a replica's rows before the sum over the replicas.

    `row_losses`, float32 `(B,)`, are shares of the objective, and `gradients` their sums by
    variable. `step` and `first_step` count the steps before this one and before the loop;
    `checksum` is the replica's share, see `batch_checksum`.
    """

    row_losses: tf.Tensor
    gradients: list[tf.Tensor]
    memory: Any
    memory_before: Any
    step: tf.Tensor
    first_step: tf.Tensor
    checksum: tf.Tensor


class TrainStep:
    """Training step: losses, gradients summed over replicas, clipping and update.

    A replica divides the sum of its token losses by the tokens of all replicas, so the sum of the
    replicas' gradients is the gradient of the mean over the global batch, whatever each replica's
    share is. Clipping comes after that sum: clipping each replica alone would make the limit depend
    on the number of replicas.

    A loss or gradient that is not finite changes no weight. By policy the step then stops the run,
    and later steps of the loop change nothing either. Or it is skipped: the memory advances,
    except that rows without a finite loss start with an empty memory.
    """

    def __init__(
        self,
        experiment: ExperimentConfig,
        state: TrainState,
        replica_memory: ReplicaState,
        records: "StepRecords",
        compiles_parts: bool = False,
    ) -> None:
        self._training = experiment.training
        self._compiles_parts = compiles_parts
        self._clip_norm = experiment.optimizer.clip_norm
        self._state = state
        self._variables = state.trainable
        self._replica_memory = replica_memory
        self._records = records
        changed = [*self._variables, *state.optimizer.variables]
        if state.weight_average is not None:
            changed += state.weight_average.variables.values()
        self._changed = [variable.value for variable in changed]
        self._drawn_seed = _drawn_once(self._training.seed)

    def __call__(self, inputs: dict[str, tf.Tensor], first_step: tf.Tensor) -> None:
        """Runs the step; inside `strategy.run` only.

        `inputs` are this replica's rows: the ids of a `Batch`, bool `start_of_stream` `(B,)` and
        optionally `document_starts`; for a task the fields of `TaskBatch`. `first_step` counts the
        steps before the loop.
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
        places = self._replica_memory.places()
        is_counted = places < self._training.global_batch_size
        batch_type = self._state.objective.batch_type
        weights = tf.cast(is_counted, tf.float32)
        batch = batch_type.of(inputs, before, self.dropout_seeds(step), weights)
        checksum = batch_checksum(*batch_type.checked_ids(inputs), places, is_counted)
        with compiling_parts(self._compiles_parts):
            row_losses, gradients, memory = row_gradients(
                self._state.objective,
                self._variables,
                batch,
                self._training.gradient_accumulation_steps,
            )
            # Compiled, so that the gradients are read and written only once.
            finish = compiled_part(self._finish)
            finish(RowResults(row_losses, gradients, memory, before, step, first_step, checksum))

    def _finish(self, rows: RowResults) -> None:
        """Sums over the replicas, changes the weights, and writes memory and figures."""
        # In one call, so that the strategy can pack the tensors. The norm is of the summed
        # gradients.
        loss, *gradients = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, [tf.reduce_sum(rows.row_losses), *rows.gradients]
        )
        gradients, norm = tf.clip_by_global_norm(gradients, self._clip_norm)
        status, is_applied, is_advanced = self._judge(loss, norm)
        guarded_update(self._changed, lambda: self._update(gradients, rows.step), is_applied)
        # Skipped or not: the count decides which batch comes next.
        count = self._state.optimizer.iterations.value
        assign_everywhere([count], [rows.step + 1], is_advanced)
        finite_rows = tf.math.is_finite(rows.row_losses)

        def next_state(after: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
            keeps = tf.reshape(finite_rows, [-1, *[1] * (after.shape.rank - 1)])
            # Zeros, because NaN would spread even from masked positions.
            kept = tf.where(keeps, after, tf.zeros([], after.dtype))
            return tf.where(is_advanced, kept, before)

        self._replica_memory.write(
            tf.nest.map_structure(next_state, rows.memory, rows.memory_before)
        )
        self._records.write(
            tf.cast(rows.step, tf.int32) - tf.cast(rows.first_step, tf.int32),
            loss=loss,
            gradient_norm=norm,
            checksum=rows.checksum,
            status=status,
            finite_rows=finite_rows,
        )

    def dropout_seeds(self, step: tf.Tensor) -> tf.Tensor:
        """Computes int32 dropout seeds `(B, 2)` of the step after `step` steps.

        They depend on the row, not on the replica: any number of replicas draws the same masks.
        """
        places = self._replica_memory.places()
        return functional.row_seeds(tf.stack([self._drawn_seed, step]), places)

    def _judge(self, loss: tf.Tensor, norm: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the status, True if weights change, and True if the run continues."""
        # One entry that is not finite makes the norm so, which spares a check of each gradient.
        is_finite = tf.logical_and(tf.math.is_finite(loss), tf.math.is_finite(norm))
        stops = self._training.on_non_finite == "stop"
        not_finite = StepStatus.STOPPED if stops else StepStatus.SKIPPED_NON_FINITE
        status = tf.where(is_finite, int(StepStatus.APPLIED), int(not_finite))
        # A choice of values, not a branch: the replicas' collectives must all run.
        continues = tf.not_equal(status, int(StepStatus.STOPPED))
        is_advanced = tf.logical_and(continues, tf.logical_not(self._records.is_stopped()))
        return status, tf.logical_and(is_advanced, is_finite), is_advanced

    def _update(self, gradients: list[tf.Tensor], step: tf.Tensor) -> None:
        # Not `apply`, which also increments `iterations`: each replica would ask the first for it.
        # Keras 3.15 has no public method that only updates.
        self._state.optimizer._backend_apply_gradients(gradients, self._variables)
        if self._state.weight_average is not None:
            self._state.weight_average.update(step + 1)


def _drawn_once(seed: int) -> int:
    """Derives a number from the run's seed, equal on every platform.

    It is drawn before the run, because a TPU would draw it in the step with its own generator.
    """
    with tf.init_scope(), this_host():
        drawn = tf.random.stateless_uniform(
            [], seed=[seed, 0], minval=None, maxval=None, dtype=tf.int64, alg="philox"
        )
        return int(drawn.numpy())


class StepRecords:
    """Figures of up to `max_steps` steps of a loop, and a flag that the run must stop.

    They stay on the device and are fetched once a loop: fetching after each step would make the
    device wait for the host.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, rows_per_replica: int, max_steps: int
    ) -> None:
        self._max_steps = max_steps
        dtypes = {"loss": tf.float32, "gradient_norm": tf.float32}
        dtypes |= {"checksum": tf.int32, "status": tf.int32}
        specs = {name: tf.TensorSpec([max_steps], dtype) for name, dtype in dtypes.items()}
        specs["is_stopped"] = tf.TensorSpec([], tf.bool)
        self._steps = ReplicaState(strategy, 1, specs)
        self._finite_rows = ReplicaState(
            strategy, rows_per_replica, {"is_finite": tf.TensorSpec([], tf.bool)}
        )

    def is_stopped(self) -> tf.Tensor:
        """True if an earlier step has stopped the run; inside `strategy.run` only."""
        return self._steps.read()["is_stopped"][0]

    def write(self, index: tf.Tensor, finite_rows: tf.Tensor, **figures: tf.Tensor) -> None:
        """Records the step `index` of the loop, unless the run is stopped; in `strategy.run` only.

        Of the scalar figures, float32 `loss` and `gradient_norm` and the int32 `status` are of all
        replicas. The int32 `checksum` and `finite_rows`, bool `(B,)`, are of this one.
        """
        state = self._steps.read()
        was_stopped = state["is_stopped"][0]
        here = tf.equal(tf.range(self._max_steps), tf.cast(index, tf.int32))
        here = tf.logical_and(here, tf.logical_not(was_stopped))[None]
        written = {name: tf.where(here, value, state[name]) for name, value in figures.items()}
        is_stop = tf.equal(figures["status"], int(StepStatus.STOPPED))
        self._steps.write({**written, "is_stopped": tf.logical_or(state["is_stopped"], is_stop)})
        before = self._finite_rows.read()["is_finite"]
        self._finite_rows.write({"is_finite": tf.where(was_stopped, before, finite_rows)})

    def fetch(self, first_step: int, last_step: int) -> list[StepRecord]:
        """Returns the records of the steps after `first_step`, and of one that stopped the run."""
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


_MULTIPLIER = 0x9E3779B1
ROW_MULTIPLIER = 0x85EBCA6B
TARGET_MULTIPLIER = 0xC2B2AE35


def batch_checksum(
    token_ids: tf.Tensor, target_ids: tf.Tensor, rows: tf.Tensor, is_counted: tf.Tensor
) -> tf.Tensor:
    """Computes a replica's share of the checksum of a batch, an int32 scalar, on the device.

    It is a sum over tokens, positions and rows modulo 2**32, so the shares add up for any split of
    the rows. Every factor is odd, so a change of any one token changes it. `rows` are positions in
    the global batch; `is_counted`, bool `(B,)`, is false for padding rows.
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
