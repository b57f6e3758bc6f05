"""The `txl` command: finds the job, checks its arguments, reports its errors.

TensorFlow is imported only after the arguments of a job have been checked, so
a wrong command is answered at once.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, cast

from txl_tf import __version__
from txl_tf.errors import UsageError
from txl_tf.imports import require_extra, require_tensorflow_backend
from txl_tf.storage.store_client import set_read_ahead

from .exit_codes import finish, prepare_process, report
from .job_parser import JobParser, sentence

JOBS = {
    "quickstart": "prepare, train, evaluate, generate and export a small model",
    "prepare": "turn text into a data set of records",
    "verify": "compare a data set, run, checkpoint or export with its checksums",
    "train": "train a model, or resume a run from its last checkpoint",
    "finetune": "train a model for a task of texts: classes, numbers, choices, labels, spans",
    "config": "list all settings, show an experiment, or compare two",
    "evaluate": "compute bits per byte and perplexity of a checkpoint",
    "report": "write a run as one HTML page: curves, figures, samples, settings",
    "analyze": "analyze trained models: context length, attention, ablation, speed",
    "generate": "write text with a trained model",
    "embed": "write features of texts: the hidden states of a layer",
    "export": "write a checkpoint as a SavedModel",
    "serve": "serve text of a model over HTTP, for OpenAI's clients",
    "convert": "convert official and Hugging Face weights",
    "compile": "compile the training step for a TPU topology, without a TPU",
    "benchmark": "measure speed and memory, also against Hugging Face",
    "doctor": "diagnose this installation, with a remedy for each problem",
    "launch": "print the commands that run a training job on Cloud TPU",
}

# Jobs that may load the TPU library without `--tpu local`: they look for chips, or compile.
_LOOKS_FOR_TPU = ("doctor", "compile")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs `txl JOB ...` and returns the exit code; `arguments` default to the process's."""
    exit_code = 0
    try:
        if arguments is None:
            prepare_process()
        _dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except SystemExit as error:
        # argparse exits after it has printed the help.
        raise SystemExit(finish(report(error))) from None
    except (Exception, KeyboardInterrupt) as error:
        exit_code = report(error)
    return finish(exit_code)


def _dispatch(arguments: list[str]) -> None:
    _check_encoding(arguments)
    # Overrides Keras' configuration file, but not the environment.
    os.environ["KERAS_BACKEND"] = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if arguments[:1] in ([], ["help"]):
        arguments = [*arguments[1:2], "--help"]
    parser = JobParser(
        prog="txl",
        description="Transformer-XL on TensorFlow.",
        epilog="`txl help JOB` or `txl JOB --help` lists the arguments of a job.",
    )
    parser.add_argument("--version", action=_ShowVersions, nargs=0, help="show versions and exit")
    parser.add_argument(
        "--print-completion",
        choices=SHELLS,
        action=PrintCompletion,
        help="print what the shell completes lines with, and exit",
    )
    jobs = parser.add_subparsers(dest="job", metavar="JOB", required=True)
    # Imports the chosen job only.
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    modules = {}
    for name, summary in JOBS.items():
        job_parser = jobs.add_parser(name, help=summary, description=sentence(summary))
        if name == chosen:
            modules[name] = importlib.import_module(f"{__package__}.{name}")
            job_parser.describe(modules[name].__doc__)
            modules[name].add_arguments(job_parser)
    parsed = parser.parse_args(arguments)
    job = modules[parsed.job]
    if parsed.job != "doctor":
        require_tensorflow_backend()
    # Before the check, which imports TensorFlow to read an object store.
    set_read_ahead()
    if parsed.job not in _LOOKS_FOR_TPU and getattr(parsed, "tpu", None) != "local":
        # Only one process can hold the chips of a TPU VM: leave them to the training.
        os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
    checked = job.check_arguments(parsed)
    job.run(parsed if checked is None else checked)


SHELLS = ("bash", "zsh")


class PrintCompletion(argparse.Action):
    """Action that prints the completion script of a shell and exits."""

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


class _ShowVersions(argparse.Action):
    """Action that prints the versions, looked up only then, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *unused: Any) -> NoReturn:
        print(_versions())
        parser.exit()


def _versions() -> str:
    """Returns the versions that decide what a run does, without importing the packages."""
    found = [f"txl-tf {__version__}"]
    for name in ("tensorflow", "tensorflow-tpu", "keras"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join([*found, f"Python {platform.python_version()}"])


def _check_encoding(arguments: list[str]) -> None:
    """Refuses arguments with bytes that cannot be decoded."""
    for argument in arguments:
        if argument.isascii() or not any("\ud800" <= each <= "\udfff" for each in argument):
            continue
        try:
            os.fsencode(argument).decode("utf-8")
        except UnicodeError:
            remedy = "Rename the file, or write the text in UTF-8."
        else:
            remedy = "The locale is not UTF-8: set PYTHONUTF8=1, or LC_ALL=C.UTF-8."
        raise UsageError("An argument is not UTF-8.", where=ascii(argument), remedy=remedy)


if __name__ == "__main__":
    raise SystemExit(main())
