"""Files of an export, and its signatures of token ids against the model."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import txl_tf
from tests.export.bad_requests import BAD, GOOD
from tests.export.conftest import CONFIG
from tests.export.requests import (
    SETTINGS,
    generate,
    memory_in,
    nothing_read,
    random_ids,
    rows_of,
    score,
    settings as all_settings,
    tensors,
)
from tests.generation.models import greedy_by_the_model
from tests.inference.variants import made, read, tokens
from txl_tf.export.served_model import ServedModel, ServedWeights
from txl_tf.inference.engine import InferenceEngine
from txl_tf.models.plain_weights import plain_weights
from txl_tf.samplers import RandomSampler

SEGMENT = CONFIG.segment_length
VARIANTS = {
    "shaw": {},
    "sinusoidal": {},
    "learned": {},
    "gates": {"same_length": True, "clamp_length": 3, "share_attention_biases": True},
    "clusters": {"tie_weights": False},
}


class Version:
    """A loaded export that is asked as by TensorFlow Serving, with the defaults of its graph."""

    def __init__(self, folder, loaded):
        graph = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
        self._definitions = graph.meta_graphs[0].signature_def
        self._functions = loaded.signatures

    def predict(self, name, inputs):
        definition = self._definitions[name]
        defaults = {key: tf.make_ndarray(value) for key, value in definition.defaults.items()}
        tensors = {
            key: tf.constant(value, tf.as_dtype(definition.inputs[key].dtype))
            for key, value in {**defaults, **inputs}.items()
        }
        return {key: each.numpy() for key, each in self._functions[name](**tensors).items()}


def test_texts_in_segments_score_as_the_model_does(model, signatures):
    text = random_ids(3, 4 * SEGMENT + 3)
    engine = InferenceEngine(model, keeps_states=True)
    expected, memory = read(engine, text, (*[SEGMENT] * 4, 2))
    # Cuts where the model's segments end do not show; the first answer has a long memory.
    answer = score(signatures, text[:, : 2 * SEGMENT + 1], nothing_read(3))
    rest = score(signatures, text[:, 2 * SEGMENT :], memory_in(answer))
    nll = np.concatenate([answer["nll"], rest["nll"]], axis=1)
    np.testing.assert_allclose(nll, expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(rest["total_nll"], np.sum(rest["nll"], axis=1), rtol=1e-6)
    states = np.stack(memory.states, axis=1)
    np.testing.assert_allclose(rest["memory_states"], states, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(rest["memory_valid_length"], memory.valid_length)
    forgotten = score(signatures, text[:, 2 * SEGMENT :], nothing_read(3))
    assert np.abs(forgotten["nll"][:, 0] - rest["nll"][:, 0]).max() > 1e-2


def test_rows_of_different_lengths_equal_rows_read_alone(signatures):
    lengths = [1, SEGMENT, SEGMENT + 1, 2 * SEGMENT + 2]
    text = random_ids(4, max(lengths) + 1, seed=2)
    for row, length in enumerate(lengths):
        text[row, length + 1 :] = -7  # no token id
    together = score(signatures, text, nothing_read(4), lengths)
    np.testing.assert_array_equal(together["num_scored"], lengths)
    for row, length in enumerate(lengths):
        alone = score(signatures, text[row : row + 1, : length + 1], nothing_read(1))
        nll = together["nll"][row]
        np.testing.assert_allclose(nll[:length], alone["nll"][0], rtol=0, atol=1e-5)
        assert not np.any(nll[length:])
        for name, value in memory_in(together).items():
            np.testing.assert_allclose(value[row], alone[name][0], rtol=0, atol=1e-5)


def test_a_row_does_not_depend_on_the_others_by_a_bit(signatures):
    text = random_ids(3, 2 * SEGMENT + 1, seed=4)
    states = np.random.default_rng(0).normal(size=(3, 2, CONFIG.memory_length, 8))
    memory = {
        "memory_states": states.astype("float32"),
        "memory_valid_length": np.array([7, 3, 0], "int32"),
    }
    scored = score(signatures, text, memory)
    memory["memory_states"][1:] *= 100.0
    memory["memory_valid_length"][1:] = [0, 7]
    text[1:] = text[1:, ::-1]
    others = score(signatures, text, memory)
    for name, value in scored.items():
        np.testing.assert_array_equal(others[name][0], value[0])
    assert np.all(others["total_nll"][1:] != scored["total_nll"][1:])


def test_bad_requests_are_refused_and_leave_nothing_behind(signatures):
    before = signatures["score"](**tensors(GOOD))
    for name, (changes, message) in BAD.items():
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            pytest.fail(f"{name}: {signatures['score'](**tensors({**GOOD, **changes}))}")
    huge = {**GOOD, "memory_states": np.full((2, 2, 7, 8), 3e38, "float32")}
    with pytest.raises(tf.errors.InvalidArgumentError, match="it must be finite"):
        pytest.fail(f"{signatures['score'](**tensors(huge))['nll']}")
    after = signatures["score"](**tensors(GOOD))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)


def test_bad_settings_are_refused_by_row(signatures):
    rows = rows_of(random_ids(2, 3))
    for changes, message in (
        ({"max_tokens": [1, 1025]}, r"max_tokens\[1\] is 1025; it must be 1 to 1024"),
        ({"temperature": [0.0, np.nan]}, r"temperature\[1\] is nan"),
        ({"top_k": -1}, r"top_k\[0\] is -1"),
        ({"top_p": [1.0, 0.0]}, r"top_p\[1\] is 0; it must be 1e-30 to 1"),
        ({"min_p": 1.5}, r"min_p\[0\] is 1.5"),
        ({"stop_token_ids": [[-1, 256]]}, r"stop_token_ids\[0, 1\] is 256; it must be -1 to 255"),
        ({"stop_token_ids": [[1], [2], [3]]}, "stop_token_ids has 3 rows; the batch has 2"),
        ({"stop_token_ids": [1, 2]}, r"stop_token_ids has the shape \(2\)"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            pytest.fail(f"{generate(signatures, rows, nothing_read(2), **changes)}")


@pytest.mark.slow
def test_generate_writes_each_row_to_its_own_end_and_is_continued_from_there(model, signatures):
    prompts = random_ids(3, 2 * SEGMENT, seed=5)
    lengths, num_tokens = [1, SEGMENT, 2 * SEGMENT], [9, 1, 4]
    rows = zip(prompts, lengths, num_tokens, strict=True)
    expected = [greedy_by_the_model(model, row[:length], count + 3) for row, length, count in rows]
    stops = [[-1, -1], [-1, -1], [-1, expected[2][1]]]
    num_tokens[2] = 1 + expected[2].index(expected[2][1])
    rows = rows_of(prompts, lengths)
    answer = generate(signatures, rows, nothing_read(3), stops, max_tokens=[9, 1, 4])
    assert answer["token_ids"].shape == (3, 9)
    np.testing.assert_array_equal(answer["lengths"], num_tokens)
    last = np.array([[text[count - 1]] for text, count in zip(expected, num_tokens, strict=True)])
    more = generate(signatures, rows_of(last.astype("int32")), memory_in(answer), max_tokens=3)
    for row, (text, count) in enumerate(zip(expected, num_tokens, strict=True)):
        written = answer["token_ids"][row].numpy().tolist()
        assert written == text[:count] + [0] * (9 - count)
        assert more["token_ids"][row].numpy().tolist() == text[count : count + 3]


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_write_as_the_model_does(variant):
    model = made(variant, **VARIANTS[variant])
    served = ServedModel(model, ServedWeights(plain_weights(model, "It"), "float32"))
    prompts = tokens(3 * model.config.segment_length)
    values = (9, 0.8, 5, 0.9, 0.01, 3)
    settings = dict(zip(SETTINGS, (tf.fill([2], each) for each in values), strict=True))
    settings |= {"stop_token_ids": tf.fill([2, 1], -1), "stop": tf.fill([2, 1], "")}
    lengths, memory = tf.fill([2], prompts.shape[1]), model.initial_memory(2)
    written, *_ = served.generate(tf.constant(prompts), lengths, settings, memory)
    sampler = RandomSampler(*values[1:5])
    expected, _ = txl_tf.generate(model, prompts, max_tokens=9, sampler=sampler, seed=3)
    np.testing.assert_array_equal(written, expected)


def test_a_request_without_defaults_is_the_one_with_all_of_them(exported, loaded):
    version, text = Version(exported, loaded), random_ids(3, SEGMENT + 2)
    scored = {"token_ids": text[:, :-1], "target_ids": text[:, 1:]}
    full = version.predict("score", {**rows_of(text[:, :-1]), **scored, **nothing_read(3)})
    short = version.predict("score", scored)
    for name, value in full.items():
        np.testing.assert_array_equal(short[name], value)
    few = {"max_tokens": np.int32(5), "seed": np.int32(3)}
    drawn = all_settings(3, max_tokens=5, seed=3, temperature=1.0, top_p=0.9)
    full = version.predict("generate", {**rows_of(text), **drawn, **nothing_read(3)})
    short = version.predict("generate", {"token_ids": text, **few})
    for name, value in full.items():
        np.testing.assert_array_equal(short[name], value)
    texts = {"texts": [b"one", b"text"], "temperature": np.float32(0.0)}
    answer = version.predict("complete", texts)["texts"]
    sent = sum(len(tf.make_tensor_proto(value).SerializeToString()) for value in texts.values())
    assert sent + sum(map(len, answer)) < 2048
