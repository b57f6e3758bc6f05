"""Reading with a memory by the kernel and by plain operations, on the same weights and tokens."""

import dataclasses

import numpy as np

from tests.layer_checks import randomize_weights
from tests.small_models import small_config
from tests.tpu_kernels import attention_cases
from txl_tf.inference.engine import InferenceEngine
from txl_tf.inference.execution_plan import ExecutionPlan
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.tpu_kernels.on_chip_attention import OnChipAttention

NAMES = ("first read", "second read", "keys", "values")


@dataclasses.dataclass(frozen=True)
class ReadingCase(attention_cases.Case):
    """Two reads without dropout; the second one has a memory."""

    segment_length: int = 16
    num_segments: int = 2


def drawn_case(generator, seed):
    """Draws what the other kernel is compared with, some memories longer, and the segments."""
    drawn = attention_cases.drawn_case(generator, seed)
    return ReadingCase(
        **{
            **vars(drawn),
            "dropout": 0.0,
            "memory_length": drawn.memory_length * int(generator.integers(1, 4)),
            "segment_length": (16, drawn.segment_length)[generator.integers(2)],
        },
        num_segments=int(generator.integers(1, 4)),
    )


def _read_twice(case, model, plan):
    """Hidden states of both reads, and the memory after them as `(B, M, N * H)`."""
    engine = InferenceEngine(model, segment_length=case.segment_length, plan=plan)
    generator = np.random.default_rng(case.seed)
    shape = case.rows, case.segment_length * case.num_segments
    memory, results = engine.initial_memory(case.rows), []
    for _ in range(2):
        tokens = generator.integers(0, model.config.vocabulary_size, shape).astype("int32")
        starts = generator.random(shape) < 3 / shape[1] if case.masks_documents else None
        hidden, memory = engine.read(tokens, memory, document_starts=starts)
        results.append(np.asarray(hidden))
    filled = np.asarray(memory.valid_length)
    for keys_or_values in _by_token(memory, case):
        for row, length in zip(keys_or_values, filled, strict=True):
            row[: case.memory_length - length] = 0.0
        results.append(keys_or_values)
    return results


def _by_token(memory, case):
    width = case.num_heads * case.head_dim
    pair = memory.keys[0], memory.values[0]
    if len(pair[0].shape) == 4:
        pair = np.transpose(pair[0], [0, 3, 1, 2]), np.transpose(pair[1], [0, 2, 1, 3])
    shape = case.rows, -1, width
    lasts = slice(memory.memory_length - case.memory_length, None)
    empty = np.zeros((case.rows, 0, width), "float32")
    return [
        np.array(np.reshape(each, shape)[:, lasts] if case.memory_length else empty)
        for each in pair
    ]


def differences(case):
    """Largest difference of each result, relative to the largest entry."""
    lengths = case.segment_length, case.memory_length
    config = small_config(
        *lengths,
        width=24,
        num_heads=case.num_heads,
        head_dim=case.head_dim,
        num_layers=1,
        clamp_length=case.clamp_length,
        same_length=case.same_length,
        same_length_keys=case.same_length_keys,
    )
    model = TransformerXL(config)
    randomize_weights(model)
    plans = (
        ExecutionPlan(compile_read=False),
        ExecutionPlan(operator=OnChipAttention(case.kernel), compile_read=False),
    )
    pairs = zip(*(_read_twice(case, model, plan) for plan in plans), strict=True)
    return {
        name: float(np.max(np.abs(by_kernel - plain), initial=0.0))
        / max(float(np.max(np.abs(plain), initial=0.0)), 0.1)
        for name, (plain, by_kernel) in zip(NAMES, pairs, strict=True)
    }
