"""Transformer-XL that keeps its memory in variables, for training with Keras `fit`.

Shape letters used in this module: B rows, T segment length, M memory length, D hidden width, L
layers, V vocabulary.
"""

import contextlib

import keras

from txl_tf.imports import is_on_jax
from txl_tf.layers.memory_variables import (
    MemoryVariables,
    check_num_rows,
    check_state_is_trained,
)
from txl_tf.layers.token_ids import check_token_ids
from txl_tf.models.language_model import quantize_layers, quantized_layers
from txl_tf.models.memory import Memory
from txl_tf.models.model_with_loss import ModelWithLoss
from txl_tf.models.transformer_xl import TransformerXL


@keras.saving.register_keras_serializable(package="txl_tf")
class StatefulTransformerXL(ModelWithLoss):
    """A `TransformerXL` that keeps its memory in its own variables.

    Like a stateful `keras.layers.RNN`, it has a fixed batch size, each call continues where the
    last one stopped, and `reset_state` clears the memory. So `compile` and `fit` work on ordered
    data, on one device:

    ```python
    model = txl_tf.StatefulTransformerXL(config, batch_size=16)
    model.compile("adam")
    model.fit(ordered_dataset)
    model.reset_state()
    ```

    Row `r` of every batch must continue row `r` of the previous batch: `fit` does not shuffle,
    and arrays are read in batches of `B` rows. In a smaller batch the missing rows keep their
    memory. The loss defaults to cross entropy. Several replicas need the trainer, because Keras
    would merge their memories.

    `evaluate`, also for validation in `fit`, and `predict` have separate memories and begin with
    empty ones. `test_on_batch` and `predict_on_batch` continue with these, an eager call of the
    model with the memory of training. So the model cannot be a part of another model. Memory is
    not a weight and not saved. An exported model starts with an empty memory and keeps its own.

    A `sample_weight` `(B,)` weighs rows, `(B, T)` tokens. Ids outside the vocabulary are refused
    before their batch is used.

    Args:
        config: `ModelConfig`, the dict that its `to_dict` returns, or a `TransformerXL`,
            which is then trained in place. The attribute `transformer_xl` is this model.
        batch_size: int. The most rows of a batch, `B`.
        **kwargs: other keyword arguments passed to `keras.Model`.

    Call arguments:
        token_ids: int tensor `(B, T)`, or with fewer rows; or embedded inputs, see
            `TransformerXL`.
        training: bool. If `True`, dropout is active.

    Returns:
        Log-probabilities of the next tokens, float32 `(B, T, V)`; usable as logits by a loss.

    Raises:
        ValueError: If a batch has more rows or ids outside the vocabulary, a loss or metric takes
            probabilities, `fit` is called with `shuffle=True`, or the model is called by a
            Functional model or a compiled function.
    """

    has_loss_per_position = True

    def __init__(self, config, batch_size, **kwargs):
        model = config if isinstance(config, TransformerXL) else None
        if model is not None:
            kwargs["dtype"] = model.dtype_policy
        super().__init__(**kwargs)
        self.batch_size = batch_size
        self.transformer_xl = model or TransformerXL(
            config, dtype=self.dtype_policy, name="transformer_xl"
        )
        self.transformer_xl.build((batch_size, None))
        self.config = self.transformer_xl.config
        # `MemoryVariables` by use: `fit`, `evaluate` and `predict`. `_use` names the one that a
        # call continues: `fit`, except in a block of `_using`. The others are created before the
        # first step that uses them, and cleared before each `evaluate`, `predict` and `export`.
        # Keras would track the dict if it were set as an attribute.
        self.__dict__["_states"] = {}
        self._use = "fit"
        self._create_state("fit")
        self.built = True

    def _create_state(self, use):
        """Creates the variables of `fit`, `evaluate` or `predict`, unless they exist."""
        if use not in self._states:
            config = self.config
            shape = (self.batch_size, config.effective_memory_length, config.hidden_dim)
            self._states[use] = MemoryVariables(
                [shape] * config.num_layers, self.transformer_xl.compute_dtype
            )
            if is_on_jax():
                # Its program is bound to the number of variables.
                self.train_function = None

    @property
    def memory(self):
        """The current `Memory` of training and of calls of the model."""
        *states, valid_length = self._states["fit"].read()
        return Memory(tuple(states), valid_length)

    @property
    def variables(self):
        states = [each for state in self._states.values() for each in state.variables]
        return [*super().variables, *states]

    def __call__(self, token_ids, *args, **kwargs):
        if isinstance(token_ids, keras.KerasTensor):
            check_state_is_trained(False, token_ids)
        self.transformer_xl.check_inputs(token_ids)
        check_num_rows(token_ids.shape[0], self.batch_size)
        return super().__call__(token_ids, *args, **kwargs)

    def _checked_rows(self, batch_size):
        check_num_rows(batch_size, self.batch_size)
        return batch_size or self.batch_size

    def call(self, token_ids, training=False):
        if self._use == "fit":
            check_state_is_trained(training, token_ids)
        state = self._states[self._use]
        num_rows = state.rows_of(token_ids)
        *states, valid_length = state.read(num_rows)
        memory = Memory(tuple(states), valid_length)
        hidden, memory = self.transformer_xl(token_ids, memory, training=training)
        state.write([*memory.states, memory.valid_length], num_rows)
        return self.transformer_xl.log_probs_of(hidden)

    def make_test_function(self, force=False):
        self._create_state("evaluate")
        super().make_test_function(force)

    def make_predict_function(self, force=False):
        self._create_state("predict")
        super().make_predict_function(force)

    def _run_step(self, use, step, *state_and_data):
        # A step is traced, or runs, within this block, which fixes the memory it reads.
        with self._using(use):
            return super()._run_step(use, step, *state_and_data)

    @contextlib.contextmanager
    def _using(self, use):
        self._use, before = use, self._use
        try:
            yield
        finally:
            self._use = before

    def check_ids(self, token_ids, target_ids=None):
        self.transformer_xl.check_inputs(token_ids)
        is_default = isinstance(self.loss, keras.losses.SparseCategoricalCrossentropy)
        if target_ids is not None and is_default and self.loss.ignore_class is None:
            check_token_ids(target_ids, self.config.vocabulary_size, "target_ids")

    def default_loss(self):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def fit(self, x=None, y=None, batch_size=None, epochs=1, *, shuffle=False, **kwargs):
        if shuffle:
            raise ValueError(
                "`fit` must not shuffle: row `r` of every batch continues row `r` of the batch "
                f"before. Received: shuffle={shuffle}"
            )
        if kwargs.get("validation_data") is not None:
            self._create_state("evaluate")
        return super().fit(x, y, self._checked_rows(batch_size), epochs, shuffle=False, **kwargs)

    def evaluate(self, x=None, y=None, batch_size=None, *args, **kwargs):
        self.make_test_function()
        self._states["evaluate"].clear()
        return super().evaluate(x, y, self._checked_rows(batch_size), *args, **kwargs)

    def predict(self, x, batch_size=None, *args, **kwargs):
        self.make_predict_function()
        self._states["predict"].clear()
        return super().predict(x, self._checked_rows(batch_size), *args, **kwargs)

    def export(self, filepath, format="tf_saved_model", *, input_signature=None, **kwargs):
        if input_signature is None:
            input_signature = [keras.InputSpec("int32", (None, None))]
        self.make_predict_function()
        self._states["predict"].clear()
        with self._using("predict"):
            super().export(filepath, format, input_signature=input_signature, **kwargs)

    def reset_state(self):
        """Clears all memories, of training, evaluation and prediction."""
        for state in self._states.values():
            state.clear()

    def get_config(self):
        own = {"config": self.config.to_dict(), "batch_size": self.batch_size}
        return {**super().get_config(), **own, **quantized_layers(self.transformer_xl)}

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        modes = config.pop("quantization_modes", ())
        model = cls(**config)
        quantize_layers(model.transformer_xl, modes)
        return model
