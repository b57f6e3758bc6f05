"""Models: Transformer-XL, its baselines and their memory."""

from typing import TYPE_CHECKING, Any

from txl_tf.config.model import AnyModelConfig, LSTMConfig, ModelConfig

if TYPE_CHECKING:
    from txl_tf.models.language_model import LanguageModel


def create_model(
    config: AnyModelConfig,
    *,
    rematerialize: bool = False,
    attention_kernel: Any = None,
    dtype: Any = None,
) -> "LanguageModel":
    """Builds the language model of a configuration, with initial weights.

    Only a `TransformerXL` can rematerialise or use an `attention_kernel`.
    """
    # Imported here, as jobs read presets and sizes before they load TensorFlow.
    from txl_tf.models.recurrent import LSTMLanguageModel, QRNNLanguageModel
    from txl_tf.models.transformer_xl import TransformerXL

    if isinstance(config, ModelConfig):
        return TransformerXL(
            config, rematerialize=rematerialize, attention_kernel=attention_kernel, dtype=dtype
        )
    model_class = LSTMLanguageModel if isinstance(config, LSTMConfig) else QRNNLanguageModel
    return model_class(config, dtype=dtype)
