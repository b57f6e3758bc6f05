"""Training loop: steps on the device, reports on the host."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.remote_hosts import at_once
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.distribution.strategy import num_workers
from txl_tf.errors import NonFiniteError
from txl_tf.training.ledger import LoopReport, StepRecord, StepStatus
from txl_tf.training.train_state import TrainState
from txl_tf.training.train_step import StepCompilation, StepRecords, TrainingObjective, TrainStep

DatasetFunction = Callable[..., tf.data.Dataset]
DescribeRow = Callable[[int, int], str]
_MAX_ROWS_NAMED = 4


class Trainer:
    """Training loop of a run with its model, optimizer and memory.

    The state after step `n` is a function of the configuration, the data and `n` alone: batches
    are addressed by step, dropout masks by seed, step and row. `state` and `load_state` carry the
    whole state. If replicas cannot share the rows equally, copies of rows fill the shares; they
    count for nothing and are not part of the state. `dataset_function` returns the batches of a
    range of rows, these copies included, from a step on. `describe_row` names the text of a row at
    a step, counted from 0, in errors. `count_tokens` counts the tokens between two numbers of
    steps; by default all rows read a segment in each step. `objective_class` is the class of the
    loss: `TrainingObjective`, or `TaskObjective` of a task.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        strategy: tf.distribute.Strategy,
        dataset_function: DatasetFunction,
        describe_row: DescribeRow | None = None,
        count_tokens: Callable[[int, int], int] | None = None,
        objective_class: type[Any] = TrainingObjective,
    ) -> None:
        self.config = config
        self.strategy = strategy
        self.num_workers = num_workers(strategy)
        self._dataset_function = dataset_function
        self._describe_row = describe_row or (lambda step, row: f"row {row}")
        self._count_tokens = count_tokens or self._tokens_of_segments
        training = config.training
        self._rows_per_replica = training.rows_per_replica(strategy.num_replicas_in_sync)
        # A variable on the host, because another thread sets it while the loop runs.
        self._stop_requested = tf.Variable(False, trainable=False)
        # Global to the process, so an earlier trainer may have left it on.
        tf.config.experimental.enable_tensor_float_32_execution(training.tensor_float_32)
        keras.utils.set_random_seed(training.seed)
        with strategy.scope():
            self._state = TrainState(config, objective_class)
        self.model = self._state.model
        self.trainable_variables = self._state.trainable
        self.evaluation_observers = self._state.plateau_scale, self._state.average_trigger
        """Observers of every evaluation, for `EvaluationHistory`."""
        specs = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(tensor.shape[1:], tensor.dtype),
            self._state.objective.initial_memory(),
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
        self._sum_memory = tf.function(self._summed_memory, autograph=False)

    @property
    def step(self) -> int:
        """Steps done since the run began."""
        return int(self._state.optimizer.iterations.numpy())

    def run(self) -> Iterator[LoopReport]:
        """Trains to the end of the run or a request to stop, and yields a report for every loop."""
        while self.step < self.config.training.num_steps and not self.must_stop():
            report = self.take_steps()
            if report is not None:
                yield report

    def take_steps(self) -> LoopReport | None:
        """Takes the steps up to `next_stop`, or to a request to stop, and reports them.

        Returns `None` if a stop was requested before the first. Raises NonFiniteError if a loss or
        gradient is not finite and the policy is to stop; the state is then as before the step.
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
        return LoopReport(
            records=tuple(records),
            num_tokens=self._count_tokens(first_step, first_step + len(records)),
            learning_rate=float(self._state.optimizer.learning_rate),
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

        These are weights, optimizer variables (with the step), the memory of all rows, and if
        present the weight averages. A model with adapters has their factors instead of its weights.
        """
        arrays = {name: variable.numpy() for name, variable in self._state.by_name().items()}
        memory = self.replica_memory.to_global()
        return arrays | {f"memory/{name}": array for name, array in memory.items()}

    def inference_weights(self) -> dict[str, np.ndarray]:
        """Returns the weights for evaluation, generation and export, by path."""
        return self._state.inference_arrays()

    def inference_variables(self) -> dict[str, keras.Variable] | None:
        """Returns the variables of `inference_weights`; `None` with adapters, which are merged."""
        return self._state.for_inference() if self._state.adapters is None else None

    def frozen_weights(self) -> dict[str, np.ndarray]:
        """Returns the weights below adapters, by path; empty without adapters.

        `state` leaves them out, so `load_state` needs them first, by `begin_from`.
        """
        return self._state.frozen_arrays()

    def begin_from(self, weights: dict[str, np.ndarray]) -> None:
        """Loads the weights that the run begins from; ValueError after the first step."""
        if self.step > 0:
            raise ValueError(f"A run must begin at step 0. Received: a run at step {self.step}")
        self._state.begin_from(weights)

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Restores `state` under any number of replicas; ValueError if names or shapes differ."""
        variables = self._state.by_name()
        memory_names = {f"memory/{name}" for name in self.replica_memory.names}
        missing = sorted((variables.keys() | memory_names) - arrays.keys())
        surplus = sorted(arrays.keys() - (variables.keys() | memory_names))
        if missing or surplus:
            raise ValueError(
                "`arrays` must hold the state of this model. "
                f"Received: {len(missing)} missing {missing[:3]}, "
                f"{len(surplus)} surplus {surplus[:3]}"
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

    def measure_memory(self) -> tuple[float, list[float]]:
        """Returns the mean filled length of the memory, and the mean norm of each layer's states.

        Means are over filled positions, all rows together; no norms if nothing is filled. With
        several workers, all must call it.
        """
        own = self.strategy.run(self._sum_memory)
        sums = self.strategy.reduce(tf.distribute.ReduceOp.SUM, own, axis=None)
        filled, *norms = (float(each) for each in sums.numpy())
        length = filled / self.config.training.global_batch_size
        return length, [norm / filled for norm in norms] if filled else []

    def _summed_memory(self) -> tf.Tensor:
        """Sums this replica's filled positions, and their norms by layer."""
        memory = self.replica_memory.read()
        is_counted = self.replica_memory.places() < self.config.training.global_batch_size
        lengths = tf.where(is_counted, memory.valid_length, 0)
        sums = [tf.reduce_sum(tf.cast(lengths, tf.float32))]
        for states in memory.states:  # [B, M, D]
            is_filled = tf.range(states.shape[1]) >= states.shape[1] - lengths[:, None]
            norms = tf.norm(tf.cast(states, tf.float32), axis=2)
            sums.append(tf.reduce_sum(tf.where(is_filled, norms, 0.0)))
        return tf.stack(sums)

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
            self._state,
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

    def _tokens_of_segments(self, first_step: int, last_step: int) -> int:
        tokens_per_step = self.config.training.global_batch_size * self.config.model.segment_length
        return (last_step - first_step) * tokens_per_step

    def _raise_non_finite(self, record: StepRecord) -> None:
        rows = self._records.non_finite_rows()
        named = [self._describe_row(record.step - 1, row) for row in rows[:_MAX_ROWS_NAMED]]
        if len(rows) > _MAX_ROWS_NAMED:
            named.append(f"and {len(rows) - _MAX_ROWS_NAMED} more rows")
        raise NonFiniteError(
            f"The loss or the gradient is not finite: loss {record.nats_per_token}, "
            f"norm {record.gradient_norm}. No weight was changed.",
            where=f"step {record.step}, {', '.join(named) or 'all rows with a finite loss'}",
            remedy="Start again with a lower learning rate, or training.on_non_finite=skip.",
        )
