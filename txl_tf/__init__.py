"""Transformer-XL on TensorFlow, Keras 3 and Cloud TPU.

The public names are imported when they are first used, so that reading a
configuration does not start TensorFlow.
"""

from typing import TYPE_CHECKING

from txl_tf.imports import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from txl_tf import convert, data, functional, generation, layers, samplers, serving
    from txl_tf.config.experiment import (
        EvaluationConfig,
        ExperimentConfig,
        OptimizerConfig,
        TrainingConfig,
    )
    from txl_tf.config.model import ModelConfig
    from txl_tf.export import export_saved_model
    from txl_tf.generation.generate import generate
    from txl_tf.generation.session import GenerationSession
    from txl_tf.inference.engine import InferenceEngine
    from txl_tf.inference.memory import KeyValueMemory
    from txl_tf.models.memory import Memory
    from txl_tf.models.presets import preset
    from txl_tf.models.stateful import StatefulTransformerXL
    from txl_tf.models.transformer_xl import TransformerXL
    from txl_tf.run_folder import load_model

_MODULES = {
    "EvaluationConfig": "txl_tf.config.experiment",
    "ExperimentConfig": "txl_tf.config.experiment",
    "GenerationSession": "txl_tf.generation",
    "InferenceEngine": "txl_tf.inference.engine",
    "KeyValueMemory": "txl_tf.inference.memory",
    "Memory": "txl_tf.models.memory",
    "ModelConfig": "txl_tf.config.model",
    "OptimizerConfig": "txl_tf.config.experiment",
    "StatefulTransformerXL": "txl_tf.models.stateful",
    "TrainingConfig": "txl_tf.config.experiment",
    "TransformerXL": "txl_tf.models.transformer_xl",
    "convert": "txl_tf.convert",
    "data": "txl_tf.data",
    "export_saved_model": "txl_tf.export",
    "functional": "txl_tf.functional",
    "generate": "txl_tf.generation",
    "generation": "txl_tf.generation",
    "layers": "txl_tf.layers",
    "load_model": "txl_tf.run_folder",
    "preset": "txl_tf.models.presets",
    "samplers": "txl_tf.samplers",
    "serving": "txl_tf.serving",
}

__all__ = [
    "EvaluationConfig",
    "ExperimentConfig",
    "GenerationSession",
    "InferenceEngine",
    "KeyValueMemory",
    "Memory",
    "ModelConfig",
    "OptimizerConfig",
    "StatefulTransformerXL",
    "TrainingConfig",
    "TransformerXL",
    "convert",
    "data",
    "export_saved_model",
    "functional",
    "generate",
    "generation",
    "layers",
    "load_model",
    "preset",
    "samplers",
    "serving",
]

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
