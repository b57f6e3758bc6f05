"""Keras' own test of a layer, `run_layer_test`, on every public layer."""

import keras
import pytest
from keras.src import testing

from tests.layers.keras_cases import CASES
from tests.slow_case import slow_case
from txl_tf import layers

# The test of Keras gives `fit` a generator.
pytestmark = pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")


def test_every_public_layer_has_a_case():
    assert set(CASES) == set(layers.__all__)


_PLAIN = ("RelativeAttention",)  # the others take as long each


@pytest.mark.parametrize(
    "name", [name if name in _PLAIN else slow_case(name) for name in layers.__all__]
)
def test_layer_passes_the_test_of_keras(name):
    keras.utils.clear_session()
    testing.TestCase("run_layer_test").run_layer_test(getattr(layers, name), **CASES[name])
