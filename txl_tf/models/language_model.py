"""Interface of all language models, and `create_model`, which builds one from its config."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import MismatchError
from txl_tf.models.recurrent import LSTMLanguageModel, QRNNLanguageModel
from txl_tf.models.transformer_xl import TransformerXL


def create_model(
    config: ModelConfig | LSTMConfig | QRNNConfig, *, rematerialize: bool = False, dtype=None
) -> TransformerXL | LSTMLanguageModel | QRNNLanguageModel:
    """Builds the language model of a configuration, with initial weights.

    All of them score alike: `initial_memory`, a call that takes and returns a
    memory, `negative_log_likelihood`, `score` and `log_probs`.

    Args:
        config: `ModelConfig`, `LSTMConfig` or `QRNNConfig`.
        rematerialize: bool. See `TransformerXL`; the others cannot.
        dtype: optional Keras dtype policy.

    Returns:
        The model.

    Raises:
        ValueError: If `rematerialize` is set for a recurrent model.
    """
    if isinstance(config, ModelConfig):
        return TransformerXL(config, rematerialize=rematerialize, dtype=dtype)
    if rematerialize:
        raise ValueError(
            "Only a `TransformerXL` can rematerialize its activations. "
            f"Received: rematerialize={rematerialize}, config={config}"
        )
    model_class = LSTMLanguageModel if isinstance(config, LSTMConfig) else QRNNLanguageModel
    return model_class(config, dtype=dtype)


def assign_weights(variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Assigns an array to every variable; nothing is changed if one does not fit.

    Args:
        variables: mapping of name to `keras.Variable`.
        arrays: mapping of name to array; others may be among them.

    Raises:
        MismatchError: If an array is missing, or of another shape or kind.
    """
    for name, variable in variables.items():
        array, shape = arrays.get(name), tuple(variable.shape)
        if array is None:
            raise _mismatch(name, "is missing")
        # NumPy does not count bfloat16 among its own floats.
        if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
            raise _mismatch(name, f"is of type {array.dtype.name}")
        if array.shape != shape:
            raise _mismatch(name, f"has the shape {list(array.shape)}, not {list(shape)}")
    for name, variable in variables.items():
        variable.assign(arrays[name])


def _mismatch(name: str, what: str) -> MismatchError:
    return MismatchError(
        f"The weights are not those of the model: `{name}` {what}.",
        where="checkpoint",
        remedy="Use the version of txl-tf that wrote it, or restore it from a copy.",
    )
