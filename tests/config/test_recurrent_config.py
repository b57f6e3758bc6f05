"""The configuration of the recurrent baselines: every wrong value, and JSON."""

import dataclasses
import json

import pytest

from txl_tf.config.recurrent_config import RecurrentConfig

REQUIRED = {"vocabulary_size": 50, "num_layers": 2, "hidden_dim": 8, "segment_length": 5}
OUT_OF_RANGE = [
    *[(name, value) for name in REQUIRED for value in (0, -2)],
    ("embedding_dim", 0),
    ("dropout", -0.1),
    ("dropout", 1.0),
    ("dropout", float("nan")),
    ("initializer_stddev", 0.0),
]


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_named_and_shown(name, value):
    with pytest.raises(ValueError) as caught:
        RecurrentConfig(**{**REQUIRED, name: value})
    assert str(caught.value).startswith(f"`{name}` must")
    assert str(caught.value).endswith(f"Received: {name}={value}")


def test_every_field_is_tried_with_a_wrong_value():
    tried = {name for name, _ in OUT_OF_RANGE}
    assert tried == {field.name for field in dataclasses.fields(RecurrentConfig)}


def test_configuration_survives_json_and_knows_its_widths():
    config = RecurrentConfig(**REQUIRED, embedding_dim=6, dropout=0.2, initializer_stddev=0.1)
    assert RecurrentConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.layer_dims == (8, 6)
    assert config.replace(num_layers=1).layer_dims == (6,)
