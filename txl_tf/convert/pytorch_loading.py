"""What loading is for every PyTorch implementation alike."""

from typing import Any

import numpy as np

from txl_tf.convert.checked_tensors import model_from_tensors
from txl_tf.convert.checkpoint_sizes import config_from
from txl_tf.convert.pytorch_names import IGNORED, pytorch_table
from txl_tf.convert.pytorch_sizes import pytorch_sizes
from txl_tf.convert.pytorch_system import PytorchSystem
from txl_tf.errors import MismatchError
from txl_tf.models.transformer_xl import TransformerXL

# A state dict of a model that was wrapped for several devices.
_WRAPPED = "module."


def model_from_state_dict(
    tensors: dict[str, np.ndarray],
    system: PytorchSystem,
    stored: dict[str, Any],
    settings: dict[str, Any],
    where: str,
    dtype: str,
) -> TransformerXL:
    """Builds a model from a state dict.

    Args:
        tensors: dict of name to array.
        system: `PytorchSystem` that wrote it.
        stored: dict of fields of `ModelConfig` that the checkpoint tells
            beside the tensors. Sizes among them must be those of the tensors.
        settings: dict of fields of `ModelConfig` that the caller gave.
        where: str. The checkpoint, for messages.
        dtype: str. Dtype policy of the model.

    Returns:
        The model.

    Raises:
        MismatchError: If a tensor is missing, surplus or misshapen, or sizes
            contradict each other.
        DataDamagedError: If a value is not finite.
        ValueError: If a setting is not valid.
    """
    if tensors and all(name.startswith(_WRAPPED) for name in tensors):
        tensors = {name.removeprefix(_WRAPPED): tensor for name, tensor in tensors.items()}
    cutoffs = settings.get("cutoffs", stored.get("cutoffs"))
    cutoffs = None if cutoffs is None else tuple(cutoffs)
    sizes = pytorch_sizes(tensors, system, cutoffs, where)
    # What is said to be tied is checked to be, tensor by tensor.
    for name in ("tie_weights", "share_tail_projections"):
        sizes[name] = settings.get(name, stored.get(name, sizes[name]))
    defaults = {
        "layer_norm_epsilon": 1e-5,
        "same_length_keys": system.same_length_keys,
        **stored,
    }
    _check_stored(stored, sizes, where)
    config = config_from(sizes, defaults, settings, where)
    table = pytorch_table(config, system)
    return model_from_tensors(config, table, tensors, where, IGNORED, dtype)


def _check_stored(stored: dict[str, Any], sizes: dict[str, Any], where: str) -> None:
    try:
        config_from(sizes, {}, {"memory_length": 0, **stored}, where)
    except ValueError as error:
        raise MismatchError(
            f"The configuration beside the tensors is not valid: {error}",
            where=where,
            remedy="Correct it, or give the file of tensors alone.",
        ) from error
