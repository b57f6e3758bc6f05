"""Evaluation of each checkpoint of a run as it appears, and the log of its results on disk."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from txl_tf.config.base import describe_differences
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import DataDamagedError, PreemptedError
from txl_tf.evaluation.result import EvaluationResult
from txl_tf.model_folder import Workdir, open_model
from txl_tf.storage.files import first_line, list_folder, path_exists, read_file
from txl_tf.storage.locks import WritableFolder, locked_folder
from txl_tf.storage.untrusted_files import (
    MAX_DESCRIPTION_BYTES,
    MAX_VALUES,
    parse_json,
    storage_errors,
)

if TYPE_CHECKING:
    from txl_tf.evaluation.reading_order import EvaluationBatch

_POLL_SECONDS = 2.0
RESULTS_FILE = "results.jsonl"


def read_evaluation_lines(path: str) -> list[dict[str, Any]]:
    """Reads a file with a line of JSON for each evaluation: `conditions` and `result`."""
    lines = []
    for number, content in enumerate(read_file(path, max_bytes=MAX_DESCRIPTION_BYTES).splitlines()):
        try:
            line = parse_json(content, max_values=MAX_VALUES)
            step, conditions = line["result"]["step"], line["conditions"]
            if type(step) is not int or step < 0 or not isinstance(conditions, dict):
                raise ValueError(f"`result.step` is {ascii(step)[:40]}")
        except (ValueError, ArithmeticError, TypeError, LookupError) as error:
            raise DataDamagedError(
                f"An earlier result cannot be read: {first_line(error)}",
                where=f"{path}, line {number + 1}",
                remedy="Restore the file from a copy, or remove it to evaluate again.",
            ) from error
        lines.append(line)
    return lines


def read_evaluations(folder: str) -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """Yields split, path and lines of each results file of a run's evaluations."""
    problem = "The evaluations cannot be read"
    with storage_errors(problem, folder, "Check the storage."):
        splits = list_folder(folder)
    for split in splits:
        path = os.path.join(folder, split, RESULTS_FILE)
        with storage_errors(problem, path, "Check the storage."):
            # A folder without the file is of an unfinished evaluation.
            lines = read_evaluation_lines(path) if path_exists(path) else None
        if lines is not None:
            yield split, path, lines


class EvaluationLog:
    """File with a line of JSON for each evaluation of a split; damage is a DataDamagedError.

    A line holds the `conditions`, JSON values that decide a result besides the step, and the
    `result`, so that no checkpoint is evaluated twice under the same conditions.
    """

    def __init__(self, folder: str, split: str, conditions: dict[str, Any]) -> None:
        self._folder = os.path.join(folder, split)
        self._path = os.path.join(self._folder, RESULTS_FILE)
        self._conditions = json.loads(json.dumps(conditions))
        self._writable: WritableFolder | None = None
        self._lines: list[dict[str, Any]] = []
        self.results: dict[int, dict[str, Any]] = {}
        """Results under these conditions, by step."""
        self._load()

    @contextlib.contextmanager
    def locked(self) -> Iterator[WritableFolder]:
        """Holds the lock that `append` needs; OutputExistsError if another process has it."""
        with locked_folder(self._folder) as folder:
            # Another process may have appended since the last load.
            self._load()
            self._writable = folder
            yield folder

    def append(self, result: EvaluationResult) -> None:
        """Writes a result under these conditions to disk; needs `locked`."""
        if self._writable is None:
            raise ValueError(f"`append` needs the lock of `locked()`. Received: step={result.step}")
        self.results[result.step] = result.to_dict()
        self._lines.append({"conditions": self._conditions, "result": self.results[result.step]})
        content = "".join(json.dumps(line) + "\n" for line in self._lines)
        remedy = "Make room or check the permissions."
        with storage_errors("The result cannot be written", self._path, remedy):
            # Rewritten as a whole, because object stores cannot append.
            self._writable.write(RESULTS_FILE, content.encode())

    def _load(self) -> None:
        self._lines = []
        with (
            storage_errors("The earlier results cannot be read", self._path),
            contextlib.suppress(FileNotFoundError, NotADirectoryError),
        ):
            self._lines = read_evaluation_lines(self._path)
        self.results = {
            line["result"]["step"]: line["result"]
            for line in self._lines
            if not describe_differences(line["conditions"], self._conditions)
        }


def new_checkpoints(
    list_steps: Callable[[], list[int]],
    last_step: int,
    done: Iterable[int],
    stopped: threading.Event,
    patience_seconds: float | None = None,
    poll_seconds: float = _POLL_SECONDS,
) -> Iterator[int]:
    """Yields the oldest step that is neither in `done` nor yielded before, again and again.

    Ends after the last step of the run, once `stopped` is set, or when no checkpoint came in time.
    """
    seen_steps, patience = set(done), float("inf") if patience_seconds is None else patience_seconds
    deadline = time.monotonic() + patience
    while not stopped.is_set():
        step = next((step for step in list_steps() if step not in seen_steps), None)
        if step is not None:
            seen_steps.add(step)
            yield step
            deadline = time.monotonic() + patience
        elif last_step in seen_steps or time.monotonic() >= deadline:
            return
        else:
            stopped.wait(min(poll_seconds, deadline - time.monotonic()))


def watch_checkpoints(
    workdir: Workdir,
    split: str,
    conditions: dict[str, Any],
    evaluate: Callable[..., EvaluationResult],
    report: Callable[[EvaluationResult], None],
    patience_seconds: float | None,
) -> None:
    """Evaluates checkpoints until the run is finished, and writes the results into its folder."""
    from txl_tf.training.metrics import TensorBoardWriter

    run = workdir.describe()
    num_steps, store = run.experiment.training.num_steps, run.checkpoints(workdir.folder)
    stop = threading.Event()
    log = EvaluationLog(workdir.evaluations, split, conditions)

    def check() -> None:
        if stop.is_set():
            raise PreemptedError(
                f"The evaluations were stopped: {watcher.requested}.",
                where="--watch",
                remedy="Run the same command to evaluate the remaining checkpoints.",
            )

    def until_stopped(batches: "Iterable[EvaluationBatch]", _: int) -> "Iterator[EvaluationBatch]":
        for batch in batches:
            check()
            yield batch

    with log.locked() as folder, PreemptionWatcher(stop.set) as watcher:
        board = TensorBoardWriter(WritableFolder(workdir.tensorboard, folder.check))
        for step in new_checkpoints(store.steps, num_steps, log.results, stop, patience_seconds):
            try:
                _, weights = open_model(workdir.folder, step).read_weights()
            except DataDamagedError as error:
                if step in store.steps():
                    raise
                # The run removed this checkpoint while it was read.
                print(f"not evaluated, removed by the run: {error.where}", file=sys.stderr)
                continue
            result = evaluate(step, weights, until_stopped)
            board.write_evaluation(result)
            log.append(result)
            report(result)
        check()
    if num_steps not in log.results:
        print(f"no new checkpoint for {patience_seconds:g} seconds", file=sys.stderr)
