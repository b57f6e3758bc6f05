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
    token_ids,
)
from tests.reference import max_difference
from txl_tf.config.model import RecurrentConfig
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
    """One segment in float64."""
    is_lstm = isinstance(model, LSTMLanguageModel)
    layer = recurrent_reference.lstm_layer if is_lstm else recurrent_reference.qrnn_layer
    states = [np.squeeze(state, 1) for state in states]
    *scores, states = recurrent_reference.language_model(layer, model, inputs, targets, states)
    return *scores, [np.expand_dims(state, 1) for state in states], [1] * B


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


def test_mixed_precision_keeps_states_in_float32_and_scores_close_to_float32(made, model):
    half = made(dtype="mixed_bfloat16")
    half_memory = assert_half_precision_is_close(model, half, 0.05)
    for state in half_memory.states:
        assert keras.backend.standardize_dtype(state.dtype) == "float32"
    hidden, _ = half(token_ids(T), half_memory)
    assert keras.backend.standardize_dtype(hidden.dtype) == "bfloat16"


def test_memory_of_another_depth_is_refused(model):
    memory = model.initial_memory(B)
    with pytest.raises(ValueError, match=r"must have 4 states.*Received: 2 states"):
        model(token_ids(T), memory._replace(states=memory.states[:2]))


PERIOD, COPY_T, SYMBOLS, SEGMENTS, ROWS = 4, 6, 4, 4, 32
