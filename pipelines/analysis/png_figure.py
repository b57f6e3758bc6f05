"""Figures as PNG files."""

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS_PER_INCH = 120


def new_figure(width_inches: float, height_inches: float) -> "Figure":
    """An empty figure that needs no display.

    Args:
        width_inches: float.
        height_inches: float.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), dpi=_DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def png_bytes(figure: "Figure") -> bytes:
    """Draws a figure.

    Args:
        figure: `matplotlib.figure.Figure`.

    Returns:
        The contents of a PNG file.
    """
    buffer = io.BytesIO()
    # Without the version of matplotlib the same numbers give the same bytes.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
