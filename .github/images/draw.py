"""Draws the pictures of txl_tf/HOW_IT_WORKS.md with the functions of the library.

python .github/images/draw.py      (with the extra `plots`)
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot

from txl_tf.functional import relative_shift
from txl_tf.layers.visible_keys import VisibleKeys

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREY = "#4c78a8", "#f58518", "#d9d9d9"
ROW_COLOURS = ("#c6dbef", "#fdd0a2", "#c7e9c0")
T, M = 4, 4


def cells(axes, texts, colours, left=0.0, top=0.0):
    """Draws a table of squares, row 0 at the top."""
    for row, (row_texts, row_colours) in enumerate(zip(texts, colours, strict=True)):
        for column, (text, colour) in enumerate(zip(row_texts, row_colours, strict=True)):
            corner = (left + column, top - row - 1)
            axes.add_patch(pyplot.Rectangle(corner, 1, 1, facecolor=colour, edgecolor="white"))
            axes.text(corner[0] + 0.5, corner[1] + 0.5, text, ha="center", va="center")


def save(figure, name):
    """Writes a picture beside this file."""
    for axes in figure.axes:
        axes.set_aspect("equal")
        axes.autoscale_view()
        axes.axis("off")
    figure.savefig(FOLDER / f"{name}.svg", bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)


def draw_memory():
    """Three segments of one row, and what the middle token of the last one can reach."""
    figure, axes = pyplot.subplots(figsize=(9, 3.4))
    num_layers, num_tokens = 3, 3 * T
    for layer in range(num_layers + 1):
        for token in range(num_tokens):
            colour = BLUE if token >= 2 * T else ORANGE if token >= T else GREY
            axes.add_patch(pyplot.Circle((token, 1.6 * layer), 0.22, color=colour))
    query = num_tokens - 2
    reached = {query}
    for layer in range(num_layers, 0, -1):
        below = set()
        for token in reached:
            segment_begin = token // T * T
            for key in range(max(0, segment_begin - M), token + 1):
                line = ([token, key], [1.6 * layer - 0.22, 1.6 * layer - 1.38])
                axes.plot(*line, color="#888888", linewidth=0.5, zorder=0)
                below.add(key)
        reached = below
    for number, text in enumerate(["first segment", "memory of the third", "third segment"]):
        axes.text(T * number + 1.5, -0.9, text, ha="center")
    axes.text(-0.7, 0, "embedding", ha="right", va="center")
    for layer in range(1, num_layers + 1):
        axes.text(-0.7, 1.6 * layer, f"layer {layer}", ha="right", va="center")
    save(figure, "memory")


def draw_shift():
    """Scores by distance, padded, read again in rows one shorter, and cut: scores by key."""
    rows, keys = 3, 5
    distances = np.broadcast_to(np.arange(keys - 1, -1, -1), (rows, keys))
    scores = np.array(distances, np.float32) + 10 * np.arange(rows)[:, None]
    shifted = np.asarray(relative_shift(scores[None, None]))[0, 0]
    padded = np.pad(scores, [(0, 0), (1, 0)], constant_values=-1)
    turned = padded.reshape(keys + 1, rows)
    tables = {
        "scores by distance": scores,
        "one column before": padded,
        "the same numbers in rows of T": turned,
        "without the first, by key": shifted,
    }
    figure, axes = pyplot.subplots(figsize=(10, 3))
    left = 0
    for title, table in tables.items():
        texts, colours = [], []
        for row, values in enumerate(table):
            texts.append(["" if value < 0 else f"{value % 10:.0f}" for value in values])
            last_key = row + keys - rows if table is shifted else keys + 1
            colours.append(
                [
                    GREY if value < 0 or key > last_key else ROW_COLOURS[int(value // 10)]
                    for key, value in enumerate(values)
                ]
            )
        cells(axes, texts, colours, left=left)
        axes.text(left + table.shape[1] / 2, 0.3, title, ha="center", fontsize=8)
        left += table.shape[1] + 2
    save(figure, "shift")


def draw_masks():
    """Which keys the queries of a segment see."""
    sizes = {"num_tokens": T, "memory_length": M}
    visible_keys = {
        "a full memory": VisibleKeys(**sizes),
        "valid length 2": VisibleKeys(**sizes, valid_length=np.array([2], np.int32)),
        "same_length": VisibleKeys(**sizes, farthest=M),
    }
    figure, axes = pyplot.subplots(figsize=(10, 2.6))
    for number, (title, visible) in enumerate(visible_keys.items()):
        allowed = np.asarray(visible.mask_over_keys())[0, 0]
        colours = [
            [(ORANGE if key < M else BLUE) if sees else GREY for key, sees in enumerate(row)]
            for row in allowed
        ]
        left = number * (M + T + 2)
        cells(axes, [[""] * (M + T)] * T, colours, left=left)
        axes.text(left + (M + T) / 2, 0.4, title, ha="center")
        axes.text(left + M / 2, -T - 0.8, "memory", ha="center", color=ORANGE)
        axes.text(left + M + T / 2, -T - 0.8, "segment", ha="center", color=BLUE)
    save(figure, "masks")


def draw_rows():
    """The order of a text over the rows of batches."""
    figure, axes = pyplot.subplots(figsize=(9, 2.6))
    orders = {
        "rows that continue": [["A B C", "D E F", "G H I"], ["J K L", "M N O", "P Q R"]],
        "segments in any order": [["D E F", "P Q R", "A B C"], ["G H I", "J K L", "M N O"]],
    }
    for number, (title, rows) in enumerate(orders.items()):
        left = number * 13
        axes.text(left + 6, 1.4, title, ha="center")
        for batch in range(3):
            axes.text(left + 4 * batch + 2, 0.4, f"batch {batch}", ha="center", fontsize=8)
            for row in range(2):
                colour = ROW_COLOURS[row] if number == 0 else GREY
                corner = (left + 4 * batch, -1.2 * row - 1)
                axes.add_patch(pyplot.Rectangle(corner, 3.8, 1, facecolor=colour))
                place = (corner[0] + 1.9, corner[1] + 0.5)
                axes.text(*place, rows[row][batch], ha="center", va="center")
    save(figure, "rows")


if __name__ == "__main__":
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "txl", "font.size": 9})
    draw_memory()
    draw_shift()
    draw_masks()
    draw_rows()
