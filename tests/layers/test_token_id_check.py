"""Ids beyond the vocabulary are refused wherever they can be looked at."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

import txl_tf
from tests.generation.models import expressive
from txl_tf.config.lstm_config import LSTMConfig
from txl_tf.evaluation.context_losses import ContextLosses
from txl_tf.evaluation.evaluation_text import EvaluationText
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.layers.token_id_check import check_token_ids
from txl_tf.models.lstm_language_model import LSTMLanguageModel

V = 13
GOOD = np.arange(8).reshape(2, 4)
RECURRENT = {
    "vocabulary_size": V,
    "num_layers": 1,
    "hidden_dim": 8,
    "embedding_dim": 8,
    "segment_length": 4,
}


def with_one(token_id):
    token_ids = GOOD.astype(np.int64)
    token_ids[1, 2] = token_id
    return token_ids


def adaptive():
    config = expressive().config.replace(cutoffs=(5, 9), division_factor=2)
    return txl_tf.TransformerXL(config)


MODELS = {
    "transformer_xl": expressive,
    "adaptive": adaptive,
    "lstm": lambda: LSTMLanguageModel(LSTMConfig(**RECURRENT)),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return MODELS[request.param]()


@settings(deadline=None, derandomize=True)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**31))
def test_exactly_the_ids_of_the_vocabulary_pass(token_id, vocabulary_size):
    for ids in (np.array([0, token_id]), [[0], [token_id]], token_id, tf.constant(token_id)):
        if 0 <= token_id < vocabulary_size:
            check_token_ids(ids, vocabulary_size)
        else:
            with pytest.raises(ValueError, match=r"`token_ids` must be in .* Received: from"):
                check_token_ids(ids, vocabulary_size)


@pytest.mark.parametrize("ids", [np.array([0.5]), [np.nan], [True], 1.5])
def test_ids_are_integers(ids):
    with pytest.raises(ValueError, match=r"must be integers\. Received: token_ids of type"):
        check_token_ids(ids, V)


# 2**32 would be 0 in 32 bits.
@pytest.mark.parametrize("token_id", [V, -1, 2**32, -(2**63)])
@pytest.mark.parametrize("as_input", [np.asarray, tf.constant])
def test_every_way_into_a_model_refuses_by_one_sentence(model, token_id, as_input):
    bad, memory = as_input(with_one(token_id)), model.initial_memory(2)
    for read in (
        lambda: model(bad, memory),
        lambda: model.log_probs(bad, memory),
        lambda: model.score(bad, GOOD, memory),
        lambda: model.score(GOOD, bad, memory),
        lambda: model.embedding(bad),
    ):
        with pytest.raises(ValueError, match=r"_ids` must be in \[0, 13\)\. Received: from [-\d]+"):
            read()
    model.score(as_input(GOOD), as_input(GOOD), memory)


def test_compiled_functions_are_left_alone(model):
    memory = model.initial_memory(2)

    @tf.function(autograph=False)
    def score(token_ids):
        return model.score(token_ids, token_ids, memory)[0]

    eager, _ = model.score(GOOD, GOOD, memory)
    np.testing.assert_allclose(score(tf.constant(GOOD)), eager, atol=1e-5)


def test_what_reads_texts_refuses_them():
    model = expressive()
    stateful = txl_tf.StatefulTransformerXL(model.config, batch_size=2)
    evaluator = Evaluator(model.config, txl_tf.EvaluationConfig(batch_size=1), jit_compile=False)
    text = EvaluationText.of_tokens(
        "text", with_one(V).ravel(), num_bytes=8, num_characters=8, num_words=8
    )
    sampler = txl_tf.samplers.GreedySampler()
    for read in (
        lambda: stateful(with_one(V)),
        lambda: model.hidden_states(with_one(V), model.initial_memory(2)),
        lambda: ContextLosses(model, 2)(with_one(V)),
        lambda: evaluator.evaluate(text, step=0),
        lambda: txl_tf.generate(model, with_one(V), num_tokens=1, sampler=sampler),
        lambda: txl_tf.generate(model, with_one(-1), num_tokens=1, sampler=sampler),
    ):
        with pytest.raises(ValueError, match=r"must be in \[0, 13\)\. Received: from [-\d]+"):
            read()
    with pytest.raises(ValueError, match=r"must be integers\. Received: prompt_ids of type float"):
        txl_tf.generate(model, [[0.5]], num_tokens=1, sampler=sampler)
