"""Properties of both recurrent baselines, each against a second way to the same numbers."""

import keras
import numpy as np
import pytest
from keras import ops

from tests import recurrent_reference
from tests.layer_checks import drawn_seeds, needs_tensorflow, randomize_weights, tf
from tests.models.variants import (
    B,
    T,
    V,
    assert_half_precision_is_close,
    assert_segments_match,
    assert_two_segments_equal_one_pass,
    gradients_beside_memory,
    loss_and_gradients,
    score,
    token_ids,
)
from tests.reference import max_difference
from txl_tf.config.model import LSTMConfig, QRNNConfig, RecurrentConfig
from txl_tf.models.memory import RecurrentMemory
from txl_tf.models.recurrent import LSTMLanguageModel, QRNNLanguageModel

CONFIG = RecurrentConfig(
    vocabulary_size=V, num_layers=2, hidden_dim=6, embedding_dim=5, segment_length=T, dropout=0.0
)


def config_of(model_class, **changes):
    return model_class.config_class(**{**CONFIG.to_dict(), **changes})


@pytest.fixture(scope="module", params=[LSTMLanguageModel, QRNNLanguageModel])
def model_class(request):
    return request.param


@pytest.fixture(scope="module")
def made(model_class):
    """A function that makes a model with random weights."""

    def make(dtype="float32", **changes):
        model = model_class(config_of(model_class, **changes), dtype=dtype)
        randomize_weights(model)
        return model

    return make


def oracle(model, inputs, targets, states, valid_length):
    """One segment in float64; these states have no length."""
    is_lstm = isinstance(model, LSTMLanguageModel)
    layer = recurrent_reference.lstm_layer if is_lstm else recurrent_reference.qrnn_layer
    return *recurrent_reference.language_model(layer, model, inputs, targets, states), None


@pytest.fixture(scope="module")
def model(made):
    return made()


def filled_memory(model):
    return model(token_ids(7, seed=9), model.initial_memory(B))[1]


@pytest.mark.parametrize("changes", [{}, {"embedding_dim": None}, {"num_layers": 1}], ids=str)
def test_three_segments_match_the_oracle(made, changes):
    assert_segments_match(made(**changes), oracle)


def test_two_segments_with_state_equal_one_pass_over_both(model):
    memory, expected = assert_two_segments_equal_one_pass(model, model.initial_memory(B))
    for state, expected_state in zip(memory.states, expected.states, strict=True):
        assert max_difference(state, expected_state) <= 1e-5


@needs_tensorflow
def test_no_gradient_flows_into_or_out_of_the_state(model):
    for gradient in gradients_beside_memory(model, filled_memory(model)).values():
        assert np.abs(gradient).max() > 1e-5


def test_a_restarted_row_equals_a_fresh_row_and_leaves_the_others_alone(model):
    memory, tokens = filled_memory(model), token_ids(T)
    kept, _ = model(tokens, memory)
    fresh, fresh_memory = model(tokens, model.initial_memory(B))
    restarted, following = model(tokens, memory.forget(np.array([True, False])))
    assert max_difference(restarted[0], fresh[0]) == 0.0
    assert max_difference(restarted[1], kept[1]) == 0.0
    assert max_difference(kept[0], fresh[0]) > 1e-3
    for state, expected in zip(following.states, fresh_memory.states, strict=True):
        assert max_difference(state[0], expected[0]) == 0.0


@needs_tensorflow
def test_compiled_equals_eager_in_loss_state_and_gradients(model):
    memory, tokens = filled_memory(model), tf.constant(token_ids(T + 1))

    step = loss_and_gradients(model)
    eager = tf.nest.flatten(step(tokens, memory))
    for jit_compile in (False, True):
        compiled = tf.function(step, jit_compile=jit_compile)(tokens, memory)
        for one, other in zip(tf.nest.flatten(compiled), eager, strict=True):
            assert max_difference(one, other) <= 1e-5, f"{jit_compile=}"


