"""Time per token with memory and with sliding windows: `txl analyze speed`.

    txl analyze speed
    txl analyze speed --attention 800,3800 --config FILE --set model.num_layers=2 --json

Table 7 of Dai et al. (2019): the time of a token against that of the vanilla
model of Al-Rfou et al. (2019), of the same size and on the same machine, which
processes a whole window for every token that it predicts. Weights and tokens
are random: the time does not depend on them.
"""

import argparse
import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from txl_tf.config.base import MAX_TOKENS
from txl_tf.config.experiment import ExperimentConfig
from txl_tf.config.model import RELATIVE_ENCODINGS, ModelConfig
from txl_tf.errors import UsageError

from ..arguments import (
    MAX_COUNT,
    add_config_argument,
    add_json_argument,
    add_number,
    add_numbers,
    add_override_argument,
    load_experiment,
)
from ..command_line import run_job
from ..memory_needs import reading_needs, require_memory_of
from ..progress import plain_table, say

_ATTENTION = "800,1800,2800,3800"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the analysis."""
    add_config_argument(
        parser,
        default="enwik8_base",
        help="experiment whose model is measured (default: enwik8_base, 12 layers of 512)",
    )
    meaning = "attention lengths: tokens of the window, and of the memory"
    settings = {"dest": "attention_lengths", "default": _ATTENTION}
    add_numbers(parser, "--attention", 1, MAX_TOKENS, meaning, unit="TOKENS", **settings)
    add_number(
        parser,
        "--segment-length",
        1,
        MAX_TOKENS,
        "tokens that are read at a time with a memory, besides 1",
        default=128,
        metavar="TOKENS",
    )
    add_number(
        parser, "--repeats", 1, MAX_COUNT, "windows that are timed; medians are reported", default=5
    )
    add_json_argument(parser)
    add_override_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    arguments.experiment = load_experiment(arguments.config, arguments.overrides)
    model = arguments.experiment.model
    if not model.has_relative_positions:
        raise UsageError(
            "Only a model with relative positions carries a memory that can be compared.",
            where=f"--config {arguments.config}",
            remedy=f"Its model.position_encoding must be one of {', '.join(RELATIVE_ENCODINGS)}.",
        )
    longest, segment_length = max(arguments.attention_lengths), arguments.segment_length
    needs = [
        *reading_needs(model, 1, longest, 0, f"--attention {longest}"),
        *reading_needs(model, 1, segment_length, longest, f"--segment-length {segment_length}")[1:],
    ]
    require_memory_of(needs, "The measurement")


def run(arguments: argparse.Namespace) -> None:
    """Measures and prints a table."""
    measurement = SpeedMeasurement(
        arguments.experiment, arguments.segment_length, arguments.repeats
    )
    measured = {}
    for length in arguments.attention_lengths:
        say(f"measuring an attention of {length:,} tokens")
        measured[length] = measurement.measure(length)
        say(best_slowdown(length, measured[length]))
    report = speed_report(arguments.experiment, arguments.config, measured)
    print(json.dumps(report) if arguments.json else describe(report))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenSpeed:
    """Wall times of calls that score equally many tokens each."""

    tokens_per_call: int
    """Tokens that a call scores."""
    call_seconds: tuple[float, ...]
    """Wall time of every call."""

    @property
    def seconds_per_token(self) -> float:
        """Seconds per token of the median call."""
        return statistics.median(self.call_seconds) / self.tokens_per_call

    @property
    def fastest_seconds_per_token(self) -> float:
        """Seconds per token of the fastest call."""
        return min(self.call_seconds) / self.tokens_per_call

    @property
    def slowest_seconds_per_token(self) -> float:
        """Seconds per token of the slowest call."""
        return max(self.call_seconds) / self.tokens_per_call

    def to_dict(self) -> dict[str, Any]:
        """Returns all figures as plain JSON types."""
        return {
            "tokens_per_call": self.tokens_per_call,
            "num_calls": len(self.call_seconds),
            "seconds_per_token": self.seconds_per_token,
            "fastest_seconds_per_token": self.fastest_seconds_per_token,
            "slowest_seconds_per_token": self.slowest_seconds_per_token,
        }


def measure_in_turn(
    calls: Mapping[Any, Callable[[], Any]],
    tokens_per_call: Mapping[Any, int],
    calls_per_turn: Mapping[Any, int],
    num_turns: int,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Any, TokenSpeed]:
    """Times several functions in alternating rounds.

    They take turns: whatever else the machine does in the meantime slows all
    of them down. Each is called once before, to compile it.

    Args:
        calls: functions that return when all is computed.
        tokens_per_call: int for each of them. Tokens that a call scores.
        calls_per_turn: int for each of them.
        num_turns: int. Turns that each of them has.
        clock: function that returns seconds.
    """
    for call in calls.values():
        call()
    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(num_turns):
        for name, call in calls.items():
            for _ in range(calls_per_turn[name]):
                begin = clock()
                call()
                seconds[name].append(clock() - begin)
    return {
        name: TokenSpeed(tokens_per_call=tokens_per_call[name], call_seconds=tuple(seconds[name]))
        for name in calls
    }


# So that a median over as few turns as there are windows is one of more segments.
_SEGMENTS_PER_TURN = 3


class Reading(NamedTuple):
    """Timed method of scoring: kind of memory and tokens per call."""

    memory: str
    """`"none"` (a window for each token), `"states"` or `"projections"` (keys and values)."""
    tokens_per_call: int


VANILLA = Reading("none", 1)
"""The model of Al-Rfou et al. (2019)."""


class SpeedMeasurement:
    """Timing of a model with memory and of a sliding-window model, at any attention length.

    The model with a memory reads segments and remembers as many tokens as the
    other's window has, so that it attends to at least as many. Its memory is
    full from the beginning, of zeros: what is in it does not change the work.

    Args:
        experiment: `ExperimentConfig`. Its model, dtype policy and compilation
            are used.
        segment_length: int. Tokens read at a time, besides one at a time.
        num_repeats: int. Windows that are timed.
    """

    def __init__(self, experiment: ExperimentConfig, segment_length: int, num_repeats: int) -> None:
        from txl_tf.models.transformer_xl import TransformerXL

        training = experiment.training
        self._config = cast(ModelConfig, experiment.model)
        self._dtype_policy = training.dtype_policy
        # Where XLA is not ruled out, the plan of the device decides, as in an evaluation.
        self._jit_compile = None if training.may_compile else False
        self._segment_lengths = sorted({segment_length, 1}, reverse=True)
        self._num_repeats = num_repeats
        self._model = TransformerXL(self._config, dtype=self._dtype_policy)
        self._random = np.random.default_rng(0)

    def measure(self, attention_length: int) -> dict[Reading, TokenSpeed]:
        """Times one token with every method, with as many tokens of window and memory."""
        calls = {VANILLA: self._window_call(attention_length)}
        for length in self._segment_lengths:
            for memory in ("projections", "states"):
                calls[Reading(memory, length)] = self._segment_call(
                    memory, length, attention_length
                )
        tokens_per_call = {reading: reading.tokens_per_call for reading in calls}
        calls_per_turn = {**dict.fromkeys(calls, _SEGMENTS_PER_TURN), VANILLA: 1}
        return measure_in_turn(calls, tokens_per_call, calls_per_turn, self._num_repeats)

    def _window_call(self, attention_length: int) -> Callable[[], np.ndarray]:
        from txl_tf.evaluation.windows import WindowScorer, without_memory
        from txl_tf.models.transformer_xl import TransformerXL

        model = TransformerXL(
            without_memory(self._config, attention_length), dtype=self._dtype_policy
        )
        scorer = WindowScorer(model, self._plan(keeps_states=True).compile_read)
        return lambda: scorer(self._tokens(1, attention_length), self._tokens(1))

    def _plan(self, **choice: Any) -> Any:
        from txl_tf.inference.execution_plan import ExecutionPlan, device_of

        return ExecutionPlan.choose(
            self._config,
            device=device_of(self._model),
            num_rows=1,
            jit_compile=self._jit_compile,
            **choice,
        )

    def _segment_call(
        self, memory: str, segment_length: int, attention_length: int
    ) -> Callable[[], np.ndarray]:
        import tensorflow as tf

        from txl_tf.inference.engine import InferenceEngine

        keeps_states, is_single = memory == "states", segment_length == 1
        # Head by head pays for the products of a segment, not of a token.
        plan = self._plan(keeps_states=keeps_states, writes=is_single)
        engine = InferenceEngine(
            self._model,
            attention_length,
            "hidden_states" if keeps_states else "keys_and_values",
            segment_length=segment_length,
            plan=plan,
        )
        compiles = plan.compile_step if is_single and not keeps_states else plan.compile_read
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


PUBLISHED_SLOWDOWNS = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Dai et al. (2019), Table 7, by attention length, with a memory of hidden states."""

