"""The training loop: steps on the device, reports on the host."""

import math
import time
from collections.abc import Callable, Iterator

import keras
import numpy as np
import tensorflow as tf

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.errors import NonFiniteError, UsageError
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.loop_report import LoopReport
from txl_tf.training.optimizers import create_optimizer
from txl_tf.training.train_step import TrainStep, memory_specs
from txl_tf.training.training_objective import TrainingObjective
from txl_tf.training.weight_average import WeightAverage

DatasetFunction = Callable[..., tf.data.Dataset]


class Trainer:
    """Model, optimizer and memory of a run, and the loop that moves them on.

    The state after step `n` is a function of the configuration, the data and
    `n` alone: batches are addressed by step, dropout masks by seed, step and
    replica. `state` and `load_state` carry all of it.

    Args:
        config: `ExperimentConfig`.
        strategy: `tf.distribute.Strategy` to run under.
        dataset_function: function of `first_step`, `rows` (a range of the
            global batch), `per_replica_rows` and `num_steps` that returns the
            batches of those rows from that step on.

    Raises:
        UsageError: If the rows cannot be shared out equally.
    """

    def __init__(
        self,
        config: ExperimentConfig,
        strategy: tf.distribute.Strategy,
        dataset_function: DatasetFunction,
    ) -> None:
        self.config = config
        self.strategy = strategy
        self._dataset_function = dataset_function
        training = config.training
        self._rows_per_replica, remainder = divmod(
            training.global_batch_size, strategy.num_replicas_in_sync
        )
        if remainder:
            raise UsageError(
                f"{training.global_batch_size} rows cannot be shared out equally over "
                f"{strategy.num_replicas_in_sync} replicas.",
                where="training.global_batch_size",
                remedy="Make it a multiple of the number of replicas.",
            )
        keras.utils.set_random_seed(training.seed)
        with strategy.scope():
            self.model = TransformerXL(config.model, dtype=training.dtype_policy)
            self.optimizer = create_optimizer(config.optimizer, training.num_steps)
            self._objective = TrainingObjective(self.model, config)
            # An optimizer that builds itself inside a traced step fails.
            self.optimizer.build(self._trainable_variables())
            self._weight_average: WeightAverage | None = None
            if training.average_weights_from_step is not None:
                self._weight_average = WeightAverage(
                    self.model.trainable_variables, training.average_weights_from_step
                )
            self._loss_mean = keras.metrics.Mean(name="nats_per_token")
            self._gradient_norm_mean = keras.metrics.Mean(name="gradient_norm")
        self.replica_memory = ReplicaState(
            strategy, self._rows_per_replica, memory_specs(self.model.initial_memory(1))
        )
        self._has_compiled = False
        self._run_steps = self._host_loop()

    @property
    def step(self) -> int:
        """Steps done since the run began."""
        return int(self.optimizer.iterations.numpy())

    def run(self) -> Iterator[LoopReport]:
        """Trains to the end of the run, from where it stands.

        Loops end at multiples of `steps_per_loop` and wherever a checkpoint or
        an evaluation is due, so that the caller can act between them.

        Yields:
            A `LoopReport` after every loop.

        Raises:
            NonFiniteError: If the loss or the gradient norm of a loop is not
                finite.
        """
        if self.step >= self.config.training.num_steps:
            return
        iterator = iter(self._batches())
        while self.step < self.config.training.num_steps:
            yield self._loop(iterator, self._next_stop() - self.step)

    def state(self) -> dict[str, np.ndarray]:
        """Everything that decides the next step.

        Returns:
            Dict of name to array: weights, optimizer variables (the step is
            one of them), the memory of all rows, and where the run has them
            the weights of auxiliary losses and the averages of the weights.
        """
        arrays = {name: variable.numpy() for name, variable in self._variables().items()}
        memory = self.replica_memory.to_global()
        return arrays | {f"memory/{name}": array for name, array in memory.items()}

    def inference_weights(self) -> dict[str, np.ndarray]:
        """The weights to evaluate, generate and export with.

        Returns:
            Dict of variable path to array: averages where the run keeps them,
            see `TrainingConfig.average_weights_from_step`, else the weights.
        """
        weights = {variable.path: variable for variable in self.model.weights}
        if self._weight_average is not None:
            weights |= self._weight_average.variables
        return {path: variable.numpy() for path, variable in weights.items()}

    def load_state(self, arrays: dict[str, np.ndarray]) -> None:
        """Takes up what `state` returned, under any number of replicas.

        Args:
            arrays: dict of name to array.

        Raises:
            ValueError: If names or shapes are not exactly those of `state`.
        """
        variables = self._variables()
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

    def _variables(self) -> dict[str, keras.Variable]:
        named = [(f"model/{variable.path}", variable) for variable in self.model.weights]
        named += [
            (f"auxiliary/{variable.path}", variable)
            for variable in self._objective.auxiliary_variables
        ]
        named += [(f"optimizer/{variable.path}", variable) for variable in self.optimizer.variables]
        if self._weight_average is not None:
            averages = self._weight_average.variables
            named += [(f"average/{path}", variable) for path, variable in averages.items()]
        return dict(named)

    def _trainable_variables(self) -> list[keras.Variable]:
        return [*self.model.trainable_variables, *self._objective.auxiliary_variables]

    def _next_stop(self) -> int:
        training = self.config.training
        periods = [training.steps_per_loop, training.checkpoint_every_steps]
        if training.evaluate_every_steps is not None:
            periods.append(training.evaluate_every_steps)
        stops = [(self.step // period + 1) * period for period in periods]
        return min(*stops, training.num_steps)

    def _batches(self) -> tf.data.Dataset:
        first_step = self.step

        def dataset_of_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
            num_rows = self.config.training.global_batch_size // context.num_input_pipelines
            first = context.input_pipeline_id * num_rows
            return self._dataset_function(
                first_step=first_step,
                rows=range(first, first + num_rows),
                per_replica_rows=self._rows_per_replica,
                num_steps=self.config.training.num_steps - first_step,
            )

        return self.strategy.distribute_datasets_from_function(dataset_of_host)

    def _host_loop(self) -> Callable[..., None]:
        with self.strategy.scope():
            step = TrainStep(
                objective=self._objective,
                optimizer=self.optimizer,
                variables=self._trainable_variables(),
                replica_memory=self.replica_memory,
                clip_norm=self.config.optimizer.clip_norm,
                seed=self.config.training.seed,
                loss_mean=self._loss_mean,
                gradient_norm_mean=self._gradient_norm_mean,
                weight_average=self._weight_average,
            )
        # TPUStrategy compiles by itself; with several replicas on GPUs or CPUs
        # the all-reduce cannot be compiled.
        is_alone = self.strategy.num_replicas_in_sync == 1
        is_tpu = isinstance(self.strategy, tf.distribute.TPUStrategy)
        if self.config.training.jit_compile and is_alone and not is_tpu:
            step = tf.function(step.__call__, jit_compile=True, autograph=False)

        @tf.function
        def run_steps(iterator: Iterator[dict[str, tf.Tensor]], num_steps: tf.Tensor) -> None:
            for _ in tf.range(num_steps):
                self.strategy.run(step, args=(next(iterator),))

        return run_steps

    def _loop(self, iterator: Iterator[dict[str, tf.Tensor]], num_steps: int) -> LoopReport:
        self._loss_mean.reset_state()
        self._gradient_norm_mean.reset_state()
        begin = time.perf_counter()
        # A tensor, because a Python int would be traced anew for each value.
        self._run_steps(iterator, tf.constant(num_steps))
        loss = float(self._loss_mean.result())
        gradient_norm = float(self._gradient_norm_mean.result())
        seconds = time.perf_counter() - begin
        has_compiled, self._has_compiled = not self._has_compiled, True
        if not (math.isfinite(loss) and math.isfinite(gradient_norm)):
            raise NonFiniteError(
                f"The loss or the gradient is not finite: loss {loss}, norm {gradient_norm}.",
                where=f"steps {self.step - num_steps + 1} to {self.step}",
                remedy="Start again from the last checkpoint with a lower learning rate.",
            )
        tokens_per_step = self.config.training.global_batch_size * self.config.model.segment_length
        return LoopReport(
            step=self.step,
            num_steps=num_steps,
            num_tokens=num_steps * tokens_per_step,
            nats_per_token=loss,
            gradient_norm=gradient_norm,
            learning_rate=float(self.optimizer.learning_rate),
            seconds=seconds,
            has_compiled=has_compiled,
        )
