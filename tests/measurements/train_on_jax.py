"""Measures the speed of training a preset on JAX, on random bytes.

    KERAS_BACKEND=jax python -m tests.measurements.train_on_jax --rows 22

It needs JAX, Keras and NumPy, not TensorFlow. Several steps are one program, a scan over
consecutive segments of a text that is kept on the device; weights, optimizer and memory stay
there too. The result is one line of JSON.

Shape letters: B rows, T segment length, M memory length, K = M + T, V vocabulary, S steps.
"""

import argparse
import functools
import json
import statistics
import time

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jax import lax

from txl_tf.models.memory import Memory
from txl_tf.models.presets import PRESETS
from txl_tf.models.transformer_xl import TransformerXL

PEAK_TFLOPS = 989
"""Dense bfloat16 products of an NVIDIA H100 SXM, per second."""
LEARNING_RATE = 2.5e-4
CLIP_NORM = 0.25
SEED = 1


def flops_per_token(config, num_rows):
    """Counts the products of one training step, masked pairs included, per token.

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
    """State of a training run on the device, and the compiled programs that advance it.

    `streams` are `(B, N)` uint8, B consecutive parts of a text: row `r` of a segment continues
    row `r` of the segment before.
    """

    def __init__(self, config, streams):
        keras.utils.set_random_seed(SEED)
        self.config = config
        self.model = TransformerXL(config, dtype="mixed_bfloat16")
        self.optimizer = keras.optimizers.Adam(
            LEARNING_RATE, epsilon=1e-8, global_clipnorm=CLIP_NORM
        )
        self.optimizer.build(self.model.trainable_variables)
        names = [variable.path for variable in self.optimizer.variables]
        self.rate_index = names.index(self.optimizer._learning_rate.path)
        # Copies, because the program overwrites its arguments.
        self.state = jax.tree.map(
            jnp.copy,
            (
                [variable.value for variable in self.model.trainable_variables],
                [variable.value for variable in self.optimizer.variables],
                self.model.initial_memory(len(streams)),
            ),
        )
        self.streams = jnp.asarray(streams)
        self.num_segments = (streams.shape[1] - 1) // config.segment_length
        self.step = 0

    def score(self, weights, tokens, memory, **options):
        """Scores `(B, T + 1)` tokens: nats `(B, T)` and the next memory."""
        tokens = tokens.astype("int32")
        with keras.StatelessScope(list(zip(self.model.trainable_variables, weights, strict=True))):
            return self.model.score(tokens[:, :-1], tokens[:, 1:], memory, **options)

    def one_step(self, state, tokens, learning_rate, step):
        """Returns the state after a step on `(B, T + 1)` tokens, and its mean loss."""
        weights, slots, memory = state

        def loss_of(weights):
            seed = jnp.stack([jnp.int32(SEED), step])
            nll, after = self.score(weights, tokens, memory, dropout_seed=seed, training=True)
            return jnp.mean(nll), after

        (loss, memory), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        slots = list(slots)
        slots[self.rate_index] = learning_rate
        weights, slots = self.optimizer.stateless_apply(slots, gradients, weights)
        return (list(weights), list(slots), memory), loss

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def _steps(self, state, streams, learning_rates, steps):
        def one(state, inputs):
            learning_rate, step = inputs
            length = self.config.segment_length
            begin = step % self.num_segments * length
            tokens = lax.dynamic_slice_in_dim(streams, begin, length + 1, axis=1)
            # The text begins again with an empty memory.
            *others, (states, valid_length) = state
            memory = Memory(states, jnp.where(begin == 0, 0, valid_length))
            return self.one_step((*others, memory), tokens, learning_rate, step)

        state, losses = lax.scan(one, state, (learning_rates, steps))
        return state, jnp.mean(losses)

    def compiled(self, num_steps):
        """Compiles the program of `num_steps` steps, and returns it."""
        arguments = (jnp.zeros(num_steps, "float32"), jnp.zeros(num_steps, "int32"))
        return self._steps.lower(self, self.state, self.streams, *arguments).compile()

    def run(self, program, learning_rates):
        """Starts a program; its mean loss, in nats, is on the device and can be waited for."""
        steps = np.arange(self.step, self.step + len(learning_rates), dtype="int32")
        rates = np.asarray(learning_rates, "float32")
        self.state, loss = program(self.state, self.streams, rates, steps)
        self.step += len(steps)
        return loss


def report(**figures):
    print(json.dumps(figures), flush=True)


def peak_gigabytes():
    statistics_of_device = jax.devices()[0].memory_stats() or {}
    return round(statistics_of_device.get("peak_bytes_in_use", 0) / 1e9, 3)


def seconds_of(function):
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def measure_speed(arguments):
    """Reports the speed on random bytes."""
    config, num_rows = PRESETS[arguments.preset], arguments.rows
    length = 40 * config.segment_length + 1
    streams = np.random.default_rng(0).integers(0, config.vocabulary_size, (num_rows, length))
    training = Training(config, streams.astype("uint8"))
    compile_seconds, program = seconds_of(lambda: training.compiled(arguments.steps_per_call))
    rates = [LEARNING_RATE] * arguments.steps_per_call
    training.run(program, rates).block_until_ready()
    rounds = [
        seconds_of(lambda: training.run(program, rates).block_until_ready())[0] / len(rates)
        for _ in range(arguments.rounds)
    ]
    step_seconds = statistics.median(rounds)
    tokens_per_second = num_rows * config.segment_length / step_seconds
    flops = flops_per_token(config, num_rows)
    report(
        preset=arguments.preset,
        rows=num_rows,
        device=jax.devices()[0].device_kind,
        tokens_per_second=round(tokens_per_second),
        milliseconds_per_step=round(1000 * step_seconds, 3),
        rounds=[round(1000 * each, 3) for each in rounds],
        compile_seconds=round(compile_seconds, 1),
        flops_per_token=round(flops),
        share_of_peak=round(flops * tokens_per_second / (PEAK_TFLOPS * 1e12), 4),
        peak_gigabytes=peak_gigabytes(),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--preset", default="enwik8_base", choices=sorted(PRESETS))
    parser.add_argument("--rows", type=int, default=22)
    parser.add_argument("--steps-per-call", type=int, default=10)
    measure_speed(parser.parse_args())


if __name__ == "__main__":
    main()
