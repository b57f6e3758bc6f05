"""Which runs attend by a kernel: the settings, the sizes, the chip and the installed JAX decide."""

import importlib.metadata

import pytest
import tensorflow as tf

from tests.small_models import toy_experiment
from txl_tf.distribution import strategy as module
from txl_tf.tpu_compiler.chips import CHIPS
from txl_tf.tpu_compiler.replica_program import traced_tpu_strategy
from txl_tf.training.train_state import attention_choice

ALWAYS = {"training": {"attention_kernel": "always"}}


@pytest.mark.parametrize("chip", [*CHIPS, ""])
def test_chips_that_move_rows_apart_get_the_kernel(chip):
    choice = attention_choice(toy_experiment(**ALWAYS), traced_tpu_strategy(1, chip=chip))
    assert (choice.kernel is not None) == (chip in ("v5e", "v5p", "v6e", "tpu7x"))
    assert choice.reason.startswith("kernel" if choice.kernel else "plain operations: ")


def test_without_the_right_jax_there_is_no_kernel(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.9.0")
    choice = attention_choice(toy_experiment(**ALWAYS), traced_tpu_strategy(1, chip="v5e"))
    assert choice.kernel is None and "tpu-kernel" in choice.reason


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"training": {"attention_kernel": "never"}}, "never"),
        ({"model": {"position_encoding": "shaw", "num_positions": 4}}, "positions"),
        ({"model": {"memory_length": 400_000}}, "fit"),
        ({}, "small"),
        ({"model": {"segment_length": 2048}}, "no scores in memory"),
    ],
)
def test_the_settings_of_a_run_decide_too(changes, word):
    strategy = traced_tpu_strategy(1, chip="v5e")
    assert word in attention_choice(toy_experiment(**changes), strategy).reason


@pytest.mark.parametrize(
    ("accelerator", "chip"),
    [("v5litepod-16", "v5e"), ("v6e-8", "v6e"), ("v4-32", "v4"), ("", None), ("gpu", None)],
)
def test_machines_name_their_chips(monkeypatch, accelerator, chip):
    monkeypatch.setenv(module.ACCELERATOR_VARIABLE, accelerator)
    assert module.chip_of(tf.distribute.get_strategy()) is None
    strategy = traced_tpu_strategy(1)
    assert module.chip_of(strategy) == ""  # it is traced, wherever that is
    del strategy.extended._txl_tf_chip
    assert module.chip_of(strategy) == chip
