"""The training step of an experiment as a program for the TPU compiler."""

import tensorflow as tf
from tensorflow.compiler.tf2xla.ops import gen_xla_ops

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.distribution.replica_state import ReplicaState
from txl_tf.tpu_compiler.lowered_program import LoweredProgram, lower
from txl_tf.tpu_compiler.unallocated_variables import unallocated_variables
from txl_tf.training.step_records import StepRecords
from txl_tf.training.train_step import AllReduce, TrainStep, memory_specs
from txl_tf.training.training_variables import TrainingVariables


def training_program(experiment: ExperimentConfig, num_replicas: int) -> LoweredProgram:
    """Lowers the step that `Trainer` runs, for one replica of many.

    Args:
        experiment: `ExperimentConfig`.
        num_replicas: int. Replicas that share the global batch.

    Returns:
        A `LoweredProgram`. Every replica draws the dropout masks of the first,
        which costs the same.
    """
    num_rows = experiment.training.rows_per_replica(num_replicas)
    with unallocated_variables():
        step = _train_step(experiment, num_rows, num_replicas)
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


def _train_step(experiment: ExperimentConfig, num_rows: int, num_replicas: int) -> TrainStep:
    variables = TrainingVariables(experiment)
    strategy = tf.distribute.get_strategy()
    memory = memory_specs(variables.model.initial_memory(1))
    return variables.train_step(
        ReplicaState(strategy, num_rows, memory),
        StepRecords(strategy, num_rows, experiment.training.steps_per_loop),
        _sum_over(num_replicas),
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
