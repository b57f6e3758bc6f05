"""Configurations of the models: Transformer-XL, LSTM and QRNN."""

import dataclasses
import json

import pytest

from txl_tf.config.model import ModelConfig, RecurrentConfig

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
    "embedding_dim": 6,
    "position_encoding": "transformer_xl",
    "num_positions": None,
    "recurrence": False,
    "pre_norm": True,
    "dropout": 0.2,
    "variational_dropout": True,
    "attention_dropout": 0.3,
    "clamp_length": 7,
    "same_length": True,
    "same_length_keys": "memory",
    "share_attention_biases": True,
    "layer_norm_epsilon": 1e-5,
    "cutoffs": [10, 30],
    "division_factor": 2,
    "share_tail_projections": True,
    "project_same_dim": False,
    "tie_weights": False,
    "initializer": "uniform",
    "initializer_stddev": 0.01,
    "initializer_range": 0.2,
    "projection_stddev": 0.03,
}
TABLE_OF_POSITIONS = {
    "position_encoding": "shaw",
    "num_positions": 9,
    "clamp_length": None,
    "share_attention_biases": False,
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
    ("initializer_range", 0.0),
    ("initializer_range", float("inf")),
    ("projection_stddev", 0.0),
    ("embedding_dim", 0),
    ("embedding_dim", -4),
    ("num_positions", 0),
    ("num_positions", -3),
    ("division_factor", 0),
    ("division_factor", -1),
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
    ("embedding_dim", 4.0),
    ("position_encoding", "rotary"),
    ("position_encoding", None),
    ("num_positions", 2.5),
    ("num_positions", True),
    ("recurrence", 0),
    ("pre_norm", "no"),
    ("variational_dropout", 1),
    ("same_length_keys", "self"),
    ("same_length_keys", True),
    ("cutoffs", 3),
    ("cutoffs", None),
    ("cutoffs", (3.5,)),
    ("cutoffs", (True,)),
    ("cutoffs", "10"),
    ("division_factor", 2.0),
    ("share_tail_projections", None),
    ("project_same_dim", 1),
    ("tie_weights", "yes"),
    ("initializer", "orthogonal"),
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
    received = f"{value!r} of type {type(value).__name__}"
    if isinstance(value, tuple):
        assert "must be list of whole numbers" in message
        received = repr(list(value))
    assert message.endswith(f"Received: {name}={received}")


def test_every_field_is_tried_with_a_wrong_value():
    tried = {name for name, _ in OUT_OF_RANGE + WRONG_TYPE}
    assert tried == {field.name for field in dataclasses.fields(ModelConfig)}


@pytest.mark.parametrize("changes", [{}, TABLE_OF_POSITIONS], ids=["sinusoids", "table"])
def test_dict_round_trip_through_json_keeps_every_value(changes):
    expected = {**REQUIRED, **OPTIONAL, **changes}
    assert set(expected) == {field.name for field in dataclasses.fields(ModelConfig)}
    config = ModelConfig(**expected)
    assert config.to_dict() == expected
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_every_optional_value_tried_differs_from_its_default():
    tried = [{**OPTIONAL, **changes} for changes in ({}, TABLE_OF_POSITIONS)]
    for field in dataclasses.fields(ModelConfig):
        if field.name in OPTIONAL:
            assert any(values[field.name] != field.default for values in tried), field.name


@pytest.mark.parametrize("position_encoding", ["shaw", "learned"])
def test_a_table_of_positions_needs_a_number_of_them(position_encoding):
    message = error_of(position_encoding=position_encoding)
    assert message.startswith("`num_positions` is for")
    assert message.endswith(f"position_encoding={position_encoding!r}, num_positions=None")


@pytest.mark.parametrize("position_encoding", ["transformer_xl", "sinusoidal"])
def test_sinusoids_have_no_number_of_positions(position_encoding):
    message = error_of(position_encoding=position_encoding, num_positions=9)
    assert message.startswith("`num_positions` is for")
    assert message.endswith(f"position_encoding={position_encoding!r}, num_positions=9")


@pytest.mark.parametrize("position_encoding", ["shaw", "learned"])
def test_only_sinusoids_can_be_clamped(position_encoding):
    message = error_of(position_encoding=position_encoding, num_positions=9, clamp_length=4)
    assert message.startswith("`clamp_length` is for sinusoids")
    assert message.endswith("Received: clamp_length=4")


@pytest.mark.parametrize("position_encoding", ["shaw", "sinusoidal", "learned"])
def test_only_the_positions_of_transformer_xl_have_biases_to_share(position_encoding):
    table = {} if position_encoding == "sinusoidal" else {"num_positions": 9}
    message = error_of(position_encoding=position_encoding, share_attention_biases=True, **table)
    assert message.startswith("`share_attention_biases` is for")
    assert message.endswith(f"Received: position_encoding={position_encoding!r}")


@pytest.mark.parametrize("cutoffs", [(0,), (50,), (51,), (-1,), (10, 10), (20, 10), (10, 60)])
def test_cutoffs_must_ascend_within_the_vocabulary(cutoffs):
    message = error_of(cutoffs=cutoffs)
    assert message.startswith("`cutoffs` must ascend")
    assert message.endswith(f"Received: cutoffs={cutoffs}, vocabulary_size=50")


def test_cutoffs_may_be_a_list_and_stand_at_either_end():
    config = ModelConfig(**REQUIRED, cutoffs=[1, 49])
    assert config.cutoffs == (1, 49)
    assert hash(config) == hash(config.replace(cutoffs=(1, 49)))


def test_defaults_survive_the_round_trip_and_may_be_left_out():
    config = ModelConfig(**REQUIRED)
    assert ModelConfig.from_dict(config.to_dict()) == config
    assert ModelConfig.from_dict(REQUIRED) == config
    assert config.clamp_length is None
    # The official TensorFlow code's, not the default of Keras.
    assert config.layer_norm_epsilon == 1e-12
    assert config.same_length_keys == "memory_and_self"
    assert (config.position_encoding, config.num_positions) == ("transformer_xl", None)
    assert (config.embedding_dim, config.cutoffs, config.division_factor) == (None, (), 1)
    assert config.recurrence and config.tie_weights and config.project_same_dim
    assert not config.pre_norm and not config.variational_dropout
    assert not config.share_tail_projections


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


TEST_RECURRENT_CONFIG_REQUIRED = {
    "vocabulary_size": 50,
    "num_layers": 2,
    "hidden_dim": 8,
    "segment_length": 5,
}
TEST_RECURRENT_CONFIG_OUT_OF_RANGE = [
    *[(name, value) for name in TEST_RECURRENT_CONFIG_REQUIRED for value in (0, -2)],
    ("embedding_dim", 0),
    ("dropout", -0.1),
    ("dropout", 1.0),
    ("dropout", float("nan")),
    ("initializer_stddev", 0.0),
]


@pytest.mark.parametrize(("name", "value"), TEST_RECURRENT_CONFIG_OUT_OF_RANGE)
def test_recurrent_config_a_value_out_of_range_is_named_and_shown(name, value):
    with pytest.raises(ValueError) as caught:
        RecurrentConfig(**{**TEST_RECURRENT_CONFIG_REQUIRED, name: value})
    assert str(caught.value).startswith(f"`{name}` must")
    assert str(caught.value).endswith(f"Received: {name}={value}")


def test_recurrent_config_every_field_is_tried_with_a_wrong_value():
    tried = {name for name, _ in TEST_RECURRENT_CONFIG_OUT_OF_RANGE}
    assert tried == {field.name for field in dataclasses.fields(RecurrentConfig)}


def test_configuration_survives_json_and_knows_its_widths():
    config = RecurrentConfig(
        **TEST_RECURRENT_CONFIG_REQUIRED, embedding_dim=6, dropout=0.2, initializer_stddev=0.1
    )
    assert RecurrentConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.layer_dims == (8, 6)
    assert config.replace(num_layers=1).layer_dims == (6,)
