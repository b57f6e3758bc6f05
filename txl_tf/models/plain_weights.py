"""Weights of a model as files hold them, for the layers that its configuration describes."""

import keras
import numpy as np

from txl_tf.models.adapters import is_factor
from txl_tf.models.language_model import LanguageModel, nested_layers


def plain_weights(model: LanguageModel, purpose: str) -> dict[str, np.ndarray]:
    """Returns the weights of a model by path, with low-rank adapters merged into their kernels.

    Raises ValueError for a model that its configuration does not describe, because its layers are
    quantized or of a class of the user's. `purpose` begins the message of the error.
    """
    for layer in nested_layers(model):
        own_package = type(layer).__module__.partition(".")[0] in ("txl_tf", "keras")
        if not own_package or getattr(layer, "quantization_mode", None) is not None:
            kind = f"{type(layer).__name__} of the policy {layer.dtype_policy.name!r}"
            raise ValueError(
                f"{purpose} holds weights and a configuration, which do not describe layers that "
                "are quantized or of other classes than those of `txl_tf`. Do it before "
                f"`quantize`, or save the model with Keras. Received: layer {layer.path!r}, {kind}"
            )
    weights = {
        variable.path: keras.ops.convert_to_numpy(variable)
        for variable in model.weights
        if not is_factor(variable.path)
    }
    for layer in nested_layers(model):
        if getattr(layer, "lora_enabled", False):
            path = f"{layer.lora_kernel_a.path.rpartition('/')[0]}/kernel"
            weights[path] = keras.ops.convert_to_numpy(layer.kernel)
    return weights
