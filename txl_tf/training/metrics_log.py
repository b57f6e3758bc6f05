"""Log `metrics.jsonl` of a run's figures."""

import contextlib
import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from txl_tf.errors import storage_errors
from txl_tf.storage.appended_text import appended_text
from txl_tf.storage.strict_json import MAX_VALUES, parse_json
from txl_tf.storage.writable_folder import WritableFolder

TRAINING_RUN = "train"
"""Run with the figures of training, here and in TensorBoard; each split has its own run."""
PROCESS_RUN = "process"
"""Run with the command and the environment of each training process."""


class MetricsLines(NamedTuple):
    """Lines of a metrics log, each with `step` and `run`, without an incomplete last line."""

    lines: list[dict[str, Any]]
    num_unreadable: int


class MetricsLog:
    """Log of a run's figures: one JSON object per line.

    A line has `step`, `run` (`train`, `process`, or the split of an evaluation) and the values by
    tag, see `figures.TAGS`, exact to the last bit; a value that is not finite is `null`. Damaged
    lines never stop a run. One process writes at a time, in its `locked_folder`.
    """

    def __init__(self, path: str | os.PathLike[str], folder: WritableFolder | None = None) -> None:
        self._path = os.fspath(path)
        self._files = appended_text(self._path, folder)
        self._num_lines = 0

    def read(self) -> MetricsLines | None:
        """Reads all valid lines; `None` if there is no log."""
        with self._storage_errors():
            lines_of_file = self._files.lines()
            contents = None if lines_of_file is None else list(lines_of_file)
        if contents is None:
            return None
        # A kill may cut the last line short.
        is_cut = bool(contents) and not contents[-1].endswith(b"\n")
        lines = [line for line in map(_parsed, contents) if line is not None]
        return MetricsLines(lines, len(contents) - len(lines) - is_cut)

    def resume(self, step: int, evaluated_step: int) -> None:
        """Cuts the file off before the first line of a later step.

        Later is after `step` for lines of training, and after `evaluated_step` for lines of
        evaluations. The call comes before the first `append`.
        """
        limits = {TRAINING_RUN: step, PROCESS_RUN: step}
        with self._storage_errors():
            contents = self._files.lines()
            if contents is None:
                self._files.begin("")
                return
            num_bytes = kept_bytes = kept_lines = 0
            for number, content in enumerate(contents):
                num_bytes += len(content)
                line = _parsed(content)
                if line is None:
                    continue
                if line["step"] > limits.get(line["run"], evaluated_step):
                    break
                kept_bytes, kept_lines = num_bytes, number + 1
            self._files.cut(kept_bytes)
            self._num_lines = kept_lines

    def append(self, step: int, run: str, values: Mapping[str, Any]) -> None:
        """Writes a line of a run; values by tag are numbers, texts or JSON objects."""
        text = json.dumps({"step": step, "run": run, **_finite(values)}, allow_nan=False) + "\n"
        with self._storage_errors():
            # Appended texts have the number of their line, because a step may have several lines.
            self._files.append(text, self._num_lines)
        self._num_lines += 1

    def flush_to_disk(self) -> None:
        """Forces the appended lines to the disk, or raises StorageError."""
        with self._storage_errors():
            self._files.flush()

    def _storage_errors(self) -> contextlib.AbstractContextManager[None]:
        return storage_errors(
            "The metrics of the run cannot be read or written",
            self._path,
            "Make room or check the permissions, and start again.",
        )


def _finite(values: Any) -> Any:
    """Replaces numbers that JSON cannot hold by `None`."""
    if isinstance(values, Mapping):
        return {name: _finite(value) for name, value in values.items()}
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        line: Any = parse_json(content, max_values=MAX_VALUES) if content[-1:] == b"\n" else None
        is_known = type(line["step"]) is int and line["step"] >= 0 and isinstance(line["run"], str)
        return line if is_known else None
    except (ValueError, TypeError, LookupError):
        return None