def test_all_dropouts_of_one_step_draw_different_masks(made, monkeypatch):
    model = made(dropout=0.3, num_layers=3)
    seeds = drawn_seeds(monkeypatch)
    seed = ops.convert_to_tensor([1, 2], "int32")
    model(token_ids(T), model.initial_memory(B), dropout_seed=seed, training=True)
    assert len(seeds) == 1 + 3  # the embedding, and the output of every layer
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("embedding_dim", [None, 5])
def test_parameter_count_follows_the_formula(model_class, made, embedding_dim):
    model = made(embedding_dim=embedding_dim, num_layers=3)
    is_lstm = model_class is LSTMLanguageModel
    hidden, table = CONFIG.hidden_dim, embedding_dim or CONFIG.hidden_dim
    layers = 0
    for inputs, outputs in ((table, hidden), (hidden, hidden), (hidden, table)):
        # Four gates of input and output, or three of this input and the one before.
        layers += outputs * (4 * (inputs + outputs + 1) if is_lstm else 3 * (2 * inputs + 1))
    assert model.count_params() == V * table + V + layers


def test_mixed_precision_keeps_states_in_float32_and_scores_close_to_float32(made, model):
    half = made(dtype="mixed_bfloat16")
    half_memory = assert_half_precision_is_close(model, half, 0.05)
    for state in half_memory.states:
        assert keras.backend.standardize_dtype(state.dtype) == "float32"
    hidden, _ = half(token_ids(T), half_memory)
    assert keras.backend.standardize_dtype(hidden.dtype) == "bfloat16"


def test_mixed_precision_does_not_round_the_states_that_are_handed_in(made):
    half, tokens = made(dtype="mixed_bfloat16"), token_ids(T)
    memory = filled_memory(half)
    rounded = [ops.cast(ops.cast(state, "bfloat16"), "float32") for state in memory.states]
    _, following = half(tokens, memory)
    _, otherwise = half(tokens, RecurrentMemory(tuple(rounded)))
    assert max_difference(following.states[1], otherwise.states[1]) > 1e-6


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "bfloat16", "float64"])
def test_the_next_memory_has_the_shapes_and_dtypes_of_the_initial_one(made, dtype):
    model = made(dtype=dtype)
    initial = model.initial_memory(B)
    following = filled_memory(model)
    for one, other in zip(following.states, initial.states, strict=True):
        assert one.shape == other.shape
        assert one.dtype == other.dtype


def test_memory_of_another_depth_is_refused(model):
    memory = model.initial_memory(B)
    with pytest.raises(ValueError, match=r"2 layers.*Received: 2 states"):
        model(token_ids(T), memory._replace(states=memory.states[:2]))


PERIOD, COPY_T, SYMBOLS, SEGMENTS, ROWS = 4, 6, 4, 4, 32


def copy_streams(seed):
    """Rows that repeat `PERIOD` random symbols, cut into segments."""
    pattern = np.random.default_rng(seed).integers(0, SYMBOLS, size=(ROWS, PERIOD))
    length = SEGMENTS * COPY_T + 1
    stream = np.tile(pattern, (1, length // PERIOD + 1))[:, :length].astype("int32")
    return [stream[:, at : at + COPY_T + 1] for at in range(0, length - 1, COPY_T)]


@needs_tensorflow
def test_copies_across_segments_what_no_model_without_state_could_know(model_class):
    sizes = {"vocabulary_size": SYMBOLS, "hidden_dim": 32, "embedding_dim": 32}
    model = model_class(config_of(model_class, **sizes, initializer_stddev=0.3))
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function(jit_compile=True)
    def train_step(tokens, memory):
        with tf.GradientTape() as tape:
            nll, memory = score(model, tokens, memory)
            loss = tf.reduce_mean(nll)
        weights = model.trainable_variables
        gradients = tape.gradient(loss, [weight.value for weight in weights])
        optimizer.apply(gradients, weights)
        return memory

    for seed in range(80):
        memory = model.initial_memory(ROWS)
        for tokens in copy_streams(seed):
            memory = train_step(tf.constant(tokens), memory)

    memory = model.initial_memory(ROWS)
    with_state, without_state = [], []
    for tokens in copy_streams(seed=10_000):
        without_state.append(score(model, tokens, model.initial_memory(ROWS))[0])
        nll, memory = score(model, tokens, memory)
        with_state.append(nll)
    # The first PERIOD - 1 targets of a segment repeat what came before it.
    floor = (PERIOD - 1) * np.log(SYMBOLS) / COPY_T
    assert np.mean(with_state[1:]) < 0.5 * floor
    assert np.mean(without_state[1:]) > 0.9 * floor


def test_a_configuration_of_the_other_class_is_refused(model_class):
    other = QRNNConfig if model_class is LSTMLanguageModel else LSTMConfig
    with pytest.raises(ValueError, match="`config` must be a"):
        model_class(other(**CONFIG.to_dict()))
