"""Small models of every variant, their scores by the formulas, and engines of each operator."""

import functools
import itertools

import numpy as np
from keras import ops

from tests import reference_variants
from tests.models.variants import SIZES, B, T, V, config_of, shared
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import ExecutionPlan
from txl_tf.layers.attention.operators import AllHeads, HeadByHead
from txl_tf.tpu_kernels.attention_plan import AttentionKernel
from txl_tf.tpu_kernels.on_chip_attention import OnChipAttention

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
    "sinusoidal": {"position_encoding": "sinusoidal"},
    "learned": {"position_encoding": "learned", "num_positions": 10},
}
RELATIVE = [name for name in VARIANTS if config_of(**VARIANTS[name]).has_relative_positions]
OPERATORS = {
    "all heads": AllHeads(),
    # Two segments of four tokens attend together.
    "head by head": HeadByHead(tokens_together=2 * T + 1),
    "on chip": OnChipAttention(AttentionKernel(platform="cpu")),
}
ON_CPU = "all heads", "head by head"


def made(variant="plain", dtype="float32", **changes):
    """A model that tests share, whose weights are always the same."""
    return shared(dtype=dtype, **VARIANTS[variant], **changes)


def engine_of(model, operator="all heads", memory_length=None, **choice):
    plan = ExecutionPlan(operator=OPERATORS[operator], compile_read=False, **choice)
    return InferenceEngine(model, memory_length, plan=plan)


def tokens(length, num_rows=B, seed=0):
    generator = np.random.default_rng(seed)
    return generator.integers(0, V, size=(num_rows, length)).astype("int32")


def int32(values):
    return ops.convert_to_tensor(values, dtype="int32")


@functools.cache
def by_the_formulas(variant, memory_length, lengths, num_rows=B):
    """Nats `(B, sum(lengths))` of a text that is read in segments, and the valid lengths."""
    model, text = made(variant), tokens(sum(lengths) + 1, num_rows)
    weights = reference_variants.model_weights(model)
    states = [np.zeros((num_rows, memory_length, SIZES["hidden_dim"]))] * SIZES["num_layers"]
    start, nats, valid_length = 0, [], [0] * num_rows
    for length in lengths:
        piece = text[:, start : start + length + 1]
        nll, _, states, valid_length = reference_variants.language_model(
            weights, model.config, piece[:, :-1], piece[:, 1:], states, valid_length
        )
        nats.append(nll)
        start += length
    return np.concatenate(nats, axis=1), valid_length


def read(engine, text, lengths, **arguments):
    """Scores a text in pieces of these lengths; returns nats `(B, sum(lengths))` and memory."""
    memory, start, nats = engine.initial_memory(len(text)), 0, []
    for length in lengths:
        piece = slice(start, start + length)
        of_piece = {name: each[:, piece] for name, each in arguments.items()}
        nll, memory = engine.score(text[:, piece], text[:, 1:][:, piece], memory, **of_piece)
        nats.append(ops.convert_to_numpy(nll))
        start += length
    return np.concatenate(nats, axis=1), memory


def read_by_token(engine, text, capacity):
    """The same token by token; memory takes over every `capacity` tokens."""
    steps, memory, nats = engine.steps, engine.initial_memory(len(text)), []
    is_active, constants = np.ones(len(text), bool), steps.step_constants()
    for start in range(0, text.shape[1] - 1, capacity):
        state, before = steps.begin(memory, capacity=capacity), steps.memory_of_steps(memory)
        columns = text.T[start : start + capacity + 1]
        for token_ids, targets in itertools.pairwise(columns):
            logits, state = steps.step(int32(token_ids), is_active, before, state, constants)
            log_probs = ops.convert_to_numpy(ops.log_softmax(ops.cast(logits, "float32")))
            nats.append(-np.take_along_axis(log_probs, targets[:, None], axis=1))
        after = steps.finish(before, state, int32(len(columns) - 1))
        memory = steps.memory_after_steps(after)
    return np.concatenate(nats, axis=1), memory


def assert_equal_memory(memory, expected, atol=1e-6):
    """Compares two memories of keys and values with the same operator."""
    np.testing.assert_array_equal(memory.valid_length, expected.valid_length)
    pairs = zip((*memory.keys, *memory.values), (*expected.keys, *expected.values), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=atol)
