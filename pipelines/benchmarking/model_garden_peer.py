"""Training and evaluation of TensorFlow Model Garden's layer `TransformerXL` in turns.

`turn_server` runs this file in a Python with `tf-models-official` and `tf-keras`. The
layer has neither embedding nor softmax, and gets the plainest there are. Its memory is
hidden states, projected again for every segment. It is in float32: under a policy of half
precision its blocks add tensors of two types, which TensorFlow refuses.
Shape letters: B rows, T segment length, M memory length, D width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
import tf_keras
from official.nlp.modeling.layers import transformer_xl


def create(request: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Creates the work of a request.

    Args:
        request: dict with `work`, the sizes of the model, `jit_compile`.
    """
    model = GardenModel(request)
    memory = [
        tf.Variable(tf.random.normal(model.memory_shape)) for _ in range(request["num_layers"])
    ]
    is_trained = request["work"] == "train"
    optimizer = tf_keras.optimizers.Adam(request["learning_rate"])

    def forward(token_ids: tf.Tensor) -> tf.Tensor:
        states = [each.value() for each in memory]
        loss, states = model.loss(token_ids, states, training=is_trained)
        for variable, state in zip(memory, states, strict=True):
            variable.assign(state)
        return loss

    def train(token_ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = forward(token_ids)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        # The layer has a bias for the segments of XLNet that nothing here reads.
        pairs = [each for each in zip(gradients, variables, strict=True) if each[0] is not None]
        clipped, _ = tf.clip_by_global_norm([each[0] for each in pairs], request["clip_norm"])
        optimizer.apply_gradients(zip(clipped, [each[1] for each in pairs], strict=True))
        return loss

    # Variables are made before a compiler sees the step.
    shape = request["num_rows"], request["segment_length"]
    forward(tf.zeros(shape, tf.int32))
    optimizer.build(model.trainable_variables)
    step = tf.function(train if is_trained else forward, jit_compile=request["jit_compile"])

    def turn(count: int) -> dict[str, Any]:
        for _ in range(count):
            token_ids = tf.random.uniform(shape, 0, request["vocabulary_size"], tf.int32)
            step(token_ids).numpy()
        return {"tokens": count * shape[0] * shape[1]}

    return turn


class GardenModel(tf.Module):
    """The layer with a tied embedding and softmax.

    Args:
        request: dict with the sizes.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__()
        self._width = request["hidden_dim"]
        self.memory_shape = request["num_rows"], request["memory_length"], self._width
        self._layer = transformer_xl.TransformerXL(
            vocab_size=request["vocabulary_size"],
            num_layers=request["num_layers"],
            hidden_size=self._width,
            num_attention_heads=request["num_heads"],
            head_size=request["head_dim"],
            inner_size=request["intermediate_dim"],
            dropout_rate=request["dropout"],
            attention_dropout_rate=request["attention_dropout"],
            initializer=tf_keras.initializers.RandomNormal(stddev=0.02),
            tie_attention_biases=False,
            memory_length=request["memory_length"],
            reuse_length=0,
        )
        shape = request["vocabulary_size"], self._width
        self._table = tf.Variable(tf.random.normal(shape, stddev=0.02))  # [V, D]
        self._dropout = request["dropout"]
        num_keys = request["memory_length"] + request["segment_length"]
        # Distances from the farthest key to one beyond the nearest, which the shift drops.
        distances = tf.range(num_keys, -1, -1, tf.float32)
        frequencies = 10000.0 ** (-tf.range(0, self._width, 2, tf.float32) / self._width)
        angles = distances[:, None] * frequencies
        encoding = tf.concat([tf.sin(angles), tf.cos(angles)], 1)  # [K + 1, D]
        rows = request["num_rows"]
        self._encoding = tf.broadcast_to(encoding, (rows, *encoding.shape))  # [B, K + 1, D]
        queries = tf.range(request["memory_length"], num_keys)
        is_seen = tf.range(num_keys) <= queries[:, None]  # [T, K]
        self._is_seen = tf.broadcast_to(is_seen, (rows, *is_seen.shape))

    def loss(
        self, token_ids: tf.Tensor, memory: list[tf.Tensor], training: bool
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Scores a segment, and returns the mean loss and the new memory.

        Args:
            token_ids: int tensor `[B, T]`, inputs and targets.
            memory: list of tensors `[B, M, D]`, one of each layer.
            training: bool. Whether there is dropout.
        """
        hidden = tf.gather(self._table, token_ids) * self._width**0.5  # [B, T, D]
        if training:
            hidden = tf.nn.dropout(hidden, self._dropout)
        hidden, memory = self._layer(
            hidden,
            relative_position_encoding=self._encoding,
            state=memory,
            content_attention_mask=self._is_seen,
            training=training,
        )
        logits = tf.matmul(hidden, self._table, transpose_b=True)
        nll = tf.nn.sparse_softmax_cross_entropy_with_logits(token_ids, logits)  # [B, T]
        return tf.reduce_mean(nll), memory
