"""`txl analyze attention`: measures attention by distance and draws it.

    txl analyze attention --workdir DIR --data DIR --out DIR
    txl analyze attention --workdir DIR --data DIR --out DIR --memory-length 640 --layer 8 --head 8
    txl analyze attention --workdir DIR --data DIR --out DIR --whole-split

Appendix D of Dai et al. (2019): the mean attention of every head by relative
position (Figure 5), what one head attends to, query by query (Figure 6), and
the terms (a), (b) and (d) of the score by themselves (Figure 7). It also
measures how much of the attention to memory the fifth of its tokens gets that
Figure 6 marks. `--whole-split` averages over every token with a full memory
before it, as the paper does. Layers and heads are counted from 1.
`attention.npz` has all the numbers that are drawn.

Shape letters: T segment length, M memory length, K = M + T, L layers, N heads.
"""

import argparse
import dataclasses
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from txl_tf.config.base import MAX_ROWS, MAX_TOKENS
from txl_tf.config.model import ModelConfig
from txl_tf.errors import UsageError
from txl_tf.imports import require_extra
from txl_tf.model_folder import ModelFolder, build_model, open_model
from txl_tf.storage.staging import StagingFolder, require_absent

from ..arguments import (
    MAX_COUNT,
    add_json_argument,
    add_model_argument,
    add_number,
    add_step_argument,
)
from ..memory_needs import reading_needs, require_memory_of
from ..progress import plain_table, show_progress
from ..workdir import open_dataset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from txl_tf.data.prepared_dataset import PreparedDataset
    from txl_tf.evaluation.attention import AttentionProfile, AttentionProfiler

REPORT_FILE = "attention.json"

_DEFAULT_SEGMENTS = 100
_COLORS = "Blues"  # darker is higher
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
    meaning = "average over all tokens of the split that have a full memory before them"
    queries.add_argument("--whole-split", action="store_true", help=meaning)
    limit = f"(default: {_DEFAULT_SEGMENTS}, or as many as there are)"
    meaning = f"segments per row to average over, after those that fill the memory {limit}"
    add_number(queries, "--segments", 1, MAX_COUNT, meaning)
    add_number(parser, "--rows", 1, MAX_ROWS, "rows read side by side", default=4)
    numbers = {
        "--memory-length": (MAX_TOKENS, "tokens remembered (default: the run's evaluation's)"),
        "--segment-length": (MAX_TOKENS, "tokens of a segment (default: the run's evaluation's)"),
        "--layer": (MAX_COUNT, "layer of the head to show (default: the farthest's)"),
        "--head": (MAX_COUNT, "head to show (default: the layer's farthest)"),
    }
    for option, (most, meaning) in numbers.items():
        add_number(parser, option, 1, most, meaning)
    add_json_argument(parser)


@dataclasses.dataclass(frozen=True)
class AttentionJob:
    """Checked arguments of the analysis, and the model that it measures."""

    arguments: argparse.Namespace
    source: ModelFolder

    @property
    def lengths(self) -> dict[str, int]:
        """Segment and memory lengths: as given, or as in the run's evaluation."""
        experiment = self.source.experiment
        parts = (self.arguments, experiment.evaluation, experiment.model)
        return {
            name: next(value for part in parts if (value := getattr(part, name)) is not None)
            for name in ("segment_length", "memory_length")
        }


def check_arguments(arguments: argparse.Namespace) -> AttentionJob:
    """Checks the arguments before TensorFlow is imported."""
    if arguments.head is not None and arguments.layer is None:
        raise UsageError("A head needs its layer.", where="--head", remedy="Give --layer too.")
    require_extra("plots", "matplotlib", purpose="Drawing the figures")
    job = AttentionJob(arguments, open_model(arguments.workdir, arguments.step))
    model = job.source.experiment.model
    if not isinstance(model, ModelConfig):
        raise UsageError("The model of the run has no attention.", where=arguments.workdir)
    for name, count in (("layer", model.num_layers), ("head", model.num_heads)):
        value = getattr(arguments, name)
        if value is not None and value > count:
            raise UsageError(f"The {name} must be at most {count}.", where=f"--{name} {value}")
    where = f"--rows {arguments.rows}, --memory-length, --segment-length"
    needs = reading_needs(model, arguments.rows, where=where, **job.lengths)
    require_memory_of(needs, "The analysis")
    require_absent(arguments.out)
    return job


