"""The public names; `__init__.py` reads them from here and imports each on first use."""

from txl_tf import (
    convert as convert,
    data as data,
    functional as functional,
    generation as generation,
    harness as harness,
    layers as layers,
    samplers as samplers,
    tasks as tasks,
)
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM as TransformerXLCausalLM, load as load
from txl_tf.causal_lm.text_task import TextTask as TextTask, load_task as load_task
from txl_tf.config.evaluation import EvaluationConfig as EvaluationConfig
from txl_tf.config.experiment import ExperimentConfig as ExperimentConfig
from txl_tf.config.generation import GenerationConfig as GenerationConfig
from txl_tf.config.model import ModelConfig as ModelConfig
from txl_tf.config.optimizer import OptimizerConfig as OptimizerConfig
from txl_tf.config.task import TaskConfig as TaskConfig
from txl_tf.config.training import TrainingConfig as TrainingConfig
from txl_tf.export.saved_model import export_saved_model as export_saved_model
from txl_tf.generation.session import GenerationSession as GenerationSession, generate as generate
from txl_tf.inference.engine import InferenceEngine as InferenceEngine
from txl_tf.model_folder.folder import load_model as load_model
from txl_tf.models.headed import (
    TransformerXLWithHead as TransformerXLWithHead,
    pad_token_ids as pad_token_ids,
)
from txl_tf.models.memory import KeyValueMemory as KeyValueMemory, Memory as Memory
from txl_tf.models.presets import preset as preset
from txl_tf.models.stateful import StatefulTransformerXL as StatefulTransformerXL
from txl_tf.models.transformer_xl import TransformerXL as TransformerXL

__version__: str
