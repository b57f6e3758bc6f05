"""Interface of all language models, and the loading of their weights.

Shape letters used in this module: B rows, T segment length, D hidden width, V vocabulary.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from txl_tf.config.frozen_parts import FrozenParts
from txl_tf.config.model import ModelConfig
from txl_tf.errors import MismatchError
from txl_tf.layers.token_ids import check_rank, check_token_ids
from txl_tf.models.memory import Memory, check_memory


class LanguageModel(keras.Model):
    """Base class of models that read segments of tokens and carry memory.

    A call takes `token_ids` `(B, T)`, a memory and an optional `dropout_seed`, and returns hidden
    states `(B, T, D)` and the next memory. A subclass sets `config_class`, creates `embedding`,
    `softmax` and the layers between (`blocks`), and defines `call` and `initial_memory`. Ids
    outside `[0, V)` raise ValueError where values are known; in a compiled function the result for
    such an id is undefined.
    """

    config_class: type = ModelConfig
    # Private: the signature that Keras 3.15 makes for saving would be a call without memory.
    _default_save_signature = None

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        if isinstance(config, dict):
            config = self.config_class.from_dict(config)
        self.config = config

    def __call__(self, token_ids, memory=None, *args, **kwargs):
        self.check_inputs(token_ids)
        if memory is None:
            raise ValueError(
                "A call needs `memory`: begin with `model.initial_memory(batch_size)`, then pass "
                "the memory that the last call returned. `fit`, `evaluate` and `predict` need a "
                "`StatefulTransformerXL`, which keeps memory. Received: memory=None"
            )
        self.check_memory(memory, token_ids)
        return super().__call__(token_ids, memory, *args, **kwargs)

    def check_inputs(self, token_ids):
        """Raises ValueError for inputs that the model cannot read, if shape or values are known."""
        check_rank(token_ids, (2,), "(B, T)")
        check_token_ids(token_ids, self.config.vocabulary_size)

    def check_memory(self, memory, token_ids):
        """Raises ValueError for another class or, if known, number of rows."""
        check_memory(memory, Memory, token_ids)

    def export(self, *args, input_signature=None, **kwargs):
        if input_signature is None:
            raise ValueError(
                "`export` needs an `input_signature` with the memory; "
                "`txl_tf.export_saved_model(model, folder)` makes one itself. "
                "Received: input_signature=None"
            )
        super().export(*args, input_signature=input_signature, **kwargs)

    def freeze(self, parts: FrozenParts) -> None:
        """Removes the weights of some parts from `trainable_variables`.

        Gradients still pass through them. The optimizer must be built afterwards.
        """
        self.embedding.trainable = not parts.embedding
        self.softmax.trainable = not parts.softmax
        for index, layer in enumerate(self.blocks):
            layer.trainable = index not in parts.layers

    def score(self, token_ids, target_ids, memory, dropout_seed=None, training=False):
        """Scores targets by the negative log-likelihood of each.

        Args:
            token_ids: int tensor `(B, T)`.
            target_ids: int tensor `(B, T)`; position `t` is the token after
                `token_ids[:, t]`.
            memory: memory of the segments before, from `initial_memory` or a call.
            dropout_seed: as in a call.
            training: bool. If `True`, dropout is active.

        Returns:
            Tuple of nats, float32 `(B, T)`, and the next memory.
        """
        hidden, memory = self(token_ids, memory, dropout_seed=dropout_seed, training=training)
        return self.negative_log_likelihood(hidden, target_ids), memory

    def negative_log_likelihood(self, hidden, target_ids):
        """Scores targets `(B, T)` from hidden states `(B, T, D)`: nats, float32 `(B, T)`."""
        check_rank(target_ids, (len(hidden.shape) - 1,), "shaped like `token_ids`", "target_ids")
        return self.softmax.negative_log_likelihood(hidden, target_ids, **self._tied_weights())

    def log_probs(self, token_ids, memory):
        """Returns log-probabilities of the next tokens, float32 `(B, T, V)`, and the next memory.

        Args:
            token_ids: int tensor `(B, T)`.
            memory: memory of the segments before.
        """
        hidden, memory = self(token_ids, memory)
        return self.log_probs_of(hidden), memory

    def log_probs_of(self, hidden):
        """Returns log-probabilities, float32 `(B, T, V)`, from hidden states `(B, T, D)`."""
        # `__call__` would add a scope, which lengthens every name in an export's graph.
        return self.softmax.call(hidden, **self._tied_weights())

    def logits_of(self, hidden):
        """Returns scores of the next tokens, `(B, T, V)`, as `AdaptiveSoftmax.logits` does."""
        return self.softmax.logits(hidden, **self._tied_weights())

    def _tied_weights(self):
        return {
            "tables": self.embedding.tables if self.softmax.tie_weights else None,
            "projections": self.embedding.projections,
        }

    def __repr__(self):
        names = ("vocabulary_size", "num_layers", "hidden_dim", "segment_length", "memory_length")
        sizes = [f"{n}={getattr(self.config, n)}" for n in names if hasattr(self.config, n)]
        return f"<{type(self).__name__} of {self.count_params():,} parameters: {', '.join(sizes)}>"

    def get_config(self):
        own = {"config": self.config.to_dict(), **quantized_layers(self)}
        return {**super().get_config(), **own}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        modes = config.pop("quantization_modes", ())
        model = cls(**config)
        quantize_layers(model, modes)
        return model


def nested_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns a model and all layers in it, in their order."""
    return list(model._flatten_layers())  # private: Keras 3.15 has no public list of them


def quantized_layers(model: keras.Model) -> dict[str, Any]:
    """Returns the `quantization_modes` of all layers in their order, or nothing if all are None.

    Only some layers have a mode if `quantize` was called with filters.
    """
    modes = [getattr(each, "quantization_mode", None) for each in nested_layers(model)]
    return {"quantization_modes": modes} if any(modes) else {}


def quantize_layers(model: keras.Model, modes: Sequence[str | None]) -> None:
    """Quantizes the layers of a new model, so that quantized weights can be loaded into it.

    A `DTypePolicyMap` has quantized its layers already.
    """
    for layer, mode in zip(nested_layers(model), modes, strict=bool(modes)):
        if mode not in (None, getattr(layer, "quantization_mode", None)):
            layer.quantize(mode)


def language_model_of(model: keras.Model) -> LanguageModel:
    """Returns `model`, or the inner one of a `StatefulTransformerXL`; ValueError for others."""
    model = getattr(model, "transformer_xl", model)
    if not isinstance(model, LanguageModel):
        raise ValueError(
            "`model` must be a language model, such as a `TransformerXL`. "
            f"Received: model of type {type(model).__name__}"
        )
    return model


def assign_weights(variables: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Assigns arrays to variables by name; nothing is changed if one does not fit.

    Surplus arrays are ignored. MismatchError if one is missing, has another shape, or no numbers.
    """
    for name, variable in variables.items():
        array, shape = arrays.get(name), tuple(variable.shape)
        if array is None:
            raise _mismatch(name, "is missing")
        # NumPy does not count bfloat16 as a float.
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
        remedy="Use the version of txl-tf that wrote the checkpoint, or restore it from a copy.",
    )
