"""Which model an experiment's file describes, and what that model has no use for."""

import json

import pytest

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig

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
        (RECURRENT, "ModelConfig"),
    ],
)
def test_a_model_that_is_neither_is_refused(model, word):
    with pytest.raises(ValueError, match=word):
        experiment_of(model)


@pytest.mark.parametrize(
    ("section", "field", "value"),
    [
        ("training", "document_boundaries", "mask"),
        ("training", "intermediate_losses", True),
        ("training", "num_targets", 2),
        ("training", "rematerialize", True),
        ("evaluation", "memory_length", 7),
        ("evaluation", "clamp_length", 7),
        ("evaluation", "same_length", True),
        ("evaluation", "same_length_keys", "memory"),
    ],
)
def test_a_recurrent_model_refuses_what_only_attention_has(section, field, value):
    base = TRAINING if section == "training" else {}
    sections = {section: {**base, field: value}}
    experiment_of(ATTENTION, **sections)
    with pytest.raises(ValueError) as caught:
        experiment_of({**RECURRENT, "kind": "lstm"}, **sections)
    assert f"`{section}.{field}`" in str(caught.value)
    assert str(caught.value).endswith(f"Received: {field}={value!r}")
