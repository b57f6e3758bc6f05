"""Programs of a run under TPUStrategy: its training and its evaluation, lowered without a TPU."""

import dataclasses

import tensorflow as tf

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.unallocated_variables import unallocated_variables
from txl_tf.layers.compiled_parts import exact_products
from txl_tf.tpu_compiler.lowered_program import LoweredProgram
from txl_tf.tpu_compiler.replica_program import ReplicaProgram, traced_tpu_strategy
from txl_tf.training.train_state import attention_choice
from txl_tf.training.trainer import Trainer


def traced_trainer(
    experiment: ExperimentConfig,
    num_replicas: int,
    chip: str | None = None,
) -> Trainer:
    """Returns a trainer under `traced_tpu_strategy`, whose loop can only be traced.

    Its variables are not allocated.
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
        if experiment.masks_documents:
            batch["document_starts"] = tf.zeros(shape, tf.bool)
        return tf.data.Dataset.from_tensors(batch).repeat()

    strategy = traced_tpu_strategy(num_replicas, chip=chip)
    # The order matters, because the strategy copies the values that must not be allocated.
    with strategy.scope(), unallocated_variables():
        return Trainer(experiment, strategy, batches_of_zeros)


def training_program(trainer: Trainer) -> LoweredProgram:
    """Lowers the training program of a `traced_trainer`."""
    return dataclasses.replace(
        ReplicaProgram.of(trainer.trace()).lower(),
        attention=attention_choice(trainer.experiment, trainer.strategy).reason,
    )


def evaluation_program(trainer: Trainer) -> LoweredProgram:
    """Lowers the program of the evaluations during the training of a `traced_trainer`.

    The program reads the variables of the trainer. Dynamic evaluation allows only one replica.
    """
    experiment, strategy = trainer.experiment, trainer.strategy
    evaluator = Evaluator(
        experiment.model,
        experiment.resolved_evaluation,
        masks_documents=experiment.masks_documents,
        strategy=strategy,
        variables=trainer.state.inference_variables(),
    )
    num_rows = experiment.evaluation.batch_size
    _, step = evaluator.trace(num_rows)
    with exact_products():
        program = ReplicaProgram.of(step)
        lowered_program = program.lower()
    return dataclasses.replace(
        lowered_program,
        variable_bytes=sum(_variable_bytes(handles[0]) for handles in program.variables.values()),
        attention=evaluator.attention_choice(num_rows).reason,
    )


def _variable_bytes(handle: tf.Tensor) -> int:
    value = handle._handle_data.shape_and_type[0]
    return tf.TensorShape(value.shape).num_elements() * tf.as_dtype(value.dtype).size
