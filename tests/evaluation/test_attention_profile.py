"""Profiles of attention by distance, compared with formulas."""

import math

import numpy as np
import pytest

from tests import reference, reference_variants
from tests.inference.variants import tokens
from tests.layer_checks import randomize_weights
from tests.slow_case import slow_case
from tests.small_models import small_config
from txl_tf.evaluation.attention_profile import AttentionProfiler, profiled_config
from txl_tf.models.transformer_xl import TransformerXL

T, M = 3, 5
CONFIG = profiled_config(small_config(T, M, dropout=0.0), T, M)


def create_model(**changes):
    model = TransformerXL(CONFIG.replace(**changes))
    randomize_weights(model)
    return model


def profiler_of(model, token_ids, jit_compile=False):
    """Returns a profiler that has counted all tokens after the segments that fill the memory."""
    profiler = AttentionProfiler(model, batch_size=len(token_ids), jit_compile=jit_compile)
    length = model.config.segment_length
    for first in range(0, token_ids.shape[1] - length + 1, length):
        segment = token_ids[:, first : first + length]
        profiler.add(segment, np.full(segment.shape, first >= M))
    return profiler


def test_a_layer_that_knows_its_position_bias_alone_has_the_profile_of_the_formula():
    model = create_model(num_layers=1)
    attention = model.blocks[0].attention
    for name in ("query", "key"):
        kernel = getattr(attention, name).kernel
        kernel.assign(np.zeros(kernel.shape))
    profile = profiler_of(model, tokens(30)).result()
    weights = reference_variants.attention_weights(attention)
    encodings = np.array([reference.sinusoid(distance, 8) for distance in range(M + 1)])
    projected = np.reshape(encodings @ weights["position"], (M + 1, 2, 4))
    scores = np.einsum("knh,nh->nk", projected, weights["position_bias"]) / math.sqrt(4)
    expected = np.array([reference.softmax(each) for each in scores])
    np.testing.assert_allclose(profile.attention[0], expected, atol=1e-6)
    entropy = -np.sum(expected * np.log(expected), axis=1)
    np.testing.assert_allclose(profile.entropy[0], entropy, rtol=0, atol=1e-5)
    distance = expected @ np.arange(M + 1)
    np.testing.assert_allclose(profile.mean_distance[0], distance, rtol=0, atol=1e-5)
    assert profile.farthest_head == (0, int(np.argmax(profile.mean_distance[0])))


@pytest.mark.parametrize(
    ("changes", "jit_compile"),
    [
        slow_case({"share_attention_biases": True, "clamp_length": 4}, True),
        ({"pre_norm": True}, False),
        ({"position_encoding": "shaw", "num_positions": 6}, False),
    ],
)
def test_profiles_sum_to_one_and_do_not_depend_on_the_segment_length(changes, jit_compile):
    token_ids = tokens(24)
    # The first 6 tokens of 24 fill the memory of 5, in two segments of 3 or in one of 6.
    profiles = [
        profiler_of(create_model(**changes, segment_length=length), token_ids, jit_compile)
        for length in (3, 6)
    ]
    first, second = (profiler.result() for profiler in profiles)
    assert first.num_queries == second.num_queries == 2 * 18
    for name, array in first.to_arrays().items():
        np.testing.assert_allclose(array, second.to_arrays()[name], atol=1e-5, err_msg=name)
    np.testing.assert_allclose(first.memory_attention + first.attention[..., 0], 1.0, atol=1e-5)
    np.testing.assert_allclose(first.attention.sum(axis=-1), 1.0, atol=1e-5)
    assert first.attention.min() > 0.0


def test_a_profile_needs_distances_and_a_full_memory():
    with pytest.raises(ValueError, match="position_encoding='sinusoidal'"):
        profiled_config(CONFIG.replace(position_encoding="sinusoidal"), T, M)
    with pytest.raises(ValueError, match="recurrence=False"):
        profiled_config(CONFIG.replace(recurrence=False), T, M)
