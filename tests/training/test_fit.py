"""Blocks that own their memory, in plain Keras: `compile` and `fit` on ordered segments."""

import keras
import numpy as np
import pytest

from tests.toy_batches import (
    SEGMENT_LENGTH,
    VOCABULARY_SIZE,
    ToyBatches,
    toy_experiment,
    toy_tokens,
)
from tests.toy_trainers import NUM_ROWS, shared_trainer
from txl_tf.layers import AdaptiveEmbedding, AdaptiveSoftmax, DecoderBlock
from txl_tf.models.stateful import StatefulTransformerXL
from txl_tf.training.optimizers import WarmupCosineDecay

NUM_STEPS = 12
SECTIONS = {
    "model": {"num_layers": 2},
    "training": {"num_steps": NUM_STEPS},
    "optimizer": {"warmup_steps": 3},
}
EXPERIMENT = toy_experiment(**SECTIONS)


class TiedLogits(keras.layers.Layer):
    """Logits from the table of an embedding layer.

    A functional model would turn the table into a constant if it were handed over as an input.
    """

    def __init__(self, embedding, **kwargs):
        super().__init__(**kwargs)
        self.embedding = embedding
        self.softmax = AdaptiveSoftmax(VOCABULARY_SIZE, embedding.hidden_dim, name="softmax")

    def build(self, hidden_shape):
        self.softmax.build(hidden_shape)

    def call(self, hidden):
        return self.softmax(hidden, self.embedding.tables)

    def compute_output_shape(self, hidden_shape):
        return (*hidden_shape[:-1], VOCABULARY_SIZE)


class Losses(keras.callbacks.Callback):
    """The loss of every step; Keras reports the mean since the epoch began."""

    def __init__(self):
        super().__init__()
        self.losses = []
        self._sum = 0.0

    def on_train_batch_end(self, batch, logs=None):
        total = logs["loss"] * (batch + 1)
        self.losses.append(total - self._sum)
        self._sum = total

    def on_epoch_begin(self, epoch, logs=None):
        self._sum = 0.0


def stateful_model(weights, jit_compile="auto"):
    """A functional model with the same weights as a `TransformerXL`."""
    config = EXPERIMENT.model
    embedding = AdaptiveEmbedding(VOCABULARY_SIZE, config.hidden_dim, name="embedding")
    token_ids = keras.Input(batch_shape=(NUM_ROWS, SEGMENT_LENGTH), dtype="int32")
    hidden = embedding(token_ids)
    for index in range(config.num_layers):
        hidden = DecoderBlock(
            config.num_heads,
            config.head_dim,
            config.intermediate_dim,
            stateful=True,
            memory_length=config.memory_length,
            name=f"block_{index}",
        )(hidden)
    model = keras.Model(token_ids, TiedLogits(embedding, name="logits")(hidden))
    paths = []
    for variable in model.trainable_variables:
        path = variable.path.removeprefix("logits/")
        variable.assign(weights[path])
        paths.append(path)
    assert sorted(paths) == sorted(weights)
    compile_like_the_loop(model, jit_compile)
    return model


def compile_like_the_loop(model, jit_compile="auto"):
    """The optimizer and the loss of the training loop."""
    optimizer = EXPERIMENT.optimizer
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.Adam(
            WarmupCosineDecay(
                optimizer.learning_rate,
                optimizer.warmup_steps,
                NUM_STEPS,
                optimizer.final_learning_rate_fraction,
            ),
            epsilon=optimizer.epsilon,
        ),
        jit_compile=jit_compile,
    )


def ordered_pairs(batches):
    """The same batches for `fit`: pairs of inputs and targets."""
    return batches.dataset_function(0, range(NUM_ROWS), NUM_ROWS, NUM_STEPS).map(
        lambda batch: (batch["token_ids"], batch["target_ids"])
    )


def loop_losses(batches):
    """Losses of the training loop and the weights it began with."""
    trainer = shared_trainer(batches, **SECTIONS)
    weights = {variable.path: variable.numpy() for variable in trainer.model.weights}
    return [report.nats_per_token for report in trainer.run()], weights


@pytest.fixture(scope="module")
def carried():
    """The training loop's losses with memory, and a stateful model with its first weights."""
    losses, weights = loop_losses(ToyBatches(toy_tokens(), NUM_ROWS))
    return losses, weights


@pytest.mark.slow
def test_fit_with_stateful_blocks_has_the_losses_of_the_training_loop(carried):
    losses, weights = carried
    model = stateful_model(weights)
    recorded = Losses()
    data = ordered_pairs(ToyBatches(toy_tokens(), NUM_ROWS)).take(NUM_STEPS)
    model.fit(data, epochs=1, shuffle=False, verbose=0, callbacks=[recorded])
    np.testing.assert_allclose(recorded.losses, losses, rtol=0, atol=1e-4)
    for index in range(2):
        valid_length = model.get_layer(f"block_{index}").valid_length
        np.testing.assert_array_equal(valid_length, [EXPERIMENT.model.memory_length] * NUM_ROWS)


@pytest.mark.slow
def test_fit_of_the_stateful_model_has_the_losses_of_the_training_loop(carried):
    losses, weights = carried
    model = StatefulTransformerXL(EXPERIMENT.model, batch_size=NUM_ROWS)
    for variable in model.transformer_xl.weights:
        variable.assign(weights[variable.path.removeprefix("transformer_xl/")])
    compile_like_the_loop(model, jit_compile=False)
    recorded = Losses()
    data = ordered_pairs(ToyBatches(toy_tokens(), NUM_ROWS)).take(NUM_STEPS)
    model.fit(data, epochs=1, shuffle=False, verbose=0, callbacks=[recorded])
    np.testing.assert_allclose(recorded.losses, losses, rtol=0, atol=1e-4)
    memory_length = EXPERIMENT.model.memory_length
    np.testing.assert_array_equal(model.memory.valid_length, [memory_length] * NUM_ROWS)
    model.reset_state()
    np.testing.assert_array_equal(model.memory.valid_length, [0] * NUM_ROWS)
