"""Language model with a head: reads long texts by segments, then does a task on them.

Shape letters used in this module:
  B rows, L positions of a text, T segment length, S segments, D hidden width.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from txl_tf.config.task import TaskConfig
from txl_tf.layers.pooled_head import PooledHead
from txl_tf.layers.seeded_dropout import drawn_row_seeds
from txl_tf.layers.token_ids import check_rank, check_token_ids
from txl_tf.models.graph_reader import read_in_graph
from txl_tf.models.language_model import LanguageModel, language_model_of
from txl_tf.models.model_with_loss import ModelWithLoss

# Odd, and unlike the step of `fold_seed`, so that no two segments share a seed.
_SEED_STEP = 0x3C6EF35F


def pad_token_ids(
    sequences: Sequence[Sequence[int]], multiple_of: int = 1
) -> dict[str, np.ndarray]:
    """Puts texts of different lengths into one batch.

    Args:
        sequences: sequence of `B` texts, each a sequence of token ids.
        multiple_of: int. The length becomes a multiple of this number, so that programs are
            compiled for few lengths; the segment length is a good choice.

    Returns:
        Dict with `token_ids`, int32 `(B, L)`, and `padding_mask`, bool `(B, L)`, true
        where there is a token: the inputs of `TransformerXLWithHead`.

    Raises:
        ValueError: If `sequences` is empty.
    """
    if not sequences:
        raise ValueError("`sequences` must have at least one text. Received: none")
    lengths = np.array([len(each) for each in sequences])
    length = -(-max(lengths.max(), 1) // multiple_of) * multiple_of
    padding_mask = np.arange(length) < lengths[:, None]  # [B, L]
    token_ids = np.zeros((len(sequences), length), np.int32)
    token_ids[padding_mask] = [token for sequence in sequences for token in sequence]
    return {"token_ids": token_ids, "padding_mask": padding_mask}


@keras.saving.register_keras_serializable(package="txl_tf")
class TransformerXLWithHead(ModelWithLoss):
    """Language model that reads whole texts and passes their hidden states to a head.

    A text of any length is read segment by segment with memory. As in pre-training, no gradient
    flows into memory (Dai et al., 2019, section 3.2). The tokens of a text come first in its row,
    padding after them, which changes nothing: a causal model never attends to later positions.

    The softmax of the language model is not used, so its own weights are not among the
    `trainable_variables`. `model.language_model.trainable = False` trains only the head. `compile`
    without a loss uses the cross entropy from logits; a head with one output, or of another kind,
    needs a loss. `export` writes a SavedModel with the input signature of the last call.

    Args:
        language_model: `LanguageModel`, such as a `TransformerXL`; for a `StatefulTransformerXL`
            its inner model is used.
        head: layer called with hidden states `(B, L, D)` and a padding mask `(B, L)`, such as
            `txl_tf.layers.PooledHead`.
        seed: optional int. Seed of dropout.
        **kwargs: other keyword arguments passed to `keras.Model`.

    Call arguments:
        inputs: dict of `token_ids`, int `(B, L)`, and optionally `padding_mask`, bool `(B, L)`,
            true where there is a token; or only `token_ids` without padding.
        dropout_seed: optional int32 tensor `(B, 2)`, a seed for each text; by default the model
            draws one.
        training: bool. If `True`, dropout is active.

    Returns:
        The outputs of the head.

    Raises:
        ValueError: If known ids are not in `[0, V)` or known padding comes before tokens; if
            `compile` needs a loss.

    Example:
    ```python
    lm = txl_tf.load("runs/mine")
    model = txl_tf.TransformerXLWithHead(lm.model, txl_tf.layers.PooledHead(num_outputs=2))
    model.compile("adam")
    inputs = txl_tf.pad_token_ids([lm.tokenizer.encode(text) for text in texts], 128)
    model.fit(inputs, np.array(labels), epochs=3)
    ```
    """

    def __init__(self, language_model, head, seed=None, **kwargs):
        super().__init__(**kwargs)
        language_model = language_model_of(language_model)
        self.language_model = language_model
        self.head = head
        self.outputs_logits = isinstance(head, PooledHead)
        self.seed = seed
        self.seed_generator = keras.random.SeedGenerator(seed)
        self._input_names = ("token_ids", "padding_mask")

        if not head.built:
            head.build((None, None, language_model.config.hidden_dim), (None, None))
        self.built = True

    @property
    def trainable_weights(self):
        softmax_ids = set(map(id, self.language_model.softmax.weights))
        return [each for each in super().trainable_weights if id(each) not in softmax_ids]

    trainable_variables = trainable_weights

    def build(self, inputs_shape=None):
        """Does nothing: the constructor creates the weights."""

    def check_ids(self, inputs, targets=None):
        inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
        token_ids, mask = inputs["token_ids"], inputs.get("padding_mask")
        if isinstance(mask, np.ndarray) and np.any(np.diff(mask.astype(np.int8), axis=-1) > 0):
            raise ValueError(
                "`padding_mask` must be true for the first tokens of a row and false after "
                "them. Received: a row where padding comes before a token"
            )
        check_rank(token_ids, (2,), "(B, L)")
        check_token_ids(token_ids, self.language_model.config.vocabulary_size)

    def __call__(self, inputs, *args, **kwargs):
        self.check_ids(inputs)
        self._input_names = tuple(inputs) if isinstance(inputs, dict) else ()
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, dropout_seed=None, training=False):
        inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
        token_ids, padding_mask = inputs["token_ids"], inputs.get("padding_mask")
        head_seed = None
        if training:
            if dropout_seed is None:
                dropout_seed = drawn_row_seeds(self.seed_generator, ops.shape(token_ids)[0])
            head_seed = _seed_of_segment(dropout_seed, -1)
        hidden = self.read(token_ids, padding_mask, dropout_seed, training)
        return self.head(hidden, padding_mask, dropout_seed=head_seed, training=training)

    def default_loss(self):
        if not isinstance(self.head, PooledHead) or self.head.num_outputs == 1:
            raise ValueError(
                "`compile` needs a `loss` for this head, such as "
                '"mean_squared_error" for numbers. '
                f"Received: loss=None, head={type(self.head).__name__}"
            )
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def export(self, filepath, format="tf_saved_model", *, input_signature=None, **kwargs):
        if input_signature is None:
            token_ids = keras.InputSpec("int32", (None, None))
            specs = {"token_ids": token_ids, "padding_mask": keras.InputSpec("bool", (None, None))}
            input_signature = [{name: specs[name] for name in self._input_names} or token_ids]
        super().export(filepath, format, input_signature=input_signature, **kwargs)

    def read(self, token_ids, padding_mask=None, dropout_seed=None, training=False):
        """Returns the hidden states `(B, L, D)` of the last layer for ids `(B, L)`.

        Other arguments are as in a call. Segments without tokens in any text are skipped; their
        hidden states are 0.
        """
        model, segment_length = self.language_model, self.language_model.config.segment_length
        token_ids = ops.cast(token_ids, "int32")
        num_rows, length = ops.shape(token_ids)
        num_read, width = length, model.config.hidden_dim
        if padding_mask is not None:
            num_read = ops.max(ops.sum(ops.cast(padding_mask, "int32"), axis=-1))
        if training and dropout_seed is None:
            dropout_seed = drawn_row_seeds(self.seed_generator, num_rows)
        num_segments = -(-length // segment_length)
        starts = ops.arange(num_segments, dtype="int32")[:, None, None, None] * segment_length

        def read_segment(start, segment, state):
            memory, hidden = state
            seed = _seed_of_segment(dropout_seed, start // segment_length) if training else None
            new, memory = model(segment, memory, dropout_seed=seed, training=training)
            # Keras' `scan` would keep the memory of every segment.
            return memory, ops.where(starts == start, new[None], hidden)

        hidden = ops.zeros((num_segments, num_rows, segment_length, width), model.compute_dtype)
        state = model.initial_memory(num_rows), hidden
        _, hidden = read_in_graph(
            read_segment, token_ids, state, segment_length, num_read=num_read
        )  # [S, B, T, D]
        hidden = ops.reshape(ops.swapaxes(hidden, 0, 1), (num_rows, -1, width))
        return hidden[:, :length]

    def get_config(self):
        return {
            **super().get_config(),
            "language_model": keras.saving.serialize_keras_object(self.language_model),
            "head": keras.saving.serialize_keras_object(self.head),
            "seed": self.seed,
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        parts = {
            name: keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in ("language_model", "head")
        }
        return cls(**{**config, **parts})


def create_headed_model(model: LanguageModel, task: TaskConfig) -> TransformerXLWithHead:
    """Adds the head of a task to a language model; its weights are drawn from Keras' seed."""
    head = PooledHead(
        task.num_outputs, task.pooling, task.head_dropout, dtype=model.dtype_policy, name="head"
    )
    return TransformerXLWithHead(model, head, dtype=model.dtype_policy)


def padded_inputs(token_ids: Any, num_tokens: Any) -> dict[str, Any]:
    """Returns the inputs of a `TransformerXLWithHead` from ids and the lengths of texts."""
    places = ops.arange(ops.shape(token_ids)[-1], dtype="int32")
    return {"token_ids": token_ids, "padding_mask": places < num_tokens[:, None]}


def _seed_of_segment(seed, index):
    """Derives the seed of a segment from the seed of its text, so that no two are equal."""
    return ops.stack([seed[..., 0] + index * _SEED_STEP, seed[..., 1]], axis=-1)
