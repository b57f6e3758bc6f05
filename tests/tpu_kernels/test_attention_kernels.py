"""Attention kernel, interpreted, against the layer's plain operations."""

import numpy as np
import pytest
import tensorflow as tf

from tests.small_models import small_config
from tests.tpu_kernels import attention_cases, reading_cases
from tests.tpu_kernels.attention_cases import (
    NAMES,
    Case,
    arrays_of,
    computed,
    differences,
)
from txl_tf.layers import MemoryAttention
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.tpu_kernels import attention_call
from txl_tf.tpu_kernels.attention_plan import AttentionKernel, AttentionPlan

LIMIT = 1e-5


def test_a_small_case_matches_plain_operations():
    case = Case(rows=1, segment_length=3, memory_length=5, num_heads=1, dropout=0.1)
    assert max(differences(case).values()) <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("index", range(5))
@pytest.mark.parametrize("module", [attention_cases, reading_cases])
def test_drawn_sizes_and_options_match_plain_operations(module, index):
    case = module.drawn_case(np.random.default_rng([2019, index]), seed=index)
    assert max(module.differences(case).values()) <= LIMIT, case


@pytest.mark.slow
def test_bfloat16_is_no_further_from_the_truth_than_plain_operations():
    case = Case(segment_length=48, memory_length=100, head_dim=64, dropout=0.1)
    rounded = arrays_of(case, "bfloat16")

    def cast(dtype):
        return {
            name: tf.cast(array, dtype) if array.dtype == tf.bfloat16 else array
            for name, array in rounded.items()
        }

    truth = computed(case, cast("float64"), uses_kernel=False)
    results = {uses: computed(case, rounded, uses_kernel=uses) for uses in (False, True)}
    for name in NAMES:
        plain, kernel = (np.max(np.abs(results[uses][name] - truth[name])) for uses in results)
        assert kernel <= 1.25 * plain, name


@pytest.mark.slow
def test_a_model_with_the_kernel_is_the_model(monkeypatch):
    """Two segments with memory, documents and dropout; shared biases; pre norm; recomputed.

    The scale of the scores is the layer's, for both.
    """
    monkeypatch.setattr(MemoryAttention, "score_scale", 0.7)
    config = small_config(
        6, 8, num_layers=1, dropout=0.1, attention_dropout=0.2, pre_norm=True, same_length=True
    )
    kernel = AttentionKernel(platform="cpu")
    models = [
        TransformerXL(config, rematerialize=True, attention_kernel=each) for each in (None, kernel)
    ]
    models[1].set_weights(models[0].get_weights())
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, config.vocabulary_size, (2, 2, config.segment_length))
    starts = tf.constant(generator.random((2, config.segment_length)) < 0.3)

    def run(model):
        @tf.function(jit_compile=True, autograph=False)
        def step(token_ids, memory):
            with tf.GradientTape() as tape:
                hidden, memory = model(
                    token_ids,
                    memory,
                    dropout_seed=tf.constant([[1, 2], [3, 4]]),
                    document_starts=starts,
                    training=True,
                )
                loss = tf.reduce_sum(tf.sin(hidden))
            variables = [each.value for each in model.trainable_variables]
            gradients = tape.gradient(
                loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            return hidden, memory, [tf.convert_to_tensor(each) for each in gradients]

        memory = model.initial_memory(2)
        for token_ids in tokens:
            hidden, memory, gradients = step(tf.constant(token_ids, tf.int32), memory)
        return [hidden.numpy(), *map(np.asarray, gradients)]

    plain, kernel_results = map(run, models)
    for expected, array in zip(plain, kernel_results, strict=True):
        np.testing.assert_allclose(array, expected, atol=1e-5 * max(1e-2, np.abs(expected).max()))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_programs_for_a_tpu_name_no_folder_of_this_machine(direction):
    sizes = {"num_rows": 1, "segment_length": 16, "memory_length": 16, "num_heads": 1}
    plan = AttentionPlan(**sizes, head_dim=128, dtype="bfloat16")
    module = attention_call.exported(plan, direction).mlir_module()
    assert "tpu_custom_call" in module
    assert ".py" not in module and "txl_tf" not in module
