"""Folder of a converted model: `config.json` and one checkpoint.

TensorFlow is imported only when weights are read or written.
"""

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from txl_tf.config.model import ModelConfig
from txl_tf.errors import DataDamagedError, InputMissingError
from txl_tf.storage.files import first_line
from txl_tf.storage.untrusted_files import read_json_object
from txl_tf.storage.writable_folder import WritableFolder

if TYPE_CHECKING:
    import numpy as np

    from txl_tf.models.transformer_xl import TransformerXL

CONFIG_FILE = "config.json"
CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints, also in a run."""
CONVERTED_STEP = 0
"""Step of the only checkpoint of a converted model."""

_PREFIX = "model/"
_CONVERT_AGAIN = "Convert it anew."


def converted_config(folder: str) -> ModelConfig:
    """Reads the configuration of a converted model.

    Raises InputMissingError if there is no model, and DataDamagedError if it cannot be read.
    """
    path = os.path.join(folder, CONFIG_FILE)
    try:
        return ModelConfig.from_dict(read_json_object(path, remedy=_CONVERT_AGAIN))
    except (FileNotFoundError, NotADirectoryError) as error:
        what = "There is no converted model in this folder."
        raise InputMissingError(
            what, where=folder, remedy="`txl convert --from` makes one."
        ) from error
    except (ValueError, OSError) as error:
        raise DataDamagedError(
            f"The configuration of the model cannot be read: {first_line(error)}",
            where=path,
            remedy=_CONVERT_AGAIN,
        ) from error


def converted_identity(config: ModelConfig) -> dict:
    """Returns the identity of the checkpoint of a converted model, see `CheckpointStore`."""
    return {"model": config.to_dict()}


def converted_model(folder: str) -> "TransformerXL":
    """Builds a converted model in float32, after verifying its weights."""
    from txl_tf.training.checkpoint_store import CheckpointStore

    config = converted_config(folder)
    store = CheckpointStore(os.path.join(folder, CHECKPOINTS), converted_identity(config))
    return model_of_converted(config, store.load(CONVERTED_STEP))


def model_of_converted(config: ModelConfig, arrays: "dict[str, np.ndarray]") -> "TransformerXL":
    """Builds a converted model in float32 from the arrays of its checkpoint.

    Raises MismatchError if they belong to another model.
    """
    from txl_tf.convert.tensors import named_variables
    from txl_tf.models.language_model import assign_weights
    from txl_tf.models.transformer_xl import TransformerXL

    # By the names from the conversion: shared biases have other paths.
    model = TransformerXL(config, dtype="float32")
    variables = named_variables(model).items()
    assign_weights({_PREFIX + name: variable for name, variable in variables}, arrays)
    return model


def write_converted(
    folder: WritableFolder, config: ModelConfig, arrays: "Mapping[str, np.ndarray]"
) -> None:
    """Writes a converted model: its weights, then its configuration.

    The keys of `arrays` are the names from `named_variables`.
    """
    from txl_tf.training.checkpoint_store import CheckpointStore

    store = CheckpointStore(folder.subfolder(CHECKPOINTS), converted_identity(config))
    store.save(CONVERTED_STEP, {_PREFIX + name: array for name, array in arrays.items()})
    content = json.dumps(config.to_dict(), indent=1) + "\n"
    folder.write(CONFIG_FILE, content.encode())
