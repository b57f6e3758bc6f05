"""Training loop on the host, and the step of one replica that it repeats on the device.

`TrainingObjective` is the loss; `TrainStep` takes gradients, sums them over the replicas, clips
and updates; `Trainer` runs loops of steps and reports them. Shape letters: B rows of a replica, T
segment length, S largest number of steps of a loop.
"""

import enum
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import keras
import numpy as np
import tensorflow as tf

from txl_tf import functional
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import ModelConfig
from txl_tf.distribution.remote_hosts import at_once, this_host
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.distribution.strategy import num_workers
from txl_tf.errors import NonFiniteError
from txl_tf.layers.compiled_parts import compiled_part, compiling_parts
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.ledger import LoopReport, StepRecord, StepStatus
from txl_tf.training.train_state import TrainState

# From these widths on, TensorFlow's products on a CPU gain more than separate operations cost.
# Products in bfloat16 gain more.
_NARROWEST_IN_PARTS = {"float32": 256, "mixed_bfloat16": 128}


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


class StepCompilation(enum.Enum):
    """Parts of a training step that XLA compiles."""

    WHOLE = "the whole step, as one program"
    PARTS = "all but matrix products, which TensorFlow computes"
    NOTHING = "nothing; TPUs compile by themselves"

    @classmethod
    def choose(
        cls, config: ExperimentConfig, strategy: tf.distribute.Strategy
    ) -> "StepCompilation":
        """Chooses the fastest way for a strategy, unless `training.jit_compile` decides."""
        training, model = config.training, config.model
        # The sum over several replicas on CPUs or GPUs cannot be compiled.
        is_alone = strategy.num_replicas_in_sync == 1
        is_tpu = isinstance(strategy, tf.distribute.TPUStrategy)
        if is_tpu or not is_alone or not training.may_compile:
            return cls.NOTHING
        is_on_gpu = bool(tf.config.list_logical_devices("GPU"))
        if training.jit_compile or is_on_gpu or not isinstance(model, ModelConfig):
            return cls.WHOLE
        is_wide = model.hidden_dim >= _NARROWEST_IN_PARTS[training.dtype_policy]
        return cls.PARTS if is_wide else cls.WHOLE


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
        config: ExperimentConfig,
        state: TrainState,
        replica_memory: ReplicaState,
        records: "StepRecords",
        compiles_parts: bool = False,
    ) -> None:
        self._config = config.training
        self._compiles_parts = compiles_parts
        self._clip_norm = config.optimizer.clip_norm
        self._state = state
        self._variables = state.trainable
        self._replica_memory = replica_memory
        self._records = records
        changed = [*self._variables, *state.optimizer.variables]
        if state.weight_average is not None:
            changed += state.weight_average.variables.values()
        self._changed = [variable.value for variable in changed]
        self._drawn_seed = _drawn_once(self._config.seed)

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
        is_counted = places < self._config.global_batch_size
        batch_type = self._state.objective.batch_type
        weights = tf.cast(is_counted, tf.float32)
        batch = batch_type.of(inputs, before, self.dropout_seeds(step), weights)
        checksum = batch_checksum(*batch_type.checked_ids(inputs), places, is_counted)
        with compiling_parts(self._compiles_parts):
            row_losses, gradients, memory = row_gradients(
                self._state.objective,
                self._variables,
                batch,
                self._config.gradient_accumulation_steps,
            )
            # Compiled, so that the gradients are read and written only once.
            finish = compiled_part(self._finish)
            finish(row_losses, gradients, memory, before, step, first_step, checksum)

    def _finish(
        self,
        row_losses: tf.Tensor,
        gradients: list[tf.Tensor],
        memory: Any,
        memory_before: Any,
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
        guarded_update(self._changed, lambda: self._update(gradients, step), is_applied)
        self._advance(step, loss, norm, is_advanced)
        finite_rows = tf.math.is_finite(row_losses)

        def next_state(after: tf.Tensor, before: tf.Tensor) -> tf.Tensor:
            keeps = tf.reshape(finite_rows, [-1, *[1] * (after.shape.rank - 1)])
            # Zeros, because NaN would spread even from masked positions.
            kept = tf.where(keeps, after, tf.zeros([], after.dtype))
            return tf.where(is_advanced, kept, before)

        self._replica_memory.write(tf.nest.map_structure(next_state, memory, memory_before))
        self._records.write(
            tf.cast(step, tf.int32) - tf.cast(first_step, tf.int32),
            loss=loss,
            gradient_norm=norm,
            checksum=checksum,
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
        is_spike = tf.constant(False)
        if self._state.spike_detector is not None:
            is_spike = self._state.spike_detector.is_spike(loss, norm)
        stops = self._config.on_non_finite == "stop"
        not_finite = StepStatus.STOPPED if stops else StepStatus.SKIPPED_NON_FINITE
        status = tf.where(is_spike, int(StepStatus.SKIPPED_SPIKE), int(StepStatus.APPLIED))
        status = tf.where(is_finite, status, int(not_finite))
        # A choice of values, not a branch: the replicas' collectives must all run.
        continues = tf.not_equal(status, int(StepStatus.STOPPED))
        is_advanced = tf.logical_and(continues, tf.logical_not(self._records.is_stopped()))
        is_applied = tf.logical_and(is_advanced, tf.equal(status, int(StepStatus.APPLIED)))
        return status, is_applied, is_advanced

    def _update(self, gradients: list[tf.Tensor], step: tf.Tensor) -> None:
        # Not `apply`, which also increments `iterations`: each replica would ask the first for it.
        self._state.optimizer._backend_apply_gradients(gradients, self._variables)
        if self._state.weight_average is not None:
            self._state.weight_average.update(step + 1)

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
        figures = {"loss": "float32", "gradient_norm": "float32", "checksum": "int32"}
        specs = {name: tf.TensorSpec([max_steps], dtype) for name, dtype in figures.items()}
        specs["status"] = tf.TensorSpec([max_steps], tf.int32)
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


_MAX_ROWS_NAMED = 4


class Trainer:
    """Training loop of a run with its model, optimizer and memory.

    The state after step `n` is a function of the configuration, the data and `n` alone: batches
    are addressed by step, dropout masks by seed, step and row. If replicas cannot share the rows
    equally, padding rows fill the shares; they count for nothing and are not part of the state.
    `dataset_function` returns the batches of a range of rows from a step on. `describe_row` names
    the text of a row at a step, from 0, in errors. `count_tokens` counts the tokens between two
    steps, if rows do not all read a segment in each.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        strategy: tf.distribute.Strategy,
        dataset_function: Callable[..., tf.data.Dataset],
        describe_row: Callable[[int, int], str] | None = None,
        count_tokens: Callable[[int, int], int] | None = None,
        objective_class: type[Any] = TrainingObjective,
    ) -> None:
        self.config = config
        self.strategy = strategy
        self.num_workers = num_workers(strategy)
        self._dataset_function = dataset_function
        self._describe_row = describe_row or (lambda step, row: f"row {row}")
        self._count_tokens = count_tokens
        training = config.training
        self._rows_per_replica = training.rows_per_replica(strategy.num_replicas_in_sync)
        # A variable on the host, because another thread sets it while the loop runs.
        self._stop_requested = tf.Variable(False, trainable=False)
        # Global to the process, so an earlier trainer may have left it on.
        tf.config.experimental.enable_tensor_float_32_execution(training.tensor_float_32)
        keras.utils.set_random_seed(training.seed)
        with strategy.scope():
            self.variables = TrainState(config, objective_class)
        self.model = self.variables.model
        specs = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape[1:], tensor.dtype),
            self.variables.objective.initial_memory(),
        )
        self.replica_memory = ReplicaState(
            strategy, self._rows_per_replica, specs, num_rows=training.global_batch_size
        )
        self._records = StepRecords(strategy, self._rows_per_replica, training.steps_per_loop)
        # Kept beyond the last step: with several replicas TensorFlow may take a minute to free it,
        # and the caller must save before that if the machine is being preempted.
        self._iterator: Iterator[dict[str, tf.Tensor]] | None = None
        self._has_compiled = False
        self._run_steps = self._host_loop()

    @property
    def step(self) -> int:
        """Steps done since the run began."""
        return int(self.variables.optimizer.iterations.numpy())

    def run(self) -> Iterator[LoopReport]:
        """Trains to the end of the run or a request to stop, and yields a report for every loop."""
        while self.step < self.config.training.num_steps and not self.must_stop():
            report = self.take_steps()
            if report is not None:
                yield report

    def take_steps(self) -> LoopReport | None:
        """Takes the steps up to `next_stop`, or to a request to stop, and reports them.

        `None` if the stop was requested before the first. NonFiniteError if a loss or gradient is
        not finite and the policy is to stop; the state is then as before the step.
        """
        if self._iterator is None:
            self._iterator = iter(self._batches())
        first_step = self.step
        num_steps = self.next_stop - first_step
        begin = time.perf_counter()
        # Tensors, because each value of a Python int is traced separately.
        self._run_steps(self._iterator, tf.constant(first_step), tf.constant(num_steps))
        # Fetching waits for the device: before that, only the dispatch is done.
        records = self._records.fetch(first_step, self.step)
        if not records:
            return None
        if records[-1].status == StepStatus.STOPPED:
            self._iterator = None  # the batch of this step is read
            self._raise_non_finite(records[-1])
        seconds = time.perf_counter() - begin
        has_compiled, self._has_compiled = not self._has_compiled, True
        rows, length = self.config.training.global_batch_size, self.config.model.segment_length
        num_tokens = len(records) * rows * length
        if self._count_tokens is not None:
            num_tokens = self._count_tokens(first_step, first_step + len(records))
        return LoopReport(
            records=tuple(records),
            num_tokens=num_tokens,
            learning_rate=float(self.variables.schedule.rate(records[-1].step)),
            seconds=seconds,
            has_compiled=has_compiled,
        )

    def trace(self) -> tf.types.experimental.ConcreteFunction:
        """Traces the loop that `run` repeats; its last argument is the number of steps."""
        iterator = iter(self._batches())
        return self._run_steps.get_concrete_function(iterator, tf.constant(0), tf.constant(1))

    def request_stop(self) -> None:
        """Ends the loop after the current step; may be called from any thread."""
        with at_once():
            self._stop_requested.assign(True)

    def must_stop(self) -> bool:
        """True if a stop was requested of this worker or any other."""
        # Agreed by all, because a worker that continued alone would wait forever for gradients.
        requested = bool(self._stop_requested.numpy())
        return self.sum_over_workers(float(requested)) > 0.0

    def sum_over_workers(self, value: float) -> float:
        """Adds up a number of each worker in float64; all workers must call it."""
        if self.num_workers == 1:
            return value
        # Each replica has a share, because the sum goes over the replicas of all workers.
        num_local = self.strategy.num_replicas_in_sync // self.num_workers
        shares = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(value / num_local, tf.float64)
        )
        return float(self.strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None))

    def state(self) -> dict[str, np.ndarray]:
        """Returns everything that decides the next step, as arrays by name.

        A model with adapters has their factors instead of its weights.
        """
        arrays = {name: variable.numpy() for name, variable in self.variables.by_name().items()}
        memory = self.replica_memory.to_global()
        return arrays | {f"memory/{name}": array for name, array in memory.items()}

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Restores `state` under any number of replicas; ValueError if names or shapes differ."""
        variables = self.variables.by_name()
        names = {*variables, *(f"memory/{name}" for name in self.replica_memory.names)}
        missing, surplus = sorted(names - arrays.keys()), sorted(arrays.keys() - names)
        if missing or surplus:
            raise ValueError(
                "`arrays` must hold the state of this model. Received: "
                f"{len(missing)} missing {missing[:3]}, {len(surplus)} surplus {surplus[:3]}"
            )
        for name, variable in variables.items():
            if tuple(variable.shape) != arrays[name].shape:
                raise ValueError(
                    f"The state `{name}` must have the shape {tuple(variable.shape)}. "
                    f"Received: shape={arrays[name].shape}"
                )
        # First, because it checks the shapes of the memory before it changes anything.
        self.replica_memory.from_global(
            {name: arrays[f"memory/{name}"] for name in self.replica_memory.names}
        )
        for name, variable in variables.items():
            variable.assign(arrays[name])
        self._iterator = None

    @property
    def next_stop(self) -> int:
        """Steps done at the end of the next loop, unless a stop is requested."""
        training = self.config.training
        periods = (
            training.steps_per_loop,
            training.checkpoint_every_steps,
            training.evaluation_period,
        )
        stops = [(self.step // period + 1) * period for period in periods]
        return min(*stops, training.num_steps)

    def _batches(self) -> tf.data.Dataset:
        first_step = self.step

        # Each host reads its own rows. Otherwise every host would read all rows and drop the rows
        # of others.
        def dataset_of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
            num_replicas = context.num_replicas_in_sync // context.num_input_pipelines
            num_rows = self._rows_per_replica * num_replicas
            first = context.input_pipeline_id * num_rows
            return self._dataset_function(
                first_step=first_step,
                rows=range(first, first + num_rows),
                per_replica_rows=self._rows_per_replica,
                num_steps=self.config.training.num_steps - first_step,
            )

        return self.strategy.distribute_datasets_from_function(dataset_of_host)

    def _host_loop(self) -> Callable[..., None]:
        compilation = StepCompilation.choose(self.config, self.strategy)
        step = TrainStep(
            self.config,
            self.variables,
            self.replica_memory,
            self._records,
            compiles_parts=compilation is StepCompilation.PARTS,
        )
        if compilation is StepCompilation.WHOLE:
            step = tf.function(step.__call__, jit_compile=True, autograph=False)
        # Workers must end a loop together, so they agree between loops.
        stops_in_loop = self.num_workers == 1

        @tf.function(autograph=False)
        def run_steps(
            iterator: Iterator[dict[str, tf.Tensor]], first_step: tf.Tensor, num_steps: tf.Tensor
        ) -> None:
            def continues(index: tf.Tensor) -> tf.Tensor:
                is_stopped = tf.logical_and(stops_in_loop, self._stop_requested)
                return tf.logical_and(index < num_steps, tf.logical_not(is_stopped))

            def run_step(index: tf.Tensor) -> tf.Tensor:
                self.strategy.run(step, args=(next(iterator), first_step))
                return index + 1

            # Steps must not overlap: each reads variables that the one before has written.
            tf.while_loop(continues, run_step, [tf.constant(0)], parallel_iterations=1)

        return run_steps

    def _raise_non_finite(self, record: StepRecord) -> None:
        rows = self._records.non_finite_rows()
        named = [self._describe_row(record.step - 1, row) for row in rows[:_MAX_ROWS_NAMED]]
        if len(rows) > _MAX_ROWS_NAMED:
            named.append(f"and {len(rows) - _MAX_ROWS_NAMED} more rows")
        raise NonFiniteError(
            f"The loss or the gradient is not finite: loss {record.nats_per_token}, "
            f"gradient norm {record.gradient_norm}. The step changed no weight.",
            where=f"step {record.step}, {', '.join(named) or 'the loss of every row is finite'}",
            remedy="Start again with a lower learning rate, or training.on_non_finite=skip.",
        )
