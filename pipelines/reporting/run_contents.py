"""Everything of a run that its report shows, read from its files."""

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from txl_tf.run_folder import RunDescription
from txl_tf.storage.files import is_folder, list_folder, path_exists
from txl_tf.storage.untrusted_files import read_json_object
from txl_tf.training.metrics_log import PROCESS_RUN, TRAINING_RUN, MetricsLines, MetricsLog
from txl_tf.training.run_time import RunTime, read_run_time

from ..analysis.attention import REPORT_FILE as ATTENTION_FILE
from ..analysis.context import REPORT_FILE as CONTEXT_FILE
from ..evaluation.watch import read_evaluations
from ..workdir import Workdir

Figures = dict[str, dict[int, dict[str, Any]]]


@dataclasses.dataclass(frozen=True)
class RunContents:
    """What there is of a run.

    Attributes:
        folder: str. Folder of the run.
        run: `RunDescription`.
        figures: figures by run and step, as `MetricsLines.merged` returns them.
        processes: list of dict. Command, environment and peak of every process that
            trained, in order.
        run_time: optional `RunTime`. What the time of the run went to.
        results: list of dict. The last result of every split, as
            `EvaluationResult.to_dict` returns it.
        context: optional dict. Report of `txl analyze context`.
        attention: optional dict. Report of `txl analyze attention`.
        missing: list of str. What a report shows and this run does not have.
    """

    folder: str
    run: RunDescription
    figures: Figures
    processes: list[dict[str, Any]]
    run_time: RunTime | None
    results: list[dict[str, Any]]
    context: dict[str, Any] | None
    attention: dict[str, Any] | None
    missing: list[str]

    @property
    def samples(self) -> list[tuple[str, int, dict[str, Any]]]:
        """Run, step and figures of every text sample, the newest first."""
        found = [
            (run, step, figures)
            for run, steps in self.figures.items()
            for step, figures in steps.items()
            if isinstance(figures.get("sample"), str)
        ]
        return sorted(found, key=lambda each: -each[1])

    @property
    def step(self) -> int:
        """The last step that has figures."""
        return max(self.figures.get(TRAINING_RUN, {}), default=0)


def read_run(workdir: Workdir, analyses: Sequence[str]) -> RunContents:
    """Reads a run and the analyses of it.

    Analyses are looked for in the folders that are named, and in those directly
    below the folder of the run.

    Args:
        workdir: `Workdir`.
        analyses: folders that `txl analyze` made.

    Raises:
        JobError: If there is no run, or a file cannot be read or understood.
    """
    run = workdir.describe()
    log = MetricsLog(workdir.metrics).read()
    folders = [*analyses, *_folders_below(workdir.folder)]
    context, attention = (_first(folders, name) for name in (CONTEXT_FILE, ATTENTION_FILE))
    figures = {} if log is None else log.merged()
    processes = [] if log is None else [_process(line) for line in _processes(log)]
    figures.pop(PROCESS_RUN, None)
    results = _results(workdir, figures)
    run_time = read_run_time(MetricsLog(workdir.time).read())
    missing = []
    if log is None:
        missing.append("metrics.jsonl: the run is of an earlier version; there are no curves.")
    elif log.num_unreadable:
        missing.append(f"{log.num_unreadable} damaged lines of metrics.jsonl were left out.")
    if run_time is None:
        missing.append("time.jsonl: the run is of an earlier version; its goodput is not known.")
    if not results:
        missing.append("Evaluations: the data has no split to evaluate, or none is done yet.")
    if context is None:
        missing.append("Context length: `txl analyze context --out WORKDIR/context` measures it.")
    if attention is None:
        missing.append("Attention: `txl analyze attention --out WORKDIR/attention` measures it.")
    own = run, figures, processes, run_time, results, context, attention, missing
    return RunContents(workdir.folder, *own)


def _processes(log: MetricsLines) -> list[dict[str, Any]]:
    """Returns the line of every process, with what it wrote later put into it."""
    found: list[dict[str, Any]] = []
    for line in log.lines:
        if line["run"] == PROCESS_RUN and ("command" in line or not found):
            found.append(dict(line))
        elif line["run"] == PROCESS_RUN:
            found[-1].update(line, step=found[-1]["step"])
    return found


def _process(line: dict[str, Any]) -> dict[str, Any]:
    environment = line.get("environment")
    return {
        "step": line["step"],
        "command": str(line.get("command", "")),
        "environment": environment if isinstance(environment, dict) else {},
        "peak": line.get("peak"),
    }


def _results(workdir: Workdir, figures: Figures) -> list[dict[str, Any]]:
    """Returns the last results of training, then those of `txl evaluate --watch`."""
    found = []
    for steps in figures.values():
        results = [
            each["result"] for each in steps.values() if isinstance(each.get("result"), dict)
        ]
        found += results[-1:]
    for _, _, lines in read_evaluations(workdir.evaluations):
        newest = sorted(lines, key=lambda line: line["result"]["step"])[-1:]
        found += [line["result"] for line in newest]
    return found


def _folders_below(folder: str) -> list[str]:
    return [path for name in list_folder(folder) if is_folder(path := os.path.join(folder, name))]


def _first(folders: Sequence[str], name: str) -> dict[str, Any] | None:
    for folder in folders:
        path = os.path.join(folder, name)
        if path_exists(path):
            return {**read_json_object(path), "folder": folder}
    return None


def configuration_text(run: RunDescription) -> str:
    """Returns all settings of a run and the identity of its data as JSON."""
    values = {**run.experiment.to_dict(), "data": run.data}
    if run.start is not None:
        values["start"] = run.start
    return json.dumps(values, indent=1, ensure_ascii=False)
