"""Charts of a report as SVG that takes its colors from the page around it."""

import html
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

Line = Sequence[tuple[float, float]]

NUM_SERIES = 8
"""Colors of lines that the page defines, `--series-1` and on; more lines repeat them."""

# Matplotlib knows no variables of CSS. These colors stand for them and occur nowhere else.
_INK, _GRID = "#010203", "#040506"
_SERIES = [f"#0708{number:02x}" for number in range(NUM_SERIES)]
_STYLES = ("-", "--", ":")
_WIDTH_INCHES, _HEIGHT_INCHES = 6.4, 3.4
_NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))
# One marker is seen where a line of a single point is not.
_MAX_MARKED = 24
# A wider axis has enough numbers at the powers of ten.
_FEW_DECADES = 30.0
_PARAMETERS: dict[Any, Any] = {
    # Text stays text, which a reader can select and a program can read.
    "svg.fonttype": "none",
    "text.parse_math": False,
    "svg.hashsalt": "txl report",
    "font.family": "sans-serif",
    "font.size": 10,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "axes.edgecolor": _GRID,
    "grid.color": _GRID,
    "legend.labelcolor": _INK,
}


def line_chart(
    lines: Mapping[str, Line],
    title: str,
    x_label: str = "step",
    *,
    is_logarithmic: bool = False,
) -> str:
    """Draws lines into one chart.

    Args:
        lines: mapping of a name to its points; points that are not finite are
            left out.
        title: str.
        x_label: str. Defaults to `"step"`.
        is_logarithmic: bool. Whether the upward axis is logarithmic. Defaults to
            `False`.

    Returns:
        An `svg` element.
    """
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_PARAMETERS):
        figure = Figure(figsize=(_WIDTH_INCHES, _HEIGHT_INCHES), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.subplots()
        for number, (name, points) in enumerate(lines.items()):
            finite = [(x, y) for x, y in points if math.isfinite(y)]
            marker = "o" if len(finite) <= _MAX_MARKED else ""
            axes.plot(
                [x for x, _ in finite],
                [y for _, y in finite],
                color=_SERIES[number % NUM_SERIES],
                linestyle=_STYLES[number // NUM_SERIES % len(_STYLES)],
                linewidth=1.6,
                marker=marker,
                markersize=3,
                label=_label(name),
            )
        if is_logarithmic:
            axes.set_yscale("log")
            # Powers of ten need TeX, which the page has not.
            axes.yaxis.set_major_formatter("{x:g}")
            lowest, highest = axes.get_ylim()
            if highest / lowest < _FEW_DECADES:
                axes.yaxis.set_minor_formatter("{x:g}")
            else:
                axes.yaxis.set_minor_formatter("")
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xlabel(x_label)
        axes.grid(linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=8, ncols=2 if len(lines) > 6 else 1)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata=_NO_METADATA)
    return _styled(buffer.getvalue(), title)


def _label(name: str) -> str:
    """Returns a name that the font has, and that Matplotlib does not hide for its underscore."""
    shown = name if name.isascii() and name.isprintable() else ascii(name)[1:-1]
    return f" {shown}" if shown.startswith("_") else shown


def _styled(text: str, title: str) -> str:
    """Returns the element alone, with the page's colors, as wide as there is room."""
    element = text[text.index("<svg") :]
    element = element.replace(_INK, "currentColor").replace(_GRID, "var(--grid)")
    for number, color in enumerate(_SERIES):
        element = element.replace(color, f"var(--series-{number + 1})")
    head, rest = element.split(">", 1)
    names = [part for part in head.split() if not part.startswith(("width=", "height="))]
    label = html.escape(title, quote=True)
    return f'{" ".join(names)} role="img" aria-label="{label}">{rest}'
