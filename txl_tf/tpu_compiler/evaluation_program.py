"""The step of an evaluation as a program for the TPU compiler."""

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.tpu_compiler.lowered_program import LoweredProgram
from txl_tf.tpu_compiler.replica_program import ReplicaProgram
from txl_tf.tpu_compiler.training_program import traced_trainer


def evaluation_program(experiment: ExperimentConfig, num_replicas: int) -> LoweredProgram:
    """Lowers what `Evaluator` runs during training, under `tf.distribute.TPUStrategy`.

    Args:
        experiment: `ExperimentConfig`.
        num_replicas: int. Replicas that share the rows. Where the weights
            follow the text there is only one.

    Returns:
        A `LoweredProgram`, the program of one replica. Its variables are
        those of the trainer.
    """
    trainer = traced_trainer(experiment, num_replicas)
    evaluator = Evaluator(
        experiment.model,
        experiment.evaluation,
        experiment.training.dtype_policy,
        masks_documents=experiment.training.document_boundaries == "mask",
        strategy=trainer.strategy,
        variables=trainer.inference_variables(),
    )
    _, step = evaluator.trace(experiment.evaluation.batch_size)
    return ReplicaProgram.of(step).lower()
