"""Ranges of the fields of configurations, values as text, and differences between settings."""

import math

import pytest

from txl_tf.config.base import fields_of, shown_type
from txl_tf.config.differences import describe_differences
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.config.setting_values import parse_setting
from txl_tf.config.training import TrainingConfig

CLASSES = (
    TrainingConfig,
    OptimizerConfig,
    EvaluationConfig,
    ModelConfig,
    LSTMConfig,
    QRNNConfig,
)


@pytest.mark.parametrize("config_class", CLASSES)
def test_every_number_has_a_range(config_class):
    for name, (hint, accepted) in fields_of(config_class).items():
        is_number = shown_type(hint).split(" | ")[0] in ("int", "float")
        assert accepted is not None or not is_number, name


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("warmup_steps", 0, -1),
        ("learning_rate", 1e-6, 0.0),
        ("beta_1", 0.0, 1.0),
        ("final_learning_rate_fraction", 1.0, 1.000001),
        ("epsilon", 1.0, math.inf),
    ],
)
def test_a_number_is_accepted_in_its_range_alone(name, inside, outside):
    assert getattr(OptimizerConfig(**{name: inside}), name) == inside
    with pytest.raises(ValueError, match=f"`{name}` must"):
        OptimizerConfig(**{name: outside})


STORED = {"model": {"num_layers": 2, "cutoffs": [4, 8]}, "data": {"fingerprint": "ab"}, "seed": 7}


@pytest.mark.parametrize(
    ("current", "text"),
    [
        ({key: STORED[key] for key in reversed(STORED)}, ""),
        (STORED | {"seed": 8}, "1 setting differs: seed (stored 7, now 8)"),
        (
            STORED | {"model": {"num_layers": 2, "cutoffs": [4]}},
            "1 setting differs: model.cutoffs (stored [4, 8], now [4])",
        ),
        (STORED | {"data": {}}, "2 settings differ: data (stored None, now {}), data.fingerprint"),
        (STORED | {"new": True}, "1 setting differs: new (stored None, now True)"),
        (STORED | {"off": None}, ""),  # as if it were not there
    ],
)
def test_a_difference_is_named_with_both_values(current, text):
    result = describe_differences(STORED, current)
    assert result.startswith(text)
    assert "num_layers" not in result
    assert bool(result) == bool(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (".001", 0.001),
        ("1e-3", 0.001),
        ("1.", 1.0),
        ("none", None),
        ("FALSE", False),
        ("(100, 200,)", [100, 200]),
        ("[1, 2]", [1, 2]),
        ("fast", "fast"),
        ("nan", "nan"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_values_are_read_as_people_type_them(text, value):
    assert parse_setting(text) == value
