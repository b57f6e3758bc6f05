"""Draws how much context each run of a group makes use of."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

GAINS_FILE = "relative_gains.png"
PERPLEXITY_FILE = "perplexity.png"

_PANEL_INCHES = (5.0, 4.0)
_MARKERS = "osD^vP*X"


def draw_charts(report: dict[str, Any], folder: str) -> None:
    """Draws Figures 3 and 4 of the paper for a group of runs.

    Args:
        report: dict, see `context_report`.
        folder: str. Where the files go.
    """
    _save(_gains(report), os.path.join(folder, GAINS_FILE))
    _save(_perplexities(report), os.path.join(folder, PERPLEXITY_FILE))


def _gains(report: dict[str, Any]) -> Figure:
    """Gains of every step of context in perplexity, a panel for each share of hard tokens."""
    groups = report["relative_effective_context_length"]
    figure, panels = _panels(len(groups))
    for axes, group in zip(panels, groups, strict=True):
        lines = {
            name: [(gain["long"], gain["perplexity_gain"]) for gain in values["gains"]]
            for name, values in group["runs"].items()
        }
        _plot(axes, lines)
        axes.set_title(f"r = {group['ratio']}")
        axes.set_xlabel(f"context length c', from c = c' - {report['step_size']} (tokens)")
        axes.axhline(0.0, color="0.8", linewidth=0.8, zorder=0)
    panels[0].set_ylabel("exp f(c, c) - exp f(c, c')")
    return figure


def _perplexities(report: dict[str, Any]) -> Figure:
    figure, (axes,) = _panels(1)
    lines = {
        run["name"]: zip(report["contexts"], run["perplexities"], strict=True)
        for run in report["runs"]
    }
    _plot(axes, lines)
    axes.set_xlabel("context length (tokens)")
    axes.set_ylabel("perplexity")
    return figure


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _plot(axes: Axes, lines: Mapping[str, Iterable[tuple[int, float]]]) -> None:
    for index, (name, points) in enumerate(lines.items()):
        lengths, values = zip(*points, strict=True)
        marker = _MARKERS[index % len(_MARKERS)]
        axes.plot(lengths, values, marker=marker, markersize=4, linewidth=1.2, label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def _save(figure: Figure, path: str) -> None:
    # Without the name and version of the program: the same figures give the same file.
    figure.savefig(path, dpi=150, metadata={"Software": None})
