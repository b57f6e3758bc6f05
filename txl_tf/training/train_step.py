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
from keras import ops

from txl_tf import functional
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.mesh_program import replica_state
from txl_tf.distribution.remote_hosts import this_host
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.distribution.step_context import (
    assign_everywhere,
    current_value,
    sum_over_replicas,
)
from txl_tf.distribution.strategy import AnyStrategy
from txl_tf.imports import is_on_jax
from txl_tf.layers.compiled_parts import compiled_part, compiling_parts
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.ledger import StepRecord, StepStatus
from txl_tf.training.row_gradients import row_gradients
from txl_tf.training.train_state import TrainState


class Batch(NamedTuple):
    """Rows of a replica, the first axis of every tensor.

    `token_ids` and `target_ids` are int32 `(B, T)`; `document_starts`, bool `(B, T)`, mark the
    first token of each document if documents are separated. `dropout_seeds` are int32 `(B, 2)`,
    and `weights` float32 `(B,)`, 0 for padding rows.
    """

    token_ids: Any
    target_ids: Any
    document_starts: Any
    memory: Memory
    dropout_seeds: Any
    weights: Any

    @classmethod
    def of(
        cls,
        inputs: dict[str, Any],
        memory: Memory,
        dropout_seeds: Any,
        weights: Any,
    ) -> Self:
        """Creates the batch of a step from its inputs by name, and the memory before it."""
        starts = inputs.get("document_starts")
        if starts is None:
            # Not `None`, which cannot be split into parts like the other tensors.
            starts = ops.zeros(inputs["token_ids"].shape, "bool")
        return cls(
            token_ids=inputs["token_ids"],
            target_ids=inputs["target_ids"],
            document_starts=starts,
            memory=memory.forget(inputs["start_of_stream"]),
            dropout_seeds=dropout_seeds,
            weights=weights,
        )

    @staticmethod
    def checked_ids(inputs: dict[str, Any]) -> tuple[Any, Any]:
        """Returns the two int32 tensors `(B, T)` that the checksum of a step covers."""
        return inputs["token_ids"], inputs["target_ids"]


class TrainingObjective:
    """Mean loss of a batch of text over its positions."""

    batch_type = Batch

    def __init__(self, model: TransformerXL, config: ExperimentConfig) -> None:
        self._model = model
        training = config.training
        self._global_batch_size = training.global_batch_size
        self._masks_documents = training.document_boundaries == "mask"

    @property
    def weights(self) -> list[keras.Variable]:
        """All weights that it reads, trained or not."""
        return self._model.weights

    @property
    def head_variables(self) -> list:
        """Empty: the language model has no head."""
        return []

    def initial_memory(self) -> Memory:
        """Returns the memory of a row before the first step."""
        return self._model.initial_memory(1)

    def __call__(self, batch: Batch) -> tuple[Any, Any, Memory]:
        """Computes the share of some rows; the shares of all rows add up.

        Returns the objective, the loss of each row, float32 `(B,)`, and the next memory.
        """
        options = {"dropout_seed": batch.dropout_seeds, "training": True}
        if self._masks_documents:
            options["document_starts"] = batch.document_starts
        hidden, memory = self._model(batch.token_ids, batch.memory, **options)
        nll = self._model.negative_log_likelihood(hidden, batch.target_ids)
        # Tokens of all replicas, so that their shares add up to the mean for any split of the rows.
        num_tokens = self._global_batch_size * batch.target_ids.shape[1]
        row_losses = ops.sum(nll, axis=1) * batch.weights / num_tokens
        return ops.sum(row_losses), row_losses, memory


def guarded_update(
    variables: Sequence[keras.Variable], update: Callable[[], None], is_wanted: Any
) -> None:
    """Runs an update of variables, and undoes it unless wanted; inside a step only.

    An optimizer cannot compute an update without applying it, and a condition around it cannot be
    traced where it sums over replicas. So the variables are read before and written again after;
    XLA makes this a choice between two values. `is_wanted` is the same on all replicas.
    """
    before = [current_value(variable) for variable in variables]
    if is_on_jax():
        update()
    else:
        # One dependency for all: otherwise each operation of the update would wait for every
        # variable, and a deep model takes minutes to trace and to lower.
        with tf.control_dependencies([tf.group(*before)]):
            update()
    assign_everywhere(_where, variables, before, ops.logical_not(is_wanted))


