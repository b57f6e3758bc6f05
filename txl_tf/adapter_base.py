"""Frozen weights of a run with adapters, stored in `base/` of its folder.

Checkpoints hold only the factors. The initial weights are stored once, as a converted model that
other jobs can read.
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
    """Merges the factors of a checkpoint into the base weights of a run.

    `weights` are the factors and the other trained variables by path; the result has no factors.
    """
    from txl_tf.models.adapters import adapter_scale, merged_weights

    training = described.experiment.training
    assert training.adapter_rank is not None
    scale = adapter_scale(training.adapter_rank, training.adapter_alpha)
    return merged_weights(read_base(folder, described) | weights, scale)


def read_base(folder: str, described: RunDescription) -> "dict[str, np.ndarray]":
    """Reads and verifies the frozen weights of a run with adapters, by path.

    Raises DataDamagedError if they are missing, altered, or not the weights that the run began
    from.
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
    # With another vocabulary the embedding rows differ from the source.
    if is_same and start is not None and start["vocabulary"] == "same":
        is_same = weights_sha256(weights) == start["sha256"]
    if not is_same:
        raise DataDamagedError(
            "These are not the weights that the run began from.", where=place, remedy=_RESTORE
        )
    return weights
