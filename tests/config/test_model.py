"""Configurations of the models: Transformer-XL, LSTM and QRNN."""

import dataclasses
import json

import pytest

from txl_tf.config.model import ModelConfig

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
OPTIONAL = {"clamp_length": 7, "cutoffs": [10, 30], "division_factor": 2, "dropout": 0.2}
# One of every type of field.
WRONG_TYPE = [
    ("vocabulary_size", "50"),
    ("num_layers", True),
    ("dropout", False),
    ("clamp_length", 7.5),
    ("same_length", 1),
    ("position_encoding", "rotary"),
    ("position_encoding", None),
    ("cutoffs", 3),
    ("cutoffs", (True,)),
]


def error_of(**changes):
    with pytest.raises(ValueError) as error:
        ModelConfig(**{**REQUIRED, **changes})
    return str(error.value)


@pytest.mark.parametrize(("name", "value"), WRONG_TYPE)
def test_a_value_of_the_wrong_type_is_named_and_shown(name, value):
    message = error_of(**{name: value})
    assert message.startswith(f"`{name}` must be ")
    assert message.endswith(f"Received: {name}={value!r} of type {type(value).__name__}")


def test_dict_round_trip_through_json_keeps_every_value():
    config = ModelConfig(**REQUIRED, **OPTIONAL)
    values = config.to_dict()
    assert values.keys() == {field.name for field in dataclasses.fields(ModelConfig)}
    assert OPTIONAL.items() <= values.items()
    assert ModelConfig.from_dict(json.loads(json.dumps(values))) == config


@pytest.mark.parametrize(
    ("position_encoding", "changes", "name"),
    [
        ("shaw", {}, "num_positions"),
        ("sinusoidal", {"num_positions": 9}, "num_positions"),
        ("learned", {"num_positions": 9, "clamp_length": 4}, "clamp_length"),
        ("sinusoidal", {"share_attention_biases": True}, "share_attention_biases"),
    ],
)
def test_settings_that_a_position_encoding_lacks_are_refused(position_encoding, changes, name):
    message = error_of(position_encoding=position_encoding, **changes)
    assert message.startswith((f"`{name}` must be", f"`{name}` needs"))
    assert "Received: " in message


@pytest.mark.parametrize("cutoffs", [(0,), (50,), (10, 10), (20, 10)])
def test_cutoffs_must_ascend_within_the_vocabulary_and_widths_be_even(cutoffs):
    message = error_of(cutoffs=cutoffs)
    assert message.startswith("`cutoffs` must ascend")
    assert message.endswith(f"Received: cutoffs={cutoffs}, vocabulary_size=50")
    assert error_of(hidden_dim=7).startswith("`hidden_dim` must be even")


def test_unknown_and_missing_keys_are_named():
    unknown = {**REQUIRED, "num_layer": 3, "droput": 0.1}
    with pytest.raises(ValueError, match=r"Did you mean num_layers.*Received: droput, num_layer$"):
        ModelConfig.from_dict(unknown)
    missing = {key: value for key, value in REQUIRED.items() if key != "num_heads"}
    with pytest.raises(ValueError, match=r"is incomplete: .*'num_heads'.*Received: \{"):
        ModelConfig.from_dict(missing)
