"""Relative attention by the kernel and by the layer's plain operations, on the same numbers."""

import dataclasses

import keras
import numpy as np
import tensorflow as tf

from txl_tf import functional
from txl_tf.layers import RelativeAttention
from txl_tf.layers.attention.operators import AllHeads
from txl_tf.layers.visible_keys import VisibleKeys
from txl_tf.tpu_kernels.attention_plan import AttentionKernel
from txl_tf.tpu_kernels.on_chip_attention import OnChipAttention

NAMES = ("outputs", "query", "key", "value", "distances", "content_bias", "position_bias")
FLOOR = 0.1
"""A gradient whose largest entry is smaller, such as one that is 0, is compared with this."""


@dataclasses.dataclass(frozen=True)
class Case:
    """Sizes and options of one comparison."""

    rows: int = 2
    segment_length: int = 20
    memory_length: int = 130
    num_heads: int = 2
    head_dim: int = 8
    dropout: float = 0.0
    same_length: bool = False
    same_length_keys: str = "memory_and_self"
    clamp_length: int | None = None
    masks_documents: bool = False
    max_block_queries: int | None = None
    max_block_keys: int | None = None
    seed: int = 0

    @property
    def kernel(self):
        return AttentionKernel(
            platform="cpu",
            max_block_queries=self.max_block_queries,
            max_block_keys=self.max_block_keys,
        )


def drawn_case(generator, seed):
    """Draws sizes and options; every option comes in about half of the cases."""

    def one_of(*values):
        return values[generator.integers(len(values))]

    # Mostly short: the edges of tiles, of memory and of the table are hard.
    memory_length = one_of(0, int(generator.integers(1, 30)), int(generator.integers(30, 200)))
    same_length = memory_length > 0 and one_of(False, True)
    return Case(
        rows=int(generator.integers(1, 3)),
        segment_length=one_of(int(generator.integers(1, 40)), int(generator.integers(40, 80))),
        memory_length=memory_length,
        num_heads=int(generator.integers(1, 4)),
        head_dim=one_of(4, 8, 20, 64),
        dropout=one_of(0.0, 0.1, 0.5),
        same_length=same_length,
        same_length_keys=one_of("memory_and_self", "memory"),
        clamp_length=one_of(None, int(generator.integers(1, 100))),
        masks_documents=one_of(False, True),
        max_block_queries=one_of(None, 16, 32, 64),
        max_block_keys=one_of(None, 128, 256),
        seed=seed,
    )


class Columns(keras.layers.Layer):
    """Takes some columns in the place of a projection, so that gradients stay apart."""

    def __init__(self, columns, dtype):
        super().__init__(dtype=dtype)
        self.columns = columns

    def call(self, inputs):
        return inputs[..., self.columns]


class UnprojectedAttention(RelativeAttention):
    """Attention whose inputs hold queries, keys and values side by side."""

    def build(self, inputs_shape):
        super().build(inputs_shape)
        units = self.num_heads * self.head_dim
        for place, name in enumerate(("query", "key", "value")):
            columns = slice(place * units, (place + 1) * units)
            setattr(self, name, Columns(columns, self.dtype_policy))
        self.position = self.output_projection = Columns(slice(units), self.dtype_policy)


def arrays_of(case, dtype="float32"):
    """Draws what the case computes with, as constants."""
    generator = np.random.default_rng(case.seed)
    width = case.num_heads * case.head_dim
    key_length = case.memory_length + case.segment_length

    def normal(*shape, scale=1.0):
        return tf.constant(scale * generator.standard_normal(shape), dtype)

    encoding = functional.relative_positional_encoding(
        key_length, 2 * width, case.clamp_length, dtype
    )
    return {
        "inputs": normal(case.rows, case.segment_length, 3 * width),
        "memory": normal(case.rows, case.memory_length, 3 * width),
        "distances": encoding[:, :width] + normal(1, width, scale=0.5),
        "content_bias": normal(case.num_heads, case.head_dim, scale=0.5),
        "position_bias": normal(case.num_heads, case.head_dim, scale=0.5),
        "gradient": normal(case.rows, case.segment_length, width),
        "valid_length": tf.constant(
            generator.integers(0, case.memory_length + 1, case.rows), tf.int32
        ),
        "document_starts": tf.constant(
            generator.random((case.rows, case.segment_length)) < 3 / case.segment_length
        ),
        "seeds": tf.constant(generator.integers(-(2**31), 2**31, (case.rows, 2)), tf.int32),
    }


def computed(case, arrays, uses_kernel):
    """Outputs and all gradients, by their names in `NAMES`."""
    layer = UnprojectedAttention(
        case.num_heads,
        case.head_dim,
        dropout=case.dropout,
        own_biases=False,
        dtype=arrays["inputs"].dtype.name,
    )
    layer.build(arrays["inputs"].shape)
    farthest = None
    if case.same_length:
        farthest = case.memory_length - (case.same_length_keys == "memory")
    starts = arrays["document_starts"] if case.masks_documents else None

    operator = OnChipAttention(case.kernel) if uses_kernel else AllHeads()

    def attend():
        visible = VisibleKeys(
            num_tokens=case.segment_length,
            memory_length=case.memory_length,
            valid_length=arrays["valid_length"],
            farthest=farthest,
            document_starts=starts,
        )
        return operator.bind(visible, arrays["inputs"].dtype.name)

    names = ("inputs", "memory", "distances", "content_bias", "position_bias")

    @tf.function(jit_compile=True, autograph=False)
    def run():
        values = [tf.identity(arrays[name]) for name in names]
        with tf.GradientTape() as tape:
            tape.watch(values)
            inputs, memory, distances, *biases = values
            outputs = layer(
                inputs,
                position_encoding=distances,
                memory=memory,
                attend=attend(),
                content_bias=biases[0],
                position_bias=biases[1],
                dropout_seed=arrays["seeds"],
                training=True,
            )
        # Without memory there is nothing that its gradient would come from.
        gradients = tape.gradient(outputs, values, arrays["gradient"], tf.UnconnectedGradients.ZERO)
        return outputs, gradients

    outputs, (of_inputs, of_memory, *others) = run()
    of_context = tf.concat([of_memory, of_inputs], axis=1)
    query, key, value = tf.split(of_context, 3, axis=-1)
    results = (outputs, query[:, case.memory_length :], key, value, *others)
    return {
        name: np.asarray(tf.cast(result, tf.float64))
        for name, result in zip(NAMES, results, strict=True)
    }


def differences(case):
    """Largest difference of outputs and gradients, relative to the largest entry."""
    arrays = arrays_of(case)
    plain, kernel = (computed(case, arrays, uses_kernel) for uses_kernel in (False, True))
    return {
        name: float(np.max(np.abs(kernel[name] - plain[name])))
        / max(float(np.max(np.abs(plain[name]))), FLOOR)
        for name in NAMES
    }
