"""The `txl` command finds the job, checks its arguments and reports its errors.

TensorFlow is imported after the check of the arguments, so a wrong command fails at once.
"""

import argparse
import contextlib
import functools
import importlib
import importlib.metadata
import os
import platform
import re
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from txl_tf import __version__
from txl_tf.errors import UsageError, did_you_mean
from txl_tf.imports import is_on_jax, require_backend_packages, require_tensorflow_backend
from txl_tf.storage.files import set_read_ahead

from .shell.arguments import sentence
from .shell.exit_codes import finish, report
from .shell.tensorflow_import import load_tensorflow, prepare_process

JOBS = {
    "quickstart": "prepare, train, evaluate, generate and export a small model",
    "prepare": "turn text into a data set of records",
    "verify": "verify the checksums of a data set, run, checkpoint or export",
    "train": "train a model, or resume a run from its last checkpoint",
    "finetune": "fine-tune a model: classification or regression",
    "config": "list all settings, or show an experiment",
    "evaluate": "compute bits per byte and perplexity of a checkpoint",
    "analyze": "analyze trained models: context length, attention",
    "generate": "generate text with a trained model",
    "export": "write a checkpoint as a SavedModel",
    "serve": "serve text generation over HTTP, with an OpenAI-compatible API",
    "convert": "convert official and Hugging Face weights",
    "download": "download the official weights, as a converted model",
    "compile": "compile the training step for a TPU topology, without a TPU",
    "doctor": "check this installation, and suggest a fix for each problem",
    "launch": "print the commands that run a training job on Cloud TPU",
}

# Jobs that may load the TPU library without `--tpu local`.
_LOOKS_FOR_TPU = ("doctor", "compile")

# Jobs that compute with TensorFlow's layers or not at all, whatever backend trains.
_ON_TENSORFLOW = ("convert", "export", "launch", "quickstart")
# Jobs and analyses that compute with a model, on either backend.
_ON_ANY_BACKEND = (
    "analysis.attention",
    "analysis.context",
    "jobs.compile",
    "jobs.evaluate",
    "jobs.finetune",
    "jobs.generate",
    "jobs.serve",
    "jobs.train",
)

# Jobs before which TensorFlow is not loaded: they need none in this process, or load it later.
_LOADS_TENSORFLOW_LATER = (
    "config",
    "doctor",
    "download",
    "finetune",
    "launch",
    "train",
    "verify",
)


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
    # Overrides Keras' configuration file, but not the environment.
    os.environ["KERAS_BACKEND"] = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if arguments[:1] in ([], ["help"]):
        arguments = [*arguments[1:2], "--help"]
    parser = JobParser(
        prog="txl",
        description="Transformer-XL on TensorFlow.",
        epilog="`txl help JOB` or `txl JOB --help` lists the arguments of a job.",
    )
    parser.add_argument("--version", action="version", version=_versions())
    jobs = parser.add_subparsers(dest="job", metavar="JOB", required=True)
    # Imports only the chosen job.
    job_name = next((word for word in arguments if not word.startswith("-")), None)
    modules = {}
    for name, summary in JOBS.items():
        job_parser = jobs.add_parser(name, help=summary, description=sentence(summary))
        if name == job_name:
            modules[name] = job_parser.add_arguments_of(f"jobs.{name}")
    options = parser.parse_args(arguments)
    job = modules[options.job]
    if options.job in _ON_TENSORFLOW:
        os.environ["KERAS_BACKEND"] = "tensorflow"
    elif getattr(options, "backend", None):
        os.environ["KERAS_BACKEND"] = options.backend
    if options.job != "doctor":
        require_tensorflow_backend("jax")
        require_backend_packages()
    # Before the check, which imports TensorFlow to read an object store.
    set_read_ahead()
    needs_tpu = getattr(options, "tpu", None) == "local" and not is_on_jax()
    if options.job not in _LOOKS_FOR_TPU and not needs_tpu:
        # Only one process can hold the chips of a TPU VM, and training needs them. With JAX,
        # TensorFlow only reads data.
        os.environ.setdefault("TPU_LOAD_LIBRARY", "0")
    job_input = job.check_arguments(options)
    if options.job not in _LOADS_TENSORFLOW_LATER:
        load_tensorflow(options.job)
    job.run(options if job_input is None else job_input)


_EXAMPLE = re.compile(r"^ *(txl (?:.*\\\n)*.*)", re.MULTILINE)
_WIDTH = 80
_HELP_POSITION = 32


class JobParser(argparse.ArgumentParser):
    """Parser of a job or analysis that raises UsageError and suggests the nearest name."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        width = min(int(os.environ.get("COLUMNS") or _WIDTH), _WIDTH)
        formatter = functools.partial(
            argparse.HelpFormatter, max_help_position=_HELP_POSITION, width=width
        )
        super().__init__(*arguments, **{**settings, "formatter_class": formatter})

    def add_arguments_of(self, module_name: str) -> Any:
        """Imports a job and adds its arguments. The example in its docstring becomes the usage."""
        module = importlib.import_module(f"{__package__}.{module_name}")
        module.add_arguments(self)
        if module_name in _ON_ANY_BACKEND:
            self.add_argument(
                "--backend",
                choices=("tensorflow", "jax"),
                help="backend of Keras (default: $KERAS_BACKEND)",
            )
        if example := _EXAMPLE.search(module.__doc__ or ""):
            words = example[1].replace("%", "%%").replace("\\\n", " ").split()
            usage = f"usage: {' '.join(words)} [options]"
            lines = textwrap.wrap(usage, _WIDTH, subsequent_indent=" " * 7, break_on_hyphens=False)
            self.usage = "\n".join(lines).removeprefix("usage: ")
        return module

    def format_help(self) -> str:
        """Returns the help, without empty lines between the groups of a job's options."""
        text = super().format_help()
        return text if self._subparsers is not None else text.replace("\n\n", "\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = list(map(str, action.choices))
        name = "/".join(action.option_strings) or action.metavar or action.dest
        raise UsageError(
            f"{name} cannot be {value!r}.{did_you_mean(value, choices)}",
            where=f"{'/'.join(action.option_strings) or self.prog} {value}",
            remedy=f"Known are: {', '.join(choices)}.",
        )

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Reports an unknown option, with a suggestion, before a missing required one."""
        options = self._option_string_actions
        has_parsers_below = self._subparsers is not None
        for word in () if has_parsers_below else args or ():
            if word == "--":
                break
            name = word.partition("=")[0]
            # argparse accepts the beginning of an option.
            if name.startswith("--") and not any(option.startswith(name) for option in options):
                raise UsageError(
                    f"`{self.prog}` has no option {name[:100]}.{did_you_mean(name, options)}",
                    where=word[:200],
                    remedy=f"`{self.prog} --help` lists the options.",
                )
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, where=self.prog, remedy=f"See `{self.prog} --help`.")


def _versions() -> str:
    """Returns the versions of the main packages, without importing them."""
    versions = [f"txl-tf {__version__}"]
    for name in ("tensorflow", "tensorflow-tpu", "keras"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    return ", ".join([*versions, f"Python {platform.python_version()}"])


if __name__ == "__main__":
    raise SystemExit(main())
