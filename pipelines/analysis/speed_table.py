"""What `txl analyze speed` reports."""

import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from pipelines.analysis.speed_measurement import VANILLA, Reading
from txl_tf.config.experiment_config import ExperimentConfig
from txl_tf.evaluation.token_speed import TokenSpeed

PUBLISHED_SLOWDOWNS = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""Dai et al. (2019), Table 7, by attention length."""

_MEMORIES = {
    "none": "none (vanilla)",
    "projections": "keys, values",
    "states": "hidden states",
}


def speed_report(
    experiment: ExperimentConfig, config: str, measured: Mapping[int, Mapping[Reading, TokenSpeed]]
) -> dict[str, Any]:
    """The figures with their conditions.

    Args:
        experiment: `ExperimentConfig`.
        config: str. Where it comes from.
        measured: what `SpeedMeasurement.measure` returned, by attention length.

    Returns:
        Dict of JSON values.
    """
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
    """The largest slowdown at an attention length, in words.

    Args:
        attention_length: int.
        speeds: what `SpeedMeasurement.measure` returned.

    Returns:
        A line of text.
    """
    with_memory = [reading for reading in speeds if reading != VANILLA]
    fastest = min(with_memory, key=lambda reading: speeds[reading].seconds_per_token)
    slowdown = speeds[VANILLA].seconds_per_token / speeds[fastest].seconds_per_token
    return (
        f"attention {attention_length:,}: the vanilla model takes {slowdown:,.1f} times as long "
        f"as a memory of {_MEMORIES[fastest.memory]}, {fastest.tokens_per_call} tokens at a time"
    )


def _row(
    attention_length: int, reading: Reading, speed: TokenSpeed, vanilla: TokenSpeed
) -> dict[str, Any]:
    has_memory = reading != VANILLA
    return {
        "attention_length": attention_length,
        "memory": reading.memory,
        **speed.to_dict(),
        "slowdown_of_vanilla": vanilla.seconds_per_token / speed.seconds_per_token,
        "published_slowdown": PUBLISHED_SLOWDOWNS.get(attention_length) if has_memory else None,
    }


def describe(report: dict[str, Any]) -> str:
    """The figures as a table.

    Args:
        report: dict from `speed_report`.

    Returns:
        Lines of text.
    """
    model = report["model"]
    lines = [
        f"{report['config']}: {model['num_layers']} layers, hidden {model['hidden_dim']}, "
        f"{model['num_heads']} heads of {model['head_dim']}, inner {model['intermediate_dim']}",
        f"1 row, {report['dtype_policy']}, "
        f"{'XLA where it is faster' if report['jit_compile'] else 'without XLA'}, "
        f"{report['device']}, TensorFlow {report['tensorflow']}",
        "attention  memory of       tokens  ms/token      from - to       slowdown  published",
    ]
    lines += [_line(row) for row in report["rows"]]
    lines.append(
        "slowdown: how many times longer the vanilla model takes; tokens: read at a time; "
        "published: Dai et al. (2019), Table 7, on one GPU"
    )
    return "\n".join(lines)


def _line(row: dict[str, Any]) -> str:
    has_memory = row["memory"] != "none"
    attention_length = "" if has_memory else f"{row['attention_length']:,}"
    slowdown = f"{row['slowdown_of_vanilla']:,.1f}" if has_memory else ""
    published = "" if row["published_slowdown"] is None else f"{row['published_slowdown']:,}"
    span = " - ".join(
        _milliseconds(row[f"{name}_seconds_per_token"]) for name in ("fastest", "slowest")
    )
    return (
        f"{attention_length:>9}  {_MEMORIES[row['memory']]:14}  {row['tokens_per_call']:6d}  "
        f"{_milliseconds(row['seconds_per_token']):>8}  {span:>15}  {slowdown:>11}  {published:>9}"
    ).rstrip()


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.3g}" if seconds < 1.0 else f"{1000 * seconds:,.0f}"
