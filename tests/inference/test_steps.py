"""Reading token by token, as the formulas of the paper say."""

import numpy as np
import pytest
from keras import ops

from tests.inference.variants import (
    RELATIVE,
    VARIANTS,
    by_the_formulas,
    engine_of,
    made,
    read_by_token,
    tokens,
)
from tests.models.variants import config_of
from txl_tf.inference.bfloat16_pairs import in_pairs, product_of_stored
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.stacked_steps import StackedSteps
from txl_tf.models.transformer_xl import TransformerXL

STACKED = [
    name
    for name, changes in VARIANTS.items()
    if name != "gates" and config_of(**changes).position_encoding == "transformer_xl"
]


@pytest.mark.parametrize(
    ("kind", "variant", "memory_length"),
    [
        *(("hidden states", variant, 3) for variant in ("plain", "sinusoidal", "learned")),
        *(("keys and values", variant, 3) for variant in RELATIVE),
        ("keys and values", "plain", 0),
        *(("stacked", variant, 3) for variant in STACKED),
    ],
)
def test_every_token_is_scored_as_the_formulas_say(kind, variant, memory_length):
    # Memory is filled more than twice over, and takes over when it is half full.
    num_rows = 1 if kind == "stacked" else 3
    expected, valid_length = by_the_formulas(variant, memory_length, (1,) * 8, num_rows)
    if kind == "stacked":
        engine = engine_of(made(variant), memory_length=memory_length, stacks_layers=True)
        assert isinstance(engine.steps, StackedSteps)
    else:
        engine = InferenceEngine(made(variant), memory_length, kind == "hidden states")
    nats, memory = read_by_token(engine, tokens(9, num_rows), capacity=5)
    np.testing.assert_allclose(nats, expected, atol=2e-5)
    np.testing.assert_array_equal(memory.valid_length, valid_length)


def test_stacked_layers_are_exact_and_close_if_rounded():
    sizes = {"hidden_dim": 8, "num_heads": 2, "head_dim": 8, "intermediate_dim": 16}
    model, text = made(**sizes, pre_norm=True), tokens(21, 1)
    exact, _ = read_by_token(engine_of(model, memory_length=8), text, 5)
    for rounds, atol in ((False, 1e-5), (True, 0.1)):
        choice = {"stacks_layers": True, "rounds_steps": rounds}
        nats, _ = read_by_token(engine_of(model, memory_length=8, **choice), text, 5)
        np.testing.assert_allclose(nats, exact, atol=atol)
    assert abs(nats - exact).max() > 1e-5


@pytest.mark.parametrize("num_rows", [1, 3, 5])
def test_any_number_of_rows_is_multiplied_with_a_stored_kernel(num_rows):
    # Every value is a bfloat16 number, so that rounding changes none.
    inputs = np.arange(2 * num_rows * 8, dtype="float32").reshape(2, num_rows, 8)
    kernel = np.arange(2 * 8 * 3, dtype="float32").reshape(2, 8, 3)
    for stored in (kernel, in_pairs(kernel)):
        np.testing.assert_allclose(product_of_stored(inputs, stored), inputs @ kernel, rtol=1e-6)


def test_half_precision_is_close():
    expected, _ = by_the_formulas("plain", 5, (1,) * 8)
    engine = engine_of(made(dtype="mixed_bfloat16"), memory_length=5)
    nats, memory = read_by_token(engine, tokens(9), capacity=3)
    np.testing.assert_allclose(nats, expected, atol=0.1)
    assert memory.keys[0].dtype == "bfloat16"


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
