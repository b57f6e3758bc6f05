"""What `txl analyze attention` says: layers and heads counted from 1."""

from typing import Any

import numpy as np

from txl_tf.config.model_config import ModelConfig
from txl_tf.evaluation.attention_profile import AttentionProfile


def attention_report(
    about: dict[str, Any],
    config: ModelConfig,
    profile: AttentionProfile,
    shown_head: tuple[int, int],
    num_rows: int,
) -> dict[str, Any]:
    """The figures of an analysis with their conditions.

    Args:
        about: dict. What was read.
        config: `ModelConfig` of the profiler.
        profile: `AttentionProfile`.
        shown_head: pair of int. Layer and head, from 0.
        num_rows: int. Rows that were read side by side.

    Returns:
        Dict of JSON values.
    """
    figures = profile.to_dict()
    farthest = figures["farthest_head"]
    return {
        **about,
        "segment_length": config.segment_length,
        "memory_length": config.memory_length,
        "clamp_length": config.clamp_length,
        "num_rows": num_rows,
        **figures,
        "farthest_head": {
            **farthest,
            "layer": farthest["layer"] + 1,
            "head": farthest["head"] + 1,
        },
        "shown_head": {"layer": shown_head[0] + 1, "head": shown_head[1] + 1},
    }


def describe(report: dict[str, Any]) -> str:
    """The figures of every layer.

    Args:
        report: dict from `attention_report`.

    Returns:
        Lines of text.
    """
    clamp = "none" if report["clamp_length"] is None else report["clamp_length"]
    lines = [
        f"{report['split']}, step {report['step']}: {report['num_queries']:,} queries, each of "
        f"which sees itself and the {report['memory_length']:,} tokens before it; "
        f"segment {report['segment_length']}, clamp {clamp}, {report['num_rows']} rows",
        "layer  mean distance   nearest head  farthest head  entropy, nats",
    ]
    for layer, distances in enumerate(report["mean_distance"]):
        nearest, farthest = int(np.argmin(distances)), int(np.argmax(distances))
        lines.append(
            f"{layer + 1:5d}  {report['layer_mean_distance'][layer]:13.2f}"
            f"  {_head(nearest, distances)}  {_head(farthest, distances)}"
            f"  {np.mean(report['entropy_nats'][layer]):13.3f}"
        )
    farthest = report["farthest_head"]
    lines.append(
        f"farthest: layer {farthest['layer']}, head {farthest['head']}, "
        f"{farthest['mean_distance']:.2f} tokens back on average"
    )
    return "\n".join(lines)


def _head(head: int, distances: list[float]) -> str:
    return f"{f'{head + 1}: {distances[head]:.2f}':>13}"
