"""The step of an evaluation as a program for the TPU compiler."""

import tensorflow as tf

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.tpu_compiler.lowered_program import LoweredProgram, lower
from txl_tf.tpu_compiler.unallocated_variables import unallocated_variables


def evaluation_program(experiment: ExperimentConfig) -> LoweredProgram:
    """Lowers the step that `Evaluator` runs, on one device with all rows.

    Args:
        experiment: `ExperimentConfig`.

    Returns:
        A `LoweredProgram`.
    """
    evaluation = experiment.evaluation
    with unallocated_variables():
        evaluator = Evaluator(experiment.model, evaluation, experiment.training.dtype_policy)
        segments = evaluator.segments_per_step(evaluation.batch_size)
        # Shapes alone: the constants of a large model take a while to compute.
        carried = tf.function(
            lambda: (
                evaluator.initial_memory(evaluation.batch_size),
                evaluator.constants(evaluation.batch_size, segments),
            ),
            autograph=False,
        )
        carried = carried.get_concrete_function().structured_outputs
    rows = [evaluation.batch_size, segments * evaluator.config.segment_length]

    def score(
        token_ids: tf.Tensor,
        target_ids: tf.Tensor,
        is_scored: tf.Tensor,
        document_starts: tf.Tensor,
        *tensors: tf.Tensor,
    ) -> object:
        given = iter(tensors)
        leaves = [None if leaf is None else next(given) for leaf in tf.nest.flatten(carried)]
        restored = tf.nest.pack_sequence_as(carried, leaves)
        # What `Evaluator.evaluate` compiles; called here with shapes instead of a split.
        return evaluator.score_batch(token_ids, target_ids, is_scored, document_starts, *restored)

    specs = [
        tf.TensorSpec(rows, tf.int32),
        tf.TensorSpec(rows, tf.int32),
        tf.TensorSpec(rows, tf.bool),
        tf.TensorSpec(rows, tf.bool),
        *(
            tf.TensorSpec(leaf.shape, leaf.dtype)
            for leaf in tf.nest.flatten(carried)
            if leaf is not None
        ),
    ]
    return lower(score, specs)
