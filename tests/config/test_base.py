"""Ranges of every configuration, and differences of two."""

import math

import pytest

from pipelines.analysis.ablation import AblationRow, StudyEvaluation
from txl_tf.config.base import Range, describe_differences, fields_of, positive, shown_type
from txl_tf.config.experiment import EvaluationConfig, OptimizerConfig, TrainingConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig

SIZES = {"vocabulary_size": 9, "num_layers": 1, "hidden_dim": 4, "segment_length": 4}
HEADS = {"num_heads": 1, "head_dim": 4, "intermediate_dim": 4, "memory_length": 4}
# Values that make each configuration valid, and what a field needs besides.
VALID = {
    TrainingConfig: {"global_batch_size": 2**20, "num_steps": 2**31 - 1},
    OptimizerConfig: {},
    EvaluationConfig: {"batch_size": 1},
    ModelConfig: {**SIZES, **HEADS},
    LSTMConfig: SIZES,
    QRNNConfig: SIZES,
    AblationRow: {},
    StudyEvaluation: {},
}
NEEDED = {
    "adapter_alpha": {"adapter_rank": 1},
    "weight_decay": {"name": "adamw"},
    "momentum": {"name": "muon"},
    "max_weight_norm": {"name": "lamb"},
    "plateau_factor": {"schedule": "plateau"},
    "plateau_patience": {"schedule": "plateau"},
    "num_positions": {"position_encoding": "learned"},
    "average_weights_decay": {"average_weights_from_step": 1},
    "dynamic_decay": {"dynamic_learning_rate": 0.1},
    "dynamic_statistics_segments": {"dynamic_learning_rate": 0.1},
    "dynamic_epsilon": {"dynamic_learning_rate": 0.1, "dynamic_statistics_segments": 1},
}


@pytest.mark.parametrize("config_class", VALID)
def test_a_number_is_accepted_in_its_range_alone(config_class):
    for name, (hint, accepted) in fields_of(config_class).items():
        kind = {"int": int, "float": float}.get(shown_type(hint).split(" | ")[0])
        if kind is None:
            continue
        assert accepted is not None, f"{name} has no range"
        step = 1 if kind is int else 1e-6
        for bound, outwards, excludes in (
            (accepted.low, -step, accepted.excludes_low),
            (accepted.high, step, accepted.excludes_high),
        ):
            if bound == math.inf:
                continue
            outside, inside = (bound, bound - outwards) if excludes else (bound + outwards, bound)
            with pytest.raises(ValueError, match=f"`{name}` must"):
                built(config_class, name, kind(outside))
            if (config_class, name) != (ModelConfig, "hidden_dim"):  # even numbers only
                assert getattr(built(config_class, name, kind(inside)), name) == inside


def built(config_class, name, value):
    return config_class(**{**VALID[config_class], **NEEDED.get(name, {}), name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nothing_that_is_not_finite_is_a_setting(value):
    with pytest.raises(ValueError, match="finite"):
        OptimizerConfig(learning_rate=value)
    assert math.nan not in Range(0, 1)
    assert 5 in positive(5) and 6 not in positive(5) and 0 not in positive(5)


STORED = {"model": {"num_layers": 2, "cutoffs": [4, 8]}, "data": {"fingerprint": "ab"}, "seed": 7}


@pytest.mark.parametrize(
    ("current", "text"),
    [
        ({key: STORED[key] for key in reversed(STORED)}, ""),
        (STORED | {"seed": 8}, "1 differ: seed (stored 7, now 8)"),
        (
            STORED | {"model": {"num_layers": 2, "cutoffs": [4]}},
            "1 differ: model.cutoffs (stored [4, 8], now [4])",
        ),
        (STORED | {"data": {}}, "2 differ: data (stored None, now {}), data.fingerprint"),
        (STORED | {"new": True}, "1 differ: new (stored None, now True)"),
        (STORED | {"off": None}, ""),  # as if it were not there
    ],
)
def test_a_difference_is_named_with_both_values(current, text):
    found = describe_differences(STORED, current)
    assert found.startswith(text)
    assert "num_layers" not in found
    assert bool(found) == bool(text)
