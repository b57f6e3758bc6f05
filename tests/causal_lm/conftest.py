"""A language model of letters that the tests of this folder share."""

import numpy as np
import pytest

from tests.small_models import toy_experiment, with_drawn_weights
from txl_tf.causal_lm.causal_lm import TransformerXLCausalLM
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.models import create_model

# Every token is a character, so that any text that is written can be read back.
TOKENIZER = CharacterTokenizer(list("abcdefghijklmnopqrstuvwxyz "))


def ids_of(text):
    return TOKENIZER.encode(text).astype(np.int32)


@pytest.fixture(scope="session")
def model():
    config = toy_experiment().model.replace(vocabulary_size=27, memory_length=12)
    return with_drawn_weights(create_model(config, dtype="float32"), scale=0.7)


@pytest.fixture(scope="session")
def lm(model):
    return TransformerXLCausalLM(model, TOKENIZER)
