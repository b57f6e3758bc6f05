"""Choice of the precision of a new run: mixed bfloat16 where its products are faster."""

import time

import numpy as np
import tensorflow as tf
from keras import ops

from txl_tf.config.experiment import ExperimentConfig
from txl_tf.distribution.mesh_strategy import MeshStrategy
from txl_tf.distribution.strategy import AnyStrategy, num_workers

from ..shell.progress import say

# Time of measuring large products, and the least number of rounds.
_PRODUCT_SECONDS, _MIN_ROUNDS = 0.3, 2
_WORTHWHILE_GAIN = 1.3
"""Gain of large products from which mixed bfloat16 pays: a step gains less."""


def with_faster_policy(experiment: ExperimentConfig, strategy: AnyStrategy) -> ExperimentConfig:
    """Replaces the precision "auto" of a new run, and prints which one it takes.

    Several processes would measure different rates, and take float32.
    """
    if experiment.training.dtype_policy != "auto":
        return experiment
    policy, reason = "float32", "several processes may measure different speeds"
    if device_kind(strategy) == "TPU":
        policy, reason = "mixed_bfloat16", "TPUs multiply in bfloat16"
    elif num_workers(strategy) == 1:
        is_on_cpu = device_kind(strategy) == "CPU"
        gain = product_rate("bfloat16", is_on_cpu) / product_rate("float32", is_on_cpu)
        policy = "mixed_bfloat16" if gain >= _WORTHWHILE_GAIN else "float32"
        reason = f"products in bfloat16 are {gain:.2g} times as fast as in float32 here"
    say(f"This run takes training.dtype_policy={policy}: {reason}.")
    return experiment.with_policy(policy)


def device_kind(strategy: AnyStrategy) -> str:
    """Returns the kind of device that runs the model: TPU, else GPU, else CPU."""
    if isinstance(strategy, MeshStrategy):
        return strategy.kind
    return next(kind for kind in ("TPU", "GPU", "CPU") if tf.config.list_logical_devices(kind))


def product_rate(dtype: str, is_on_cpu: bool) -> float:
    """Measures the operations per second of large matrix products, which no model exceeds.

    The fastest round counts, because other work only slows a round down.
    """
    # Large enough to outweigh the launch, small enough for a short round. An accelerator works
    # through a queue; the host waits for it once a round.
    width, num_products = (2048, 1) if is_on_cpu else (4096, 8)
    left, right = (
        ops.cast(np.random.default_rng(seed).standard_normal((width, width), np.float32), dtype)
        for seed in range(2)
    )

    def round_seconds() -> float:
        begin = time.perf_counter()
        for _ in range(num_products):
            product = ops.matmul(left, right)
        ops.convert_to_numpy(product[:1, 0])  # waits for the last
        return time.perf_counter() - begin

    round_seconds()  # compiles, and starts the threads
    rounds: list[float] = []
    while len(rounds) < _MIN_ROUNDS or sum(rounds) < _PRODUCT_SECONDS:
        rounds.append(round_seconds())
    return num_products * 2 * width**3 / min(rounds)
