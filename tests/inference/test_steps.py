"""Reading token by token, as the formulas of the paper say."""

import functools

import numpy as np
import pytest
from keras import ops

from tests.inference.variants import (
    RELATIVE,
    VARIANTS,
    T,
    by_the_formulas,
    engine_of,
    int32,
    made,
    read_by_token,
    tokens,
)
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.stacked_steps import StackedSteps
from txl_tf.models.transformer_xl import TransformerXL

STACKED = [name for name in RELATIVE if name != "gates" and "shaw" not in name]


@pytest.mark.parametrize(
    ("kind", "variant", "memory_length"),
    [
        *(("hidden states", variant, 3) for variant in ("plain", "sinusoidal", "learned")),
        *(("keys and values", variant, 3) for variant in RELATIVE),
        ("keys and values", "plain", 0),
        *(("stacked", variant, 3) for variant in STACKED),
    ],
)
def test_every_token_is_read_as_by_the_formulas(kind, variant, memory_length):
    # Memory is filled more than twice over, and takes over when it is half full.
    num_rows = 1 if kind == "stacked" else 3
    expected, valid_length = by_the_formulas(variant, memory_length, (1,) * 8, num_rows)
    if kind == "stacked":
        engine = engine_of(made(variant), memory_length=memory_length, stacks_layers=True)
        assert isinstance(engine.steps, StackedSteps)
    else:
        engine = InferenceEngine(made(variant), memory_length, kind.replace(" ", "_"))
    nats, memory = read_by_token(engine, tokens(9, num_rows), capacity=5)
    np.testing.assert_allclose(nats, expected, atol=2e-5)
    np.testing.assert_array_equal(memory.valid_length, valid_length)


def test_rounded_numbers_are_close():
    sizes = {"hidden_dim": 8, "num_heads": 2, "head_dim": 8, "intermediate_dim": 16}
    text, engine = tokens(21, 1), functools.partial(engine_of, made(**sizes, pre_norm=True))
    exact, _ = read_by_token(engine(memory_length=8, stacks_layers=True), text, 5)
    rounds = {"stacks_layers": True, "rounds_steps": True}
    rounded, _ = read_by_token(engine(memory_length=8, **rounds), text, 5)
    np.testing.assert_allclose(rounded, exact, atol=0.1)
    assert abs(rounded - exact).max() > 1e-5


def test_half_precision_is_close():
    expected, _ = by_the_formulas("plain", 5, (1,) * 8)
    engine = engine_of(made(dtype="mixed_bfloat16"), memory_length=5)
    nats, memory = read_by_token(engine, tokens(9), capacity=3)
    np.testing.assert_allclose(nats, expected, atol=0.1)
    assert memory.keys[0].dtype == "bfloat16"


def test_rows_that_share_a_memory_read_as_if_each_had_its_own():
    engine = engine_of(made())
    steps = engine.steps
    _, memory = engine.read(tokens(T), engine.initial_memory(2), lengths=int32([T, 2]))
    own = memory._replace(
        keys=tuple(ops.repeat(each, 3, axis=0) for each in memory.keys),
        values=tuple(ops.repeat(each, 3, axis=0) for each in memory.values),
        valid_length=ops.repeat(memory.valid_length, 3),
    )
    constants, is_active = steps.step_constants(), np.ones(6, bool)
    shared, alone = steps.begin(memory, 3, capacity=4), steps.begin(own, capacity=4)
    for column in map(int32, tokens(3, 6, seed=1).T):
        logits, shared = steps.step(column, is_active, memory, shared, constants)
        expected, alone = steps.step(column, is_active, own, alone, constants)
        np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_stacked_layers_leave_changed_layers_to_the_model():
    for change in (
        lambda block: setattr(block.feed_forward.inner, "activation", ops.tanh),
        lambda block: setattr(block.attention_norm, "epsilon", 0.5),
    ):
        model = TransformerXL(made().config)
        assert StackedSteps.is_possible(model)
        change(model.blocks[-1])
        assert not StackedSteps.is_possible(model)
    for variant in ("gates", "shaw", "sinusoidal"):
        assert variant in VARIANTS and not StackedSteps.is_possible(made(variant))
