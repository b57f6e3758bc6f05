import dataclasses
import json

import pytest

from txl_tf.config.model_config import ModelConfig

REQUIRED = {
    "vocabulary_size": 50,
    "num_layers": 2,
    "hidden_dim": 8,
    "num_heads": 2,
    "head_dim": 4,
    "intermediate_dim": 16,
    "segment_length": 5,
    "memory_length": 5,
}
OPTIONAL = {
    "dropout": 0.2,
    "attention_dropout": 0.3,
    "clamp_length": 7,
    "same_length": True,
    "share_attention_biases": True,
    "layer_norm_epsilon": 1e-5,
    "initializer_stddev": 0.01,
}
OUT_OF_RANGE = [
    *[(name, value) for name in REQUIRED if name != "memory_length" for value in (0, -2)],
    ("hidden_dim", 7),
    ("memory_length", -1),
    ("dropout", -0.1),
    ("dropout", 1.0),
    ("dropout", float("nan")),
    ("attention_dropout", 1.5),
    ("clamp_length", 0),
    ("clamp_length", -3),
    ("layer_norm_epsilon", 0.0),
    ("initializer_stddev", -0.02),
]
WRONG_TYPE = [
    ("vocabulary_size", "50"),
    ("vocabulary_size", 50.0),
    ("num_layers", True),
    ("num_heads", None),
    ("hidden_dim", [8]),
    ("dropout", "0.1"),
    ("dropout", None),
    ("dropout", False),
    ("clamp_length", 7.5),
    ("same_length", 1),
    ("same_length", "yes"),
    ("share_attention_biases", None),
]


def error_of(**changes):
    with pytest.raises(ValueError) as caught:
        ModelConfig(**{**REQUIRED, **changes})
    return str(caught.value)


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_named_and_shown(name, value):
    message = error_of(**{name: value})
    assert message.startswith(f"`{name}` must")
    assert message.endswith(f"Received: {name}={value}")


@pytest.mark.parametrize(("name", "value"), WRONG_TYPE)
def test_a_value_of_the_wrong_type_is_named_and_shown(name, value):
    message = error_of(**{name: value})
    assert message.startswith(f"`{name}` must be ")
    assert message.endswith(f"Received: {name}={value!r} of type {type(value).__name__}")


def test_every_field_is_tried_with_a_wrong_value():
    tried = {name for name, _ in OUT_OF_RANGE + WRONG_TYPE}
    assert tried == {field.name for field in dataclasses.fields(ModelConfig)}


def test_dict_round_trip_through_json_keeps_every_value():
    config = ModelConfig(**REQUIRED, **OPTIONAL)
    values = config.to_dict()
    assert values == {**REQUIRED, **OPTIONAL}
    assert ModelConfig.from_dict(json.loads(json.dumps(values))) == config


def test_defaults_survive_the_round_trip_and_may_be_left_out():
    config = ModelConfig(**REQUIRED)
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert ModelConfig.from_dict(REQUIRED) == config
    assert config.clamp_length is None
    # The official TensorFlow code's, not the default of Keras.
    assert config.layer_norm_epsilon == 1e-12


def test_an_integer_is_taken_for_a_float():
    config = ModelConfig(**REQUIRED, dropout=0)
    assert isinstance(config.dropout, float)
    assert config.dropout == 0.0


def test_unknown_keys_are_named_beside_the_known_ones():
    with pytest.raises(ValueError) as caught:
        ModelConfig.from_dict({**REQUIRED, "num_layer": 3, "droput": 0.1})
    message = str(caught.value)
    assert message.endswith("Received: droput, num_layer")
    for field in dataclasses.fields(ModelConfig):
        assert field.name in message


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_key_is_named(name):
    values = {key: value for key, value in REQUIRED.items() if key != name}
    with pytest.raises(ValueError, match=rf"`ModelConfig`: .*'{name}'.*Received: \{{"):
        ModelConfig.from_dict(values)


def test_config_is_frozen_hashable_and_replace_checks_again():
    config = ModelConfig(**REQUIRED)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_layers = 3
    assert hash(config) == hash(ModelConfig(**REQUIRED))
    longer = config.replace(memory_length=1600)
    assert longer.memory_length == 1600
    assert config.memory_length == 5
    assert longer.replace(memory_length=5) == config
    with pytest.raises(ValueError, match="`memory_length` must not be negative"):
        config.replace(memory_length=-1)


def test_no_memory_is_allowed():
    assert ModelConfig(**{**REQUIRED, "memory_length": 0}).memory_length == 0
