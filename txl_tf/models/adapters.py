"""Low-rank adapters of a language model, trained beside frozen weights.

Shape letters used in this module: X inputs and Y outputs of a projection, R rank.
"""

from collections.abc import Mapping

import keras
import numpy as np

from txl_tf.models.language_model import LanguageModel, nested_layers

_FIRST, _SECOND = "lora_kernel_a", "lora_kernel_b"


class Adapters:
    """Low-rank adapters of all projections of a language model (Hu et al., 2022, Section 4.1).

    All weights of the model are frozen. Each of its `keras.layers.Dense` layers, in attention,
    feed-forward layers and gates, gets two factors `(X, R)` and `(R, Y)`, and adds their product,
    times `alpha / R` if `alpha` is given, to its kernel. The second factor starts at zero, so the
    model is unchanged at first.

    `Dense.enable_lora` creates the factors in the current strategy scope, with initial values
    from Keras' global seed. The optimizer must be built afterwards. `factors` are all variables by
    path.
    """

    def __init__(self, model: LanguageModel, rank: int, alpha: float | None = None) -> None:
        layers = [layer for layer in nested_layers(model) if isinstance(layer, keras.layers.Dense)]
        # Not `layer.trainable`, which would freeze the factors too.
        for variable in model.weights:
            variable.trainable = False
        self._alpha = alpha
        self.factors: dict[str, keras.Variable] = {}
        # Sorted, because the factors draw from the run's seed in order.
        for layer in sorted(layers, key=lambda layer: layer.path):
            layer.enable_lora(rank, lora_alpha=alpha)
            for factor in (layer.lora_kernel_a, layer.lora_kernel_b):
                self.factors[factor.path] = factor

    def merged(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Merges arrays of the model's weights, see `merged_weights`."""
        return merged_weights(arrays, self._alpha)


def is_factor(path: str) -> bool:
    """True if a path belongs to a low-rank factor."""
    return path.rpartition("/")[2] in (_FIRST, _SECOND)


def merged_weights(arrays: Mapping[str, np.ndarray], alpha: float | None) -> dict[str, np.ndarray]:
    """Adds the products of low-rank factors, times `alpha / R` if given, to their kernels.

    `arrays` are all float32 weights and factors by variable path. The result has no factors, and
    gives the same model without adapters.
    """
    weights = {path: array for path, array in arrays.items() if not is_factor(path)}
    for path, first in arrays.items():
        layer, _, name = path.rpartition("/")
        if name != _FIRST:
            continue
        kernel = weights[f"{layer}/kernel"]
        # float64 makes the rounded sum independent of a library's order of summation.
        product = first.astype(np.float64) @ arrays[f"{layer}/{_SECOND}"].astype(np.float64)
        scale = 1.0 if alpha is None else alpha / first.shape[-1]
        change = scale * product  # [X, Y]
        # Where nothing is added, the sign of a zero stays too.
        weights[f"{layer}/kernel"] = np.where(change == 0, kernel, kernel + change).astype(
            kernel.dtype
        )
    return weights
