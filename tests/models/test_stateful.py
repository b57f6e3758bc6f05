"""Keras' own loops on a model that holds its memory."""

import copy

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.small_models import (
    SEGMENT_LENGTH,
    VOCABULARY_SIZE,
    toy_experiment,
)
from txl_tf.models.stateful import StatefulTransformerXL

NUM_ROWS = 4
CONFIG = toy_experiment(
    model={"num_layers": 1, "memory_length": 7, "dropout": 0.2, "attention_dropout": 0.1}
).model
GENERATOR = np.random.default_rng(3)
# Three batches and one of two rows; as many to validate on, of other sizes.
TRAINED = GENERATOR.integers(0, VOCABULARY_SIZE, (14, SEGMENT_LENGTH + 1))
HELD_OUT = GENERATOR.integers(0, VOCABULARY_SIZE, (11, SEGMENT_LENGTH + 1))


def pair(tokens):
    return tokens[:, :-1], tokens[:, 1:]


def compiled(**options):
    """A model, the same one every time, with the same draws to come."""
    keras.utils.set_random_seed(5)
    model = StatefulTransformerXL(CONFIG, batch_size=NUM_ROWS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, **{"jit_compile": False, **options})
    return model


def fitted(model, num_rows=None, **options):
    x, y = pair(TRAINED[:num_rows])
    options = {"epochs": 2, "batch_size": NUM_ROWS, **options}
    model.fit(x, y, shuffle=False, verbose=0, **options)
    return model


def state_of(model):
    """Weights, optimizer and memory."""
    memory = model.memory
    return [
        *model.get_weights(),
        *(variable.numpy() for variable in model.optimizer.variables),
        *(state.numpy() for state in memory.states),
        memory.valid_length.numpy(),
    ]


def assert_same_bits(states, others):
    assert len(states) == len(others)
    for state, other in zip(states, others, strict=True):
        np.testing.assert_array_equal(state, other)


class Reader(keras.callbacks.Callback):
    """Reads other texts at every opportunity, and looks at the memory of training meanwhile."""

    def on_train_batch_end(self, batch, logs=None):
        before = state_of(self.model)
        self.model.predict(HELD_OUT[:5, :-1], batch_size=3, verbose=0)
        self.model.predict_on_batch(HELD_OUT[:2, :-1])
        assert_same_bits(state_of(self.model), before)

    def on_test_begin(self, logs=None):
        self.before = state_of(self.model)

    def on_test_batch_end(self, batch, logs=None):
        assert_same_bits(state_of(self.model), self.before)


@pytest.mark.parametrize(
    ("options", "validation"),
    [
        slow_case(
            {"run_eagerly": True},
            {"num_rows": 12, "validation_freq": 2, "validation_batch_size": 3},
        ),
        slow_case({"steps_per_execution": 2, "jit_compile": True}, {}),
    ],
)
def test_fit_with_validation_equals_fit_without_to_the_bit(options, validation):
    alone = state_of(fitted(compiled(**options), validation.get("num_rows")))
    model = compiled(**options)
    fitted(model, validation_data=pair(HELD_OUT), callbacks=[Reader()], **validation)
    assert_same_bits(state_of(model), alone)
    np.testing.assert_array_equal(model.memory.valid_length, [CONFIG.memory_length] * NUM_ROWS)


def log_probs_of_rows(model, batches):
    """Log-probabilities of the batches, row by row, with memory from batch to batch."""
    memories = [model.transformer_xl.initial_memory(1) for _ in range(NUM_ROWS)]
    results = []
    for batch in batches:
        for row, token_ids in enumerate(batch):
            log_probs, memories[row] = model.transformer_xl.log_probs(
                token_ids[None], memories[row]
            )
            results.append(log_probs[0])
    return np.stack(results)


@pytest.fixture(scope="module")
def trained():
    """A model with something in the memory of training."""
    model = compiled()
    model(TRAINED[:4, :-1])
    model.optimizer.build(model.trainable_variables)
    return model


def test_prediction_and_evaluation_begin_empty_and_take_a_smaller_last_batch(trained):
    x, y = pair(HELD_OUT)
    log_probs = log_probs_of_rows(trained, np.split(x, [4, 8]))
    loss = -np.take_along_axis(log_probs, y[..., None], axis=2).mean()
    for _ in range(2):
        outputs = trained.predict(x, batch_size=NUM_ROWS, verbose=0)
        np.testing.assert_allclose(outputs, log_probs, atol=1e-5)
        nats = trained.evaluate(x, y, batch_size=NUM_ROWS, verbose=0)
        assert nats == pytest.approx(loss, abs=1e-5)


