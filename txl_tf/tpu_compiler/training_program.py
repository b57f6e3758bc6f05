"""The training step of an experiment as a program for the TPU compiler."""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.training_config import TrainingConfig
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.tpu_compiler.lowered_program import LoweredProgram, lower
from txl_tf.tpu_compiler.unallocated_variables import unallocated_variables
from txl_tf.training.optimizers import create_optimizer, create_plateau_scale
from txl_tf.training.row_gradients import RowGradients
from txl_tf.training.spike_detector import SpikeDetector
from txl_tf.training.step_records import StepRecords
from txl_tf.training.train_step import AllReduce, TrainStep, memory_specs
from txl_tf.training.training_objective import TrainingObjective
from txl_tf.training.weight_average import WeightAverage


def rows_per_replica(training: TrainingConfig, num_replicas: int) -> int:
    """Rows that each replica runs, as `Trainer` shares them out.

    Args:
        training: `TrainingConfig`.
        num_replicas: int.

    Returns:
        The number of rows. Where the global batch cannot be shared out
        equally, some of them are padding.
    """
    num_parts = training.gradient_accumulation_steps
    return -(-training.global_batch_size // (num_replicas * num_parts)) * num_parts


def training_program(experiment: ExperimentConfig, num_replicas: int) -> LoweredProgram:
    """Lowers the step that `Trainer` runs, for one replica of many.

    Args:
        experiment: `ExperimentConfig`.
        num_replicas: int. Replicas that share the global batch.

    Returns:
        A `LoweredProgram`. Every replica draws the dropout masks of the first,
        which costs the same.
    """
    with unallocated_variables():
        step = _train_step(experiment, num_replicas)
    num_rows = rows_per_replica(experiment.training, num_replicas)
    rows = [num_rows, experiment.model.segment_length]

    def run_step(
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        start_of_stream: tf.Tensor,
        first_step: tf.Tensor,
    ) -> None:
        batch = {
            "token_ids": token_ids,
            "target_ids": target_ids,
            "start_of_stream": start_of_stream,
        }
        step(batch, first_step)

    specs = [
        tf.TensorSpec(rows, tf.int32),
        tf.TensorSpec(rows, tf.int32),
        tf.TensorSpec(rows[:1], tf.bool),
        tf.TensorSpec([], tf.int32),
    ]
    return lower(run_step, specs, num_replicas)


def _train_step(experiment: ExperimentConfig, num_replicas: int) -> TrainStep:
    training = experiment.training
    num_rows = rows_per_replica(training, num_replicas)
    model = TransformerXL(
        experiment.model, rematerialize=training.rematerialize, dtype=training.dtype_policy
    )
    objective = TrainingObjective(model, experiment)
    variables = [*model.trainable_variables, *objective.auxiliary_variables]
    optimizer = create_optimizer(
        experiment.optimizer,
        training.num_steps,
        variables,
        create_plateau_scale(experiment.optimizer),
    )
    strategy = tf.distribute.get_strategy()
    weight_average = None
    if training.average_weights_from_step is not None:
        weight_average = WeightAverage(
            model.trainable_variables,
            training.average_weights_from_step,
            training.average_weights_decay,
        )
    spike_detector = None
    if training.spike_deviations is not None:
        spike_detector = SpikeDetector(training.spike_deviations)
    memory = memory_specs(model.initial_memory(1))
    return TrainStep(
        config=training,
        row_gradients=RowGradients(objective, variables, training.gradient_accumulation_steps),
        optimizer=optimizer,
        variables=variables,
        replica_memory=ReplicaState(strategy, num_rows, memory),
        records=StepRecords(strategy, num_rows, training.steps_per_loop),
        clip_norm=experiment.optimizer.clip_norm,
        weight_average=weight_average,
        spike_detector=spike_detector,
        all_reduce=_sum_over(num_replicas),
    )


def _sum_over(num_replicas: int) -> AllReduce:
    """What `tf.distribute.TPUStrategy` puts into the step, without such a strategy."""
    groups: list[list[int]] = [list(range(num_replicas))]

    def all_reduce(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
        if num_replicas == 1:
            return tensors
        return [
            gen_xla_ops.xla_all_reduce(
                input=tensor,
                group_assignment=groups,
                reduce_op="Add",
                mode="CrossReplica",
            )
            for tensor in tensors
        ]

    return all_reduce
