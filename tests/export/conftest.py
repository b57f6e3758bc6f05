"""A tiny model that reads bytes, exported and loaded once for all tests of a process."""

import keras
import pytest
import tensorflow as tf

import txl_tf
from tests.small_models import toy_experiment
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer

CONFIG = toy_experiment(model={"num_layers": 2, "vocabulary_size": 256}).model


@pytest.fixture(scope="session")
def model():
    keras.utils.set_random_seed(1234)
    return txl_tf.TransformerXL(CONFIG)


@pytest.fixture(scope="session")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "models" / "1"
    assert txl_tf.export_saved_model(model, folder, tokenizer=ByteTokenizer()) == folder
    return folder


@pytest.fixture(scope="session")
def loaded(exported):
    return tf.saved_model.load(str(exported))


@pytest.fixture(scope="session")
def signatures(loaded):
    return loaded.signatures