def run(job: AttentionJob) -> None:
    """Measures and draws attention, and prints the figures."""
    arguments, source = job.arguments, job.source
    dataset = open_dataset(arguments.data, source.experiment, source.description, arguments.split)
    step, profiler = _create_profiler(job)
    if arguments.whole_split:
        shown_token_ids = _profile_split(profiler, arguments, dataset)
    else:
        rows = _read_rows(arguments, dataset, profiler.model.config)
        for part in show_progress(rows, len(rows)):
            profiler.add(part)
        shown_token_ids = np.concatenate(rows, axis=1)[0]
    profile = profiler.result()
    layer, head = _head_to_show(arguments, profile)
    shown = profiler.last_rows(layer, head)
    of_step = "" if step is None else f", step {step}"
    images = draw_figures(profile, shown, (layer, head), f"{arguments.split}{of_step}")
    about = {"workdir": arguments.workdir, "split": arguments.split, "step": step}
    report = attention_report(about, profiler.model.config, profile, (layer, head), arguments.rows)
    arrays = {
        **profile.to_arrays(),
        "shown_rows": shown,
        "shown_token_ids": shown_token_ids[-shown.shape[1] :],
    }
    _write(arguments.out, report, arrays, images)
    print(json.dumps(report) if arguments.json else describe(report))


def _create_profiler(job: AttentionJob) -> "tuple[int | None, AttentionProfiler]":
    from txl_tf.evaluation.attention import AttentionProfiler, profiled_config

    experiment = job.source.experiment
    model, evaluation = cast(ModelConfig, experiment.model), experiment.evaluation
    if evaluation.clamp_length is not None:
        model = model.replace(clamp_length=evaluation.clamp_length)
    try:
        config = profiled_config(model, **job.lengths)
    except ValueError as error:
        raise UsageError(f"{error}", where=f"--workdir {job.arguments.workdir}") from error
    step, weights = job.source.read_weights()
    profiler = AttentionProfiler(
        build_model(config, weights), job.arguments.rows, experiment.training.jit_compile
    )
    return step, profiler


