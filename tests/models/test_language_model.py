"""Checks that every language model passes: scores, memory, gradients, XLA, dropout, refusals."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from tests.layer_checks import drawn_seeds, randomize_weights
from tests.models.variants import ENCODINGS, SIZES, B, T, V, config_of, score, token_ids
from tests.reference import max_difference
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import MismatchError
from txl_tf.models import create_model
from txl_tf.models.language_model import LanguageModel, assign_weights
from txl_tf.models.transformer_xl import TransformerXL

RECURRENT = {name: SIZES[name] for name in ("vocabulary_size", "num_layers", "hidden_dim")}
RECURRENT |= {"embedding_dim": 5, "segment_length": T, "dropout": 0.0}
CONFIGS = {
    "transformer_xl": config_of(layer_norm_epsilon=ModelConfig.layer_norm_epsilon),
    "lstm": LSTMConfig(**RECURRENT),
    "qrnn": QRNNConfig(**RECURRENT),
}


def made(config, dtype="float32"):
    """A small model with large random weights."""
    keras.utils.set_random_seed(1234)
    model = create_model(config, dtype=dtype)
    randomize_weights(model)
    return model


@pytest.fixture(scope="module", params=CONFIGS)
def model(request):
    return made(CONFIGS[request.param])


def filled_memory(model):
    return model(token_ids(7, seed=9), model.initial_memory(B))[1]


def test_the_score_is_minus_the_log_probability_of_the_target(model):
    assert isinstance(model, LanguageModel)
    tokens, memory = token_ids(T + 1), model.initial_memory(B)
    hidden, _ = model(tokens[:, :-1], memory)
    nats, _ = score(model, tokens, memory)
    log_probs, _ = model.log_probs(tokens[:, :-1], memory)
    np.testing.assert_array_equal(log_probs, model.log_probs_of(hidden))
    np.testing.assert_array_equal(log_probs, ops.log_softmax(model.logits_of(hidden)))
    of_targets = np.take_along_axis(np.asarray(log_probs), tokens[:, 1:, None], axis=-1)[..., 0]
    np.testing.assert_allclose(nats, -of_targets, rtol=0, atol=1e-6)
    assert f"shape=({B}, " in repr(memory) and len(repr(memory)) < 80


def test_wrong_arguments_are_refused_by_one_sentence(model):
    tokens, memory, three = token_ids(T), model.initial_memory(B), model.initial_memory(3)
    for call, message in (
        (lambda: model.score(tokens + V, tokens, memory), r"must be in \[0, 11\)"),
        (lambda: model(tokens), r"needs `memory`: begin with `model.initial_memory\(.*=None$"),
        (lambda: model.predict(tokens, verbose=0), "need a `StatefulTransformerXL`"),
        (lambda: model(tokens[0], memory), r"tensor \(B, T\)\. Received: shape \(4,\)$"),
        (lambda: model([[1, 2]], memory), r"tensor \(B, T\)\. Received: list$"),
        (lambda: model(tokens, "a"), "Received: memory of type str$"),
        (lambda: model.log_probs(tokens, three), "memory of 3 rows, batch of 2$"),
        (lambda: model.score(tokens, tokens[0], memory), r"`target_ids` .*shape \(4,\)$"),
        (lambda: model.export("exported"), "`txl_tf.export_saved_model"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_token_by_token_equals_one_pass(model):
    """How generation reads: segments of one token, memory as long as the text."""
    tokens = token_ids(6)
    one_pass, _ = model(tokens, model.initial_memory(B))
    memory = model.initial_memory(B)
    for at in range(6):
        hidden, memory = model(tokens[:, at : at + 1], memory)
        assert max_difference(hidden[:, 0], one_pass[:, at]) <= 1e-5


@pytest.mark.parametrize("changed_at", [0, T - 1])
def test_a_changed_token_leaves_earlier_outputs_alone(model, changed_at):
    memory, tokens = filled_memory(model), token_ids(T)
    before = ops.convert_to_numpy(model(tokens, memory)[0])
    tokens[:, changed_at] = (tokens[:, changed_at] + 1) % V
    after = ops.convert_to_numpy(model(tokens, memory)[0])
    # A sum over keys may be rounded otherwise; a recurrence has not read the token.
    tolerance = 1e-6 if isinstance(model, TransformerXL) else 0.0
    assert max_difference(after[:, :changed_at], before[:, :changed_at]) <= tolerance
    assert np.all(np.abs(after[:, changed_at:] - before[:, changed_at:]).max(axis=-1) > 1e-4)


def test_unknown_batch_size_and_segment_length_equal_eager(model):
    ids, memory = tf.TensorSpec([None, None], tf.int32), filled_memory(model)
    memory_spec = tf.nest.map_structure(
        lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), memory
    )
    dynamic = tf.function(model.score, input_signature=[ids, ids, memory_spec])
    for length in (1, T, 6, 9):
        tokens = token_ids(length + 1)
        results = dynamic(tokens[:, :-1], tokens[:, 1:], memory)
        expected = score(model, tokens, memory)
        for one, other in zip(tf.nest.flatten(results), tf.nest.flatten(expected), strict=True):
            assert max_difference(one, other) <= (1e-5 if one.dtype.is_floating else 0)


SHAW = {"num_positions": 2 * T}


@pytest.mark.parametrize(
    "config",
    [
        config_of(share_attention_biases=True),
        config_of("shaw", **SHAW, pre_norm=True),
        config_of("shaw_two_terms", **SHAW),
        CONFIGS["lstm"],
        CONFIGS["qrnn"],
    ],
)
def test_two_segments_with_memory_equal_one_pass_over_both(config):
    model, tokens = made(config), token_ids(2 * T)
    # Attention over both at once needs no memory.
    length = {"memory_length": 0} if isinstance(config, ModelConfig) else {}
    one_pass, expected = model(tokens, model.initial_memory(B, **length))
    one_pass = ops.convert_to_numpy(one_pass)
    first, memory = model(tokens[:, :T], model.initial_memory(B))
    second, memory = model(tokens[:, T:], memory)
    assert max_difference(first, one_pass[:, :T]) <= 1e-5
    assert max_difference(second, one_pass[:, T:]) <= 1e-5
    # Without the memory they would differ, or this would prove nothing.
    alone, _ = model(tokens[:, T:], model.initial_memory(B))
    assert max_difference(alone, one_pass[:, T:]) > 1e-3
    if not length:
        for state, expected_state in zip(memory.states, expected.states, strict=True):
            assert max_difference(state, expected_state) <= 1e-5


@pytest.mark.parametrize(
    "config", [*map(config_of, ENCODINGS), config_of(pre_norm=True), *CONFIGS.values()]
)
def test_no_gradient_flows_into_or_out_of_memory(config):
    model = made(config)
    memory, weights = filled_memory(model), [each.value for each in model.trainable_variables]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(memory.states)
        nll, following = score(model, token_ids(T + 1), memory)
        loss = tf.reduce_mean(nll)
        remembered = tf.add_n([tf.reduce_sum(state**2) for state in following.states])
    for gradient in tape.gradient(loss, memory.states):
        assert gradient is None or not np.any(gradient.numpy())
    assert tape.gradient(remembered, weights) == [None] * len(weights)
    for gradient in tape.gradient(loss, weights):
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 1e-7


def test_a_restarted_row_equals_a_fresh_row_and_leaves_the_others_alone(model):
    memory, tokens = filled_memory(model), token_ids(T)
    kept, kept_memory = model(tokens, memory)
    fresh, fresh_memory = model(tokens, model.initial_memory(B))
    restarted, following = model(tokens, memory.forget(np.array([True, False])))
    assert max_difference(restarted[0], fresh[0]) <= 1e-6
    assert max_difference(restarted[1], kept[1]) == 0.0
    assert max_difference(kept[0], fresh[0]) > 1e-3
    # Afterwards it remembers only the new stream.
    lengths = [fresh_memory.valid_length[0], kept_memory.valid_length[1]]
    assert max_difference(following.valid_length, np.array(lengths)) == 0.0
    later, _ = model(tokens, following)
    assert max_difference(later[0], model(tokens, fresh_memory)[0][0]) <= 1e-6
    assert max_difference(later[1], model(tokens, kept_memory)[0][1]) == 0.0


def test_xla_equals_eager_in_loss_memory_and_gradients(model):
    memory, tokens = filled_memory(model), tf.constant(token_ids(T + 1))

    def step(tokens, memory):
        with tf.GradientTape() as tape:
            nll, following = score(model, tokens, memory)
            loss = tf.reduce_mean(nll)
        weights = [weight.value for weight in model.trainable_variables]
        return nll, following, [tf.convert_to_tensor(g) for g in tape.gradient(loss, weights)]

    eager = tf.nest.flatten(step(tokens, memory))
    compiled = tf.nest.flatten(tf.function(step, jit_compile=True)(tokens, memory))
    for one, other in zip(compiled, eager, strict=True):
        assert max_difference(one, other) <= 1e-4


RATES = {"dropout": 0.3, "attention_dropout": 0.3}


@pytest.mark.parametrize(
    ("config", "num_masks"),
    [
        # Embedding, positions, output; four in each block.
        (config_of(**RATES), 3 + 2 * 4),
        (config_of("sinusoidal", **RATES), 3 + 2 * 4),
        # The embedding, and the output of every layer.
        (CONFIGS["lstm"].replace(dropout=0.3), 1 + 2),
        (CONFIGS["qrnn"].replace(dropout=0.3), 1 + 2),
    ],
)
def test_all_dropouts_of_all_steps_draw_different_masks(config, num_masks, monkeypatch):
    model, seeds = made(config), drawn_seeds(monkeypatch)
    for numbers in ([1, 2], [1, 3], [2, 2]):
        seed = ops.convert_to_tensor(numbers, "int32")
        model(token_ids(T), model.initial_memory(B), dropout_seed=seed, training=True)
    assert len(set(seeds)) == len(seeds) == 3 * num_masks


def test_half_precision_scores_in_float32_close_to_float32(model):
    """A recurrence keeps its states in float32, where small changes add up."""
    half = made(model.config, dtype="mixed_bfloat16")
    memory, half_memory = model.initial_memory(B), half.initial_memory(B)
    stream = token_ids(2 * T + 1)
    for start in (0, T):
        segment = stream[:, start : start + T + 1]
        expected, memory = score(model, segment, memory)
        nll, half_memory = score(half, segment, half_memory)
        assert keras.backend.standardize_dtype(nll.dtype) == "float32"
        assert max_difference(nll, expected) <= 0.05
    hidden, _ = half(token_ids(T), half_memory)
    assert keras.backend.standardize_dtype(hidden.dtype) == "bfloat16"
    for state in half_memory.states:
        dtype = "bfloat16" if isinstance(half, TransformerXL) else "float32"
        assert keras.backend.standardize_dtype(state.dtype) == dtype


def test_weights_are_assigned_as_a_whole_or_not_at_all():
    variables = {"a": keras.Variable(np.zeros(2)), "b": keras.Variable(np.zeros((2, 3)))}
    for wrong, reason in (
        ({}, "is missing"),
        ({"b": np.ones((3, 2))}, r"shape \[3, 2\], not \[2, 3\]"),
        ({"b": np.full((2, 3), "x")}, "type"),
        ({"b": np.ones((2, 3), bool)}, "type bool"),
    ):
        with pytest.raises(MismatchError, match=f"`b` .*{reason}"):
            assign_weights(variables, {"a": np.ones(2)} | wrong)
        assert not variables["a"].numpy().any()
    # Other arrays are passed over.
    assign_weights(variables, {"a": np.ones(2), "b": np.ones((2, 3)), "more": np.ones(1)})
    assert all(variable.numpy().all() for variable in variables.values())
