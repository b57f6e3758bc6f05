"""PNG figures of attention, drawn with Matplotlib.

Shape letters used in this module: T segment length, M memory length, K = M + T key length, L
layers, N heads.
"""

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from txl_tf.evaluation.attention import HIGHEST_SHARE, TERMS, AttentionProfile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_DOTS_PER_INCH = 120


def new_figure(width_inches: float, height_inches: float) -> "Figure":
    """Returns an empty figure that needs no display; imports Matplotlib, an optional package."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png_bytes(figure: "Figure") -> bytes:
    """Draws a figure as a PNG file."""
    buffer = io.BytesIO()
    # Without Matplotlib's version, equal numbers give equal bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


_WIDTH_INCHES = 9.0
_COLORS = "Blues"  # darker is higher
# Below this share of a uniform distribution the color no longer changes.
_FLOOR = 1e-2


def draw_figures(
    profile: AttentionProfile, shown_rows: np.ndarray, shown_head: tuple[int, int], source: str
) -> dict[str, bytes]:
    """Draws `profile`, `head` and, where the model has them, `terms`, as PNG files by name.

    `shown_rows` is float `(T, K)` from `AttentionProfiler.last_rows`, of the layer and head
    `shown_head`, counted from 0. `source` (split and step) is part of every title.
    """
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
    height = sum(map(_panel_inches, arrays.values())) + 1.0
    figure = new_figure(_WIDTH_INCHES, height)
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

    segment_length = rows.shape[0]
    figure = new_figure(_WIDTH_INCHES, min(8.0, 1.5 + 0.1 * segment_length))
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
    """Marks the tokens with the highest attention of each query: bool `(T, K)`.

    `rows` is float `(T, K)`, 0 for tokens that a query cannot see. `share`, in `(0, 1]`, is of the
    tokens that it can see.
    """
    highest = np.zeros(rows.shape, bool)
    for query, row in enumerate(rows):
        count = int(np.ceil(share * np.count_nonzero(row)))
        highest[query, np.argsort(-row, kind="stable")[:count]] = True
    return highest


def _panel_inches(attention: np.ndarray) -> float:
    num_rows = attention.shape[0] * attention.shape[1]
    return float(np.clip(0.12 * num_rows, 1.5, 9.0))


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
