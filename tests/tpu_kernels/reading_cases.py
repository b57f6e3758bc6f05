"""Reading with a memory by the kernel and by plain operations, on the same weights and tokens."""

import dataclasses

import numpy as np

from tests.layer_checks import randomize_weights
from tests.small_models import small_config
from tests.tpu_kernels.attention_cases import Case
from txl_tf.inference.engine import ExecutionPlan, InferenceEngine
from txl_tf.models.transformer_xl import TransformerXL

READING_NAMES = ("first read", "second read", "keys", "values")


@dataclasses.dataclass(frozen=True)
class ReadingCase(Case):
    """Two reads, of which the second finds a memory; nothing is dropped."""

    segment_length: int = 16
    num_segments: int = 2


def drawn_reading_case(generator, seed):
    """Draws sizes and options; every option comes in about half of the cases."""

    def one_of(*values):
        return values[generator.integers(len(values))]

    memory_length = one_of(0, int(generator.integers(1, 30)), int(generator.integers(30, 700)))
    return ReadingCase(
        rows=int(generator.integers(1, 3)),
        segment_length=one_of(16, int(generator.integers(1, 40)), int(generator.integers(40, 80))),
        num_segments=int(generator.integers(1, 4)),
        memory_length=memory_length,
        num_heads=int(generator.integers(1, 4)),
        head_dim=one_of(4, 8, 20, 64),
        same_length=memory_length > 0 and one_of(False, True),
        same_length_keys=one_of("memory_and_self", "memory"),
        clamp_length=one_of(None, int(generator.integers(1, 100))),
        masks_documents=one_of(False, True),
        has_strided_rolls=one_of(False, True),
        max_block_queries=one_of(None, 16, 32, 64),
        max_block_keys=one_of(None, 128, 256),
        seed=seed,
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


def reading_differences(case):
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
        ExecutionPlan(kernel="batched", compile_read=False),
        ExecutionPlan(kernel="on_chip", attention_kernel=case.kernel, compile_read=False),
    )
    pairs = zip(*(_read_twice(case, model, plan) for plan in plans), strict=True)
    return {
        name: float(np.max(np.abs(found - plain), initial=0.0))
        / max(float(np.max(np.abs(plain), initial=0.0)), 0.1)
        for name, (plain, found) in zip(READING_NAMES, pairs, strict=True)
    }
