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


@pytest.mark.slow
def test_fit_of_the_stateful_model_has_the_losses_of_the_training_loop():
    batches, optimizer = ToyBatches(toy_tokens(), NUM_ROWS), EXPERIMENT.optimizer
    trainer = shared_trainer(batches, **SECTIONS)
    model = StatefulTransformerXL(EXPERIMENT.model, batch_size=NUM_ROWS)
    for mine, theirs in zip(model.weights, trainer.model.weights, strict=True):
        mine.assign(theirs)
    schedule = WarmupSchedule(optimizer, NUM_STEPS)
    model.compile(keras.optimizers.Adam(schedule, epsilon=optimizer.epsilon), jit_compile=False)
    for step, report in enumerate(trainer.run()):
        batch = batches.batch(step)
        fitted = model.fit(batch["token_ids"], batch["target_ids"], verbose=0)
        assert fitted.history["loss"] == pytest.approx([report.nats_per_token], abs=1e-4)
    assert step == NUM_STEPS - 1
    memory_length = EXPERIMENT.model.memory_length
    np.testing.assert_array_equal(model.memory.valid_length, [memory_length] * NUM_ROWS)
