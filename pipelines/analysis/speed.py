"""Time per token with memory and with sliding windows: `txl analyze speed`.

    txl analyze speed --attention 800,3800 --config FILE --set model.num_layers=2 --json

Compares, as the table of slowdowns of Dai et al. (2019), the time of a token with that of the
vanilla model of Al-Rfou et al. (2019) of the same size, which reads a whole window for every token
that it predicts. Weights and tokens are random: the time does not depend on them.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from txl_tf.config.base import MAX_TOKENS
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import RELATIVE_ENCODINGS, ModelConfig
from txl_tf.errors import UsageError
from txl_tf.imports import tensorflow as tf

from ..arguments import (
    MAX_COUNT,
    add_config_argument,
    add_json_argument,
    add_number,
    add_numbers,
    add_override_argument,
)
from ..configs import load_experiment
from ..memory_needs import require_reading_memory
from ..progress import plain_table, say

_ATTENTION = "800,1800,2800,3800"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the analysis."""
    meaning = "experiment whose model is measured (default: enwik8_base, 12 layers of 512)"
    add_config_argument(parser, default="enwik8_base", help=meaning)
    meaning = "tokens attended to: length of the window or of the memory"
    settings = {"dest": "attention_lengths", "default": _ATTENTION}
    add_numbers(parser, "--attention", 1, MAX_TOKENS, meaning, unit="TOKENS", **settings)
    meaning, unit = "tokens read at a time with a memory; 1 is measured too", "TOKENS"
    add_number(parser, "--segment-length", 1, MAX_TOKENS, meaning, default=128, metavar=unit)
    meaning = "windows that are timed; medians are reported"
    add_number(parser, "--repeats", 1, MAX_COUNT, meaning, default=5)
    add_json_argument(parser)
    add_override_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> tuple[argparse.Namespace, ExperimentConfig]:
    """Checks the arguments before TensorFlow is imported; returns them and the experiment."""
    experiment = load_experiment(arguments.config, arguments.overrides).with_policy("float32")
    model = experiment.model
    if not model.has_relative_positions:
        raise UsageError(
            "The model must have relative positions, so that it can carry a memory.",
            where=f"--config {arguments.config}",
            remedy=f"Set model.position_encoding to one of {', '.join(RELATIVE_ENCODINGS)}.",
        )
    longest, segment_length = max(arguments.attention_lengths), arguments.segment_length
    where = f"--attention {longest}, --segment-length {segment_length}"
    for length, memory_length in ((longest, 0), (segment_length, longest)):
        require_reading_memory("The measurement", model, 1, length, memory_length, where)
    return arguments, experiment


_HEAD = ("attention", "memory of", "tokens", "ms/token", "from - to", "slowdown")
_MEMORIES = {
    "none": "none (vanilla)",
    "keys_and_values": "keys, values",
    "hidden_states": "hidden states",
}
# Segments are cheap: timing more of them than windows steadies the median.
_SEGMENTS_PER_TURN = 3


class Reading(NamedTuple):
    """Timed method of scoring."""

    memory: str
    """`"none"` (the vanilla model: a window for each token), or the kind of an engine's memory."""
    tokens_per_call: int


VANILLA = Reading("none", 1)


def run(job: tuple[argparse.Namespace, ExperimentConfig]) -> None:
    """Measures and prints a table."""
    arguments, experiment = job
    measurement = SpeedMeasurement(experiment, arguments.segment_length)
    rows = []
    for length in arguments.attention_lengths:
        say(f"measuring an attention of {length:,} tokens")
        seconds = seconds_in_turn(measurement.calls(length), arguments.repeats)
        rows += report_rows(length, seconds)
    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus[:1]]
    report = {
        "config": arguments.config,
        "model": experiment.model.to_dict(),
        "dtype_policy": experiment.training.dtype_policy,
        "jit_compile": experiment.training.jit_compile,
        "device": details[0].get("device_name", "GPU") if details else f"{os.cpu_count()} CPUs",
        "tensorflow": tf.__version__,
        "rows": rows,
    }
    print(json.dumps(report) if arguments.json else format_speeds(report))


def seconds_in_turn(
    calls: dict[Reading, Callable[[], Any]], num_turns: int
) -> dict[Reading, list[float]]:
    """Times functions in alternating rounds, after one compiling call of each."""
    for call in calls.values():
        call()
    seconds: dict[Reading, list[float]] = {reading: [] for reading in calls}
    for _ in range(num_turns):
        for reading, call in calls.items():
            for _ in range(1 if reading == VANILLA else _SEGMENTS_PER_TURN):
                begin = time.perf_counter()
                call()
                seconds[reading].append(time.perf_counter() - begin)
    return seconds


