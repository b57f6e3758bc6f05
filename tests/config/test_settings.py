"""Ranges of settings: what every configuration accepts."""

import math

import pytest

from pipelines.analysis.ablation import AblationRow, StudyEvaluation
from txl_tf.config.experiment import (
    EvaluationConfig,
    OptimizerConfig,
    TrainingConfig,
)
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.config.settings import Range, fields_of, positive, settings_of

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


@pytest.mark.parametrize(
    ("config_class", "name"),
    [(each, name) for each in VALID for name, (_, accepted) in fields_of(each).items() if accepted],
)
def test_a_range_is_what_the_configuration_accepts(config_class, name):
    _, accepted = fields_of(config_class)[name]
    is_whole = "int" in next(s.type for s in settings_of(config_class) if s.name == name)
    step = 1 if is_whole else 1e-6
    for bound, outwards, excludes in (
        (accepted.low, -step, accepted.excludes_low),
        (accepted.high, step, accepted.excludes_high),
    ):
        if bound is None:
            continue
        with pytest.raises(ValueError, match=f"`{name}` must"):
            built(config_class, name, bound + outwards)
        if excludes:
            with pytest.raises(ValueError, match=f"`{name}` must"):
                built(config_class, name, bound)
            inside = bound - outwards
            if name != "hidden_dim" or config_class is not ModelConfig:
                assert getattr(built(config_class, name, inside), name) == inside
        else:
            assert getattr(built(config_class, name, bound), name) == bound


def built(config_class, name, value):
    kind = next(each.type for each in settings_of(config_class) if each.name == name)
    value = int(value) if "int" in kind else float(value)
    return config_class(**{**VALID[config_class], **NEEDED.get(name, {}), name: value})


def test_every_number_that_is_not_free_has_a_range():
    """A new number without a range is a decision, not an oversight."""
    free = {
        (setting.name)
        for config_class in VALID
        for setting in settings_of(config_class)
        if setting.type.startswith(("int", "float")) and not setting.range
    }
    assert free == set()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_nothing_that_is_not_finite_is_in_a_range(value):
    with pytest.raises(ValueError, match="finite"):
        OptimizerConfig(learning_rate=value)
    assert Range(0, 1).broken_rule(math.nan)
    assert positive(5).broken_rule(6) == "be at most 5"
    assert positive(5).broken_rule(5) is None
