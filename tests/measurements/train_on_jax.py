"""Trains a preset on JAX: its speed on random bytes, or bits per byte on a text.

    KERAS_BACKEND=jax python -m tests.measurements.train_on_jax speed --rows 22
    KERAS_BACKEND=jax python -m tests.measurements.train_on_jax train --rows 22 \
        --text train.txt.xz --held-out valid.txt.xz --seconds 300

It needs JAX, Keras and NumPy, not TensorFlow. Several steps are one program, a scan over
consecutive segments of a text that is kept on the device; weights, optimizer and memory stay
there too. Every result is one line of JSON.

Shape letters: B rows, T segment length, M memory length, K = M + T, V vocabulary, S steps.
"""

import argparse
import functools
import json
import lzma
import math
import statistics
import time
from pathlib import Path

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
HELD_OUT_BYTES, HELD_OUT_ROWS = 1_000_000, 10
NUM_EVALUATIONS = 5


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

    @functools.partial(jax.jit, static_argnums=0)
    def _sum_of_nats(self, weights, segments, counted):
        def one(memory, inputs):
            tokens, is_counted = inputs
            nll, memory = self.score(weights, tokens, memory)
            return memory, jnp.sum(jnp.where(is_counted, nll, 0.0))

        memory = self.model.initial_memory(segments.shape[1])
        return jnp.sum(lax.scan(one, memory, (segments, counted))[1])

    def bits_per_byte(self, segments, counted):
        """Evaluates segments from `evaluation_segments`."""
        nats = float(self._sum_of_nats(self.state[0], segments, counted))
        return nats / math.log(2) / int(np.sum(counted))


def evaluation_segments(tokens, num_rows, segment_length):
    """Cuts tokens into rows and segments, so that every token but the first is a target once.

    Returns tokens `(S, B, T + 1)` and which targets `(S, B, T)` are no padding.
    """
    per_row = -(-(len(tokens) - 1) // num_rows)
    num_segments = -(-per_row // segment_length)
    at = np.arange(num_segments * segment_length + 1)
    places = at + per_row * np.arange(num_rows)[:, None]
    counted = (at < per_row) & (places < len(tokens) - 1)
    padded = np.concatenate([tokens, np.zeros(places.max() + 1 - len(tokens), tokens.dtype)])
    begins = np.arange(num_segments) * segment_length
    segments = [padded[places[:, begin : begin + segment_length + 1]] for begin in begins]
    masks = [counted[:, begin : begin + segment_length] for begin in begins]
    return np.stack(segments), np.stack(masks)


def read(path, limit=None):
    """Reads the first bytes of a file, as uint8; a name that ends in .xz is decompressed."""
    content = Path(path).read_bytes()
    content = lzma.decompress(content) if str(path).endswith(".xz") else content
    return np.frombuffer(content, np.uint8)[:limit]


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


def train(arguments):
    """Trains for a number of seconds, without those of compiling and evaluating."""
    text, held_out = read(arguments.text), read(arguments.held_out, HELD_OUT_BYTES)
    vocabulary = np.unique(np.concatenate([text, held_out]))
    ids = np.zeros(256, "uint8")
    ids[vocabulary] = np.arange(len(vocabulary))
    config = PRESETS[arguments.preset].replace(vocabulary_size=len(vocabulary))
    num_rows = arguments.rows
    per_row = len(text) // num_rows
    streams = ids[text[: per_row * num_rows]].reshape(num_rows, per_row)
    training = Training(config, streams)
    segments = evaluation_segments(ids[held_out], HELD_OUT_ROWS, config.segment_length)
    compile_seconds, program = seconds_of(lambda: training.compiled(arguments.steps_per_call))
    report(
        preset=arguments.preset,
        parameters=training.model.count_params(),
        vocabulary_size=len(vocabulary),
        text_bytes=len(text),
        held_out_bytes=int(np.sum(segments[1])),
        compile_seconds=round(compile_seconds, 1),
        held_out_before=training.bits_per_byte(*segments),
    )
    limit, elapsed, losses = arguments.seconds, 0.0, []
    moments = [limit * (n + 1) / NUM_EVALUATIONS for n in range(NUM_EVALUATIONS)]
    in_flight, call_seconds = None, 0.0
    num_steps = arguments.steps_per_call
    clock = time.perf_counter()
    while elapsed < limit:
        # The call before is still running: this one begins about one call later.
        times = elapsed + call_seconds * (1 + np.arange(num_steps) / num_steps)
        shares = np.minimum(times / limit, 1.0)
        loss = training.run(program, LEARNING_RATE / 2 * (1 + np.cos(np.pi * shares)))
        if in_flight is not None:
            losses.append(float(in_flight))
        in_flight = loss
        now = time.perf_counter()
        elapsed, call_seconds, clock = elapsed + now - clock, now - clock, now
        if elapsed >= moments[0]:
            losses.append(float(in_flight))
            in_flight = None
            elapsed += time.perf_counter() - clock
            report(
                training_seconds=round(elapsed, 2),
                steps=training.step,
                tokens=training.step * num_rows * config.segment_length,
                training_bits_per_byte=float(np.mean(losses)) / math.log(2),
                held_out_bits_per_byte=training.bits_per_byte(*segments),
                peak_gigabytes=peak_gigabytes(),
            )
            losses, clock = [], time.perf_counter()
            moments.pop(0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed", help=measure_speed.__doc__)
    speed.add_argument("--rounds", type=int, default=7)
    long_run = commands.add_parser("train", help=train.__doc__)
    long_run.add_argument("--text", required=True, help="text to train on, plain or .xz")
    long_run.add_argument("--held-out", required=True)
    long_run.add_argument("--seconds", type=float, default=300.0)
    for command in (speed, long_run):
        command.add_argument("--preset", default="enwik8_base", choices=sorted(PRESETS))
        command.add_argument("--rows", type=int, default=22)
        command.add_argument("--steps-per-call", type=int, default=10)
    arguments = parser.parse_args()
    {"speed": measure_speed, "train": train}[arguments.command](arguments)


if __name__ == "__main__":
    main()