class SpeedMeasurement:
    """Models with memory and a sliding-window model, at any attention length.

    The model with memory remembers as many tokens as a window holds, so it attends to at least as
    many. Its memory starts full of zeros: values do not change the work.
    """

    def __init__(self, experiment: ExperimentConfig, segment_length: int) -> None:
        from txl_tf.models.transformer_xl import TransformerXL

        training = experiment.training
        self._config = cast(ModelConfig, experiment.model)
        self._dtype_policy = training.dtype_policy
        # `None`: the device's execution plan decides on XLA, as in an evaluation.
        self._jit_compile = None if training.may_compile else False
        self._segment_lengths = sorted({segment_length, 1}, reverse=True)
        self._model = TransformerXL(self._config, dtype=self._dtype_policy)
        self._random = np.random.default_rng(0)

    def calls(self, attention_length: int) -> dict[Reading, Callable[[], np.ndarray]]:
        """Returns a scoring function for each method."""
        calls = {VANILLA: self._window_call(attention_length)}
        for length in self._segment_lengths:
            for memory in ("keys_and_values", "hidden_states"):
                reading = Reading(memory, length)
                calls[reading] = self._segment_call(reading, attention_length)
        return calls

    def _window_call(self, attention_length: int) -> Callable[[], np.ndarray]:
        """Returns the evaluation of Al-Rfou et al. (2019), a window for every token.

        Dai et al. (2019), Section 4.4: the window advances by one token and is read from scratch.
        """
        from txl_tf.inference.engine import InferenceEngine
        from txl_tf.models.transformer_xl import TransformerXL

        config = self._config.replace(
            position_encoding="learned",
            num_positions=attention_length,
            recurrence=False,
            segment_length=attention_length,
            memory_length=0,
            clamp_length=None,
            same_length=False,
            share_attention_biases=False,
        )
        model = TransformerXL(config, dtype=self._dtype_policy)

        def score(token_ids: tf.Tensor, target_ids: tf.Tensor) -> tf.Tensor:
            hidden, _ = model(token_ids, model.initial_memory(1, memory_length=0))
            return model.negative_log_likelihood(hidden[:, -1:], target_ids)

        choice = {"keeps": "hidden_states", "num_rows": 1, "jit_compile": self._jit_compile}
        compiles = InferenceEngine(model, **choice).plan.compile_read
        step = tf.function(score, jit_compile=compiles, autograph=False)
        lengths = attention_length, 1
        return lambda: step(*(tf.constant(self._tokens(1, each)) for each in lengths)).numpy()

    def _segment_call(self, reading: Reading, attention_length: int) -> Callable[[], np.ndarray]:
        from txl_tf.inference.engine import InferenceEngine

        segment_length = reading.tokens_per_call
        is_single = segment_length == 1
        engine = InferenceEngine(
            self._model,
            attention_length,
            reading.memory,
            segment_length=segment_length,
            num_rows=1,
            # `writes` turns off products head by head, which do not help with a single token.
            writes=is_single,
            jit_compile=self._jit_compile,
        )
        compiles = engine.plan.compile_read
        if is_single and reading.memory == "keys_and_values":
            compiles = engine.plan.compile_step
        step = tf.function(engine.score, jit_compile=compiles, autograph=False)
        constants = engine.constants(segment_length)
        carried = engine.initial_memory(1)._replace(valid_length=tf.fill([1], attention_length))

        def call() -> np.ndarray:
            nonlocal carried
            token_ids, target_ids = (tf.constant(self._tokens(1, segment_length)) for _ in range(2))
            nll, carried = step(token_ids, target_ids, carried, constants=constants)
            return nll.numpy()

        return call

    def _tokens(self, *shape: int) -> np.ndarray:
        return self._random.integers(0, self._config.vocabulary_size, shape).astype("int32")


def report_rows(attention_length: int, seconds: dict[Reading, list[float]]) -> list[dict[str, Any]]:
    """Returns the figures of one attention length as JSON values."""
    rows = []
    vanilla = statistics.median(seconds[VANILLA])
    for reading, values in seconds.items():
        median, least, most = (
            figure(values) / reading.tokens_per_call for figure in (statistics.median, min, max)
        )
        rows.append(
            {
                "attention_length": attention_length,
                **reading._asdict(),
                "num_calls": len(values),
                "seconds_per_token": median,
                "fastest_seconds_per_token": least,
                "slowest_seconds_per_token": most,
                "slowdown_of_vanilla": vanilla / median,
            }
        )
    return rows


def format_speeds(report: dict[str, Any]) -> str:
    """Formats the figures of a report as a table."""
    model = report["model"]
    lines = [
        f"{report['config']}: {model['num_layers']} layers, hidden {model['hidden_dim']}, "
        f"{model['num_heads']} heads of {model['head_dim']}, inner {model['intermediate_dim']}",
        f"1 row, {report['dtype_policy']}, "
        f"{'XLA where it is faster' if report['jit_compile'] else 'without XLA'}, "
        f"{report['device']}, TensorFlow {report['tensorflow']}",
        plain_table([_HEAD, *map(_cells, report["rows"])], right=(0, 2, 3, 4, 5, 6)),
        "slowdown: how many times longer the vanilla model takes; tokens: read at a time",
    ]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    has_memory = row["memory"] != "none"
    milliseconds = {
        name: f"{1000 * row[name]:,.3g}" if row[name] < 1.0 else f"{1000 * row[name]:,.0f}"
        for name in row
        if name.endswith("seconds_per_token")
    }
    return [
        "" if has_memory else f"{row['attention_length']:,}",
        _MEMORIES[row["memory"]],
        str(row["tokens_per_call"]),
        milliseconds["seconds_per_token"],
        f"{milliseconds['fastest_seconds_per_token']} - "
        f"{milliseconds['slowest_seconds_per_token']}",
        f"{row['slowdown_of_vanilla']:,.1f}" if has_memory else "",
    ]
