"""Configurations of an experiment, its training and its optimizer."""

import json

import pytest

from tests.small_models import toy_experiment
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.frozen_parts import FrozenParts
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.config.training import TrainingConfig

RECURRENT = {"vocabulary_size": 50, "num_layers": 2, "hidden_dim": 8, "segment_length": 5}
ATTENTION = {**RECURRENT, "num_heads": 2, "head_dim": 4, "intermediate_dim": 8, "memory_length": 3}
TRAINING = {"global_batch_size": 2, "num_steps": 4}


def experiment_of(model, **sections):
    return ExperimentConfig.from_dict({"model": model, "training": TRAINING, **sections})


@pytest.mark.parametrize(
    ("model", "config_class"),
    [
        (ATTENTION, ModelConfig),
        ({**RECURRENT, "kind": "lstm"}, LSTMConfig),
        ({**RECURRENT, "kind": "qrnn"}, QRNNConfig),
    ],
)
def test_the_kind_decides_the_model_and_survives_json(model, config_class):
    experiment = experiment_of(model)
    assert type(experiment.model) is config_class
    values = json.loads(json.dumps(experiment.to_dict()))
    assert ExperimentConfig.from_dict(values) == experiment
    assert values["model"].get("kind") == model.get("kind")
    wider = experiment.with_overrides(["model.hidden_dim=16"])
    assert wider.model == experiment.model.replace(hidden_dim=16)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        ({**RECURRENT, "kind": "gru"}, "kind='gru'"),
        ({**RECURRENT, "kind": None}, "kind=None"),
        ({**RECURRENT, "kind": "lstm", "num_heads": 2}, "Received: num_heads"),
    ],
)
def test_a_model_that_is_neither_is_refused(model, word):
    with pytest.raises(ValueError, match=word):
        experiment_of(model)


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("training", "document_boundaries", "mask"),
        ("evaluation", "memory_length", 7),
    ],
)
def test_a_recurrent_model_refuses_settings_of_attention(section, field, value):
    base = TRAINING if section == "training" else {}
    sections = {section: {**base, field: value}}
    experiment_of(ATTENTION, **sections)
    message = rf"`{section}\.{field}`.*Received: {field}={value!r}$"
    with pytest.raises(ValueError, match=message):
        experiment_of({**RECURRENT, "kind": "lstm"}, **sections)


@pytest.mark.parametrize("changes", [{"memory_length": 0}, {"recurrence": False}], ids=str)
def test_evaluating_with_the_keys_of_memory_alone_needs_a_memory(changes):
    evaluation = EvaluationConfig(same_length=True, same_length_keys="memory")
    evaluation.check_model(ModelConfig(**ATTENTION))
    with pytest.raises(ValueError, match="needs a memory"):
        evaluation.check_model(ModelConfig(**{**ATTENTION, **changes}))


@pytest.mark.parametrize(
    ("values", "field", "users"),
    [
        ({"name": "sgd", "beta_1": 0.8}, "beta_1", "adam or adamw or lamb or muon"),
        ({"name": "adam", "weight_decay": 0.1}, "weight_decay", "adamw or lamb or muon"),
        ({"name": "muon", "max_weight_norm": 1.0}, "max_weight_norm", "lamb"),
        ({"schedule": "cosine", "decay_fraction": 0.5}, "decay_fraction", "wsd"),
    ],
)
def test_a_field_that_would_not_be_used_is_refused_by_name(values, field, users):
    (chooser, choice), _ = values.items()
    with pytest.raises(ValueError, match=f"`{field}` needs .*{users}.*{chooser}='{choice}'"):
        OptimizerConfig(**values)


@pytest.mark.parametrize(
    ("num_replicas", "num_parts", "rows"),
    [(1, 1, 24), (16, 1, 2), (8, 1, 3), (8, 2, 4), (2, 5, 15)],
)
def test_rows_that_cannot_be_shared_out_are_made_up(num_replicas, num_parts, rows):
    config = TrainingConfig(
        global_batch_size=24, num_steps=1, gradient_accumulation_steps=num_parts
    )
    assert config.rows_per_replica(num_replicas) == rows


@pytest.mark.parametrize(
    ("num_steps", "checkpoint_every_steps", "period"),
    [(4, 1000, 1), (40_000, 1000, 4000), (800, 200, 80), (10_000, 900, 900)],
)
def test_a_run_is_evaluated_about_ten_times_by_default(num_steps, checkpoint_every_steps, period):
    sizes = {"num_steps": num_steps, "checkpoint_every_steps": checkpoint_every_steps}
    training = TrainingConfig(global_batch_size=1, **sizes)
    assert training.evaluation_period == period
    assert training.replace(evaluate_every_steps=7).evaluation_period == 7


@pytest.mark.parametrize(
    ("patterns", "parts"),
    [
        ([], FrozenParts()),
        (["embedding"], FrozenParts(embedding=True)),
        (["softmax", "layers:1"], FrozenParts(softmax=True, layers=frozenset([1]))),
        (["layers:0-2", "layers:2-3"], FrozenParts(layers=frozenset(range(4)))),
        (["layers"], FrozenParts(layers=frozenset(range(5)))),
    ],
)
def test_frozen_parts_are_named_by_patterns(patterns, parts):
    assert FrozenParts.parse(patterns, num_layers=5) == parts


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("layer:0", "`freeze` must be one of"),
        ("layers:-1", "`freeze` must be one of"),
        ("", "`freeze` must be one of"),
        ("layers:5", "layers from 0 to 4"),
        ("layers:3-1", "layers from 0 to 4"),
        ("layers:0-99999999999", "`freeze` must be one of"),
    ],
)
def test_other_patterns_are_refused(pattern, reason):
    with pytest.raises(ValueError, match=reason):
        FrozenParts.parse([pattern], num_layers=5)


@pytest.mark.parametrize(
    ("patterns", "reason"),
    [
        (("layers:1",), "layers from 0 to 0"),
        ((), "`freeze` must name a part"),
        (("embedding", "softmax", "layers:0"), "must leave a part of the model"),
    ],
)
def test_an_experiment_refuses_frozen_parts_that_do_not_fit(patterns, reason):
    with pytest.raises(ValueError, match=reason):
        toy_experiment(training={"freeze": patterns})