_HEAD = ("attention", "memory of", "tokens", "ms/token", "from - to", "slowdown", "published")
_MEMORIES = {"none": "none (vanilla)", "projections": "keys, values", "states": "hidden states"}


def speed_report(
    experiment: ExperimentConfig, config: str, measured: Mapping[int, Mapping[Reading, TokenSpeed]]
) -> dict[str, Any]:
    """Returns the figures with their conditions, as JSON values.

    Args:
        experiment: `ExperimentConfig`.
        config: str. Its name or file.
        measured: what `SpeedMeasurement.measure` returned, by attention length.
    """
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus[:1]]
    return {
        "config": config,
        "model": experiment.model.to_dict(),
        "dtype_policy": experiment.training.dtype_policy,
        "jit_compile": experiment.training.jit_compile,
        "device": details[0].get("device_name", "GPU") if details else f"{os.cpu_count()} CPUs",
        "tensorflow": tf.__version__,
        "rows": [
            _row(length, reading, speed, speeds[VANILLA])
            for length, speeds in measured.items()
            for reading, speed in speeds.items()
        ],
    }


def best_slowdown(attention_length: int, speeds: Mapping[Reading, TokenSpeed]) -> str:
    """Returns the slowdown with hidden states, as published, and the largest one, in words."""
    with_memory = [reading for reading in speeds if reading != VANILLA]
    states = [reading for reading in with_memory if reading.memory == "states"]
    # The method of the paper, and the fastest; they may be one.
    chosen = [_fastest(states, speeds), _fastest(with_memory, speeds)]
    vanilla = speeds[VANILLA].seconds_per_token
    parts = [
        f"{vanilla / speeds[reading].seconds_per_token:,.1f} times as long as a memory of "
        f"{_MEMORIES[reading.memory]}, {reading.tokens_per_call} tokens at a time"
        for reading in dict.fromkeys(chosen)
    ]
    return f"attention {attention_length:,}: the vanilla model takes {'; '.join(parts)}"


