"""Lists settings and shows experiments: `txl config`.

txl config
txl config training
txl config --config enwik8_base
txl config --schema > txl.schema.json
"""

import argparse
import json
import textwrap

from txl_tf.config.base import FrozenConfig, json_schema, settings_of
from txl_tf.config.experiment import (
    EvaluationConfig,
    ExperimentConfig,
    OptimizerConfig,
    TaskConfig,
    TrainingConfig,
)
from txl_tf.config.model import LSTMConfig, ModelConfig, QRNNConfig
from txl_tf.errors import UsageError

from .arguments import add_config_argument, add_override_argument
from .configs import NAMED_EXPERIMENTS, load_experiment

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
    parser.add_argument(
        "section",
        nargs="?",
        choices=list(SECTIONS),
        metavar="SECTION",
        help=f"list only these settings: {', '.join(SECTIONS)} (default: the first four)",
    )
    add_config_argument(parser, help="show this experiment whole, as JSON for a file")
    meaning = "print the JSON Schema of configuration files, for editors"
    parser.add_argument("--schema", action="store_true", help=meaning)
    add_override_argument(parser)


def check_arguments(arguments: argparse.Namespace) -> str:
    """Reads the named experiments, and returns the text to print."""
    given = [arguments.section, arguments.config, arguments.schema or None]
    if sum(each is not None for each in given) > 1:
        raise UsageError(
            "A section, --config and --schema exclude each other.",
            where="txl config",
            remedy="Give one of them.",
        )
    if arguments.config is not None:
        experiment = load_experiment(arguments.config, arguments.overrides)
        return json.dumps(experiment.to_dict(), indent=2)
    if arguments.overrides:
        raise UsageError("There is no experiment to change.", where="--set", remedy="Add --config.")
    if arguments.schema:
        schema = json_schema(ExperimentConfig)
        schema["properties"]["base"] = {"enum": list(NAMED_EXPERIMENTS)}
        return json.dumps(schema, indent=1)
    if arguments.section is not None:
        return _described(arguments.section)
    names = textwrap.fill(f"Named experiments: {', '.join(NAMED_EXPERIMENTS)}.", _WIDTH)
    return "\n\n".join([*map(_described, list(SECTIONS)[:4]), names])


def run(text: str) -> None:
    """Prints settings, an experiment, or the schema."""
    print(text)


def _described(section: str) -> str:
    """Formats the settings of a section: name, type, range and default, with the meaning below."""
    prefix = "model" if section in ("lstm", "qrnn") else section
    blocks = []
    for setting in settings_of(SECTIONS[section]):
        meaning = textwrap.fill(
            setting.meaning, _WIDTH, initial_indent="    ", subsequent_indent="    "
        )
        blocks.append(f"{prefix}.{setting.name}  ({setting.facts})\n{meaning}")
    return "\n".join(blocks)
