"""`txl analyze attention`: measures attention by distance and draws it.

    txl analyze attention --workdir DIR --data DIR --out DIR
    txl analyze attention --workdir DIR --data DIR --out DIR --memory-length 640
    txl analyze attention --workdir DIR --data DIR --out DIR --whole-split

Appendix D of Dai et al. (2019): the mean attention of every head by relative position (Figure 5),
and what the head that looks farthest attends to, query by query (Figure 6). `--whole-split`
averages over every token with a full memory before it, as the paper does. Layers and heads are
counted from 1. `attention.npz` has all the numbers that are drawn.

Shape letters: T segment length, M memory length, K = M + T, L layers, N heads.
"""

import argparse
import dataclasses
import io
import itertools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from txl_tf.config.limits import MAX_ROWS, MAX_TOKENS
from txl_tf.config.model import ModelConfig
from txl_tf.errors import UsageError
from txl_tf.imports import require_extra
from txl_tf.model_folder import ModelFolder, build_model, open_dataset, open_model
from txl_tf.storage.staging import StagingFolder, require_absent

from ..run.memory_needs import require_reading_memory
from ..shell.arguments import (
    MAX_COUNT,
    add_json_argument,
    add_model_argument,
    add_number,
    add_step_argument,
)
from ..shell.progress import plain_table, show_progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.evaluation.attention_profile import AttentionProfile, AttentionProfiler

REPORT_FILE = "attention.json"

# Below this share of a uniform distribution the color no longer changes.
_FLOOR = 1e-2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the analysis."""
    add_model_argument(parser)
    parser.add_argument("--data", metavar="DIR", required=True, help="prepared data set")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder to make")
    parser.add_argument("--split", default="valid", help="split to read (default: valid)")
    add_step_argument(parser)
    queries = parser.add_mutually_exclusive_group()
    queries.add_argument(
        "--whole-split",
        action="store_true",
        help="average over all tokens of the split that have a full memory before them",
    )
    add_number(
        queries,
        "--segments",
        1,
        MAX_COUNT,
        "most segments to read in each row, after those that fill the memory",
        default=100,
    )
    add_number(parser, "--rows", 1, MAX_ROWS, "rows read side by side", default=4)
    add_number(
        parser,
        "--memory-length",
        1,
        MAX_TOKENS,
        "tokens of memory (default: as in the run's evaluations)",
    )
    add_number(
        parser,
        "--segment-length",
        1,
        MAX_TOKENS,
        "tokens of a segment (default: as in the run's evaluations)",
    )
    add_json_argument(parser)


@dataclasses.dataclass(frozen=True)
class AttentionJob:
    """Checked arguments of the analysis, and the model that it measures."""

    arguments: argparse.Namespace
    source: ModelFolder

    @property
    def lengths(self) -> dict[str, int]:
        """Segment and memory lengths: as given, or as in the run's evaluation."""
        description = self.source.description
        parts = (self.arguments, description.evaluation, description.model)
        return {
            name: next(value for part in parts if (value := getattr(part, name)) is not None)
            for name in ("segment_length", "memory_length")
        }


def check_arguments(arguments: argparse.Namespace) -> AttentionJob:
    """Checks the arguments before TensorFlow is imported."""
    require_extra("plots", "matplotlib", purpose="Drawing the figures")
    job = AttentionJob(arguments, open_model(arguments.workdir, arguments.step))
    model = job.source.description.model
    if not isinstance(model, ModelConfig):
        raise UsageError("The model must be a Transformer-XL.", where=arguments.workdir)
    require_reading_memory(
        "The analysis",
        model,
        arguments.rows,
        settings=f"--rows {arguments.rows}, --memory-length, --segment-length",
        **job.lengths,
    )
    require_absent(arguments.out)
    return job


