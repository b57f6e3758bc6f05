"""`metrics.jsonl`: the figures of a run, a line of JSON for each report."""

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
"""The run that has the figures of training, here and in TensorBoard; each split has its own."""
PROCESS_RUN = "process"
"""Lines of this run have the command and the environment of a process that trained on."""

_MAX_LINE_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class MetricsLines:
    """Lines of a metrics log that were read."""

    lines: list[dict[str, Any]]
    """The lines, each with `step` and `run`, in the order of writing."""
    num_unreadable: int
    """Lines that are not what this program writes; a last one that a kill cut short is none."""

    def merged(self) -> dict[str, dict[int, dict[str, Any]]]:
        """Returns the figures by run and step; of a figure that was written twice the last."""
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

    A line has `step`, `run` (`train`, `process`, or the split of an evaluation) and the
    values by the tags of `txl_tf.training.dashboard`, exact to the last bit; a
    value that is not finite is `null`. A run that resumes cuts off the lines
    after its checkpoint. Damaged lines never stop a run.

    A local log is a file, a remote one a folder of parts, see `AppendedText`, which
    takes both arguments. One process writes at a time, which has the folder of its
    lock, see `DirectoryLock`.
    """

    def __init__(self, path: str | os.PathLike[str], folder: WritableFolder | None = None) -> None:
        self._path = os.fspath(path)
        self._files = AppendedText.at(self._path, folder, _MAX_LINE_BYTES)
        self._num_lines = 0

    def read(self) -> MetricsLines | None:
        """Reads all lines that can be read; `None` where there is no log.

        Raises:
            StorageError: If it cannot be read.
        """
        with self._storage_errors():
            contents = self._files.lines()
            return None if contents is None else _parsed(contents)

    def resume(self, step: int, evaluated_step: int) -> None:
        """Cuts off what is to be done again; comes before the first `append`.

        Args:
            step: int. Steps done; later lines of training are cut off.
            evaluated_step: int. Steps done at the last evaluation that is not to
                be repeated; lines of later evaluations are cut off.

        Raises:
            StorageError: If it cannot be read or written.
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
        """Keeps all lines; comes before the first `append` of a run that is finished."""
        self.resume(*[1 << 62] * 2)

    def append(self, step: int, run: str, values: Mapping[str, Any]) -> None:
        """Writes a line.

        Args:
            step: int. Steps done.
            run: str. `train`, or the split.
            values: mapping of tag to number, text or object of JSON values.

        Raises:
            StorageError: If it cannot be written.
        """
        text = json.dumps({"step": step, "run": run, **_finite(values)}, allow_nan=False) + "\n"
        with self._storage_errors():
            # Named by the lines before it: a step may have several.
            self._files.append(text, self._num_lines)
        self._num_lines += 1

    def flush_to_disk(self) -> None:
        """Makes sure that what was appended survives the machine, or raises StorageError."""
        with self._storage_errors():
            self._files.flush()

    def _storage_errors(self) -> contextlib.AbstractContextManager[None]:
        what = "The metrics of the run cannot be read or written"
        remedy = "Make room or check the permissions, and start again."
        return storage_errors(what, self._path, remedy)


def _finite(values: Any) -> Any:
    """Replaces numbers that JSON does not have by `None`."""
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