def _where(old: Any, new: Any, is_wanted: Any) -> Any:
    return ops.where(is_wanted, new, old)


def clip_by_global_norm(gradients: list[Any], limit: float) -> tuple[list[Any], Any]:
    """Scales gradients to a global norm of at most `limit`; returns them and their norm before."""
    norm = ops.sqrt(ops.sum(ops.stack([ops.sum(ops.square(each)) for each in gradients])))
    # The last term makes all of them NaN if the norm is not finite.
    scale = limit * ops.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)
    return [each * scale for each in gradients], norm


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
        self._changed = changed
        self._drawn_seed = _drawn_once(self._training.seed)

    def __call__(self, inputs: dict[str, Any], first_step: Any) -> None:
        """Runs the step; inside `strategy.run` or a `MeshProgram` only.

        `inputs` are this replica's rows: the ids of a `Batch`, bool `start_of_stream` `(B,)` and
        optionally `document_starts`; for a task the fields of `TaskBatch`. `first_step` counts the
        steps before the loop.
        """
        # 1. The rows of this replica, whose static number the strategy loses with several workers.
        num_rows = self._replica_memory.rows_per_replica
        inputs = {
            name: ops.reshape(tensor, [num_rows, *tensor.shape[1:]])
            for name, tensor in inputs.items()
        }
        step = current_value(self._state.optimizer.iterations)
        before = self._replica_memory.read()
        places = self._replica_memory.places()
        is_counted = places < self._training.global_batch_size
        batch_type = self._state.objective.batch_type
        weights = ops.cast(is_counted, "float32")
        # Seeds depend on the row, not on the replica: any number of replicas draws the same masks.
        seed = ops.stack([ops.cast(self._drawn_seed, "int32"), ops.cast(step, "int32")])
        dropout_seeds = functional.row_seeds(seed, places)  # [B, 2]
        batch = batch_type.of(inputs, before, dropout_seeds, weights)
        checksum = batch_checksum(*batch_type.checked_ids(inputs), places, is_counted)
        # 2. Losses and gradients, then the sum over the replicas and the update.
        with compiling_parts(self._compiles_parts):
            row_losses, gradients, memory = row_gradients(
                self._state.objective,
                self._variables,
                batch,
                self._training.gradient_accumulation_steps,
            )
            # Compiled, so that the gradients are read and written only once.
            finish = compiled_part(self._finish)
            finish(row_losses, gradients, memory, before, step, first_step, checksum)

    def _finish(
        self,
        row_losses: Any,
        gradients: list[Any],
        memory: Any,
        memory_before: Any,
        step: Any,
        first_step: Any,
        checksum: Any,
    ) -> None:
        """Sums over the replicas, changes the weights, and writes memory and figures.

        `row_losses`, float32 `(B,)`, are shares of the objective, and `gradients` their sums by
        variable. `step` and `first_step` count the steps before this one and before the loop;
        `checksum` is the replica's share, see `batch_checksum`.
        """
        # 1. The mean over all replicas, then clipping.
        loss, *gradients = sum_over_replicas([ops.sum(row_losses), *gradients])
        gradients, norm = clip_by_global_norm(gradients, self._clip_norm)
        # 2. The update, unless a number is not finite.
        status, is_applied, is_advanced = self._judge(loss, norm)
        guarded_update(self._changed, lambda: self._update(gradients, step), is_applied)
        # Skipped or not: the count decides which batch comes next.
        count = self._state.optimizer.iterations
        assign_everywhere(_where, [count], [step + 1], is_advanced)
        # 3. Memory and figures.
        finite_rows = ops.isfinite(row_losses)

        def next_state(after: Any, before: Any) -> Any:
            keeps = ops.reshape(finite_rows, [-1, *[1] * (len(after.shape) - 1)])
            # Zeros, because NaN would spread even from masked positions.
            kept = ops.where(keeps, after, ops.zeros([], after.dtype))
            return ops.where(is_advanced, kept, before)

        self._replica_memory.write(tf.nest.map_structure(next_state, memory, memory_before))
        self._records.write(
            ops.cast(step, "int32") - ops.cast(first_step, "int32"),
            loss=loss,
            gradient_norm=norm,
            checksum=checksum,
            status=status,
            finite_rows=finite_rows,
        )

    def _judge(self, loss: Any, norm: Any) -> tuple[Any, Any, Any]:
        """Returns the status, True if weights change, and True if the run continues."""
        # One entry that is not finite makes the norm so, which spares a check of each gradient.
        is_finite = ops.logical_and(ops.isfinite(loss), ops.isfinite(norm))
        stops = self._training.on_non_finite == "stop"
        not_finite = StepStatus.STOPPED if stops else StepStatus.SKIPPED_NON_FINITE
        status = ops.where(is_finite, int(StepStatus.APPLIED), int(not_finite))
        # A choice of values, not a branch: the replicas' collectives must all run.
        continues = ops.not_equal(status, int(StepStatus.STOPPED))
        is_advanced = ops.logical_and(continues, ops.logical_not(self._records.is_stopped()))
        return ops.cast(status, "int32"), ops.logical_and(is_advanced, is_finite), is_advanced

    def _update(self, gradients: list[Any], step: Any) -> None:
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
        return int(drawn.numpy().astype(np.int32))


