"""Rows that a small model learns from in a few steps, their files, and settings for them."""

import json

WORDS = {"even": "zero two four", "odd": "one three five"}


def classes(count):
    return [
        {"text": f"{n} {WORDS[label]} " * (1 + n % 7), "number": f"{n}", "label": label}
        for n in range(count)
        for label in [("even", "odd")[n % 2]]
    ]


ROWS = {
    "classification": classes(24),
    "regression": [{"text": "x" * (1 + 3 * n), "label": n / 4} for n in range(24)],
}
SETTINGS = (
    "--set",
    "training.global_batch_size=8",
    "--set",
    "training.jit_compile=false",
    "--set",
    "optimizer.learning_rate=0.01",
)


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
