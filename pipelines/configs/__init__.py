"""Named experiments of `experiments.toml`: `txl train --config NAME` runs one."""

import functools
import tomllib
from collections.abc import Callable
from pathlib import Path

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.models.presets import preset

_SECTIONS = tomllib.loads((Path(__file__).parent / "experiments.toml").read_text("utf-8"))


def _experiment(name: str) -> ExperimentConfig:
    """Returns the experiment that trains the preset of the same name, in the faster precision."""
    training = {"dtype_policy": "auto", **_SECTIONS[name]["training"]}
    sections = {"model": preset(name).to_dict(), **_SECTIONS[name], "training": training}
    return ExperimentConfig.from_dict(sections)


NAMED_EXPERIMENTS: dict[str, Callable[[], ExperimentConfig]] = {
    **{name: functools.partial(_experiment, name) for name in _SECTIONS},
    "enwik8_hour": functools.partial(_experiment, "hour"),
}
"""Experiments by name."""
