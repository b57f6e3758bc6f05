"""The same weights give the same numbers on JAX as on TensorFlow."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from keras import ops

from tests.layer_checks import ON_TENSORFLOW
from tests.models.jax_process import run
from tests.models.variants import ADAPTIVE, B, T, made
from tests.reference import max_difference

ROOT = pathlib.Path(__file__).resolve().parents[2]
VARIANTS = {
    "transformer_xl": ("transformer_xl", {}),
    "shaw": ("shaw", {"pre_norm": True}),
    "sinusoidal": ("sinusoidal", {}),
    "learned": ("learned", {}),
    "adaptive": ("transformer_xl", {**ADAPTIVE, "share_attention_biases": True}),
    "own_tables": ("transformer_xl", {**ADAPTIVE, "tie_weights": False}),
}
pytestmark = [
    pytest.mark.skipif(not ON_TENSORFLOW, reason="compares with TensorFlow"),
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What both backends make of three segments of every variant."""
    folder = tmp_path_factory.mktemp("jax")
    given, configs, on_tensorflow = {}, {}, {}
    for name, (position_encoding, changes) in VARIANTS.items():
        model = made(position_encoding, **changes)
        size = model.config.vocabulary_size
        segments = np.random.default_rng(1).integers(0, size, (3, B, T + 1)).astype("int32")
        configs[name] = model.config.to_dict()
        given[f"{name}/segments"] = segments
        for weight in model.weights:
            given[f"{name}/weights/{weight.path}"] = ops.convert_to_numpy(weight)
        on_tensorflow[name] = run(model, segments)
    source, target = folder / "given.npz", folder / "results.npz"
    np.savez(source, allow_pickle=False, configs=json.dumps(configs), **given)
    finished = subprocess.run(
        [sys.executable, "-m", "tests.models.jax_process", str(source), str(target)],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    on_jax = np.load(target, allow_pickle=False)
    return on_tensorflow, {name: on_jax[name] for name in on_jax.files}


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_scores_log_probs_and_memory_equal_those_of_tensorflow(results, name):
    on_tensorflow, on_jax = results
    assert len(on_tensorflow[name]) == 3 * (3 + 2)
    for key, expected in on_tensorflow[name].items():
        assert max_difference(on_jax[f"{name}/{key}"], expected) <= 1e-5, key
