"""`txl analyze ablation`: trains each variant of a study and prints the table.

    txl analyze ablation --study novels_ablation --data DIR --out DIR

Trains and evaluates every row of a study with every seed, as Dai et al. (2019)
do in their Tables 5 and 8, and prints the table. "PPL init" is the perplexity at
the attention length of training, "PPL best" the lowest over all lengths, "Attn
Len" the shortest length that reaches it. The same command resumes where it
stopped; a finished run is not repeated.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from txl_tf.config.model import ModelConfig
from txl_tf.data.manifest import Manifest
from txl_tf.distribution.preemption import PreemptionWatcher
from txl_tf.errors import InputMissingError, JobError, UsageError
from txl_tf.models.sizes import num_parameters, training_memory_bytes
from txl_tf.storage.files import is_remote
from txl_tf.storage.locks import DirectoryLock
from txl_tf.storage.writable_folder import WritableFolder

from ..arguments import add_json_argument, add_number, add_override_argument
from ..memory_needs import require_training_memory
from ..progress import plain_table, say
from ..workdir import check_split, data_identity
from .ablation_findings import AblationFinding, RowSummary, findings
from .ablation_runs import AblationProcesses, AblationResult
from .ablation_study import AblationRun, AblationStudy, load_study

_ENCODINGS = {
    "transformer_xl": "Dai et al.",
    "shaw": "Shaw et al.",
    "shaw_two_terms": "Shaw et al., terms (a) and (b)",
    "sinusoidal": "Vaswani et al.",
    "learned": "Al-Rfou et al.",
}
_LOSSES = {"all": "full", "last_half": "half"}
_HEAD = (
    *("remark", "recurrence", "encoding", "loss", "T", "parameters"),
    *("training memory (computed)", "PPL init", "PPL best", "Attn Len", "seeds"),
    "published (OpenReview, WikiText-103)",
)


class AblationTable:
    """Table and findings of the rows that have a finished seed."""

    def __init__(self, rows: Sequence[RowSummary]) -> None:
        self._rows = list(rows)
        self._findings: list[AblationFinding] = findings(self._rows)

    def text(self) -> str:
        """Formats table and findings as aligned columns."""
        table = plain_table([_HEAD, *map(_row, self._rows)])
        return "\n".join([table, "", *(finding.describe() for finding in self._findings)])

    def markdown(self) -> str:
        """Formats table and findings as Markdown."""
        lines = [_HEAD, ["---"] * len(_HEAD), *map(_row, self._rows)]
        table = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([*table, "", *(f"- {each.describe()}" for each in self._findings), ""])

    def to_dict(self) -> dict[str, Any]:
        """Returns all figures as plain JSON types."""
        return {
            "rows": [row.to_dict() for row in self._rows],
            "findings": [finding.to_dict() for finding in self._findings],
        }


def _row(summary: RowSummary) -> list[str]:
    row, model = summary.run.row, cast(ModelConfig, summary.run.experiment.model)
    memory_bytes = training_memory_bytes(summary.run.experiment)
    return [
        row.remark or "-",
        "yes" if model.recurrence else "no",
        _ENCODINGS[model.position_encoding],
        _LOSSES[summary.run.experiment.training.loss_positions],
        str(model.segment_length),
        f"{num_parameters(model) / 1e6:.2f} M",
        f"{memory_bytes / 1e6:.0f} MB",
        summary.initial.describe(),
        summary.best.describe(),
        str(summary.sufficient_length.length),
        str(len(summary.seeds)),
        "-" if summary.published is None else summary.published.describe(),
    ]


_MAX_JOBS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the analysis."""
    parser.add_argument(
        "--study", metavar="NAME|FILE", required=True, help="named study or .toml or .json file"
    )
    parser.add_argument("--data", metavar="DIR", required=True, help="prepared data set")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder of the study")
    add_override_argument(parser)
    add_number(
        parser, "--jobs", 1, max(_MAX_JOBS, os.cpu_count() or 1), "runs side by side", default=1
    )
    add_json_argument(parser)
    parser.add_argument(
        "--only-table", action="store_true", help="train nothing; print what is finished"
    )
    parser.add_argument(
        *("--run", "--cell"),
        dest="run_name",
        metavar="NAME",
        help="one run only, in this process, such as NAME/seed-1",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before TensorFlow is imported."""
    arguments.ablation = study = load_study(arguments.study, arguments.overrides)
    if not arguments.only_table:
        for run in study.runs():
            require_training_memory(run.experiment)
    if is_remote(arguments.out):
        raise UsageError(
            "A study is written to a local folder.",
            where=f"--out {arguments.out}",
            remedy="Give a path on this machine.",
        )
    if arguments.run_name is not None:
        arguments.chosen_run = _chosen(study, arguments.run_name)
    manifest = Manifest.read(arguments.data)
    arguments.data_identity = data_identity(manifest)
    check_split(manifest, study.evaluation.split, arguments.data)
    # A study that was begun with other settings is noticed before anything is trained.
    _results(study, Path(arguments.out), arguments.data_identity)


def run(arguments: argparse.Namespace) -> None:
    """Trains and evaluates what is missing, and prints the table."""
    folder = Path(arguments.out)
    if arguments.run_name is not None:
        _run_here(arguments, folder)
        return
    if arguments.only_table:
        _show(arguments, WritableFolder.at(folder), None)
        return
    with DirectoryLock(folder) as lock:
        with PreemptionWatcher() as watcher:
            failed = _run_missing(arguments, folder, watcher)
        _show(arguments, lock.folder, failed)


def _show(arguments: argparse.Namespace, writable: WritableFolder, failed: JobError | None) -> None:
    """Prints and writes the table of what is finished, and raises the error of what is not."""
    study, folder = arguments.ablation, Path(arguments.out)
    rows = _rows(study, _results(study, folder, arguments.data_identity))
    if not rows and failed is None:
        raise InputMissingError(
            "No run of the study is finished yet.",
            where=arguments.out,
            remedy="Leave --only-table out.",
        )
    if rows:
        _report(AblationTable(rows), writable, arguments.json)
    if failed is not None:
        raise failed


def _run_here(arguments: argparse.Namespace, folder: Path) -> None:
    # First of all, so that nothing is lost however early the machine is taken away.
    with PreemptionWatcher() as watcher:
        from .ablation_worker import AblationWorker

        AblationWorker(arguments.chosen_run, arguments.data, folder, watcher).run()


def _run_missing(
    arguments: argparse.Namespace, folder: Path, watcher: PreemptionWatcher
) -> JobError | None:
    """Runs all runs that are not finished; returns the first error."""
    results = _results(arguments.ablation, folder, arguments.data_identity)
    names = [run.name for run, result in results if result.missing(run)]
    num_done, num_runs = len(results) - len(names), len(results)
    say(f"{num_done} of {num_runs} runs are finished.")
    processes = AblationProcesses(
        lambda name: _command(arguments, name), folder, arguments.jobs, watcher
    )
    failed = None
    for name, error in processes.run(names):
        if error is not None:
            say(f"{error}")
            failed = failed or error
            continue
        num_done += 1
        run = _chosen(arguments.ablation, name)
        result = AblationResult.read(folder, run, arguments.data_identity)
        perplexity = result.figures[run.attention_lengths()[0]].perplexity
        say(f"{num_done} of {num_runs}: {name}: perplexity {perplexity:.2f}")
    return failed


def _command(arguments: argparse.Namespace, name: str) -> list[str]:
    """Builds the command that trains and evaluates one run in its own process."""
    command_line = f"{__package__.rpartition('.')[0]}.command_line"
    return [
        *(sys.executable, "-m", command_line, "analyze", "ablation"),
        *("--study", arguments.study, "--data", arguments.data, "--out", arguments.out),
        *(text for assignment in arguments.overrides for text in ("--set", assignment)),
        *("--run", name),
    ]


def _chosen(study: AblationStudy, name: str) -> AblationRun:
    runs = {run.name: run for run in study.runs()}
    if name not in runs:
        raise UsageError(
            "There is no such run in the study.",
            where=f"--run {name}",
            remedy=f"There are: {', '.join(runs)}.",
        )
    return runs[name]


def _results(
    study: AblationStudy, folder: Path, data: dict[str, Any]
) -> list[tuple[AblationRun, AblationResult]]:
    return [(run, AblationResult.read(folder, run, data)) for run in study.runs()]


def _rows(
    study: AblationStudy, results: list[tuple[AblationRun, AblationResult]]
) -> list[RowSummary]:
    """Returns the rows with a finished seed."""
    finished = [(run, result) for run, result in results if not result.missing(run)]
    of_row = {
        row.name: {run.seed: (run, result) for run, result in finished if run.row == row}
        for row in study.rows
    }
    return [RowSummary.of(seeds) for seeds in of_row.values() if seeds]


def _report(table: AblationTable, folder: WritableFolder, as_json: bool) -> None:
    figures = json.dumps(table.to_dict(), indent=1) + "\n"
    folder.write("table.json", figures.encode())
    folder.write("table.md", table.markdown().encode())
    print(figures if as_json else table.text(), end="" if as_json else "\n")
    say(f"Written: {folder.path}/table.md, {folder.path}/table.json")
