"""A model that `txl convert` has brought in, as something to evaluate."""

import os

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.optimizer_config import OptimizerConfig
from txl_tf.config.training_config import TrainingConfig
from txl_tf.errors import DataDamagedError
from txl_tf.file_storage import first_line, path_exists
from txl_tf.untrusted_files import read_json_object

_CONFIG_FILE = "config.json"
_REMEDY = "Convert it anew."


def is_converted(folder: str) -> bool:
    """Whether a folder looks like one of a converted model."""
    return path_exists(os.path.join(folder, _CONFIG_FILE))


def converted_config(folder: str) -> ModelConfig:
    """The configuration of a converted model.

    Args:
        folder: str. The folder.

    Returns:
        A `ModelConfig`.

    Raises:
        DataDamagedError: If it cannot be read.
    """
    path = os.path.join(folder, _CONFIG_FILE)
    try:
        return ModelConfig.from_dict(read_json_object(path, remedy=_REMEDY))
    except (ValueError, OSError) as error:
        raise DataDamagedError(
            f"The configuration of the model cannot be read: {first_line(error)}",
            where=path,
            remedy=_REMEDY,
        ) from error


def converted_experiment(folder: str) -> ExperimentConfig:
    """The configuration of a converted model, with evaluation as by default.

    Args:
        folder: str. The folder.

    Returns:
        An `ExperimentConfig`. Of its training nothing is known.

    Raises:
        DataDamagedError: If the configuration cannot be read.
    """
    return ExperimentConfig(
        model=converted_config(folder),
        training=TrainingConfig(global_batch_size=1, num_steps=1),
        optimizer=OptimizerConfig(warmup_steps=0),
    )
