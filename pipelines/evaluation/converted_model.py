"""A model that `txl convert` has brought in, as something to evaluate."""

import json
import os

from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.optimizer_config import OptimizerConfig
from txl_tf.config.training_config import TrainingConfig
from txl_tf.errors import DataDamagedError
from txl_tf.file_storage import path_exists, read_file

_CONFIG_FILE = "config.json"


def is_converted(folder: str) -> bool:
    """Whether a folder looks like one of a converted model."""
    return path_exists(os.path.join(folder, _CONFIG_FILE))


def converted_experiment(folder: str) -> ExperimentConfig:
    """The configuration of a converted model, with evaluation as by default.

    Args:
        folder: str. The folder.

    Returns:
        An `ExperimentConfig`. Of its training nothing is known.

    Raises:
        DataDamagedError: If the configuration cannot be read.
    """
    path = os.path.join(folder, _CONFIG_FILE)
    try:
        model = ModelConfig.from_dict(json.loads(read_file(path)))
    except (ValueError, TypeError, AttributeError) as error:
        raise DataDamagedError(
            "The configuration of the model cannot be read.",
            where=path,
            remedy="Convert it anew.",
        ) from error
    return ExperimentConfig(
        model=model,
        training=TrainingConfig(global_batch_size=1, num_steps=1),
        optimizer=OptimizerConfig(warmup_steps=0),
    )
