"""Transformer-XL for Keras' own `fit`, with the memory inside.

Shape letters used in this module: B rows, T segment length, V vocabulary.
"""

import keras

from txl_tf.config.model_config import ModelConfig
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL


@keras.saving.register_keras_serializable(package="txl_tf")
class StatefulTransformerXL(keras.Model):
    """A `TransformerXL` that keeps its memory in variables of its own.

    In the manner of a stateful `keras.layers.RNN`: the batch size is fixed,
    each call continues where the last one stopped, and `reset_state` forgets.
    So `compile` and `fit` on ordered data just work, on one device:

    ```python
    model = txl_tf.StatefulTransformerXL(config, batch_size=16)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(ordered_dataset, shuffle=False)
    model.reset_state()
    ```

    Row `r` of every batch has to continue row `r` of the batch before. Several
    replicas need the trainer: Keras would merge their memories.

    Args:
        config: `ModelConfig`, or the dict that its `to_dict` returns.
        batch_size: int. Rows `B` of every batch.
        **kwargs: other keyword arguments passed to `keras.Model`.

    Attributes:
        transformer_xl: the `TransformerXL` that is trained.

    Call arguments:
        token_ids: int tensor `(B, T)`.
        training: bool. Whether dropout is active.

    Returns:
        Log-probabilities of the next tokens, float32 `(B, T, V)`; a loss takes
        them as logits.

    Raises:
        ValueError: If `batch_size` is not positive.
    """

    def __init__(self, config, batch_size, **kwargs):
        super().__init__(**kwargs)
        if batch_size <= 0:
            raise ValueError(f"`batch_size` must be positive. Received: batch_size={batch_size}")
        if isinstance(config, dict):
            config = ModelConfig.from_dict(config)
        self.config = config
        self.batch_size = batch_size
        self.transformer_xl = TransformerXL(config, dtype=self.dtype_policy, name="transformer_xl")
        empty = self.transformer_xl.initial_memory(batch_size)
        self._states = [
            self._state(state, f"memory_{layer}") for layer, state in enumerate(empty.states)
        ]
        self._valid_length = self._state(empty.valid_length, "valid_length")
        self.built = True

    def _state(self, value, name):
        return self.add_weight(
            shape=value.shape,
            dtype=keras.backend.standardize_dtype(value.dtype),
            initializer="zeros",
            trainable=False,
            autocast=False,
            name=name,
        )

    @property
    def memory(self):
        """The current `Memory`."""
        states = tuple(keras.ops.convert_to_tensor(state) for state in self._states)
        return Memory(states, keras.ops.convert_to_tensor(self._valid_length))

    def call(self, token_ids, training=False):
        hidden, memory = self.transformer_xl(token_ids, self.memory, training=training)
        for variable, state in zip(self._states, memory.states, strict=True):
            variable.assign(state)
        self._valid_length.assign(memory.valid_length)
        return self.transformer_xl.log_probs_of(hidden)

    def reset_state(self):
        """Forgets what all rows have read."""
        for variable in (*self._states, self._valid_length):
            variable.assign(keras.ops.zeros_like(variable))

    def get_config(self):
        return {
            **super().get_config(),
            "config": self.config.to_dict(),
            "batch_size": self.batch_size,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**config)
