"""Low-rank adapters of a language model: trained factors beside frozen weights.

Shape letters used in this module: X inputs and Y outputs of a projection, R rank.
"""

from collections.abc import Mapping

import keras
import numpy as np

from txl_tf.models.language_model import LanguageModel

_FIRST, _SECOND = "lora_kernel_a", "lora_kernel_b"


class Adapters:
    """Low-rank adapters of all projections of a language model (Hu et al., 2022).

    Every weight of the model is frozen. Each `keras.layers.Dense` of it, the projections
    of attention and both layers of feed-forward, gets two factors `(X, R)` and `(R, Y)`,
    and computes with its kernel plus `alpha / R` times their product. The second factor
    begins as zero, so that the model is at first the one it was.

    The factors are made by `Dense.enable_lora`, in the scope of the strategy this is made
    in; initial ones are drawn from Keras' global seed. The optimizer has to be built
    afterwards.

    Args:
        model: `LanguageModel` with `Dense` projections, a `TransformerXL`. It is changed.
        rank: int. `R`.
        alpha: optional float. Scale of the product, before it is divided by the rank.
            Defaults to `None`: the rank, so that the product counts as it is.

    Attributes:
        factors: dict of the path of each factor to its Keras variable.

    Raises:
        ValueError: If the model has no `Dense` projection.

    References:
     - [Hu et al., 2022](https://arxiv.org/abs/2106.09685), Section 4.1
    """

    def __init__(self, model: LanguageModel, rank: int, alpha: float | None = None) -> None:
        layers = [
            layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Dense)
        ]
        if not layers:
            raise ValueError(
                "Only a model with projections of the class `keras.layers.Dense` has adapters. "
                f"Received: {type(model).__name__}"
            )
        # Variables and not layers: a layer that is frozen would freeze its factors too.
        for variable in model.weights:
            variable.trainable = False
        self._scale = adapter_scale(rank, alpha)
        self.factors: dict[str, keras.Variable] = {}
        # Sorted, for each factor draws from the seed of the run in turn.
        for layer in sorted(layers, key=lambda layer: layer.path):
            layer.enable_lora(rank, lora_alpha=alpha)
            for factor in (layer.lora_kernel_a, layer.lora_kernel_b):
                self.factors[factor.path] = factor

    def merged(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Merges arrays of the model's weights, see `merged_weights`."""
        return merged_weights(arrays, self._scale)


def adapter_scale(rank: int, alpha: float | None) -> float:
    """Returns what the product of the factors is multiplied by."""
    return 1.0 if alpha is None else alpha / rank


def merged_weights(arrays: Mapping[str, np.ndarray], scale: float) -> dict[str, np.ndarray]:
    """Adds the product of low-rank factors to the kernels that they belong to.

    Args:
        arrays: mapping of variable path to float32 array: all weights of a model, and the
            factors of its adapters.
        scale: float. See `adapter_scale`.

    Returns:
        Dict of variable path to float32 array, without the factors: the weights of a
        model without adapters that computes the same.
    """
    merged = {
        path: array
        for path, array in arrays.items()
        if path.rpartition("/")[2] not in (_FIRST, _SECOND)
    }
    for path, first in arrays.items():
        layer, _, name = path.rpartition("/")
        if name != _FIRST:
            continue
        kernel = merged[f"{layer}/kernel"]
        # In float64, so that no library's order of summation shows in the rounded sum.
        product = first.astype(np.float64) @ arrays[f"{layer}/{_SECOND}"].astype(np.float64)
        change = scale * product  # [X, Y]
        # Where nothing is added, also the sign of a zero stays.
        merged[f"{layer}/kernel"] = np.where(change == 0, kernel, kernel + change).astype(
            kernel.dtype
        )
    return merged
