"""Heads read one after the other give what heads read together give."""

import numpy as np
import pytest

from tests.layer_checks import needs_tensorflow, tf
from tests.models.test_projected_transformer_xl import VARIANTS, B, T, made, made_for, read, tokens
from tests.slow_case import slow_case
from txl_tf.models import headwise_transformer_xl
from txl_tf.models.headwise_transformer_xl import HeadwiseTransformerXL
from txl_tf.models.projected_transformer_xl import ProjectedTransformerXL


@pytest.mark.parametrize("memory_length", [slow_case(0), 9])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_heads_together(variant, memory_length):
    model = made_for(variant, memory_length)
    lengths = (T, T, 1, 3, T)
    expected, memory = read(ProjectedTransformerXL(model), tokens(17), lengths, memory_length)
    headwise = HeadwiseTransformerXL(model)
    found, headwise_memory = read(headwise, tokens(17), lengths, memory_length)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    for one, other in zip(headwise_memory.keys, memory.keys, strict=True):
        np.testing.assert_allclose(np.swapaxes(one, 2, 3), other, rtol=1e-5, atol=1e-6)


def test_rows_whose_memory_is_filled_unequally():
    model = made()
    _, memory = read(ProjectedTransformerXL(model), tokens(9), (T, T), 6)
    memory = memory.forget(np.array([True, False]))
    turned = memory._replace(keys=tuple(np.swapaxes(each, 2, 3) for each in memory.keys))
    found, _ = HeadwiseTransformerXL(model).log_probs(tokens(T), turned)
    expected, _ = ProjectedTransformerXL(model).log_probs(tokens(T), memory)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


@needs_tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_several_segments_compiled_are_several_segments(jit_compile):
    headwise = HeadwiseTransformerXL(made())
    expected, _ = read(headwise, tokens(3 * T + 1), (T,) * 3, 6)
    text = tokens(3 * T + 1)
    memory = headwise.initial_memory(B, 6)
    score = tf.function(
        lambda *segment: headwise.score(*segment, memory, segment_length=T),
        jit_compile=jit_compile,
        autograph=False,
    )
    found, _ = score(text[:, :-1], text[:, 1:])
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("memory_length", [slow_case(0), 9])
@pytest.mark.parametrize("variant", VARIANTS)
def test_parts_of_a_step_are_segments_too(variant, memory_length, monkeypatch):
    # Five segments are parts of two, two and one; memory is filled on the way.
    monkeypatch.setattr(headwise_transformer_xl, "_TOKENS_AT_ONCE", 2 * T + 1)
    headwise = HeadwiseTransformerXL(made_for(variant, memory_length))
    text = tokens(5 * T + 1)
    expected, last = read(headwise, text, (T,) * 5, memory_length)
    memory = headwise.initial_memory(B, memory_length)
    found, memory = headwise.score(text[:, :-1], text[:, 1:], memory, segment_length=T)
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
    for one, other in zip(memory.keys, last.keys, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
