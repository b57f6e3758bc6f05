"""Models of every kind and tokenizers of text, through their exports."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import txl_tf
from tests.export.requests import (
    memory_in,
    nothing_read,
    random_ids,
    sampling,
    score,
    tensors,
)
from tests.toy_batches import SEGMENT_LENGTH, toy_experiment
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.export.sampling import Sampling
from txl_tf.export.served_model import ExportOptions, ServedModel
from txl_tf.export.served_weights import ServedWeights
from txl_tf.samplers import GreedySampler

pytestmark = pytest.mark.slow

VARIANTS = {
    "shaw": {"position_encoding": "shaw", "num_positions": 5},
    "sinusoidal": {"position_encoding": "sinusoidal"},
    "learned": {"position_encoding": "learned", "num_positions": 30},
    "as_published": {
        "same_length": True,
        "clamp_length": 6,
        "share_attention_biases": True,
        "pre_norm": True,
    },
    "adaptive": {"cutoffs": (4, 8), "division_factor": 2, "tie_weights": False},
}


def served_functions(model):
    options = ExportOptions()
    weights = ServedWeights(model.weights, options.weights)
    return ServedModel(model, weights, options.num_candidates)


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_score_and_write_as_the_model_does(name):
    keras.utils.set_random_seed(5)
    model = txl_tf.TransformerXL(toy_experiment(model=VARIANTS[name]).model)
    served = served_functions(model)
    text = random_ids(2, 3 * SEGMENT_LENGTH + 1, vocabulary_size=13)
    ids, targets = tf.constant(text[:, :-1]), tf.constant(text[:, 1:])
    lengths = tf.fill([2], ids.shape[1])
    nll, memory = served.score(ids, targets, lengths, model.initial_memory(2))
    expected, carried = [], model.initial_memory(2)
    for start in range(0, ids.shape[1], SEGMENT_LENGTH):
        piece = slice(start, start + SEGMENT_LENGTH)
        one, carried = model.score(ids[:, piece], targets[:, piece], carried)
        expected.append(one)
    np.testing.assert_allclose(nll, np.concatenate(expected, axis=1), rtol=0, atol=1e-5)
    for served_state, state in zip(memory.states, carried.states, strict=True):
        np.testing.assert_allclose(served_state, state, rtol=0, atol=1e-5)
    wanted = Sampling(**tensors(sampling(2, max_tokens=9))).for_writer()
    written, *_ = served.generate(ids, lengths, wanted, model.initial_memory(2))
    expected, _ = txl_tf.generate(model, text[:, :-1], max_tokens=9, sampler=GreedySampler())
    np.testing.assert_array_equal(written, expected)


def test_absolute_positions_refuse_rows_of_different_lengths():
    model = txl_tf.TransformerXL(toy_experiment(model=VARIANTS["sinusoidal"]).model)
    served = served_functions(model)
    ids = tf.zeros([2, 4], tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="lengths are 4, 3; a model with"):
        served.score(ids, ids, tf.constant([4, 3]), model.initial_memory(2))


def test_a_model_without_memory_and_a_tokenizer_of_characters(tmp_path):
    tokenizer = CharacterTokenizer("abcdefghijkl\u00e9")
    config = toy_experiment(model={"recurrence": False}).model
    model = txl_tf.TransformerXL(config)
    txl_tf.export_saved_model(model, tmp_path / "1", {}, tokenizer=tokenizer)
    loaded = tf.saved_model.load(str(tmp_path / "1"))
    signatures = loaded.signatures
    assert not {"generate", "generate_text"} & set(signatures)
    text = random_ids(2, SEGMENT_LENGTH + 1, vocabulary_size=13)
    answer = score(signatures, text, nothing_read(2))
    expected, _ = model.score(text[:, :-1], text[:, 1:], model.initial_memory(2))
    np.testing.assert_allclose(answer["nll"], expected, rtol=0, atol=1e-5)
    score(signatures, text, memory_in(answer))
    state = {"previous_token_ids": np.array([-1, -1], "int32"), **nothing_read(2)}
    texts = ["\u00e9a".encode(), b"bc"]
    scored = signatures["score_text"](**tensors({"texts": texts, **state}))
    np.testing.assert_array_equal(scored["token_ids"], [[12, 0], [1, 2]])
    for bad, message in (
        ([b"a", b"\xff"], r"texts\[1\] is not UTF-8"),
        ([b"a", b"z"], "not in the vocabulary"),
        ([b"", b"a"], r"texts\[0\] has no tokens"),
        ([b"a", b"a" * (1 << 16 | 1)], r"texts\[1\] is 65537 bytes long"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            pytest.fail(f"{signatures['next_token_text'](**tensors({'texts': bad, **state}))}")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"previous_token_ids\[1\] is 13"):
        wrong = {**state, "previous_token_ids": np.array([0, 13], "int32")}
        pytest.fail(f"{signatures['score_text'](**tensors({'texts': texts, **wrong}))}")