def run(job: AttentionJob) -> None:
    """Measures and draws attention, and prints the figures."""
    arguments, source = job.arguments, job.source
    dataset = open_dataset(arguments.data, source.description, arguments.split)
    step, profiler = _create_profiler(job)
    shown_token_ids = _read_split(profiler, arguments, dataset)
    profile, config = profiler.result(), profiler.model.config
    rows = profiler.last_rows(*profile.farthest_head)
    source_name = arguments.split if step is None else f"{arguments.split}, step {step}"
    images = draw_figures(profile, rows, source_name)
    report = {
        "workdir": arguments.workdir,
        "split": arguments.split,
        "step": step,
        "segment_length": config.segment_length,
        "memory_length": config.memory_length,
        "clamp_length": config.clamp_length,
        "num_rows": arguments.rows,
        **profile.to_dict(),
    }
    arrays: dict[str, Any] = {
        "shown_rows": rows,
        "shown_token_ids": shown_token_ids,
        **profile.to_arrays(),
    }
    with StagingFolder(arguments.out, last_file=REPORT_FILE) as staging:
        path = Path(staging.path)
        np.savez_compressed(path / "attention.npz", **arrays)
        for name, content in images.items():
            (path / f"{name}.png").write_bytes(content)
        (path / REPORT_FILE).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        staging.publish()
    print(json.dumps(report) if arguments.json else format_attention(report, source_name))


def _create_profiler(job: AttentionJob) -> "tuple[int | None, AttentionProfiler]":
    from txl_tf.evaluation.attention_profile import AttentionProfiler, profiled_config

    description = job.source.description
    model, evaluation = cast(ModelConfig, description.model), description.evaluation
    if evaluation.clamp_length is not None:
        model = model.replace(clamp_length=evaluation.clamp_length)
    try:
        config = profiled_config(model, **job.lengths)
    except ValueError as error:
        raise UsageError(f"{error}", where=f"--workdir {job.arguments.workdir}") from error
    step, weights = job.source.read_weights()
    profiler = AttentionProfiler(
        build_model(config, weights), job.arguments.rows, description.jit_compile
    )
    return step, profiler


def _read_split(
    profiler: "AttentionProfiler", arguments: argparse.Namespace, dataset: "PreparedDataset"
) -> np.ndarray:
    """Profiles tokens with `M` tokens before them and a target after them, each once.

    Returns the tokens up to the end of the segment that `last_rows` shows.
    """
    from txl_tf.evaluation.evaluation_text import EvaluationText
    from txl_tf.evaluation.reading_order import EvaluationRows, Stretches

    config, split, shown_end = profiler.model.config, arguments.split, 0
    text, memory_length = EvaluationText.of_split(dataset, split), config.memory_length
    if text.num_tokens - 1 >= max(arguments.rows, 2):
        stretches = Stretches.of_text(text.num_tokens, arguments.rows, config, memory_length)
        rows = EvaluationRows(stretches, arguments.rows, config.segment_length)
        num_filling, num_steps = math.ceil(memory_length / config.segment_length), rows.num_steps
        if not arguments.whole_split:
            num_steps = min(num_steps, num_filling + arguments.segments)
        batches = itertools.islice(rows.batches(text), num_steps)
        for batch in show_progress(batches, num_steps):
            is_counted = batch.is_scored & (batch.places > memory_length)
            profiler.add(batch.token_ids, is_counted)
            if np.all(is_counted[0]):
                shown_end = int(batch.places[0, -1])
    if not shown_end:
        raise UsageError(
            f"The split is too short: its first row needs {config.segment_length} tokens in "
            f"a segment, and {memory_length:,} tokens before each of them.",
            where=f"--split {split}, {text.num_tokens:,} tokens in {arguments.rows} rows",
            remedy="Take fewer --rows, or a shorter --memory-length or --segment-length.",
        )
    first = shown_end - config.segment_length - memory_length
    return dataset.read_tokens(split, first, shown_end).astype("int32")


def format_attention(report: dict[str, Any], source_name: str) -> str:
    """Formats the figures of every layer of a report as lines of text."""
    clamp = "none" if report["clamp_length"] is None else report["clamp_length"]
    head = ["layer", "mean distance", "nearest head", "farthest head", "entropy, nats"]
    rows = [[*head, "to memory"]]
    for layer, distances in enumerate(report["mean_distance"]):
        ends = [int(np.argmin(distances)), int(np.argmax(distances))]
        heads = [f"{head + 1}: {distances[head]:.2f}" for head in ends]
        mean = f"{report['layer_mean_distance'][layer]:.2f}"
        entropy = f"{np.mean(report['entropy_nats'][layer]):.3f}"
        share = f"{100 * np.mean(report['memory_attention'][layer]):.1f} %"
        rows.append([str(layer + 1), mean, *heads, entropy, share])
    farthest = report["farthest_head"]
    return (
        f"{source_name}: {report['num_queries']:,} queries, each of "
        f"which sees itself and the {report['memory_length']:,} tokens before it; "
        f"segment {report['segment_length']}, clamp {clamp}, {report['num_rows']} rows\n"
        f"{plain_table(rows, right=range(6))}\n"
        f"farthest: layer {farthest['layer']}, head {farthest['head']}, "
        f"{farthest['mean_distance']:.2f} tokens back on average"
    )


