"""Completion of commands, options and choices by a shell: `txl --print-completion`."""

import argparse
import importlib
from typing import Any, NoReturn, cast

from txl_tf.imports import require_extra

from .job_parser import JobParser

SHELLS = ("bash", "zsh")


class PrintCompletion(argparse.Action):
    """Prints what a shell reads to complete lines of `txl`, and exits."""

    def __call__(
        self, parser: argparse.ArgumentParser, _: Any, shell: Any, *unused: Any
    ) -> NoReturn:
        require_extra("completion", "shtab", purpose="Completion", where="--print-completion")
        import shtab

        print(shtab.complete(whole_parser(), shell=shell))
        parser.exit()


def whole_parser() -> JobParser:
    """Returns the parser of all jobs and analyses, each with its arguments."""
    from .analyze import ANALYSES
    from .command_line import JOBS

    parser = JobParser(prog="txl")
    jobs = parser.add_subparsers(dest="job", metavar="JOB")
    for name, summary in JOBS.items():
        _add_arguments(jobs.add_parser(name, help=summary), name)
    (analyses,) = (each for each in jobs.choices["analyze"]._actions if each.dest == "analysis")
    for name in ANALYSES:
        _add_arguments(cast(Any, analyses.choices)[name], f"analysis.{name}")
    return parser


def _add_arguments(parser: argparse.ArgumentParser, module: str) -> None:
    importlib.import_module(f"{__package__}.{module}").add_arguments(parser)
