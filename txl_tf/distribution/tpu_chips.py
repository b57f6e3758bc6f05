"""Generation of the TPU chips that a strategy runs on."""

import os
import re

import tensorflow as tf

ACCELERATOR_VARIABLE = "TPU_ACCELERATOR_TYPE"
"""Environment variable of Cloud TPU machines, with values such as `v5litepod-16`."""
CHIP_OF_ACCELERATOR = {"v5litepod": "v5e"}
"""Generations whose accelerator types have another name; `v6e-8` is a v6e."""
_ATTRIBUTE = "_txl_tf_chip"
_GENERATION = re.compile(r"(v\d+[a-z]*)-\d+")


def set_chip(strategy: tf.distribute.TPUStrategy, chip: str) -> None:
    """Notes the chip, such as `v5e`, of a strategy whose programs are only traced."""
    setattr(strategy.extended, _ATTRIBUTE, chip)


def chip_of(strategy: tf.distribute.Strategy) -> str | None:
    """Returns the generation of the chips, such as `v5e`; `None` if unknown or without a TPU.

    TensorFlow does not report it, but machines of a TPU have it in their environment.
    """
    if not isinstance(strategy, tf.distribute.TPUStrategy):
        return None
    noted = getattr(strategy.extended, _ATTRIBUTE, None)
    if noted is not None:
        return noted
    named = _GENERATION.fullmatch(os.environ.get(ACCELERATOR_VARIABLE, ""))
    return CHIP_OF_ACCELERATOR.get(named[1], named[1]) if named else None
