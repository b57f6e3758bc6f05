"""`metrics.jsonl`: the figures of a run, one line of JSON per report."""

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

from txl_tf.storage.appended_text import AppendedText
from txl_tf.storage.untrusted_files import MAX_VALUES, parse_json, storage_errors
from txl_tf.storage.writable_folder import WritableFolder
from txl_tf.training.dashboard import LOSSES

TRAINING_RUN = "train"
"""Run with the figures of training, here and in TensorBoard; each split has its own run."""
PROCESS_RUN = "process"
"""Run with the command and the environment of each training process."""

_MAX_LINE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class MetricsLines:
    """Lines read from a metrics log."""

    lines: list[dict[str, Any]]
    """The lines, each with `step` and `run`, in the order of writing."""
    num_unreadable: int
    """Number of invalid lines, without an incomplete last line."""

    def merged(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Returns the figures by run and step; later lines replace the figures of earlier ones."""
        found: dict[str, dict[int, dict[str, Any]]] = {}
        for line in self.lines:
            figures = {name: value for name, value in line.items() if name not in ("step", "run")}
            found.setdefault(line["run"], {}).setdefault(line["step"], {}).update(figures)
        return {run: dict(sorted(steps.items())) for run, steps in found.items()}

    def evaluation_losses(self, step: int) -> dict[str, dict[str, float]]:
        """Returns the losses of the evaluations after a step, by split and name."""
        found: dict[str, dict[str, float]] = {}
        for split, steps in self.merged().items():
            losses = {
                tag.removeprefix(LOSSES): value
                for tag, value in steps.get(step, {}).items()
                if tag.startswith(LOSSES) and value is not None
            }
            if losses and split not in (TRAINING_RUN, PROCESS_RUN):
                found[split] = losses
        return found


class MetricsLog:
    """Log of a run's figures: one JSON object per line.

    A line has `step`, `run` (`train`, `process`, or the split of an evaluation) and the values by
    tag, see `txl_tf.training.dashboard`, exact to the last bit; a value that is not finite is
    `null`. A resumed run cuts off the lines after its checkpoint. Damaged lines never stop a run.
    See `AppendedText` for the arguments. One process writes at a time, with the folder of its
    `DirectoryLock`.
    """

    def __init__(self, path: str | os.PathLike[str], folder: WritableFolder | None = None) -> None:
        self._path = os.fspath(path)
        self._files = AppendedText.at(self._path, folder, _MAX_LINE_BYTES)
        self._num_lines = 0

    def read(self) -> MetricsLines | None:
        """Reads all valid lines; `None` if there is no log."""
        with self._storage_errors():
            contents = self._files.lines()
            return None if contents is None else _parsed(contents)

    def resume(self, step: int, evaluated_step: int) -> None:
        """Cuts off lines of training after `step`, and of evaluations after `evaluated_step`.

        It comes before the first `append`.
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
                line = _line(content)
                if line is None:
                    continue
                if line["step"] > limits.get(line["run"], evaluated_step):
                    break
                kept_bytes, kept_lines = num_bytes, number + 1
            self._files.cut(kept_bytes)
            self._num_lines = kept_lines

    def continue_at_end(self) -> None:
        """Keeps all lines of a finished run; comes before the first `append`."""
        self.resume(*[1 << 62] * 2)

    def append(self, step: int, run: str, values: Mapping[str, Any]) -> None:
        """Writes a line of `train` or a split; values by tag are numbers, texts or JSON objects."""
        text = json.dumps({"step": step, "run": run, **_finite(values)}, allow_nan=False) + "\n"
        with self._storage_errors():
            # Numbered by line, because a step may have several.
            self._files.append(text, self._num_lines)
        self._num_lines += 1

    def flush_to_disk(self) -> None:
        """Makes the appended lines survive the machine, or raises StorageError."""
        with self._storage_errors():
            self._files.flush()

    def _storage_errors(self) -> contextlib.AbstractContextManager[None]:
        what = "The metrics of the run cannot be read or written"
        remedy = "Make room or check the permissions, and start again."
        return storage_errors(what, self._path, remedy)


def _finite(values: Any) -> Any:
    """Replaces numbers that JSON cannot hold by `None`."""
    if isinstance(values, Mapping):
        return {name: _finite(value) for name, value in values.items()}
    return None if isinstance(values, float) and not math.isfinite(values) else values


def _parsed(contents: Iterable[bytes]) -> MetricsLines:
    lines, unreadable, is_whole = [], 0, True
    for content in contents:
        line, is_whole = _line(content), content.endswith(b"\n")
        if line is None:
            unreadable += 1
        else:
            lines.append(line)
    # A kill may cut the last line short.
    return MetricsLines(lines, unreadable - (not is_whole))


def _line(content: bytes) -> dict[str, Any] | None:
    if not content.endswith(b"\n"):
        return None
    try:
        line = parse_json(content, max_values=MAX_VALUES)
    except ValueError:
        return None
    is_known = (
        isinstance(line, dict)
        and type(line.get("step")) is int
        and line["step"] >= 0
        and isinstance(line.get("run"), str)
    )
    return line if is_known else None
