"""Small models of every variant with relative positions, texts, and engines of each operator."""

import functools

import numpy as np
from keras import ops

from tests.layer_checks import randomize_weights
from tests.small_models import small_config
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import ExecutionPlan
from txl_tf.layers.attention_operators import AllHeads, HeadByHead
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.tpu_kernels.attention_plan import AttentionKernel
from txl_tf.tpu_kernels.on_chip_attention import OnChipAttention

B, T, V = 2, 4, 11
CONFIG = small_config(
    T,
    6,
    vocabulary_size=V,
    width=6,
    dropout=0.0,
    # Normalising six nearly equal numbers by 1e-12 would magnify what rounding leaves.
    layer_norm_epsilon=1e-6,
)
VARIANTS = {
    "plain": {},
    "shared biases": {"share_attention_biases": True},
    "gates": {"pre_norm": True, "residual_gate": "gru"},
    "clamped": {"clamp_length": 3},
    "same length": {"same_length": True},
    "official same length": {"same_length": True, "same_length_keys": "memory"},
    "clusters": {"cutoffs": (3, 7), "division_factor": 2},
    "shaw": {"position_encoding": "shaw", "num_positions": 5},
    "shaw two terms": {"position_encoding": "shaw_two_terms", "num_positions": 5},
}
OPERATORS = {
    "all heads": AllHeads(),
    # Two segments of four tokens attend together.
    "head by head": HeadByHead(tokens_together=2 * T + 1),
    "on chip": OnChipAttention(AttentionKernel(platform="cpu")),
}
ON_CPU = "all heads", "head by head"


@functools.cache
def made(dtype="float32", **changes):
    """A model that tests share, whose weights are always the same."""
    model = TransformerXL(CONFIG.replace(**changes), dtype=dtype)
    randomize_weights(model)
    return model


def made_for(variant, memory_length):
    changes = VARIANTS[variant]
    if memory_length == 0 and "same length" in variant:
        changes = {**changes, "same_length": False}
    return made(**changes)


def engine_of(model, operator="all heads", memory_length=None):
    plan = ExecutionPlan(operator=OPERATORS[operator], compile_read=False)
    return InferenceEngine(model, memory_length, plan=plan)


def tokens(length, num_rows=B, seed=0):
    generator = np.random.default_rng(seed)
    return generator.integers(0, V, size=(num_rows, length)).astype("int32")


def read(reader, text, lengths, memory, **arguments):
    """Scores a text in segments of these lengths; returns `(B, sum(lengths))` nats."""
    start, found = 0, []
    for length in lengths:
        stop = start + length
        of_segment = {name: each[:, start:stop] for name, each in arguments.items()}
        nll, memory = reader.score(
            text[:, start:stop], text[:, start + 1 : stop + 1], memory, **of_segment
        )
        found.append(ops.convert_to_numpy(nll))
        start = stop
    return np.concatenate(found, axis=1), memory


def int32(values):
    return ops.convert_to_tensor(values, dtype="int32")


def assert_equal_memory(found, expected, atol=1e-6):
    """Compares two memories of keys and values with the same kernel."""
    np.testing.assert_array_equal(found.valid_length, expected.valid_length)
    pairs = zip((*found.keys, *found.values), (*expected.keys, *expected.values), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=atol)
