"""The training loop of an experiment as a program for the TPU compiler."""

import tensorflow as tf

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.tpu_compiler.lowered_program import LoweredProgram
from txl_tf.tpu_compiler.replica_program import ReplicaProgram
from txl_tf.tpu_compiler.traced_strategy import traced_tpu_strategy
from txl_tf.training.trainer import Trainer
from txl_tf.unallocated_variables import unallocated_variables


def training_program(experiment: ExperimentConfig, num_replicas: int) -> LoweredProgram:
    """Lowers what `Trainer` runs under `tf.distribute.TPUStrategy`.

    Args:
        experiment: `ExperimentConfig`.
        num_replicas: int. Replicas that share the global batch.

    Returns:
        A `LoweredProgram`, the program of one replica.
    """
    return ReplicaProgram.of(traced_trainer(experiment, num_replicas).trace()).lower()


def traced_trainer(experiment: ExperimentConfig, num_replicas: int) -> Trainer:
    """A trainer whose variables take no memory and whose loop can only be traced.

    Args:
        experiment: `ExperimentConfig`.
        num_replicas: int. Replicas that share the global batch.

    Returns:
        A `Trainer` under a strategy from `traced_tpu_strategy`.
    """

    def batches_of_zeros(
        first_step: int, rows: range, per_replica_rows: int, num_steps: int
    ) -> tf.data.Dataset:
        shape = per_replica_rows, experiment.model.segment_length
        batch = {
            "token_ids": tf.zeros(shape, tf.int32),
            "target_ids": tf.zeros(shape, tf.int32),
            "start_of_stream": tf.zeros(shape[:1], tf.bool),
        }
        if experiment.training.document_boundaries == "mask":
            batch["document_starts"] = tf.zeros(shape, tf.bool)
        return tf.data.Dataset.from_tensors(batch).repeat()

    strategy = traced_tpu_strategy(num_replicas)
    # In this order: the strategy copies a value to the replicas that must take no memory before.
    with strategy.scope(), unallocated_variables():
        return Trainer(experiment, strategy, batches_of_zeros)
