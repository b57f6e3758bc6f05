"""A model that owns its memory, in plain Keras: `compile` and `fit` on ordered segments."""

import keras
import numpy as np
import pytest

from tests.toy_batches import ToyBatches, toy_experiment, toy_tokens
from tests.toy_trainers import NUM_ROWS, shared_trainer
from txl_tf.models.stateful import StatefulTransformerXL
from txl_tf.training.optimizers import WarmupSchedule

NUM_STEPS = 12
SECTIONS = {
    "training": {"num_steps": NUM_STEPS},
    "optimizer": {"warmup_steps": 3},
}
EXPERIMENT = toy_experiment(**SECTIONS)


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


def compile_like_the_loop(model):
    """The optimizer and the loss of the training loop."""
    optimizer = EXPERIMENT.optimizer
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=keras.optimizers.Adam(
            WarmupSchedule(optimizer, NUM_STEPS), epsilon=optimizer.epsilon
        ),
        jit_compile=False,
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


@pytest.mark.slow
def test_fit_of_the_stateful_model_has_the_losses_of_the_training_loop():
    losses, weights = loop_losses(ToyBatches(toy_tokens(), NUM_ROWS))
    model = StatefulTransformerXL(EXPERIMENT.model, batch_size=NUM_ROWS)
    for variable in model.transformer_xl.weights:
        variable.assign(weights[variable.path.removeprefix("transformer_xl/")])
    compile_like_the_loop(model)
    recorded = Losses()
    data = ordered_pairs(ToyBatches(toy_tokens(), NUM_ROWS)).take(NUM_STEPS)
    model.fit(data, epochs=1, shuffle=False, verbose=0, callbacks=[recorded])
    np.testing.assert_allclose(recorded.losses, losses, rtol=0, atol=1e-4)
    memory_length = EXPERIMENT.model.memory_length
    np.testing.assert_array_equal(model.memory.valid_length, [memory_length] * NUM_ROWS)
    model.reset_state()
    np.testing.assert_array_equal(model.memory.valid_length, [0] * NUM_ROWS)
