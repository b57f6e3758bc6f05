"""Saved models and layers load in a process that has not imported their classes."""

import re
import subprocess
import sys

import keras
import numpy as np
import pytest

import txl_tf
from tests.layers.keras_cases import CASES
from tests.slow_case import slow_case
from tests.small_models import VOCABULARY_SIZE, toy_experiment
from tests.source_tree import ROOT
from txl_tf.config.model import LSTMConfig, QRNNConfig
from txl_tf.config.optimizer import OptimizerConfig
from txl_tf.models.recurrent import LSTMLanguageModel, QRNNLanguageModel
from txl_tf.training import optimizers

CONFIG = toy_experiment(model={"num_layers": 1}).model
TOKEN_IDS = np.random.default_rng(0).integers(0, VOCABULARY_SIZE, (2, 5)).astype(np.int32)
RECURRENT = {
    "vocabulary_size": VOCABULARY_SIZE,
    "num_layers": 1,
    "hidden_dim": 8,
    "segment_length": 5,
}
LANGUAGE_MODELS = ("TransformerXL", "LSTMLanguageModel", "QRNNLanguageModel")
PROGRAM = """
import sys
{imports}
models = {{path: keras.models.load_model(path) for path in sys.argv[1:]}}
loaded = {{path: txl_tf.load(path).model for path in sys.argv[1:] if path.endswith(
    ("TransformerXL.keras", "LanguageModel.keras", "WithHead.keras"))}}
from tests.models.test_saved_models import check, same_weights
for path in models:
    check(path, models[path])
    if path in loaded:
        same_weights(models[path], loaded[path])
"""


def layer_in_model(layer, case):
    """A functional model of one layer, with the layer's further call arguments."""
    symbol = keras.Input(case["input_data"].shape[1:], dtype=case["input_data"].dtype.name)
    return keras.Model(symbol, layer(symbol, **case.get("call_kwargs", {})))


def models():
    """Every registered class by its name, in a model with its inputs."""
    model = txl_tf.TransformerXL(CONFIG)
    yield "TransformerXL", model, TOKEN_IDS
    yield "LSTMLanguageModel", LSTMLanguageModel(LSTMConfig(**RECURRENT)), TOKEN_IDS
    yield "QRNNLanguageModel", QRNNLanguageModel(QRNNConfig(**RECURRENT)), TOKEN_IDS
    stateful = txl_tf.StatefulTransformerXL(CONFIG, batch_size=2)
    stateful.compile(optimizers.Muon(optimizers.WarmupSchedule(OptimizerConfig(), 2)))
    yield "StatefulTransformerXL", stateful, TOKEN_IDS
    task = txl_tf.TransformerXLWithHead(model, txl_tf.layers.PooledHead(2))
    yield "TransformerXLWithHead", task, TOKEN_IDS
    for name, case in CASES.items():
        model = layer_in_model(getattr(txl_tf.layers, name)(**case["init_kwargs"]), case)
        yield name, model, case["input_data"]


def outputs_of(model, inputs):
    if type(model).__name__ in LANGUAGE_MODELS:
        return model.log_probs(inputs, model.initial_memory(len(inputs)))[0].numpy()
    return keras.ops.convert_to_numpy(model(inputs))


def check(path, model):
    arrays = np.load(path.replace(".keras", ".npz"))
    np.testing.assert_allclose(outputs_of(model, arrays["inputs"]), arrays["outputs"], atol=1e-6)


def same_weights(model, language_model):
    part = getattr(model, "transformer_xl", getattr(model, "language_model", model))
    assert type(language_model) is type(part)
    for one, other in zip(part.get_weights(), language_model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for name, model, inputs in models():
        model.save(folder / f"{name}.keras")
        np.savez(folder / name, inputs=inputs, outputs=outputs_of(model, inputs))
    return sorted(str(path) for path in folder.glob("*.keras"))


@pytest.mark.parametrize("imports", ["import txl_tf, keras", slow_case("import keras, txl_tf")])
def test_every_class_loads_in_a_process_of_its_own(saved, imports):
    # One class tells whether the other order registers them too.
    paths = [path for path in saved if "/TransformerXL." in path or "keras, txl" not in imports]
    program = [sys.executable, "-c", PROGRAM.format(imports=imports), *paths]
    finished = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr


def test_every_class_that_is_registered_is_saved_above(saved):
    """Except classes of `training`, which are saved with a compiled model."""
    decorated = re.compile(r"register_keras_serializable\(package=\"txl_tf\"\)\nclass (\w+)")
    classes = [
        (path.parent.name, name)
        for path in (ROOT / "txl_tf").rglob("*.py")
        for name in decorated.findall(path.read_text())
    ]
    names = {path.rpartition("/")[2].removesuffix(".keras") for path in saved}
    assert names == {name for folder, name in classes if folder != "training"}
    registered = {name for name in keras.saving.get_custom_objects() if name.startswith("txl_tf>")}
    assert registered == {f"txl_tf>{name}" for _, name in classes}
