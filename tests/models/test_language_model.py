"""Interface and properties of all models; weights are those of the model, all of them, or none."""

import keras
import numpy as np
import pytest
from keras import ops

from tests.layer_checks import needs_tensorflow, randomize_weights, tf
from tests.models.variants import SIZES, B, T, V, score, token_ids
from tests.reference import max_difference
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import MismatchError
from txl_tf.models import create_model
from txl_tf.models.language_model import LanguageModel, assign_weights
from txl_tf.models.transformer_xl import TransformerXL


@pytest.fixture
def variables():
    return {name: keras.Variable(np.zeros(shape)) for name, shape in (("a", (2,)), ("b", (2, 3)))}


def test_all_arrays_are_assigned_and_others_passed_over(variables):
    arrays = {"a": np.ones(2), "b": np.ones((2, 3)), "more": np.ones(1)}
    assign_weights(variables, arrays)
    for name, variable in variables.items():
        np.testing.assert_array_equal(ops.convert_to_numpy(variable), arrays[name])


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({}, "is missing"),
        ({"b": np.ones((3, 2))}, r"shape \[3, 2\], not \[2, 3\]"),
        ({"b": np.full((2, 3), "x")}, "type"),
        ({"b": np.ones((2, 3), bool)}, "type bool"),
    ],
)
def test_nothing_is_assigned_where_one_array_does_not_fit(variables, wrong, reason):
    with pytest.raises(MismatchError, match=f"`b` .*{reason}"):
        assign_weights(variables, {"a": np.ones(2)} | wrong)
    assert not ops.convert_to_numpy(variables["a"]).any()


@pytest.mark.parametrize("config_class", [ModelConfig, LSTMConfig, QRNNConfig])
def test_every_model_is_a_language_model_and_scores_alike(config_class):
    sizes = {"vocabulary_size": 9, "num_layers": 1, "hidden_dim": 4, "segment_length": 3}
    if config_class is ModelConfig:
        sizes |= {"num_heads": 1, "head_dim": 4, "intermediate_dim": 8, "memory_length": 3}
    model = create_model(config_class(**sizes))
    assert isinstance(model, LanguageModel)
    token_ids = np.array([[1, 2, 3, 8]])
    memory = model.initial_memory(1)
    hidden, _ = model(token_ids[:, :-1], memory)
    nats, _ = model.score(token_ids[:, :-1], token_ids[:, 1:], memory)
    log_probs, _ = model.log_probs(token_ids[:, :-1], memory)
    np.testing.assert_array_equal(log_probs, model.log_probs_of(hidden))
    picked = np.take_along_axis(np.asarray(log_probs), token_ids[:, 1:, None], axis=-1)[..., 0]
    np.testing.assert_allclose(nats, -picked, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=r"must be in \[0, 9\)"):
        model.score(token_ids + 8, token_ids, memory)
    assert "shape=(1, " in repr(memory) and len(repr(memory)) < 80

    three = model.initial_memory(3)
    for call, message in (
        (lambda: model(token_ids), r"takes `memory`: begin with `model.initial_memory\(.*=None$"),
        (lambda: model.predict(token_ids, verbose=0), "need a `StatefulTransformerXL`"),
        (lambda: model(token_ids[0], memory), r"tensor \(B, T\)\. Received: shape \(4,\)$"),
        (lambda: model([[1, 2]], memory), r"tensor \(B, T\)\. Received: list$"),
        (lambda: model(token_ids, "a"), "Received: memory of type str$"),
        (lambda: model.log_probs(token_ids, three), "memory of 3 rows, batch of 1$"),
        (lambda: model.score(token_ids, token_ids[0], memory), r"`target_ids` .*shape \(4,\)$"),
        (lambda: model.export("exported"), "`txl_tf.export_saved_model"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_model_refuses_the_configuration_of_another():
    config = LSTMConfig(vocabulary_size=9, num_layers=1, hidden_dim=4, segment_length=3)
    with pytest.raises(ValueError, match="`config` must be a `ModelConfig`"):
        TransformerXL(config)


RECURRENT_SIZES = {
    "vocabulary_size": V,
    "num_layers": 2,
    "hidden_dim": 6,
    "embedding_dim": 5,
    "segment_length": T,
    "dropout": 0.0,
}


def made(config_class, **changes):
    """A small model with large random weights."""
    model = create_model(config_class(**{**config_fields(config_class), **changes}))
    randomize_weights(model)
    return model


def config_fields(config_class):
    if config_class is not ModelConfig:
        return dict(RECURRENT_SIZES)
    return {key: value for key, value in SIZES.items() if key != "layer_norm_epsilon"}


@pytest.fixture(scope="module", params=[ModelConfig, LSTMConfig, QRNNConfig])
def config_class(request):
    return request.param


@pytest.fixture(scope="module")
def model(config_class):
    keras.utils.set_random_seed(1234)
    return made(config_class)


def filled_memory(model):
    return model(token_ids(7, seed=9), model.initial_memory(B))[1]


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


@needs_tensorflow
def test_unknown_batch_size_and_segment_length_equal_eager(model):
    ids, memory = tf.TensorSpec([None, None], tf.int32), filled_memory(model)
    memory_spec = tf.nest.map_structure(
        lambda tensor: tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype), memory
    )
    dynamic = tf.function(model.score, input_signature=[ids, ids, memory_spec])
    for length in (1, T, 6, 9):
        tokens = token_ids(length + 1)
        found = dynamic(tokens[:, :-1], tokens[:, 1:], memory)
        expected = score(model, tokens, memory)
        for got, wanted in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
            assert max_difference(got, wanted) <= (1e-5 if got.dtype.is_floating else 0)