def draw_figures(
    profile: "AttentionProfile", shown_rows: np.ndarray, source: str
) -> dict[str, bytes]:
    """Draws `profile` and `head` as PNG files by name.

    `shown_rows` is float `(T, K)` from `AttentionProfiler.last_rows`, of the head that looks
    farthest. `source` (split and step) is part of every title.
    """
    layer, head = profile.farthest_head
    memory_length = shown_rows.shape[1] - shown_rows.shape[0]
    title = f"layer {layer + 1}, head {head + 1}: {source}"
    figures = {
        "profile": heads_figure(profile.attention, f"mean attention: {source}"),
        "head": head_figure(shown_rows, memory_length, title),
    }
    images = {name: io.BytesIO() for name in figures}
    for name, figure in figures.items():
        # Without Matplotlib's version, equal numbers give equal bytes.
        figure.savefig(images[name], format="png", metadata={"Software": None})
    return {name: image.getvalue() for name, image in images.items()}


def heads_figure(attention: np.ndarray, title: str) -> "Figure":
    """Draws mean attention of all heads by relative position: Figure 5 of Dai et al. (2019).

    `attention` is float `(L, N, M + 1)`. There is a row for each head, with the first layer on top
    and the query at the right.
    """
    num_layers, num_heads, num_distances = attention.shape
    num_rows = num_layers * num_heads
    figure = _new_figure(float(np.clip(0.12 * num_rows, 1.5, 9.0)) + 1.0)
    axes = figure.subplots()
    look = _color_scale(num_distances, float(attention.max()))
    look["extent"] = (-num_distances + 0.5, 0.5, num_rows - 0.5, -0.5)
    image = axes.imshow(attention.reshape(num_rows, num_distances)[:, ::-1], **look)
    figure.colorbar(image, ax=axes, label="mean probability")
    for layer in range(1, num_layers):
        axes.axhline(layer * num_heads - 0.5, color="black", linewidth=0.5)
    middles = [layer * num_heads + (num_heads - 1) / 2 for layer in range(num_layers)]
    axes.set_yticks(middles, [str(layer + 1) for layer in range(num_layers)])
    axes.set(title=title, xlabel="position relative to the query", ylabel="layer")
    return figure


def head_figure(rows: np.ndarray, memory_length: int, title: str) -> "Figure":
    """Draws the attention of one head, query by query: Figure 6 of Dai et al. (2019).

    `rows` is float `(T, K)` from `AttentionProfiler.last_rows`.
    """
    segment_length = rows.shape[0]
    figure = _new_figure(min(8.0, 1.5 + 0.1 * segment_length))
    axes = figure.subplots()
    look = _color_scale(memory_length + 1, float(rows.max()))
    look["extent"] = (-memory_length - 0.5, segment_length - 0.5, segment_length - 0.5, -0.5)
    image = axes.imshow(np.ma.masked_equal(rows, 0.0), **look)
    figure.colorbar(image, ax=axes, label="probability")
    place = "context token, counted from the first token of the segment"
    axes.set(title=title, xlabel=place, ylabel="target token")
    return figure


def _new_figure(height_inches: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(9.0, height_inches), dpi=120, layout="constrained")


def _color_scale(num_distances: int, highest: float) -> dict[str, Any]:
    """Returns the options of `imshow`: darker is higher, on a logarithmic scale."""
    from matplotlib.colors import LogNorm

    norm = LogNorm(min(_FLOOR / num_distances, highest / 10), highest, clip=True)
    return {"cmap": "Blues", "norm": norm, "aspect": "auto", "interpolation": "nearest"}
