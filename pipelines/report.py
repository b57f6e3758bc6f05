"""Writes a run as one HTML page: `txl report`.

    txl report --workdir DIR
    txl report --workdir DIR --out report.html --analysis runs/mine-context

The page has the curves, the final figures with their denominators, samples,
configuration, environment and commands, and what `txl analyze` found. It needs
no network and no other file.
"""

import argparse
import os

from txl_tf.causal_lm.model_source import open_model
from txl_tf.errors import InputMissingError, UsageError
from txl_tf.imports import require_extra
from txl_tf.storage.files import is_remote, write_file
from txl_tf.storage.untrusted_files import storage_errors

from .command_line import run_job
from .workdir import Workdir, add_workdir_argument

_FILE = "report.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    add_workdir_argument(parser)
    parser.add_argument(
        "--out", metavar="FILE", help=f"file to write (default: {_FILE} in the folder of the run)"
    )
    parser.add_argument(
        "--analysis",
        metavar="DIR",
        action="append",
        dest="analyses",
        default=[],
        help="folder that `txl analyze` made; those below the folder of the run are found",
    )


def check_arguments(arguments: argparse.Namespace) -> None:
    """Checks what can be checked before the run is read."""
    require_extra("plots", "matplotlib", purpose="Drawing the charts")
    if arguments.out is None:
        arguments.out = os.path.join(arguments.workdir, _FILE)
    if is_remote(arguments.out):
        raise UsageError(
            "The page is written to a local file.",
            where=f"--out {arguments.out}",
            remedy="Name a local one with --out.",
        )
    if os.path.isdir(arguments.out):
        raise UsageError("The page is a file.", where=f"--out {arguments.out}")


def run(arguments: argparse.Namespace) -> None:
    """Reads the run and writes the page."""
    from .reporting.page import report_page
    from .reporting.run_contents import read_run

    contents = read_run(_run_of(arguments.workdir), arguments.analyses)
    page = report_page(contents)
    remedy = "Check the folder and the permissions, or name another file with --out."
    with storage_errors("The page cannot be written", arguments.out, remedy):
        write_file(arguments.out, page.encode("utf-8", "replace"))
    for line in contents.missing:
        print(f"missing: {line}")
    print(f"report: {arguments.out}")


def _run_of(folder: str) -> Workdir:
    """Returns the run of a folder; of a checkpoint in a run, that run.

    Raises:
        UsageError: If there is a model, but none that was trained in this folder.
    """
    found = Workdir(folder)
    if found.has_run():
        return found
    try:
        source = open_model(folder)
    except InputMissingError:
        return found  # whose description is missed by that name
    if source.is_run:
        return Workdir(source.folder)
    raise UsageError(
        f"A report is of a run: it has the curves and settings of training. This is of the kind "
        f"{source.kind}.",
        where=f"--workdir {folder}",
        remedy="Name the folder that `txl train` wrote.",
    )


if __name__ == "__main__":
    raise SystemExit(run_job("report"))
