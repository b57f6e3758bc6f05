"""Frozen weights that the adapters of a run belong to: `base/` in its folder.

Checkpoints of a run with adapters hold their factors. The weights that the run began
from are stored once, as a converted model that other jobs can read too.
"""

import os
from typing import TYPE_CHECKING

from txl_tf.converted_folder import converted_config, converted_model
from txl_tf.errors import DataDamagedError, InputMissingError
from txl_tf.run_description import RunDescription

if TYPE_CHECKING:
    import numpy as np

BASE = "base"
"""Folder of the frozen weights in the folder of a run with adapters."""
_RESTORE = "Restore it from a copy."


def with_base(
    folder: str, described: RunDescription, weights: "dict[str, np.ndarray]"
) -> "dict[str, np.ndarray]":
    """Returns the weights of a run with the factors of a checkpoint merged into its base.

    Args:
        folder: str. Folder of the run.
        described: `RunDescription` of the run, which has adapters.
        weights: dict of variable path to array: the factors, and what is trained besides.

    Returns:
        Dict of variable path to array, without factors.

    Raises:
        JobError: As `read_base`.
    """
    from txl_tf.models.adapters import adapter_scale, merged_weights

    training = described.experiment.training
    assert training.adapter_rank is not None
    scale = adapter_scale(training.adapter_rank, training.adapter_alpha)
    return merged_weights(read_base(folder, described) | weights, scale)


def read_base(folder: str, described: RunDescription) -> "dict[str, np.ndarray]":
    """Reads the frozen weights of a run with adapters, after verifying them.

    Args:
        folder: str. Folder of the run.
        described: `RunDescription` of the run.

    Returns:
        Dict of variable path to array.

    Raises:
        DataDamagedError: If they are missing, not what was written, or not those that
            the run began from.
        MismatchError: If they are of another version or of other settings than they say.
        StorageError: If a file cannot be read.
    """
    from txl_tf.models.weight_transfer import weights_sha256

    place, start = os.path.join(folder, BASE), described.start
    try:
        is_same = converted_config(place) == described.experiment.model
        model = converted_model(place)
    except InputMissingError as error:
        raise DataDamagedError(
            "The weights that the adapters of the run belong to are missing.",
            where=place,
            remedy=_RESTORE,
        ) from error
    weights = {variable.path: variable.numpy() for variable in model.weights}
    # Rows for other tokens are not those of the source.
    if is_same and start is not None and start["vocabulary"] == "same":
        is_same = weights_sha256(weights) == start["sha256"]
    if not is_same:
        raise DataDamagedError(
            "These are not the weights that the run began from.", where=place, remedy=_RESTORE
        )
    return weights