class StepRecords:
    """Figures of up to `max_steps` steps of a loop, and a flag that the run must stop.

    They stay on the device and are fetched once a loop: fetching after each step would make the
    device wait for the host.
    """

    def __init__(self, strategy: AnyStrategy, rows_per_replica: int, max_steps: int) -> None:
        self._max_steps = max_steps
        dtypes = {"loss": tf.float32, "gradient_norm": tf.float32}
        dtypes |= {"checksum": tf.int32, "status": tf.int32}
        specs = {name: tf.TensorSpec([max_steps], dtype) for name, dtype in dtypes.items()}
        specs["is_stopped"] = tf.TensorSpec([], tf.bool)
        self._steps = replica_state(strategy, 1, specs)
        self._finite_rows = replica_state(
            strategy, rows_per_replica, {"is_finite": tf.TensorSpec([], tf.bool)}
        )
        self.states = [self._steps, self._finite_rows]
        """State of every replica."""

    def is_stopped(self) -> Any:
        """True if an earlier step has stopped the run; inside a step only."""
        return self._steps.read()["is_stopped"][0]

    def write(self, index: Any, finite_rows: Any, **figures: Any) -> None:
        """Records the step `index` of the loop, unless the run is stopped; in a step only.

        Of the scalar figures, float32 `loss` and `gradient_norm` and the int32 `status` are of all
        replicas. The int32 `checksum` and `finite_rows`, bool `(B,)`, are of this one.
        """
        state = self._steps.read()
        was_stopped = state["is_stopped"][0]
        here = ops.equal(ops.arange(self._max_steps, dtype="int32"), ops.cast(index, "int32"))
        here = ops.logical_and(here, ops.logical_not(was_stopped))[None]
        written = {name: ops.where(here, value, state[name]) for name, value in figures.items()}
        is_stop = ops.equal(figures["status"], int(StepStatus.STOPPED))
        self._steps.write({**written, "is_stopped": ops.logical_or(state["is_stopped"], is_stop)})
        before = self._finite_rows.read()["is_finite"]
        self._finite_rows.write({"is_finite": ops.where(was_stopped, before, finite_rows)})

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


def batch_checksum(token_ids: Any, target_ids: Any, rows: Any, is_counted: Any) -> Any:
    """Computes a replica's share of the checksum of a batch, an int32 scalar, on the device.

    It is a sum over tokens, positions and rows modulo 2**32, so the shares add up for any split of
    the rows. Every factor is odd, so a change of any one token changes it. `rows` are positions in
    the global batch; `is_counted`, bool `(B,)`, is false for padding rows.
    """
    # Odd factors that differ by position.
    factors = np.cumprod(np.full(token_ids.shape[1], _MULTIPLIER, np.uint32), dtype=np.uint32)
    factors = ops.convert_to_tensor(factors.view(np.int32))
    target_factor, row_factor = (
        ops.convert_to_tensor(np.uint32(each).astype(np.int32))
        for each in (TARGET_MULTIPLIER, ROW_MULTIPLIER)
    )
    sums = ops.sum((token_ids + 1 + (target_ids + 1) * target_factor) * factors, axis=1)
    sums *= 2 * (rows * row_factor) + 1  # [B]
    return ops.sum(ops.where(is_counted, sums, 0))
