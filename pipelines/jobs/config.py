"""Lists settings and shows experiments: `txl config`.

txl config
txl config training
txl config --config enwik8_base
"""

import argparse
import ast
import dataclasses
import inspect
import itertools
import json
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

from txl_tf.config.base import FrozenConfig, fields_of, shown_type
from txl_tf.config.evaluation import EvaluationConfig
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.config.task import TaskConfig
from txl_tf.config.training import TrainingConfig
from txl_tf.errors import UsageError

from ..configs import NAMED_EXPERIMENTS, load_experiment
from ..shell.arguments import add_config_argument, add_override_argument

SECTIONS: dict[str, type[FrozenConfig]] = {
    "model": ModelConfig,
    "training": TrainingConfig,
    "optimizer": OptimizerConfig,
    "evaluation": EvaluationConfig,
    "lstm": LSTMConfig,
    "qrnn": QRNNConfig,
    "task": TaskConfig,
}
_WIDTH = 80


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the job."""
    way = parser.add_mutually_exclusive_group()
    way.add_argument(
        "section",
        nargs="?",
        choices=[*SECTIONS],
        metavar="SECTION",
        help=f"list only this section: {', '.join(SECTIONS)} (default: the first four)",
    )
    add_config_argument(way, help="print all settings of this experiment as JSON")
    add_override_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> str:
    """Reads the experiment of `--config`, if given, and returns the text to print."""
    if arguments.config is not None:
        experiment = load_experiment(arguments.config, arguments.overrides)
        return json.dumps(experiment.to_dict(), indent=2)
    if arguments.overrides:
        raise UsageError("--set needs --config.", where="--set", remedy="Add --config NAME|FILE.")
    if arguments.section is not None:
        return _describe_section(arguments.section)
    names = textwrap.fill(f"Named experiments: {', '.join(NAMED_EXPERIMENTS)}.", _WIDTH)
    others = "Other models and tasks: txl config lstm, txl config qrnn, txl config task."
    return "\n\n".join([*map(_describe_section, list(SECTIONS)[:4]), others, names])


def run(text: str) -> None:
    """Prints settings, or an experiment."""
    print(text)


def _describe_section(section: str) -> str:
    """Formats the settings of a section: name, type, range and default, with the meaning below."""
    prefix = "model" if section in ("lstm", "qrnn") else section
    blocks = []
    indent = " " * 4
    for name, facts, meaning in settings_of(SECTIONS[section]):
        text = textwrap.fill(meaning, _WIDTH, initial_indent=indent, subsequent_indent=indent)
        blocks.append(f"{prefix}.{name}  ({facts})\n{text}")
    return "\n".join(blocks)


def settings_of(config_class: Any) -> Iterator[tuple[str, str, str]]:
    """Yields name, facts and meaning of each field; the facts are type, range and default."""
    meanings: dict[str, str] = {}
    for base in reversed(config_class.__mro__):
        if dataclasses.is_dataclass(base):
            meanings |= _meanings(base)
    for field in dataclasses.fields(config_class):
        hint, limits = fields_of(config_class)[field.name]
        default = "required"
        if field.default is not dataclasses.MISSING:
            default = f"default {field.default!r}"
        elif field.default_factory is not dataclasses.MISSING:
            default = "its own defaults"
        facts = [shown_type(hint), *([str(limits)] if limits else []), default]
        yield field.name, "; ".join(facts), meanings.get(field.name, "")


def _meanings(config_class: Any) -> dict[str, str]:
    """Reads the strings under the fields from the source of a class."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(config_class)))
    meanings = {}
    for field, after in itertools.pairwise(typing.cast(ast.ClassDef, tree.body[0]).body):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
            meanings[ast.unparse(field.target)] = " ".join(ast.literal_eval(after.value).split())
    return meanings
