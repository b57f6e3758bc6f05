"""A tiny model that reads bytes, exported and loaded once for all tests of a process."""

import keras
import pytest
import tensorflow as tf

import txl_tf
from tests.toy_batches import toy_experiment
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer

CONFIG = toy_experiment(model={"num_layers": 2, "vocabulary_size": 256}).model
MODEL_CARD = {"name": "toy", "quality": {"bits_per_byte": 1.25}}


@pytest.fixture(scope="session")
def model():
    keras.utils.set_random_seed(1234)
    return txl_tf.TransformerXL(CONFIG)


@pytest.fixture(scope="session")
def exported(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "models" / "1"
    assert txl_tf.export_saved_model(model, folder, MODEL_CARD) == folder
    return folder


@pytest.fixture(scope="session")
def signatures(exported):
    return kept_signatures(exported)


@pytest.fixture(scope="session")
def exported_texts(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "1"
    txl_tf.export_saved_model(model, folder, MODEL_CARD, tokenizer=ByteTokenizer())
    return folder


@pytest.fixture(scope="session")
def text_signatures(exported_texts):
    return kept_signatures(exported_texts)


def kept_signatures(folder):
    """The signatures of an export; functions die with what they were loaded with."""
    loaded = tf.saved_model.load(str(folder))
    _KEPT.append(loaded)
    return loaded.signatures


_KEPT = []
