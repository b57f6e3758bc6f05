"""Speed of evaluation and generation on JAX, with the memory of the published evaluation.

    KERAS_BACKEND=jax python -m tests.measurements.measure_inference_on_jax

The model is `enwik8_large` with random weights in mixed_bfloat16 and M = 3,800. Evaluation scores
a text in segments of 128 tokens, and then in segments of 512. With `same_length` the keys that a
token sees do not depend on the segment, so longer segments give the same scores. Generation draws
every token at a temperature, in one program for 256 tokens. A line of JSON per measurement has the
median of tokens/s of all rows. `--check` compares both programs with the model at a small size.
"""

import argparse
import functools
import json
import statistics
import time

import jax
import keras
import numpy as np
from jax import numpy as jnp

from tests.measurements.compare_backends import draw_weights
from txl_tf import functional
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.presets import preset
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.samplers import RandomSampler

LARGE = preset("enwik8_large").replace(
    segment_length=128, memory_length=3800, clamp_length=1000, same_length=True
)
SMALL = LARGE.replace(
    num_layers=2,
    hidden_dim=64,
    num_heads=2,
    head_dim=32,
    intermediate_dim=96,
    segment_length=16,
    memory_length=48,
    clamp_length=20,
)


def transposed(tree):
    """Swaps the last two axes of all matrices; a second call restores them."""
    return jax.tree.map(lambda each: jnp.swapaxes(each, -1, -2) if each.ndim > 1 else each, tree)


def joint_memory(memory, capacity):
    """Returns an empty memory and `recent`, a copy of the memory with room for new tokens.

    Then a step has one tensor of keys and one of values instead of two of each. It launches 18
    kernels per layer on a GPU instead of 30.
    """
    recent = memory._replace(
        keys=tuple(jnp.pad(each, [*[(0, 0)] * 3, (0, capacity)]) for each in memory.keys),
        values=tuple(
            jnp.pad(each, [*[(0, 0)] * 2, (0, capacity), (0, 0)]) for each in memory.values
        ),
        valid_length=jnp.asarray(memory.memory_length, "int32"),
    )
    empty = memory._replace(
        keys=tuple(each[..., :0] for each in memory.keys),
        values=tuple(each[..., :0, :] for each in memory.values),
    )
    return empty, recent


class Programs:
    """Compiled evaluation and generation of a model, for `B` rows.

    Weights are arguments of the programs, because constants would be compiled into them. Matrices
    are stored in the compute dtype, which halves the bytes that are read and changes no result.
    They are stored transposed, because a GPU multiplies a single row faster by a matrix whose
    columns are contiguous.
    """

    def __init__(self, model, num_rows, sampler):
        self._num_rows = num_rows
        self._sampler = sampler
        self._variables = model.weights
        self._engine = InferenceEngine(model, num_rows=num_rows, writes=True)
        dtypes = [model.compute_dtype if len(each.shape) > 1 else None for each in model.weights]
        values = [jnp.asarray(*each) for each in zip(model.weights, dtypes, strict=True)]
        self._weights = jax.jit(transposed)(values)
        self._step_constants = self._constants(self._engine.steps.step_constants)
        self._read_constants = {}
        self._score = jax.jit(self._score_segments, donate_argnums=2)
        self._write = jax.jit(self._write_tokens, static_argnums=4)

    def _using(self, weights):
        """Returns a scope in which the model computes with transposed weights.

        The body of a loop enters the scope. Otherwise XLA would cast the matrices before the loop,
        and every turn would read more bytes.
        """
        pairs = zip(self._variables, transposed(weights), strict=True)
        return keras.StatelessScope(list(pairs))

    def _constants(self, function, *sizes):
        @jax.jit
        def constants(weights):
            with self._using(weights):
                return transposed(function(*sizes))

        return constants(self._weights)

    def initial_memory(self):
        # The layers share one buffer of zeros, and a buffer can be donated only once.
        return jax.tree.map(jnp.copy, self._engine.initial_memory(self._num_rows))

    def score(self, tokens, memory, segment_length):
        """Returns nats `(S, B, T)` of all tokens `(B, S * T + 1)` but the first, and memory.

        The program overwrites the memory of the argument.
        """
        if segment_length not in self._read_constants:
            constants = self._constants(self._engine.constants, segment_length)
            self._read_constants[segment_length] = constants
        inputs, targets = (
            np.swapaxes(np.reshape(each, (self._num_rows, -1, segment_length)), 0, 1)
            for each in (tokens[:, :-1], tokens[:, 1:])
        )
        constants = self._read_constants[segment_length]
        return self._score(self._weights, constants, memory, inputs, targets)

    def _score_segments(self, weights, constants, memory, inputs, targets):
        def score_segment(memory, segment):
            with self._using(weights):
                nll, memory = self._engine.score(*segment, memory, constants=transposed(constants))
            return memory, nll

        memory, nll = jax.lax.scan(score_segment, memory, (inputs, targets))
        return nll, memory

    def write(self, pending, memory, seed, num_tokens):
        """Returns tokens `(S, B)` after the pending ones `(B,)`, and their log-probabilities."""
        return self._write(self._weights, self._step_constants, pending, memory, num_tokens, seed)

    def _write_tokens(self, weights, constants, pending, memory, num_tokens, seed):
        rows = jnp.arange(self._num_rows, dtype="int32")
        is_active = jnp.ones_like(rows, "bool")
        memory, recent = joint_memory(memory, num_tokens)

        def write_token(state, position):
            pending, recent = state
            with self._using(weights):
                logits, recent = self._engine.steps.step(
                    pending, is_active, memory, recent, transposed(constants)
                )
            log_probs = jax.nn.log_softmax(logits)
            seeds = functional.row_seeds(jnp.stack([seed, position]), rows)
            pending = self._sampler(log_probs, seeds)
            of_token = jnp.take_along_axis(log_probs, pending[:, None], axis=1)[:, 0]
            return (pending, recent), (pending, of_token)

        positions = jnp.arange(num_tokens, dtype="int32")
        return jax.lax.scan(write_token, (pending, recent), positions)[1]


