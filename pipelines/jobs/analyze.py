"""Analyses of trained models: `txl analyze ANALYSIS`.

    txl analyze context --workdir DIR --data DIR --out DIR
    txl analyze context --help

Each analysis is a module of `pipelines.analysis` with the three functions that
a job has: `add_arguments`, `check_arguments` and `run`.
"""

import argparse
import functools
import importlib
from collections.abc import Callable, Sequence

from ..shell.arguments import sentence

ANALYSES = {
    "context": "effective context length of trained runs",
    "attention": "mean attention of every head by distance",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the analyses; the arguments of one are added when it is chosen."""

    class AnalysisParser(type(parser)):  # type: ignore[misc]
        """Parser that imports the module of its analysis when it parses."""

        def parse_known_args(
            self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
        ) -> tuple[argparse.Namespace, list[str]]:
            self.add_arguments_of(f"analysis.{self.prog.rpartition(' ')[2]}")
            return super().parse_known_args(args, namespace)

    analyses = parser.add_subparsers(
        dest="analysis", metavar="ANALYSIS", required=True, parser_class=AnalysisParser
    )
    for name, summary in ANALYSES.items():
        analyses.add_parser(name, help=summary, description=sentence(summary))


def check_arguments(arguments: argparse.Namespace) -> Callable[[], None]:
    """Checks the arguments before TensorFlow is imported; returns the analysis to run."""
    module = importlib.import_module(f"..analysis.{arguments.analysis}", __package__)
    analysis_input = module.check_arguments(arguments)
    return functools.partial(module.run, arguments if analysis_input is None else analysis_input)


def run(analysis: Callable[[], None]) -> None:
    """Runs the chosen analysis."""
    analysis()
