"""KerasHub's own tests of a backbone and of a task, on small models of this project.

They run where the extra `keras-hub` is installed.
"""

import keras
import numpy as np
import pytest

from tests.toy_batches import SEGMENT_LENGTH, VOCABULARY_SIZE, toy_experiment
from txl_tf import layers
from txl_tf.models.stateful import StatefulTransformerXL

keras_hub = pytest.importorskip("keras_hub")
test_case = pytest.importorskip("keras_hub.src.tests.test_case")

# KerasHub's test shuffles what cannot be shuffled, and its task has a `compile` of its own.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning"),
    pytest.mark.filterwarnings("ignore:`compile..` was not called as part of:UserWarning"),
    pytest.mark.filterwarnings("ignore:The `check_types` argument:DeprecationWarning"),
]
_ROWS = 2
_CONFIG = toy_experiment(model={"num_layers": 1, "memory_length": 7}).model
_TOKEN_IDS = np.random.default_rng(3).integers(0, VOCABULARY_SIZE, (_ROWS, SEGMENT_LENGTH))


@keras.saving.register_keras_serializable(package="tests")
class TransformerXLBackbone(keras_hub.models.Backbone):
    """A functional backbone of the public layers, as a user of KerasHub would write it."""

    def __init__(self, vocabulary_size, num_layers, hidden_dim, dtype=None, **kwargs):
        self.vocabulary_size, self.num_layers = vocabulary_size, num_layers
        self.hidden_dim = hidden_dim
        embedding = layers.AdaptiveEmbedding(
            vocabulary_size, hidden_dim, dtype=dtype, name="token_embedding"
        )
        blocks = [
            layers.DecoderBlock(2, hidden_dim // 2, 2 * hidden_dim, dtype=dtype, name=f"block_{i}")
            for i in range(num_layers)
        ]
        token_ids = keras.Input((None,), dtype="int32", name="token_ids")
        padding_mask = keras.Input((None,), dtype="int32", name="padding_mask")
        hidden = embedding(token_ids)
        for block in blocks:
            hidden = block(hidden)
        super().__init__(
            inputs={"token_ids": token_ids, "padding_mask": padding_mask},
            outputs=hidden,
            dtype=dtype,
            **kwargs,
        )
        self.token_embedding = embedding

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "hidden_dim": self.hidden_dim,
        }


@keras.saving.register_keras_serializable(package="tests")
class ByteTokenizer(keras_hub.tokenizers.ByteTokenizer):
    """Bytes, with the special tokens that a preprocessor asks for."""

    backbone_cls = TransformerXLBackbone

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.start_token_id, self.end_token_id, self.pad_token_id = 1, 2, 0


@keras.saving.register_keras_serializable(package="tests")
class TransformerXLCausalLMPreprocessor(keras_hub.models.CausalLMPreprocessor):
    """KerasHub's preprocessor with bytes."""

    backbone_cls = TransformerXLBackbone
    tokenizer_cls = ByteTokenizer


@keras.saving.register_keras_serializable(package="tests")
class HubCausalLM(keras_hub.models.CausalLM):
    """KerasHub's task, with the adaptive softmax of this project as its head."""

    backbone_cls = TransformerXLBackbone
    preprocessor_cls = TransformerXLCausalLMPreprocessor

    def __init__(self, backbone, preprocessor=None, **kwargs):
        self.backbone, self.preprocessor = backbone, preprocessor
        head = layers.AdaptiveSoftmax(
            backbone.vocabulary_size,
            backbone.hidden_dim,
            tie_weights=False,
            dtype=backbone.dtype_policy,
            name="softmax",
        )
        super().__init__(inputs=backbone.input, outputs=head(backbone.output), **kwargs)


def test_stateful_model_passes_the_test_of_a_backbone():
    test_case.TestCase("run_backbone_test").run_backbone_test(
        StatefulTransformerXL,
        init_kwargs={"config": _CONFIG, "batch_size": _ROWS},
        input_data=_TOKEN_IDS,
        expected_output_shape=(_ROWS, SEGMENT_LENGTH, VOCABULARY_SIZE),
        # Log-probabilities are float32 whatever the policy; the check wants the compute dtype.
        run_mixed_precision_check=False,
    )


def test_layers_pass_the_test_of_a_backbone():
    ids = _TOKEN_IDS.astype("int32")
    test_case.TestCase("run_backbone_test").run_backbone_test(
        TransformerXLBackbone,
        init_kwargs={"vocabulary_size": VOCABULARY_SIZE, "num_layers": 2, "hidden_dim": 8},
        input_data={"token_ids": ids, "padding_mask": np.ones_like(ids)},
        expected_output_shape=(_ROWS, SEGMENT_LENGTH, 8),
    )


def test_layers_pass_the_test_of_a_task():
    preprocessor = TransformerXLCausalLMPreprocessor(ByteTokenizer(), sequence_length=8)
    backbone = TransformerXLBackbone(vocabulary_size=256, num_layers=1, hidden_dim=8)
    test_case.TestCase("run_task_test").run_task_test(
        HubCausalLM,
        init_kwargs={"backbone": backbone, "preprocessor": preprocessor},
        train_data=(["a quick fox", "another text"],),
        expected_output_shape=(2, 8, 256),
    )
