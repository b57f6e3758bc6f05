"""Draws the pictures of txl_tf/HOW_IT_WORKS.md and of CONTRIBUTING.md from the library.

PYTHONPATH=. python .github/images/draw.py      (with the extra `plots`)
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import pyplot

from tests.rooms import ALLOWED, ROOMS
from txl_tf.functional import relative_shift
from txl_tf.layers.visible_keys import VisibleKeys

FOLDER = Path(__file__).parent
BLUE, ORANGE, GREY = "#4c78a8", "#f58518", "#d9d9d9"
ROW_COLOURS = ("#c6dbef", "#fdd0a2", "#c7e9c0")
T, M = 4, 4
# Stations of a token: what happens there, and the file that does it, by column and row.
STATIONS = {
    "text": ("files of many kinds", "data/sources/text_files.py", 0, 0),
    "tokens": ("a text becomes token ids", "data/tokenizers/", 1, 0),
    "records": ("ids and manifest on disk", "data/preparation.py", 2, 0),
    "segments": ("row and step of each token", "data/training_segments.py", 3, 0),
    "memory": ("inputs of the last M tokens", "models/memory.py", 1, 1),
    "step": ("loss, gradients, update", "training/train_step.py", 3, 1),
    "layers": ("attention reads memory", "models/transformer_xl.py", 2, 1),
    "checkpoint": ("weights, memory, optimizer", "training/checkpoints/", 3, 2),
    "model": ("any folder with a model", "model_folder/folder.py", 2, 2),
    "score": ("nats of every token", "evaluation/evaluator.py", 0, 3),
    "new text": ("the loop that writes", "generation/decoding.py", 1, 3),
    "export": ("a SavedModel", "export/saved_model.py", 2, 3),
    "server": ("texts of many clients", "serving/text_engine.py", 3, 3),
}
WAYS = [
    ("text", "tokens"),
    ("tokens", "records"),
    ("records", "segments"),
    ("segments", "step"),
    ("step", "layers"),
    ("layers", "memory"),
    ("step", "checkpoint"),
    ("checkpoint", "model"),
    ("model", "score"),
    ("model", "new text"),
    ("model", "export"),
    ("model", "server"),
]
# Places of the rooms from left to right; how high a room is follows from what it imports.
COLUMNS = {
    "txl_tf": {
        "serving": 0.6,
        "harness": 1.6,
        "export": 0,
        "causal_lm": 1,
        "model_folder": 1.6,
        "tpu_compiler": 3,
        "training": 2,
        "evaluation": 2,
        "generation": 0,
        "inference": 1,
        "convert": 3,
        "models": 1,
        "layers": 1,
        "tasks": 3,
        "tpu_kernels": 1,
        "samplers": 0,
        "data": 3,
        "distribution": 2,
        "config": 2,
        "functional": 0.5,
        "storage": 2,
        "imports": 1,
        "stateless_random": 0,
        "errors": 1,
    },
    "pipelines": {
        "command_line": 0.5,
        "jobs": 0.5,
        "analysis": 0,
        "run": 1,
        "configs": 1,
        "shell": 0.4,
        "launch": 1.4,
    },
}


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


def box(axes, x, y, size, texts, colour):
    """Draws a box around a middle, with lines of text: a name, a sentence, a file."""
    width, height = size
    corner = (x - width / 2, y - height / 2)
    axes.add_patch(pyplot.Rectangle(corner, width, height, facecolor=colour, zorder=2))
    styles = ({"weight": "bold"}, {"fontsize": 8.5}, {"fontsize": 8, "family": "monospace"})
    for number, text in enumerate(texts):
        line_y = y + height * ((len(texts) - 1) / 2 - number) * 0.28
        axes.text(x, line_y, text, ha="center", va="center", zorder=3, **styles[number])


def arrow(axes, begin, end, width=1.0):
    """Draws an arrow between two places."""
    axes.annotate(
        "", end, begin, arrowprops={"arrowstyle": "-|>", "color": "#666666", "linewidth": width}
    )


def draw_token():
    """The stations of a token, from a file of text to a score, a new text or an export."""
    figure, axes = pyplot.subplots(figsize=(11, 5.6))
    width, height, step_x, step_y = 2.5, 0.85, 2.9, 1.4

    def middle(name):
        *_, column, row = STATIONS[name]
        return column * step_x, -row * step_y

    for name, (sentence, file, _, row) in STATIONS.items():
        colour = ROW_COLOURS[0 if row == 0 else 1 if row < 3 else 2]
        box(axes, *middle(name), (width, height), (name, sentence, file), colour)
    for before, after in WAYS:
        (x, y), (next_x, next_y) = middle(before), middle(after)
        if y == next_y:
            side = width / 2 if next_x > x else -width / 2
            arrow(axes, (x + side, y), (next_x - side, next_y))
        else:
            arrow(axes, (x, y - height / 2), (next_x, next_y + height / 2))
    (memory_x, memory_y), (layers_x, _) = middle("memory"), middle("layers")
    below = memory_y - height / 2
    bend = {"arrowstyle": "-|>", "color": "#666666", "connectionstyle": "arc3,rad=0.2"}
    axes.annotate("", (layers_x - 0.6, below), (memory_x + 0.6, below), arrowprops=bend)
    axes.text(memory_x, below - 0.3, "for the next step", ha="center", fontsize=8.5)
    save(figure, "token")


def draw_floors():
    """The rooms of the code, each above the rooms that it imports; longer ways are left out."""
    figure, axes = pyplot.subplots(figsize=(12, 7.6))
    pitch, left, top = 2.5, 0.0, 0.0
    for package, uses in (("txl_tf", ALLOWED), ("pipelines", ROOMS)):
        floors = {room: floor_of(room, uses) for room in uses}
        offset = 0 if package == "txl_tf" else top - max(floors.values())
        top = max(top, *floors.values())
        columns = COLUMNS[package]
        colour = ROW_COLOURS[0 if package == "txl_tf" else 1]
        places = {room: (left + pitch * columns[room], offset + floors[room]) for room in uses}
        for room, (x, y) in places.items():
            box(axes, x, y, (2.3, 0.56), (), colour)
            axes.text(x, y, room, ha="center", va="center", zorder=3, fontsize=8)
            for below in nearest(room, uses):
                below_x, below_y = places[below]
                arrow(axes, (x, y - 0.28), (below_x, below_y + 0.28))
        middle = left + pitch * max(columns.values()) / 2
        axes.text(middle, top + 0.8, f"{package}/", ha="center", weight="bold", fontsize=11)
        left += pitch * 4.3
    arrow(axes, (left - pitch * 4, 6), (left - pitch * 5, 6), width=2.5)
    axes.text(left - pitch * 3.95, 6, "may import all of txl_tf/", va="center")
    save(figure, "floors")


def floor_of(room, uses):
    """Returns how many rooms lie below a room, one above the other."""
    return max((1 + floor_of(below, uses) for below in uses[room] - {room}), default=0)


def nearest(room, uses):
    """Returns the rooms that a room imports, without those that it also reaches through others."""
    imported = uses[room] - {room}
    through_others = set().union(*(rooms_below(other, uses) for other in imported))
    return imported - through_others


def rooms_below(room, uses):
    """Returns the rooms that a room imports, itself or through others."""
    imported = uses[room] - {room}
    return imported.union(*(rooms_below(other, uses) for other in imported))


if __name__ == "__main__":
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "txl", "font.size": 9})
    draw_memory()
    draw_shift()
    draw_masks()
    draw_rows()
    draw_token()
    draw_floors()