@pytest.mark.parametrize("call", ["__call__", "predict_on_batch"])
def test_single_batches_continue_the_memory_of_the_calls_before(trained, call):
    """Of training for a call, of earlier predictions for a prediction."""
    batches = np.split(HELD_OUT[:10, :-1], [4, 8])
    trained.reset_state()
    if call == "predict_on_batch":
        trained(TRAINED[:4, :-1])
    read = getattr(trained, call)
    outputs = [read(batch) for batch in batches]
    expected = log_probs_of_rows(trained, batches)
    np.testing.assert_allclose(np.concatenate(outputs), expected, atol=1e-5)
    trained.reset_state()
    np.testing.assert_allclose(read(batches[0]), outputs[0], atol=1e-5)


def test_rows_that_a_training_batch_does_not_have_keep_their_memory():
    model = compiled(run_eagerly=True)
    model.train_on_batch(*pair(TRAINED[:4]))
    before = model.memory
    model.train_on_batch(*pair(TRAINED[4:6]))
    for state, old in zip(model.memory.states, before.states, strict=True):
        np.testing.assert_array_equal(state[2:], old[2:])
        assert (state[:2].numpy() != old[:2].numpy()).any()
    np.testing.assert_array_equal(model.memory.valid_length, [7, 7, 5, 5])
    model.reset_state()
    np.testing.assert_array_equal(model.memory.valid_length, [0] * NUM_ROWS)


@pytest.mark.parametrize(
    "read",
    [
        lambda model, x, y: model.fit(x, y, batch_size=5, verbose=0),
        lambda model, x, y: model(x[:5]),
        lambda model, x, y: model.evaluate(x, y, batch_size=5, verbose=0),
        lambda model, x, y: model.predict(x, batch_size=5, verbose=0),
        lambda model, x, y: model.train_on_batch(x, y),
        lambda model, x, y: model.test_on_batch(x, y),
    ],
)
def test_a_batch_with_more_rows_is_refused_by_one_sentence(trained, read):
    with pytest.raises(ValueError, match=r"at most 4 rows, .* Received: a batch of (5|14)$"):
        read(trained, *pair(TRAINED))


def test_memory_aside_from_training_is_no_weight_and_not_saved(trained, tmp_path):
    names = [weight.path for weight in trained.weights]
    trained.evaluate(*pair(HELD_OUT), batch_size=NUM_ROWS, verbose=0)
    assert [weight.path for weight in trained.weights] == names
    trained.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same_bits(loaded.get_weights(), trained.get_weights())
    assert type(loaded.loss) is type(trained.loss) and loaded.optimizer.built
    # A model of another batch size has the same weights.
    trained.save_weights(tmp_path / "model.weights.h5")
    for path in ("model.keras", "model.weights.h5"):
        larger = StatefulTransformerXL(CONFIG, batch_size=NUM_ROWS + 3)
        larger.load_weights(tmp_path / path)
        assert_same_bits(larger.get_weights(), trained.get_weights())


def test_the_defaults_are_the_cross_entropy_the_order_and_the_rows_of_the_model():
    x, y = pair(TRAINED)
    keras.utils.set_random_seed(5)
    model = StatefulTransformerXL(CONFIG, batch_size=NUM_ROWS)
    model.compile("adam", run_eagerly=True)
    model.fit(x, y, verbose=0)
    assert_same_bits(state_of(model), state_of(fitted(compiled(run_eagerly=True), epochs=1)))
    assert model.evaluate(x, y, verbose=0) == model.evaluate(x, y, NUM_ROWS, verbose=0) > 1
    assert len(model.predict(x, verbose=0)) == len(x)
    with pytest.raises(ValueError, match=r"must not shuffle: .*Received: shuffle=True$"):
        model.fit(x, y, shuffle=True)


def test_an_export_after_fit_begins_empty_and_keeps_a_memory_of_its_own(tmp_path):
    model = fitted(compiled(run_eagerly=True), NUM_ROWS, epochs=1)
    before = state_of(model)
    model.export(tmp_path / "model", verbose=False)
    assert_same_bits(state_of(model), before)
    x = HELD_OUT[:6, :-1].astype(np.int32)
    served = tf.saved_model.load(tmp_path / "model")
    answers = [served.serve(batch) for batch in np.split(x, [4])]
    expected = model.predict(x, batch_size=NUM_ROWS, verbose=0)
    np.testing.assert_allclose(np.concatenate(answers), expected, atol=1e-5)


def test_a_file_has_the_layers_that_filters_quantized(tmp_path):
    model = StatefulTransformerXL(toy_experiment().model, 1)
    for block in model.transformer_xl.blocks:
        block.attention.query.quantize("int8")
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    copied = copy.deepcopy(model.transformer_xl)
    for other in (loaded.transformer_xl, copied):
        for mine, theirs in zip(other.weights, model.transformer_xl.weights, strict=True):
            np.testing.assert_array_equal(mine, theirs)
