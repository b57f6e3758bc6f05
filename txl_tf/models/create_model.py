"""The model that a configuration describes."""

from txl_tf.config.lstm_config import LSTMConfig
from txl_tf.config.model_config import ModelConfig
from txl_tf.config.qrnn_config import QRNNConfig
from txl_tf.models.lstm_language_model import LSTMLanguageModel
from txl_tf.models.qrnn_language_model import QRNNLanguageModel
from txl_tf.models.transformer_xl import TransformerXL


def create_model(
    config: ModelConfig | LSTMConfig | QRNNConfig, *, rematerialize: bool = False, dtype=None
) -> TransformerXL | LSTMLanguageModel | QRNNLanguageModel:
    """Builds the language model of a configuration, with initial weights.

    All of them score alike: `initial_memory`, a call that takes and returns a
    memory, `negative_log_likelihood`, `score` and `log_probs`.

    Args:
        config: `ModelConfig`, `LSTMConfig` or `QRNNConfig`.
        rematerialize: bool. See `TransformerXL`; the others cannot.
        dtype: optional Keras dtype policy.

    Returns:
        The model.

    Raises:
        ValueError: If `rematerialize` is set for a recurrent model.
    """
    if isinstance(config, ModelConfig):
        return TransformerXL(config, rematerialize=rematerialize, dtype=dtype)
    if rematerialize:
        raise ValueError(
            "Only a `TransformerXL` can rematerialize its activations. "
            f"Received: rematerialize={rematerialize}, config={config}"
        )
    model_class = LSTMLanguageModel if isinstance(config, LSTMConfig) else QRNNLanguageModel
    return model_class(config, dtype=dtype)
