"""Names that files have of models and configurations, as the program has them now."""

import dataclasses

import txl_tf
from pipelines.analysis.ablation import AblationRow, StudyEvaluation
from pipelines.configs import NAMED_EXPERIMENTS
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.data.manifest import Manifest
from txl_tf.export.served_model import ExportOptions
from txl_tf.models.language_model import create_model
from txl_tf.models.presets import PRESETS

CONFIGURATIONS = (
    txl_tf.ModelConfig,
    LSTMConfig,
    QRNNConfig,
    txl_tf.TrainingConfig,
    txl_tf.OptimizerConfig,
    txl_tf.EvaluationConfig,
    txl_tf.ExperimentConfig,
    StudyEvaluation,
    AblationRow,
    ExportOptions,
    Manifest,
)
_SIZES = {
    "vocabulary_size": 20,
    "num_layers": 2,
    "hidden_dim": 8,
    "num_heads": 2,
    "head_dim": 3,
    "intermediate_dim": 10,
    "segment_length": 4,
    "memory_length": 5,
}
_RECURRENT = {
    "vocabulary_size": 20,
    "num_layers": 2,
    "hidden_dim": 8,
    "embedding_dim": 6,
    "segment_length": 4,
}
_ADAPTIVE = {"embedding_dim": 8, "cutoffs": [5, 12], "division_factor": 2}
MODELS = {
    "transformer_xl": _SIZES,
    "shared_biases": _SIZES | {"share_attention_biases": True},
    "pre_norm": _SIZES | {"pre_norm": True},
    "narrow_embedding": _SIZES | {"embedding_dim": 6},
    "untied": _SIZES | {"tie_weights": False},
    "adaptive": _SIZES | _ADAPTIVE,
    "adaptive_untied": _SIZES | _ADAPTIVE | {"tie_weights": False},
    "adaptive_shared_projections": _SIZES | _ADAPTIVE | {"share_tail_projections": True},
    "adaptive_one_width": _SIZES | {"cutoffs": [5, 12], "project_same_dim": False},
    "shaw": _SIZES | {"position_encoding": "shaw", "num_positions": 6},
    "shaw_two_terms": _SIZES | {"position_encoding": "shaw_two_terms", "num_positions": 6},
    "sinusoidal": _SIZES | {"position_encoding": "sinusoidal"},
    "learned": _SIZES | {"position_encoding": "learned", "num_positions": 9},
    "without_recurrence": _SIZES | {"recurrence": False},
    "lstm": {"kind": "lstm"} | _RECURRENT,
    "qrnn": {"kind": "qrnn"} | _RECURRENT,
}


def fields() -> dict:
    """Fields of every configuration, in order, with their defaults."""
    return {
        config.__name__: {field.name: _default(field) for field in dataclasses.fields(config)}
        for config in CONFIGURATIONS
    }


def experiments() -> dict:
    """Every named experiment and preset, without values that are defaults."""
    return {
        "experiments": {
            name: {
                section: _changed(getattr(make(), section))
                for section in ("model", "training", "optimizer", "evaluation")
            }
            for name, make in NAMED_EXPERIMENTS.items()
        },
        "presets": {name: _changed(txl_tf.preset(name)) for name in PRESETS},
    }


def model_variables() -> dict:
    """Path, shape and dtype of every variable of a small model of each kind, in order."""
    found = {}
    for name, values in MODELS.items():
        training = {"global_batch_size": 1, "num_steps": 1}
        config = txl_tf.ExperimentConfig.from_dict({"model": values, "training": training}).model
        model = create_model(config)
        model.score(*_two_segments(), model.initial_memory(1))
        found[name] = [
            [variable.path, list(variable.shape), variable.dtype] for variable in model.weights
        ]
    return found


def _two_segments():
    import numpy as np

    ids = np.arange(5, dtype="int32")[None]
    return ids[:, :-1], ids[:, 1:]


def _default(field) -> object:
    if field.default is not dataclasses.MISSING:
        return _json(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return f"a new {type(field.default_factory()).__name__}"
    return "must be given"


def _changed(config) -> dict:
    found = {}
    for field in dataclasses.fields(config):
        value = _json(getattr(config, field.name))
        if value != _default(field):
            found[field.name] = value
    return found


def _json(value):
    return [_json(item) for item in value] if isinstance(value, tuple) else value
