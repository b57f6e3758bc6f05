"""Transformer-XL on TensorFlow, Keras 3 and Cloud TPU.

The public names are imported when they are first used, so that reading a
configuration does not start TensorFlow.
"""

from txl_tf.imports import lazy_names

__version__ = "0.1.0"

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
    "TransformerXLCausalLM": "txl_tf.causal_lm.causal_lm",
    "convert": "txl_tf.convert",
    "data": "txl_tf.data",
    "export_saved_model": "txl_tf.export",
    "functional": "txl_tf.functional",
    "generate": "txl_tf.generation",
    "generation": "txl_tf.generation",
    "layers": "txl_tf.layers",
    "load": "txl_tf.causal_lm.causal_lm",
    "load_model": "txl_tf.run_folder",
    "preset": "txl_tf.models.presets",
    "samplers": "txl_tf.samplers",
    "serving": "txl_tf.serving",
}

__all__ = list(_MODULES)

__getattr__, __dir__ = lazy_names(__name__, _MODULES)
