"""Training of a language model on texts in memory, by Keras' own loop."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.data.text_batches import ordered_batches, token_stream
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.models.stateful import StatefulTransformerXL
from txl_tf.models.transformer_xl import TransformerXL


class TextTraining:
    """Trains a model in place; the optimizer continues from one `fit` to the next.

    Args:
        model: keras.Model. Only a `TransformerXL` is trained.
        tokenizer: optional `Tokenizer`. Without one texts are token ids.
        on_change: function that is called whenever weights have changed.
        optimizer: optional Keras optimizer or its name.
        options: dict of other arguments of `keras.Model.compile`.
    """

    def __init__(
        self,
        model: keras.Model,
        tokenizer: Tokenizer | None,
        on_change: Callable[[], None],
        optimizer: Any,
        options: dict[str, Any],
    ) -> None:
        if optimizer is None:
            defaults = OptimizerConfig()
            optimizer = keras.optimizers.Adam(
                defaults.learning_rate, global_clipnorm=defaults.clip_norm
            )
        self._model = model
        self._tokenizer = tokenizer
        self._on_change = on_change
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._options = {"optimizer": keras.optimizers.get(optimizer), "loss": loss, **options}
        self._reader: StatefulTransformerXL | None = None

    def fit(
        self,
        x: Any,
        batch_size: int,
        segment_length: int | None,
        validation_data: Any,
        **options: Any,
    ) -> keras.callbacks.History:
        """Trains as `TransformerXLCausalLM.fit` says."""
        if not isinstance(self._model, TransformerXL):
            raise ValueError(
                "`fit` trains a `TransformerXL`; `txl train` trains recurrent models too. "
                f"Received: model of type {type(self._model).__name__}"
            )
        segment_length = segment_length or self._model.config.segment_length
        batches, held_out = (
            self._batches(data, batch_size, segment_length) for data in (x, validation_data)
        )
        num_rows = max(_num_rows(each, batch_size) for each in (batches, held_out))
        if self._reader is None or self._reader.batch_size != num_rows:
            self._reader = StatefulTransformerXL(self._model, num_rows)
            self._reader.compile(**self._options)
        reader, is_restarted = self._reader, options.get("steps_per_epoch") is None

        def begin(epoch: int, logs: Any) -> None:
            if is_restarted or epoch == options.get("initial_epoch", 0):
                reader.reset_state()

        follower = keras.callbacks.LambdaCallback(
            on_epoch_begin=begin, on_train_batch_end=lambda batch, logs: self._on_change()
        )
        options = {"shuffle": False, **options}
        callbacks = [follower, *keras.tree.flatten(options.pop("callbacks", None) or [])]
        return reader.fit(batches, validation_data=held_out, callbacks=callbacks, **options)

    def _batches(self, data: Any, batch_size: int, segment_length: int) -> tf.data.Dataset | None:
        if data is None or _has_batches(data):
            return data
        ids = token_stream(data, self._tokenizer, self._model.config.vocabulary_size)
        return ordered_batches(ids, None, batch_size, segment_length)


def _has_batches(data: Any) -> bool:
    return isinstance(data, tf.data.Dataset) and isinstance(data.element_spec, tuple)


def _num_rows(batches: tf.data.Dataset | None, batch_size: int) -> int:
    if batches is None:
        return 0
    return keras.tree.flatten(batches.element_spec)[0].shape[0] or batch_size
