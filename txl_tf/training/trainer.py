"""Training loop on the host: steps by the loop, their reports, and the state of a run.

Shape letters: B rows of a replica, T segment length.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.mesh_program import MeshProgram
from txl_tf.distribution.mesh_state import replica_state
from txl_tf.distribution.mesh_strategy import MeshStrategy
from txl_tf.distribution.remote_hosts import at_once
from txl_tf.distribution.strategy import AnyStrategy, num_workers
from txl_tf.errors import NonFiniteError
from txl_tf.training.ledger import LoopReport, StepRecord, StepStatus
from txl_tf.training.objectives.objective import Objective
from txl_tf.training.objectives.text_objective import TextObjective
from txl_tf.training.step_compilation import StepCompilation
from txl_tf.training.step_records import StepRecords
from txl_tf.training.train_state import TrainState
from txl_tf.training.train_step import TrainStep

_MAX_ROWS_NAMED = 4


class Trainer:
    """Training loop of a run with its model, optimizer and memory.

    The state after step `n` depends on the configuration, the data and `n` only: the step decides
    the batch, and seed, step and row decide the dropout masks. If replicas cannot share the rows
    equally, padding rows fill the shares; they count for nothing and are not part of the state.

    `dataset_function` returns the batches of a range of rows from a step on, see
    `TrainingSegments.dataset_fn`. `describe_row` names the text of a row in errors; its step counts
    from 0. `count_tokens` counts the tokens between two steps; without it, each row reads a segment
    in each step.
    """

    def __init__(
        self,
        experiment: ExperimentConfig,
        strategy: AnyStrategy,
        dataset_function: Callable[..., tf.data.Dataset],
        describe_row: Callable[[int, int], str] | None = None,
        count_tokens: Callable[[int, int], int] | None = None,
        objective_class: type[Objective] = TextObjective,
    ) -> None:
        self.experiment = experiment
        self.strategy = strategy
        self.num_workers = num_workers(strategy)
        self._dataset_function = dataset_function
        self._describe_row = describe_row or (lambda step, row: f"row {row}")
        training = experiment.training
        step_tokens = training.global_batch_size * experiment.model.segment_length
        self._count_tokens = count_tokens or (lambda first, last: (last - first) * step_tokens)
        self._rows_per_replica = training.rows_per_replica(strategy.num_replicas_in_sync)
        # A variable on the host, which another thread can set while the loop runs.
        self._stop_requested = tf.Variable(False, trainable=False)
        # The setting is global to the process, so an earlier trainer may have changed it.
        tf.config.experimental.enable_tensor_float_32_execution(training.tensor_float_32)
        keras.utils.set_random_seed(training.seed)
        with strategy.scope():
            self.state = TrainState(experiment, objective_class, strategy)
        self.model = self.state.model
        specs = tf.nest.map_structure(
            lambda tensor: tf.TensorSpec(
                tensor.shape[1:], keras.backend.standardize_dtype(tensor.dtype)
            ),
            self.state.objective.initial_memory(),
        )
        self.replica_memory = replica_state(
            strategy, self._rows_per_replica, specs, num_rows=training.global_batch_size
        )
        self._records = StepRecords(strategy, self._rows_per_replica, training.steps_per_loop)
        # The iterator is kept after the last step: with several replicas TensorFlow may take a
        # minute to free it, and the caller must save before that if the machine is being preempted.
        self._iterator: Iterator[dict[str, tf.Tensor]] | None = None
        self._has_compiled = False
        self._run_steps = self._host_loop()

    @property
    def step(self) -> int:
        """Steps done since the run began."""
        return int(self.state.optimizer.iterations.numpy())

    def run(self) -> Iterator[LoopReport]:
        """Trains to the end of the run or a request to stop, and yields a report for every loop."""
        while self.step < self.experiment.training.num_steps and not self.must_stop():
            report = self.take_steps()
            if report is not None:
                yield report

    def take_steps(self) -> LoopReport | None:
        """Takes steps up to `next_stop`, or to a request to stop, and reports them.

        Returns `None` if the stop was requested before the first step. Raises NonFiniteError if a
        loss or gradient is not finite and the policy is to stop; then the step has changed nothing.
        """
        if self._iterator is None:
            self._iterator = iter(self._batches())
        first_step = self.step
        num_steps = self.next_stop - first_step
        begin = time.perf_counter()
        # Tensors, because TensorFlow would trace the loop again for each value of a Python int.
        self._run_steps(self._iterator, tf.constant(first_step), tf.constant(num_steps))
        # Fetching waits for the device, which may still be computing the steps.
        records = self._records.fetch(first_step, self.step)
        if not records:
            return None
        if records[-1].status == StepStatus.STOPPED:
            self._iterator = None  # because it has passed the batch of the step that stopped
            self._raise_non_finite(records[-1])
        seconds = time.perf_counter() - begin
        has_compiled, self._has_compiled = not self._has_compiled, True
        return LoopReport(
            records=tuple(records),
            num_tokens=self._count_tokens(first_step, first_step + len(records)),
            learning_rate=float(self.state.schedule.rate(records[-1].step)),
            seconds=seconds,
            has_compiled=has_compiled,
        )

    def trace(self) -> tf.types.experimental.ConcreteFunction:
        """Traces the loop on TensorFlow, whose last argument is the number of steps."""
        iterator = iter(self._batches())
        return self._run_steps.get_concrete_function(iterator, tf.constant(0), tf.constant(1))

    def request_stop(self) -> None:
        """Ends the loop after the current step; may be called from any thread."""
        with at_once():
            self._stop_requested.assign(True)

    def must_stop(self) -> bool:
        """True if a stop was requested of this worker or any other."""
        # All workers must agree: one that continued alone would wait forever for gradients.
        is_requested = bool(self._stop_requested.numpy())
        return self.sum_over_workers(float(is_requested)) > 0.0

    def sum_over_workers(self, value: float) -> float:
        """Adds up a number of each worker in float64; all workers must call it."""
        if self.num_workers == 1:
            return value
        if isinstance(self.strategy, MeshStrategy):
            return self.strategy.sum_over_workers(value)
        # TensorFlow sums over the replicas of all workers, so each has a share of the value.
        num_local = self.strategy.num_replicas_in_sync // self.num_workers
        shares = self.strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(value / num_local, tf.float64)
        )
        return float(self.strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None))

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns all state that decides the next step, as arrays by name.

        With adapters, their factors take the place of the weights of the model.
        """
        arrays = {name: variable.numpy() for name, variable in self.state.by_name().items()}
        memory = self.replica_memory.to_global()
        return arrays | {f"memory/{name}": array for name, array in memory.items()}

    def load_arrays(self, arrays: dict[str, np.ndarray]) -> None:
        """Restores `arrays` of the same configuration under any number of replicas."""
        self.replica_memory.from_global(
            {name: arrays[f"memory/{name}"] for name in self.replica_memory.names}
        )
        for name, variable in self.state.by_name().items():
            variable.assign(arrays[name])
        self._iterator = None

    @property
    def next_stop(self) -> int:
        """Steps done at the end of the next loop, unless a stop is requested."""
        training = self.experiment.training
        periods = (
            training.steps_per_loop,
            training.checkpoint_every_steps,
            training.evaluation_period,
        )
        stops = [(self.step // period + 1) * period for period in periods]
        return min(*stops, training.num_steps)

    def _batches(self) -> Any:
        first_step = self.step

        # Each host reads its own rows. Without this, every host would read all rows and drop the
        # rows of the others.
        def dataset_of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
            num_replicas = context.num_replicas_in_sync // context.num_input_pipelines
            num_rows = self._rows_per_replica * num_replicas
            first = context.input_pipeline_id * num_rows
            is_mesh = isinstance(self.strategy, MeshStrategy)
            return self._dataset_function(
                first_step=first_step,
                rows=range(first, first + num_rows),
                per_replica_rows=num_rows if is_mesh else self._rows_per_replica,
                num_steps=self.experiment.training.num_steps - first_step,
            )

        if isinstance(self.strategy, MeshStrategy):
            return dataset_of_host(self.strategy.input_context).as_numpy_iterator()
        return self.strategy.distribute_datasets_from_function(dataset_of_host)

    def _host_loop(self) -> Callable[..., None]:
        if isinstance(self.strategy, MeshStrategy):
            return self._loop_on_mesh(self.strategy)
        compilation = StepCompilation.choose(self.experiment, self.strategy)
        step = TrainStep(
            self.experiment,
            self.state,
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

    def _loop_on_mesh(self, strategy: MeshStrategy) -> Callable[..., None]:
        self.mesh_program = MeshProgram(
            strategy,
            TrainStep(self.experiment, self.state, self.replica_memory, self._records),
            self.state.variables,
            [self.replica_memory, *self._records.states],
            rounds_products=self.experiment.training.tensor_float_32,
        )

        def run_steps(batches: Iterator, first_step: tf.Tensor, num_steps: tf.Tensor) -> None:
            with self.mesh_program.running() as take_step:
                for _ in range(int(num_steps)):
                    if self.num_workers == 1 and self._stop_requested.numpy():
                        break
                    take_step(next(batches), int(first_step))

        return run_steps

    def _raise_non_finite(self, record: StepRecord) -> None:
        rows = self._records.non_finite_rows()
        texts = [self._describe_row(record.step - 1, row) for row in rows[:_MAX_ROWS_NAMED]]
        if len(rows) > _MAX_ROWS_NAMED:
            texts.append(f"and {len(rows) - _MAX_ROWS_NAMED} more rows")
        raise NonFiniteError(
            f"The loss or the gradient is not finite: loss {record.nats_per_token}, "
            f"gradient norm {record.gradient_norm}. The step changed no weight.",
            where=f"step {record.step}, {', '.join(texts) or 'the loss of every row is finite'}",
            remedy="Start again with a lower learning rate, or training.on_non_finite=skip.",
        )
