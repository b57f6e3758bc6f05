"""Compares the attention kernel on JAX with plain layers, without TensorFlow; prints differences.

KERAS_BACKEND=jax python -m tests.tpu_kernels.kernel_on_jax
"""

import json
import os
import sys

if os.environ.get("KERAS_BACKEND") == "jax":
    sys.modules["tensorflow"] = None

import jax
import keras
import numpy as np
from jax import numpy as jnp

from tests.measurements.compare_backends import draw_weights, jax_functions
from txl_tf.config.model import ModelConfig
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.memory import Memory
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.tpu_kernels.attention_plan import AttentionKernel

SIZES = {
    "vocabulary_size": 64,
    "num_layers": 2,
    "hidden_dim": 64,
    "num_heads": 2,
    "head_dim": 64,
    "intermediate_dim": 96,
    "segment_length": 48,
    "memory_length": 80,
    "dropout": 0.1,
    "attention_dropout": 0.2,
    "initializer_stddev": 0.2,
}
CASES = {
    "plain": {},
    "same_length": {"same_length": True},
    "pre_norm": {"share_attention_biases": True, "pre_norm": True},
    "narrow heads": {"head_dim": 32, "num_heads": 4},
}
KERNEL = AttentionKernel(platform="cpu")


def relative(one, other):
    """The largest difference of arrays over the largest value."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(jnp.abs(a - b).max() / max(float(jnp.abs(a).max()), 1e-30)) for a, b in pairs)


def read(model, token_ids, kernel):
    """Nats of two segments read with fixed weights."""
    engine = InferenceEngine(model, num_rows=len(token_ids), attention_kernel=kernel)
    memory, nats = engine.initial_memory(len(token_ids)), []
    for start in (0, 24):
        part = token_ids[:, start : start + 25]
        nll, memory = engine.score(part[:, :-1], part[:, 1:], memory)
        nats.append(nll)
    return nats


def differences(changes):
    """Differences of the kernel from plain operations for a model."""
    generator = np.random.default_rng(0)
    token_ids = generator.integers(0, 64, (3, 49)).astype("int32")
    states = tuple(jnp.asarray(generator.normal(size=(3, 80, 64)), "float32") for _ in range(2))
    memory, results = Memory(states, jnp.asarray([0, 37, 80], "int32")), []
    for kernel in (None, KERNEL):
        model = TransformerXL(ModelConfig(**{**SIZES, **changes}), attention_kernel=kernel)
        draw_weights(model)
        with jax.default_matmul_precision("highest"):
            nats = read(model, token_ids, kernel)
        optimizer = keras.optimizers.SGD()
        optimizer.build(model.trainable_variables)
        _, train = jax_functions(model, optimizer)
        loss, after, gradients = train(token_ids, memory, jnp.asarray([5, 6], "int32"))
        results.append({"loss": loss, "memory": after.states, "gradients": gradients, "nats": nats})
    plain, by_kernel = results
    return {name: relative(plain[name], by_kernel[name]) for name in plain}


if __name__ == "__main__":
    print(json.dumps({name: differences(changes) for name, changes in CASES.items()}))
