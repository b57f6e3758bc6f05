"""One interface for all models; weights are those of the model, all of them, or none."""

from pathlib import Path

import keras
import numpy as np
import pytest

from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import MismatchError
from txl_tf.models.language_model import LanguageModel, assign_weights, create_model
from txl_tf.models.transformer_xl import TransformerXL

RECURRENT_MODELS = Path(__file__).resolve().parent.parent / "golden" / "recurrent_models"


@pytest.fixture
def variables():
    return {name: keras.Variable(np.zeros(shape)) for name, shape in (("a", (2,)), ("b", (2, 3)))}


def test_all_arrays_are_assigned_and_others_passed_over(variables):
    arrays = {"a": np.ones(2), "b": np.ones((2, 3)), "more": np.ones(1)}
    assign_weights(variables, arrays)
    for name, variable in variables.items():
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(variable), arrays[name])


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
    assert not keras.ops.convert_to_numpy(variables["a"]).any()


@pytest.mark.parametrize("name", ["lstm", "qrnn"])
def test_recurrent_models_of_before_have_the_same_scores(name):
    recorded = np.load(RECURRENT_MODELS / f"{name}.npz")
    # The names are those of a checkpoint, see `TrainState`.
    arrays = {key.removeprefix("model/"): recorded[key] for key in recorded.files}
    config_class = LSTMConfig if name == "lstm" else QRNNConfig
    model = create_model(
        config_class(
            vocabulary_size=20, num_layers=2, hidden_dim=8, embedding_dim=6, segment_length=6
        )
    )
    assert {*arrays} - {"token_ids", "nats"} == {variable.path for variable in model.weights}
    assign_weights({variable.path: variable for variable in model.weights}, arrays)
    token_ids = recorded["token_ids"]
    memory = model.initial_memory(len(token_ids))
    nats, _ = model.score(token_ids[:, :-1], token_ids[:, 1:], memory)
    np.testing.assert_allclose(nats, recorded["nats"], rtol=0, atol=1e-6)


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


def test_a_model_refuses_the_configuration_of_another():
    config = LSTMConfig(vocabulary_size=9, num_layers=1, hidden_dim=4, segment_length=3)
    with pytest.raises(ValueError, match="`config` must be a `ModelConfig`"):
        TransformerXL(config)