def _read_rows(
    arguments: argparse.Namespace, dataset: "PreparedDataset", config: ModelConfig
) -> list[np.ndarray]:
    """Reads consecutive whole segments of all rows."""
    split, num_rows, segment_length = arguments.split, arguments.rows, config.segment_length
    num_tokens = dataset.num_tokens(split)
    num_filling = math.ceil(config.memory_length / segment_length)
    row_tokens = num_tokens // num_rows
    num_segments = arguments.segments
    if num_segments is None:
        num_segments = min(_DEFAULT_SEGMENTS, max(1, row_tokens // segment_length - num_filling))
    needed_tokens = (num_filling + num_segments) * segment_length
    if needed_tokens > row_tokens:
        raise UsageError(
            f"A row has {row_tokens:,} tokens; {needed_tokens:,} are needed to fill the memory "
            f"and average over {num_segments} segments.",
            where=f"--split {split}, {num_tokens:,} tokens in {num_rows} rows",
            remedy="Take fewer --segments or --rows, or a shorter --memory-length.",
        )
    starts = range(0, num_rows * row_tokens, row_tokens)
    rows = [dataset.read_tokens(split, start, start + needed_tokens) for start in starts]
    return np.split(np.stack(rows).astype("int32"), num_filling + num_segments, axis=1)


def _profile_split(
    profiler: "AttentionProfiler", arguments: argparse.Namespace, dataset: "PreparedDataset"
) -> np.ndarray:
    """Profiles every token with `M` tokens before it and a target after it, once.

    Returns the tokens up to the end of the segment that `last_rows` shows.
    """
    from txl_tf.evaluation.text_rows import EvaluationRows

    from ..evaluation import split_text

    config, split, shown_end = profiler.model.config, arguments.split, 0
    text, memory_length = split_text(dataset, split), config.memory_length
    if text.num_tokens - 1 >= max(arguments.rows, 2):
        rows = EvaluationRows(text.num_tokens, arguments.rows, config.segment_length, memory_length)
        for batch in show_progress(rows.batches(text), rows.num_steps):
            is_counted = batch.is_scored & (batch.places > memory_length)
            profiler.add(batch.token_ids, is_counted)
            if np.all(is_counted[0]):
                shown_end = int(batch.places[0, -1])
    if not shown_end:
        raise UsageError(
            f"The first row has no whole segment of {config.segment_length} tokens with "
            f"{memory_length:,} before each.",
            where=f"--split {split}, {text.num_tokens:,} tokens in {arguments.rows} rows",
            remedy="Take fewer --rows, or a shorter --memory-length or --segment-length.",
        )
    first = shown_end - config.segment_length - memory_length
    return dataset.read_tokens(split, max(first, 0), shown_end).astype("int32")


def _head_to_show(arguments: argparse.Namespace, profile: "AttentionProfile") -> tuple[int, int]:
    """Returns the layer and head to show, counted from 0."""
    if arguments.layer is None:
        return profile.farthest_head
    layer = arguments.layer - 1
    if arguments.head is None:
        return layer, int(np.argmax(profile.mean_distance[layer]))
    return layer, arguments.head - 1


def _write(
    folder: str, report: dict[str, Any], arrays: dict[str, Any], images: Mapping[str, bytes]
) -> None:
    with StagingFolder(folder, last_file=REPORT_FILE) as staging:
        path = Path(staging.path)
        np.savez_compressed(path / "attention.npz", **arrays)
        for name, content in images.items():
            (path / f"{name}.png").write_bytes(content)
        (path / REPORT_FILE).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        staging.publish()


def attention_report(
    about: dict[str, Any],
    config: ModelConfig,
    profile: "AttentionProfile",
    shown_head: tuple[int, int],
    num_rows: int,
) -> dict[str, Any]:
    """Returns the figures of an analysis, with run, split and step in `about`, as JSON values."""
    layer, head = shown_head
    return {
        **about,
        "segment_length": config.segment_length,
        "memory_length": config.memory_length,
        "clamp_length": config.clamp_length,
        "num_rows": num_rows,
        **profile.to_dict(),
        "shown_head": {"layer": layer + 1, "head": head + 1},
    }


def describe(report: dict[str, Any]) -> str:
    """Returns the figures of every layer of an `attention_report` as lines of text."""
    clamp = "none" if report["clamp_length"] is None else report["clamp_length"]
    head = ["layer", "mean distance", "nearest head", "farthest head", "entropy, nats"]
    rows = [[*head, "to memory", "of it to its highest fifth"]]
    for layer, distances in enumerate(report["mean_distance"]):
        ends = [int(np.argmin(distances)), int(np.argmax(distances))]
        heads = [f"{head + 1}: {distances[head]:.2f}" for head in ends]
        mean = f"{report['layer_mean_distance'][layer]:.2f}"
        entropy = f"{np.mean(report['entropy_nats'][layer]):.3f}"
        shares = [
            f"{100 * np.mean(report[name][layer]):.1f} %"
            for name in ("memory_attention", "highest_share")
        ]
        rows.append([str(layer + 1), mean, *heads, entropy, *shares])
    farthest = report["farthest_head"]
    of_step = "" if report["step"] is None else f", step {report['step']}"
    return (
        f"{report['split']}{of_step}: {report['num_queries']:,} queries, each of "
        f"which sees itself and the {report['memory_length']:,} tokens before it; "
        f"segment {report['segment_length']}, clamp {clamp}, {report['num_rows']} rows\n"
        f"{plain_table(rows, right=range(7))}\n"
        f"farthest: layer {farthest['layer']}, head {farthest['head']}, "
        f"{farthest['mean_distance']:.2f} tokens back on average"
    )


def new_figure(height_inches: float) -> "Figure":
    """Returns an empty figure that needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(9.0, height_inches), dpi=120, layout="constrained")


def png_bytes(figure: "Figure") -> bytes:
    """Draws a figure as a PNG file."""
    buffer = io.BytesIO()
    # Without Matplotlib's version, equal numbers give equal bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def draw_figures(
    profile: "AttentionProfile", shown_rows: np.ndarray, shown_head: tuple[int, int], source: str
) -> dict[str, bytes]:
    """Draws `profile`, `head` and, where the model has them, `terms`, as PNG files by name.

    `shown_rows` is float `(T, K)` from `AttentionProfiler.last_rows`, of the layer and head
    `shown_head`, counted from 0. `source` (split and step) is part of every title.
    """
    from txl_tf.evaluation.attention import TERMS

    layer, head = shown_head
    memory_length = shown_rows.shape[1] - shown_rows.shape[0]
    title = f"layer {layer + 1}, head {head + 1}: {source}"
    figures = {
        "profile": heads_figure({f"mean attention: {source}": profile.attention}),
        "head": head_figure(shown_rows, memory_length, title),
    }
    if profile.terms:
        terms = {f"term ({name}): {TERMS[name]}": array for name, array in profile.terms.items()}
        figures["terms"] = heads_figure(terms, f"mean attention by one term: {source}")
    return {name: png_bytes(figure) for name, figure in figures.items()}


def heads_figure(arrays: Mapping[str, np.ndarray], title: str | None = None) -> "Figure":
    """Draws mean attention of all heads by relative position: Figures 5 and 7 of Dai et al. (2019).

    `arrays` maps the title of a panel to its float array `(L, N, K)`.
    """
    num_heads = [array.shape[0] * array.shape[1] for array in arrays.values()]
    figure = new_figure(float(np.clip(0.12 * np.array(num_heads), 1.5, 9.0).sum()) + 1.0)
    panels = figure.subplots(len(arrays), 1, sharex=True, squeeze=False)[:, 0]
    # One scale for all panels, so that a flat term looks flat.
    highest = max(float(array.max()) for array in arrays.values())
    for axes, (name, array) in zip(panels, arrays.items(), strict=True):
        _draw_heads(figure, axes, array, highest)
        axes.set_title(name)
    panels[-1].set_xlabel("position relative to the query")
    if title is not None:
        figure.suptitle(title)
    return figure


def head_figure(rows: np.ndarray, memory_length: int, title: str) -> "Figure":
    """Draws the attention of one head, query by query: Figure 6 of Dai et al. (2019).

    `rows` is float `(T, K)` from `AttentionProfiler.last_rows`. The fifth of the visible memory
    tokens with the highest attention is red.
    """
    from matplotlib.colors import ListedColormap, LogNorm

    from txl_tf.evaluation.attention import HIGHEST_SHARE

    segment_length = rows.shape[0]
    figure = new_figure(min(8.0, 1.5 + 0.1 * segment_length))
    axes = figure.subplots()
    extent = (-memory_length - 0.5, segment_length - 0.5, segment_length - 0.5, -0.5)
    look: dict[str, Any] = {"aspect": "auto", "interpolation": "nearest", "extent": extent}
    highest = float(rows.max())
    norm = LogNorm(min(_FLOOR / (memory_length + 1), highest / 10), highest, clip=True)
    image = axes.imshow(np.ma.masked_equal(rows, 0.0), cmap=_COLORS, norm=norm, **look)
    highlighted = np.zeros(rows.shape, bool)
    highlighted[:, :memory_length] = highest_share(rows[:, :memory_length], HIGHEST_SHARE)
    axes.imshow(
        np.ma.masked_equal(highlighted.astype("float32"), 0.0),
        cmap=ListedColormap(["red"]),
        alpha=0.7,
        **look,
    )
    figure.colorbar(image, ax=axes, label="probability")
    axes.set_title(title)
    axes.set_xlabel("context token, counted from the first token of the segment")
    axes.set_ylabel("target token")
    return figure


def highest_share(rows: np.ndarray, share: float) -> np.ndarray:
    """Marks the `share` of the tokens that each query sees, not 0, with the highest attention."""
    highest = np.zeros(rows.shape, bool)
    for query, row in enumerate(rows):
        count = int(np.ceil(share * np.count_nonzero(row)))
        highest[query, np.argsort(-row, kind="stable")[:count]] = True
    return highest


def _draw_heads(figure: "Figure", axes: "Axes", attention: np.ndarray, highest: float) -> None:
    """Draws one row per head, first layer on top, query at the right."""
    from matplotlib.colors import LogNorm

    num_layers, num_heads, num_distances = attention.shape
    rows = attention.reshape(num_layers * num_heads, num_distances)[:, ::-1]
    norm = LogNorm(min(_FLOOR / num_distances, highest / 10), highest, clip=True)
    image = axes.imshow(
        rows,
        cmap=_COLORS,
        norm=norm,
        aspect="auto",
        interpolation="nearest",
        extent=(-num_distances + 0.5, 0.5, len(rows) - 0.5, -0.5),
    )
    figure.colorbar(image, ax=axes, label="mean probability")
    for layer in range(1, num_layers):
        axes.axhline(layer * num_heads - 0.5, color="black", linewidth=0.5)
    middles = [layer * num_heads + (num_heads - 1) / 2 for layer in range(num_layers)]
    axes.set_yticks(middles, [str(layer + 1) for layer in range(num_layers)])
    axes.set_ylabel("layer")
