"""Small models of every kind that the other implementations have."""

import numpy as np

from tests.small_models import arrays_of, with_drawn_weights
from txl_tf import ModelConfig, TransformerXL

SIZES = {
    "vocabulary_size": 60,
    "num_layers": 3,
    "hidden_dim": 16,
    "embedding_dim": 16,
    "num_heads": 2,
    "head_dim": 6,
    "intermediate_dim": 24,
    "segment_length": 8,
    "memory_length": 8,
}
# The options of the published models, with smaller sizes.
FAMILIES = {
    "enwik8": {"share_attention_biases": True},
    "wt103_base": {"cutoffs": (10, 30), "share_tail_projections": True},
    "wt103_large": {"cutoffs": (10, 30), "division_factor": 4, "share_tail_projections": True},
    "lm1b": {"cutoffs": (10, 30), "division_factor": 4, "project_same_dim": False},
    "narrow": {"embedding_dim": 8},
    "narrow_clusters": {"embedding_dim": 8, "cutoffs": (10, 30)},
}
# The PyTorch implementations project every cluster.
PYTORCH_FAMILIES = [name for name in FAMILIES if name != "lm1b"]


def family_config(name, **changes):
    return ModelConfig(**{**SIZES, **FAMILIES[name], **changes})


def random_model(config, scale=1.0):
    """Returns a model whose variables all differ."""
    return with_drawn_weights(TransformerXL(config), scale)


def assert_same_weights(model, expected):
    weights, expected = arrays_of(model), arrays_of(expected)
    assert weights.keys() == expected.keys()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