def largest_difference(config, num_rows):
    """Returns the largest difference, in nats, between the programs and the model in float32."""
    model = TransformerXL(config, dtype="float32")
    draw_weights(model)
    programs = Programs(model, num_rows, RandomSampler(top_p=1.0))
    length = config.segment_length
    shape = (num_rows, 4 * length + 1)
    tokens = np.random.default_rng(0).integers(0, config.vocabulary_size, shape, "int32")
    nll, memory = programs.score(tokens, programs.initial_memory(), length)
    longer_nll, _ = programs.score(tokens, programs.initial_memory(), 2 * length)
    written, log_probs = programs.write(tokens[:, -1], memory, 1, length)
    scored, longer = (np.concatenate(each, axis=1) for each in (nll, longer_nll))
    text = np.concatenate([tokens, written.T], axis=1)
    expected, memory = [], model.initial_memory(num_rows)
    for start in range(0, 5 * length, length):
        segment = text[:, start : start + length + 1]
        nll, memory = jax.jit(model.score)(segment[:, :-1], segment[:, 1:], memory)
        expected.append(nll)
    expected_scores = np.concatenate(expected[:4], axis=1)
    pairs = (scored, expected_scores), (longer, expected_scores), (-log_probs.T, expected[4])
    return max(float(np.abs(one - other).max()) for one, other in pairs)


def speed_of(run, num_tokens, num_rounds):
    """Returns the speed of a function that returns arrays on the device."""

    def seconds():
        started = time.perf_counter()
        jax.block_until_ready(run())
        return time.perf_counter() - started

    first = seconds()
    rates = [num_tokens / seconds() for _ in range(num_rounds)]
    return {
        "tokens_per_s": round(statistics.median(rates), 1),
        "lowest_and_highest": [round(min(rates), 1), round(max(rates), 1)],
        "first_call_s": round(first, 1),
    }


def measure(num_rows, num_rounds, num_scored=4096, num_written=256):
    """Yields the speed of evaluation with two segment lengths, and of generation."""
    config = LARGE
    model = TransformerXL(config, dtype="mixed_bfloat16")
    programs = Programs(model, num_rows, RandomSampler(temperature=0.9, top_p=1.0))
    shape = (num_rows, num_scored + 1)
    tokens = np.random.default_rng(0).integers(0, config.vocabulary_size, shape, "int32")
    memory = programs.initial_memory()

    def score(segment_length):
        nonlocal memory
        nll, memory = programs.score(tokens, memory, segment_length)
        return nll

    for segment_length in (config.segment_length, 4 * config.segment_length):
        run = functools.partial(score, segment_length)
        figures = speed_of(run, num_rows * num_scored, num_rounds)
        sizes = {"rows": num_rows, "segment_length": segment_length}
        yield {"measured": "evaluation", **sizes, **figures}
    assert int(memory.valid_length.min()) == config.memory_length
    run = functools.partial(programs.write, tokens[:, -1], memory, 1, num_written)
    figures = speed_of(run, num_rows * num_written, num_rounds)
    yield {"measured": "generation", "rows": num_rows, **figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--check", action="store_true", help="compare with the model instead")
    arguments = parser.parse_args()
    device = {"device": jax.devices()[0].device_kind}
    if arguments.check:
        with jax.default_matmul_precision("highest"):
            print(json.dumps({**device, "largest_difference": largest_difference(SMALL, 2)}))
        return
    for figures in measure(arguments.rows, arguments.rounds):
        print(json.dumps({**device, **figures}), flush=True)


if __name__ == "__main__":
    main()
