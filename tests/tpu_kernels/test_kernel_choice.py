"""Which runs attend by the kernel, and why."""

import importlib.metadata

import pytest
import tensorflow as tf

from tests.small_models import small_config
from tests.toy_batches import toy_experiment
from txl_tf.distribution import strategy as module
from txl_tf.tpu_compiler.chips import CHIPS
from txl_tf.tpu_compiler.program import traced_tpu_strategy
from txl_tf.tpu_kernels.kernel_choice import AttentionChoice
from txl_tf.training.train_state import attention_choice


@pytest.mark.parametrize("chip", [*CHIPS, None, ""])
def test_chips_that_move_rows_apart_get_the_kernel(chip):
    choice = AttentionChoice.for_chip(chip)
    assert (choice.kernel is not None) == (chip in ("v5e", "v5p", "v6e"))
    assert choice.reason.startswith("kernel" if choice.kernel else "plain operations: ")


def test_v4_gets_the_kernel_only_if_asked():
    kernel = AttentionChoice.for_chip("v4", is_forced=True).kernel
    assert kernel is not None and not kernel.has_strided_rolls
    assert AttentionChoice.for_chip("v3", is_forced=True).kernel is None


@pytest.mark.parametrize("version", ["0.9.0", None])
def test_without_the_right_jax_there_is_no_kernel(monkeypatch, version):
    def find(name):
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", find)
    choice = AttentionChoice.for_chip("v5e")
    assert choice.kernel is None and "tpu-kernel" in choice.reason


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"training": {"attention_kernel": "never"}}, "never"),
        ({"model": {"position_encoding": "shaw", "num_positions": 4}}, "positions"),
        ({"model": {"memory_length": 400_000}}, "fit"),
        ({}, "small"),
        ({"training": {"attention_kernel": "always"}}, "no scores in memory"),
        ({"model": {"segment_length": 2048}}, "no scores in memory"),
    ],
)
def test_the_run_decides_too(changes, word):
    strategy = traced_tpu_strategy(1, chip="v5e")
    assert word in attention_choice(toy_experiment(**changes), strategy).reason


@pytest.mark.parametrize("is_differentiated", [False, True])
def test_long_memories_do_not_fit_a_v4(is_differentiated):
    sizes = {"num_rows": 2, "num_tokens": 768, "dtype": "bfloat16", "rounds_products": False}
    config = small_config(768, 768, width=1024, num_heads=8)

    def choice(chip, memory_length):
        return AttentionChoice.for_model(
            config.replace(memory_length=memory_length),
            setting="always",
            chip=chip,
            is_differentiated=is_differentiated,
            **sizes,
        )

    assert choice("v4", 768).kernel is not None
    assert choice("v5e", 3800).kernel is not None
    assert "do not fit" in choice("v4", 3800).reason


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
