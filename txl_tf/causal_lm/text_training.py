"""Training of a language model on texts in memory, by Keras' own loop."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from txl_tf.config.experiment import OptimizerConfig
from txl_tf.data.text_batches import ordered_batches, token_stream
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.models.stateful import StatefulTransformerXL
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.optimizers import create_optimizer, set_layer_rates


class TextTraining:
    """Training of a `TransformerXL` in place, with the settings of `compile`.

    `on_change` is called with the steps by which weights have changed; `options` are other
    arguments of `keras.Model.compile`.
    """

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Tokenizer | None,
        on_change: Callable[[int], None],
        optimizer: Any,
        options: dict[str, Any],
    ) -> None:
        if optimizer is None:
            defaults = OptimizerConfig()
            optimizer = keras.optimizers.Adam(
                defaults.learning_rate, epsilon=defaults.epsilon, global_clipnorm=defaults.clip_norm
            )
        is_settings = isinstance(optimizer, OptimizerConfig)
        self._model = model
        self._tokenizer = tokenizer
        self._on_change = on_change
        self._optimizer = optimizer if is_settings else keras.optimizers.get(optimizer)
        self._options = options
        self._reader: StatefulTransformerXL | None = None

    def fit(
        self,
        x: Any,
        batch_size: int,
        segment_length: int | None,
        validation_data: Any,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains as described in `TransformerXLCausalLM.fit`."""
        if not isinstance(self._model, TransformerXL):
            raise ValueError(
                "`fit` trains a `TransformerXL`; `txl train` trains recurrent models too. "
                f"Received: model of type {type(self._model).__name__}"
            )
        segment_length = segment_length or self._model.config.segment_length
        batches, held_out = self._batches(x, batch_size, segment_length), None
        num_rows = _num_rows(batches, batch_size)
        if validation_data is not None:
            held_out = self._batches(validation_data, batch_size, segment_length, True)
            num_rows = max(num_rows, _num_rows(held_out, batch_size))
        optimizer = self._optimizer
        if isinstance(optimizer, OptimizerConfig):
            steps = options.get("steps_per_epoch") or int(batches.cardinality())
            optimizer = self._optimizer_of(optimizer, options.get("epochs", 1) * steps)
        if self._reader is None or self._reader.batch_size != num_rows:
            self._reader = StatefulTransformerXL(self._model, num_rows)
        if getattr(self._reader, "optimizer", None) is not optimizer:
            self._reader.compile(optimizer=optimizer, **self._options)
        reader, is_restarted = self._reader, options.get("steps_per_epoch") is None

        def begin(epoch: int, logs: Any) -> None:
            if is_restarted or epoch == options.get("initial_epoch", 0):
                reader.reset_state()

        steps_before = int(optimizer.iterations)

        def count(batch: int, logs: Any) -> None:
            nonlocal steps_before
            steps = int(optimizer.iterations)
            self._on_change(steps - steps_before)
            steps_before = steps

        follower = keras.callbacks.LambdaCallback(on_epoch_begin=begin, on_train_batch_end=count)
        callbacks = [follower, *keras.tree.flatten(options.pop("callbacks", None) or [])]
        return reader.fit(batches, validation_data=held_out, callbacks=callbacks, **options)

    def _optimizer_of(self, config: OptimizerConfig, num_steps: int) -> keras.optimizers.Optimizer:
        """Returns the optimizer of a run of `num_steps` steps, which clips as the trainer does."""
        if num_steps <= 0:
            raise ValueError(f"Give `steps_per_epoch` for this data set. Received: {num_steps}")
        variables = self._model.trainable_variables
        optimizer = create_optimizer(config, num_steps, variables)
        optimizer.global_clipnorm = config.clip_norm
        if config.layer_rate_decay is not None:
            set_layer_rates(optimizer, self._model, variables, config.layer_rate_decay)
        return optimizer

    def _batches(
        self, data: Any, batch_size: int, segment_length: int, takes_fewer_rows: bool = False
    ) -> tf.data.Dataset:
        if isinstance(data, tf.data.Dataset) and isinstance(data.element_spec, tuple):
            return data
        ids = token_stream(data, self._tokenizer, self._model.config.vocabulary_size)
        if takes_fewer_rows:
            batch_size = max(1, min(batch_size, (len(ids) - 1) // segment_length))
        return ordered_batches(ids, None, batch_size, segment_length)


def _num_rows(batches: tf.data.Dataset, batch_size: int) -> int:
    return keras.tree.flatten(batches.element_spec)[0].shape[0] or batch_size
