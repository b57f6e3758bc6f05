"""Reading token by token beside a memory, against the model that reads whole texts."""

import numpy as np
import pytest
from keras import ops

from tests.inference.variants import VARIANTS, T, engine_of, int32, made, tokens
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import ExecutionPlan
from txl_tf.inference.stacked_steps import StackedSteps
from txl_tf.models.transformer_xl import TransformerXL


def token_by_token(model, text, memory_length, capacity, engine=None):
    """Log-probabilities `(B, T, V)`; memory takes over every `capacity` tokens."""
    engine, num_rows = engine or engine_of(model, memory_length=memory_length), len(text)
    memory, constants = engine.initial_memory(num_rows), engine.step_constants()
    is_active, found = np.ones(num_rows, bool), []
    for start in range(0, text.shape[1], capacity):
        recent, read = engine.begin(memory, capacity=capacity), engine.memory_of_steps(memory)
        piece = text[:, start : start + capacity]
        for column in piece.T:
            logits, recent = engine.step(int32(column), is_active, read, recent, constants)
            found.append(ops.convert_to_numpy(ops.log_softmax(logits)))
        memory = engine.finish(memory, recent, int32(piece.shape[1]))
    return np.stack(found, axis=1), memory


def by_the_model(model, text, memory_length):
    """The same with the hidden states of memory, one token at a time."""
    memory, found = model.initial_memory(len(text), memory_length), []
    for column in text.T:
        log_probs, memory = model.log_probs(column[:, None], memory)
        found.append(ops.convert_to_numpy(log_probs)[:, 0])
    return np.stack(found, axis=1), memory


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_reads_like_the_model(variant):
    # Memory is filled more than twice over, and takes over when it is half full.
    model, text = made(**VARIANTS[variant]), tokens(8, 3)
    expected, memory = by_the_model(model, text, 3)
    found, projected = token_by_token(model, text, 3, capacity=5)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_array_equal(projected.valid_length, memory.valid_length)


@pytest.mark.parametrize("num_rows", [1, 3])
def test_without_memory_a_token_sees_itself_alone(num_rows):
    model, text = made(), tokens(5, num_rows)
    expected, _ = by_the_model(model, text, 0)
    found, _ = token_by_token(model, text, 0, capacity=3)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_rows_that_share_a_memory_read_as_if_each_had_its_own():
    engine = engine_of(made())
    _, memory = engine.read(tokens(T), engine.initial_memory(2), lengths=int32([T, 2]))
    own = memory._replace(
        keys=tuple(ops.repeat(each, 3, axis=0) for each in memory.keys),
        values=tuple(ops.repeat(each, 3, axis=0) for each in memory.values),
        valid_length=ops.repeat(memory.valid_length, 3),
    )
    constants, is_active = engine.step_constants(), np.ones(6, bool)
    shared, alone = engine.begin(memory, 3, capacity=4), engine.begin(own, capacity=4)
    for column in map(int32, tokens(3, 6, seed=1).T):
        found, shared = engine.step(column, is_active, memory, shared, constants)
        expected, alone = engine.step(column, is_active, own, alone, constants)
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    "variant", ["plain", "shared biases", "clamped", "same length", "clusters", "pre norm"]
)
def test_stacked_layers_are_exact_and_close_if_rounded(variant):
    sizes = {"hidden_dim": 8, "num_heads": 2, "head_dim": 8, "intermediate_dim": 16}
    model, text = (
        made(**sizes, **{**VARIANTS, "pre norm": {"pre_norm": True}}[variant]),
        tokens(20, 1),
    )
    exact, _ = token_by_token(model, text, 8, capacity=5)

    def stacked(**choice):
        plan = ExecutionPlan(compile_read=False, stacks_layers=True, **choice)
        return token_by_token(model, text, 8, 5, InferenceEngine(model, 8, plan=plan))[0]

    np.testing.assert_allclose(stacked(), exact, atol=1e-5)
    rounded = stacked(rounds_steps=True)
    np.testing.assert_allclose(rounded, exact, atol=0.1)
    assert abs(rounded - exact).max() > 1e-5


@pytest.mark.parametrize("layer, name", [("inner", "activation"), ("norm", "epsilon")])
def test_stacked_layers_leave_changed_layers_to_the_model(layer, name):
    model = TransformerXL(made().config)
    assert StackedSteps.is_possible(model)
    block = model.blocks[-1]
    changed = block.feed_forward.inner if layer == "inner" else block.attention_norm
    setattr(changed, name, 0.5 if name == "epsilon" else ops.tanh)
    assert not StackedSteps.is_possible(model)


def test_half_precision_is_close():
    model, text = made(dtype="mixed_bfloat16"), tokens(8, 2)
    expected, _ = by_the_model(model, text, 5)
    found, memory = token_by_token(model, text, 5, capacity=3)
    np.testing.assert_allclose(found, expected, atol=0.1)
    assert memory.keys[0].dtype == "bfloat16"
