"""Token embedding with narrower vectors for rarer tokens; one table without cutoffs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

import txl_tf
from tests import adaptive_reference
from tests.generation.models import expressive
from tests.layer_checks import check_layer, needs_tensorflow, randomize_weights, tf
from tests.reference import max_difference
from txl_tf.evaluation.context import ContextLosses
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.text_rows import EvaluationText
from txl_tf.layers.adaptive_softmax import AdaptiveEmbedding, check_token_ids

SETTINGS = adaptive_reference.SETTINGS
TOKEN_IDS = np.random.default_rng(0).integers(0, 40, size=(3, 8)).astype("int32")
ONLY_RARE = np.random.default_rng(1).integers(30, 40, size=(5, 40)).astype("int32")


def made(dtype="float32", **changes):
    layer = AdaptiveEmbedding(**{**SETTINGS, **changes}, dtype=dtype)
    layer.build((None, None))
    randomize_weights(layer)
    return layer


def arrays(variables):
    return [None if each is None else ops.convert_to_numpy(each.value) for each in variables]


def expected(layer, token_ids):
    settings = {name: getattr(layer, name) for name in SETTINGS}
    weights = arrays(layer.tables), arrays(layer.projections)
    rows = {
        token_id: adaptive_reference.embedding(token_id, *weights, settings)
        for token_id in np.unique(token_ids)
    }
    return np.array([[rows[token_id] for token_id in row] for row in token_ids])


def dense(layer, token_ids):
    """The same embedding, with every cluster for every token."""
    flat_ids = ops.reshape(token_ids, [-1])
    total = 0.0
    spans = layer.clusters.spans if len(layer.tables) > 1 else [(0, layer.vocabulary_size)]
    for (first, end), table, projection in zip(spans, layer.tables, layer.projections, strict=True):
        rows = ops.take(table, ops.clip(flat_ids - first, 0, end - first - 1), axis=0)
        rows = rows if projection is None else ops.matmul(rows, projection)
        is_member = ops.logical_and(flat_ids >= first, flat_ids < end)
        total = total + rows * ops.cast(ops.expand_dims(is_member, 1), rows.dtype)
    return ops.reshape(total, (*token_ids.shape, -1)) * layer.hidden_dim**0.5


def test_basics():
    check_layer(
        AdaptiveEmbedding,
        init_kwargs=SETTINGS,
        inputs={"token_ids": TOKEN_IDS},
    )


@pytest.mark.parametrize(("division_factor", "embedding_dim", "cutoffs"), adaptive_reference.SIZES)
@pytest.mark.parametrize("project_same_dim", [True, False])
def test_matches_the_oracle(division_factor, embedding_dim, cutoffs, project_same_dim):
    layer = made(
        division_factor=division_factor,
        project_same_dim=project_same_dim,
        embedding_dim=embedding_dim,
        cutoffs=cutoffs,
    )
    assert max_difference(layer(TOKEN_IDS), expected(layer, TOKEN_IDS)) <= 1e-5


@pytest.mark.parametrize(
    "token_ids",
    [ONLY_RARE, ONLY_RARE - 30, np.full((5, 40), 25, "int32"), np.array([[39]], "int32")],
    ids=["only rare", "none rare", "all the same", "one rare"],
)
def test_no_token_is_dropped(token_ids):
    layer = made()
    if token_ids is ONLY_RARE:
        assert token_ids.size > 3 * layer.clusters.tail_capacities(token_ids.size)[-1]
    assert max_difference(layer(token_ids), expected(layer, token_ids)) <= 1e-5
    assert np.all(np.any(ops.convert_to_numpy(layer(token_ids)) != 0.0, axis=-1))


@needs_tensorflow
@pytest.mark.parametrize("mode", ["eager", "xla", "unknown shape"])
@pytest.mark.parametrize("token_ids", [TOKEN_IDS, ONLY_RARE], ids=["mixed", "only rare"])
def test_gradients_are_those_of_the_dense_computation(mode, token_ids):
    layer = made("float64")
    weights = [weight.value for weight in layer.trainable_variables]
    slope = np.random.default_rng(2).normal(size=(*token_ids.shape, 8))

    def gradients(function, token_ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(function(token_ids) * slope)
        return [tf.convert_to_tensor(each) for each in tape.gradient(loss, weights)]

    def ours(token_ids):
        return gradients(layer, token_ids)

    if mode != "eager":
        signature = [tf.TensorSpec((None, None), "int32")] if mode == "unknown shape" else None
        ours = tf.function(ours, jit_compile=mode == "xla", input_signature=signature)
    wanted = gradients(lambda token_ids: dense(layer, token_ids), token_ids)
    for weight, one, other in zip(weights, ours(tf.constant(token_ids)), wanted, strict=True):
        assert max_difference(one, other) <= 1e-10 * max(1.0, np.abs(other).max()), weight.name


def test_half_precision_keeps_large_ids_apart():
    # bfloat16 cannot count above 256: ids must never pass through it.
    layer = AdaptiveEmbedding(2000, 2, dtype="bfloat16")
    layer.build((None, None))
    layer.tables[0].assign(ops.stack([ops.arange(2000) // 100, ops.arange(2000) % 100], axis=1))
    outputs = layer(np.array([[1000, 1001, 1999]], "int32"))
    outputs = ops.convert_to_numpy(ops.cast(outputs, "float32")) / math.sqrt(2)
    np.testing.assert_allclose(outputs, [[[10, 0], [10, 1], [19, 99]]], rtol=0.01)


V = 13
GOOD = np.arange(8).reshape(2, 4)


def with_one(token_id):
    token_ids = GOOD.astype(np.int64)
    token_ids[1, 2] = token_id
    return token_ids


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
@pytest.mark.parametrize(
    ("token_id", "as_input"), [(V, np.asarray), (-1, tf.constant), (2**32, tf.constant)]
)
def test_every_way_into_a_model_refuses_by_one_sentence(token_id, as_input):
    model = expressive()
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
        lambda: txl_tf.generate(model, with_one(V), max_tokens=1, sampler=sampler),
        lambda: txl_tf.generate(model, with_one(-1), max_tokens=1, sampler=sampler),
    ):
        with pytest.raises(ValueError, match=r"must be in \[0, 13\)\. Received: from [-\d]+"):
            read()
    with pytest.raises(ValueError, match=r"must be integers\. Received: prompt_ids of type float"):
        txl_tf.generate(model, [[0.5]], max_tokens=1, sampler=sampler)