def _fastest(readings: list[Reading], speeds: Mapping[Reading, TokenSpeed]) -> Reading:
    return min(readings, key=lambda reading: speeds[reading].seconds_per_token)


def _row(
    attention_length: int, reading: Reading, speed: TokenSpeed, vanilla: TokenSpeed
) -> dict[str, Any]:
    is_published = reading.memory == "states"
    return {
        "attention_length": attention_length,
        "memory": reading.memory,
        **speed.to_dict(),
        "slowdown_of_vanilla": vanilla.seconds_per_token / speed.seconds_per_token,
        "published_slowdown": PUBLISHED_SLOWDOWNS.get(attention_length) if is_published else None,
    }


def describe(report: dict[str, Any]) -> str:
    """Returns the figures of `speed_report` as a table."""
    model = report["model"]
    lines = [
        f"{report['config']}: {model['num_layers']} layers, hidden {model['hidden_dim']}, "
        f"{model['num_heads']} heads of {model['head_dim']}, inner {model['intermediate_dim']}",
        f"1 row, {report['dtype_policy']}, "
        f"{'XLA where it is faster' if report['jit_compile'] else 'without XLA'}, "
        f"{report['device']}, TensorFlow {report['tensorflow']}",
        plain_table([_HEAD, *map(_cells, report["rows"])], right=(0, 2, 3, 4, 5, 6)),
        "slowdown: how many times longer the vanilla model takes; tokens: read at a time; "
        "published: Dai et al. (2019), Table 7, with hidden states on one GPU",
    ]
    return "\n".join(lines)


def _cells(row: dict[str, Any]) -> list[str]:
    has_memory = row["memory"] != "none"
    attention_length = "" if has_memory else f"{row['attention_length']:,}"
    slowdown = f"{row['slowdown_of_vanilla']:,.1f}" if has_memory else ""
    published = "" if row["published_slowdown"] is None else f"{row['published_slowdown']:,}"
    span = " - ".join(
        _milliseconds(row[f"{name}_seconds_per_token"]) for name in ("fastest", "slowest")
    )
    memory, tokens = _MEMORIES[row["memory"]], str(row["tokens_per_call"])
    median = _milliseconds(row["seconds_per_token"])
    return [attention_length, memory, tokens, median, span, slowdown, published]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3g}" if seconds < 1.0 else f"{1000 * seconds:,.0f}"


if __name__ == "__main__":
    raise SystemExit(run_job("analyze", ["speed", *sys.argv[1:]]))
