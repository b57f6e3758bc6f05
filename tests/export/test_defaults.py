"""Inputs that a request may leave out: their defaults are in the graph and in the signatures."""

import numpy as np
import pytest
import tensorflow as tf

from tests.export.conftest import CONFIG
from tests.export.requests import nothing_read, random_ids, rows_of, sampling
from tests.serving.model_server import ServedModel

IDS = random_ids(3, CONFIG.segment_length + 2)
SCORED = {"token_ids": IDS[:, :-1], "target_ids": IDS[:, 1:]}
# What the defaults of `generate` stand for; 128 tokens are what a text gets.
DRAWN = sampling(3, max_tokens=128, temperature=1.0)


@pytest.fixture(scope="module")
def version(exported):
    return ServedModel(exported)


def test_a_request_without_them_is_the_one_with_all_of_them(version):
    short = version.predict("score", SCORED)
    full = version.predict("score", {**rows_of(IDS[:, :-1]), **SCORED, **nothing_read(3)})
    for name, value in full.items():
        np.testing.assert_array_equal(short[name], value)
    short = version.predict("generate", {"token_ids": IDS, "max_tokens": np.full(3, 5, "int32")})
    drawn = {**DRAWN, "max_tokens": np.full(3, 5, "int32")}
    full = version.predict("generate", {**rows_of(IDS), **drawn, **nothing_read(3)})
    for name, value in full.items():
        np.testing.assert_array_equal(short[name], value)


def test_a_session_of_the_graph_need_not_feed_them(exported, version):
    graph = tf.Graph()
    with tf.compat.v1.Session(graph=graph) as session:
        definition = tf.compat.v1.saved_model.load(session, ["serve"], str(exported))
        score = definition.signature_def["score"]
        feeds = {score.inputs[name].name: value for name, value in SCORED.items()}
        nll = session.run(score.outputs["nll"].name, feeds)
    np.testing.assert_allclose(nll, version.predict("score", SCORED)["nll"], rtol=1e-6)


def test_a_scalar_is_for_all_rows_and_checked_like_them(version):
    request = {"token_ids": IDS, "max_tokens": np.int32(4), "temperature": np.float32(0.0)}
    assert version.predict("generate", request)["lengths"].tolist() == [4, 4, 4]
    for changes, message in (
        ({"max_tokens": np.int32(0)}, r"max_tokens\[0\] is 0; it must be 1 to 1024"),
        ({"lengths": np.int32(99)}, r"lengths\[0\] is 99"),
        ({"lengths": np.full(3, -1, "int32")}, r"lengths\[0\] is -1"),
        ({"seed": np.zeros(2, "int32")}, "seed has 2 rows; the batch has 3"),
        ({"memory_states": np.zeros([0, 0, 0], "float32")}, r"memory_states has the shape"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            version.predict("generate", {**request, **changes})


def test_the_default_signature_takes_token_ids_alone(version):
    answer = version.predict("", {"token_ids": IDS})
    assert list(answer) == ["token_ids"] and answer["token_ids"].shape == (3, 128)
