"""Measures the speed of training a preset on JAX, on random bytes.

    KERAS_BACKEND=jax python -m tests.measurements.train_on_jax --rows 22

It needs JAX, Keras and NumPy, but not TensorFlow. Several steps are one program, a scan over
consecutive segments of a text. The text, the weights, the optimizer and the memory stay on the
device. The program prints one line of JSON.

Shape letters: B rows, T segment length, M memory length, K = M + T, V vocabulary.
"""

import argparse
import json
import statistics
import time

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

from txl_tf.models.presets import PRESETS
from txl_tf.models.transformer_xl import TransformerXL

PEAK_TFLOPS = 989
"""Dense bfloat16 operations of an NVIDIA H100 SXM per second, in 10^12."""
NUM_SEGMENTS = 40
SEED = 1


def flops_per_token(config, num_rows):
    """Counts the operations of products in a training step per token, with masked pairs.

    The backward pass takes twice the forward pass, but memory gets no gradient.
    """
    width, dim = config.num_heads * config.head_dim, config.hidden_dim
    key_length = config.segment_length + config.memory_length
    memory_per_token = config.memory_length / config.segment_length
    per_layer = (
        8 * dim * width  # query, key, value, output
        + 4 * dim * config.intermediate_dim
        + 6 * key_length * width  # scores of contents, scores of positions, values
        + 2 * dim * width * key_length / (num_rows * config.segment_length)  # distances
    )
    keys_of_memory = 4 * dim * width * memory_per_token
    softmax = 2 * dim * config.vocabulary_size
    return 3 * (config.num_layers * per_layer + softmax) + 2 * config.num_layers * keys_of_memory


class Training:
    """State of a training run on the device, and the program that advances it by some steps."""

    def __init__(self, config, num_rows, steps_per_call):
        keras.utils.set_random_seed(SEED)
        self.length = config.segment_length
        self.model = TransformerXL(config, dtype="mixed_bfloat16")
        self.optimizer = keras.optimizers.Adam(2.5e-4, epsilon=1e-8, global_clipnorm=0.25)
        self.optimizer.build(self.model.trainable_variables)
        weights = [variable.value for variable in self.model.trainable_variables]
        slots = [variable.value for variable in self.optimizer.variables]
        # Copies, because the program overwrites its arguments.
        self.state = jax.tree.map(jnp.copy, (weights, slots, self.model.initial_memory(num_rows)))
        shape = (num_rows, NUM_SEGMENTS * self.length + 1)
        streams = np.random.default_rng(0).integers(0, config.vocabulary_size, shape)
        self.streams = jnp.asarray(streams.astype("uint8"))
        self.steps = jnp.arange(steps_per_call, dtype="int32")
        arguments = self.state, self.streams, self.steps
        self.program = jax.jit(self.advance, donate_argnums=0).lower(*arguments).compile()

    def advance(self, state, streams, steps):
        """Returns the state after some steps, and their mean loss."""

        def step_after(state, step):
            weights, slots, memory = state
            begin = step % NUM_SEGMENTS * self.length
            tokens = lax.dynamic_slice_in_dim(streams, begin, self.length + 1, axis=1)
            tokens = tokens.astype("int32")
            seed = jnp.stack([jnp.int32(SEED), step])

            def loss_of(weights):
                values = zip(self.model.trainable_variables, weights, strict=True)
                with keras.StatelessScope(list(values)):
                    nll, after = self.model.score(
                        tokens[:, :-1], tokens[:, 1:], memory, dropout_seed=seed, training=True
                    )
                return jnp.mean(nll), after

            (loss, after), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
            weights, slots = self.optimizer.stateless_apply(slots, gradients, weights)
            return (list(weights), list(slots), after), loss

        state, losses = lax.scan(step_after, state, steps)
        return state, jnp.mean(losses)

    def seconds_per_step(self):
        """Runs the program, and returns the time of a step."""
        begin = time.perf_counter()
        self.state, loss = self.program(self.state, self.streams, self.steps)
        loss.block_until_ready()
        return (time.perf_counter() - begin) / len(self.steps)


def main():
    """Measures a preset and prints its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--preset", default="enwik8_base", choices=sorted(PRESETS))
    parser.add_argument("--rows", type=int, default=22)
    parser.add_argument("--steps-per-call", type=int, default=10)
    arguments = parser.parse_args()
    config, num_rows = PRESETS[arguments.preset], arguments.rows
    begin = time.perf_counter()
    training = Training(config, num_rows, arguments.steps_per_call)
    compile_seconds = time.perf_counter() - begin
    training.seconds_per_step()
    rounds = [training.seconds_per_step() for _ in range(arguments.rounds)]
    step_seconds = statistics.median(rounds)
    tokens_per_second = num_rows * config.segment_length / step_seconds
    flops = flops_per_token(config, num_rows)
    peak_bytes = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    figures = {
        "preset": arguments.preset,
        "rows": num_rows,
        "device": jax.devices()[0].device_kind,
        "tokens_per_second": round(tokens_per_second),
        "milliseconds_per_step": round(1000 * step_seconds, 3),
        "rounds": [round(1000 * each, 3) for each in rounds],
        "compile_seconds": round(compile_seconds, 1),
        "flops_per_token": round(flops),
        "share_of_peak": round(flops * tokens_per_second / (PEAK_TFLOPS * 1e12), 4),
        "peak_gigabytes": round(peak_bytes / 1e9, 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
