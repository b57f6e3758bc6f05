"""A case of Keras' own test, `run_layer_test`, for every public layer."""

import numpy as np

from tests.small_models import small_config

_ROWS, _LENGTH, _WIDTH = 2, 5, 8
_ATTENTION = {"num_heads": 2, "head_dim": 4}
_SEGMENT = np.linspace(-1, 1, _ROWS * _LENGTH * _WIDTH, dtype=np.float32).reshape(
    _ROWS, _LENGTH, _WIDTH
)
_ENCODING = np.linspace(-1, 1, _LENGTH * _WIDTH, dtype=np.float32).reshape(_LENGTH, _WIDTH)
_TOKEN_IDS = np.arange(_ROWS * _LENGTH).reshape(_ROWS, _LENGTH).astype(np.int32)
_VOCABULARY = {"vocabulary_size": 12, "hidden_dim": _WIDTH, "cutoffs": (5,), "division_factor": 2}
_HIDDEN = {"input_data": _SEGMENT, "expected_output_shape": _SEGMENT.shape}

# Two parts of the test, training and mixed precision, call a layer with its first argument alone.
# They do not apply to layers that need another one; their own tests do both.
_OF_TWO_INPUTS = {"run_training_check": False, "run_mixed_precision_check": False, **_HIDDEN}
CASES = {
    "MemoryAttention": {"init_kwargs": _ATTENTION, **_HIDDEN},
    "ShawAttention": {"init_kwargs": {**_ATTENTION, "num_positions": 3}, **_HIDDEN},
    "RelativeAttention": {
        "init_kwargs": _ATTENTION,
        "call_kwargs": {"position_encoding": _ENCODING},
        **_OF_TWO_INPUTS,
    },
    "DecoderBlock": {
        "init_kwargs": {
            "config": small_config(
                _LENGTH, _LENGTH, dropout=0.1, pre_norm=True, residual_gate="gru"
            ).to_dict()
        },
        **_HIDDEN,
    },
    "GRUGate": {
        "init_kwargs": {},
        "call_kwargs": {"outputs": _SEGMENT},
        **_OF_TWO_INPUTS,
    },
    "FeedForward": {"init_kwargs": {"intermediate_dim": 16, "dropout": 0.1}, **_HIDDEN},
    # It has nothing to train.
    "SeededDropout": {
        "init_kwargs": {"rate": 0.5},
        "expected_num_seed_generators": 1,
        "run_training_check": False,
        **_HIDDEN,
    },
    "AdaptiveEmbedding": {
        "init_kwargs": _VOCABULARY,
        "input_data": _TOKEN_IDS,
        "expected_output_shape": (_ROWS, _LENGTH, _WIDTH),
    },
    "AdaptiveSoftmax": {
        "init_kwargs": {**_VOCABULARY, "tie_weights": False},
        "input_data": _SEGMENT,
        "expected_output_shape": (_ROWS, _LENGTH, 12),
    },
    "PooledHead": {
        "init_kwargs": {"num_outputs": 3},
        "input_data": _SEGMENT,
        "expected_output_shape": (_ROWS, 3),
    },
}
