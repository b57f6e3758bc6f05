"""Adaptive softmax and embedding, and the ids that they refuse."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import txl_tf
from tests import adaptive_reference
from tests.generation.models import expressive
from tests.layer_checks import randomize_weights
from tests.reference import max_difference
from tests.slow_case import slow_case
from txl_tf.evaluation.context_losses import ContextLosses
from txl_tf.evaluation.evaluation_text import EvaluationText
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.layers.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax
from txl_tf.layers.token_ids import check_token_ids

SETTINGS = adaptive_reference.SETTINGS
RNG = np.random.default_rng(0)
HIDDEN = RNG.normal(size=(3, 8, 8)).astype("float32")
TARGET_IDS = RNG.integers(0, 40, size=(3, 8)).astype("int32")
MANY_HIDDEN = RNG.normal(size=(5, 40, 8)).astype("float32")
ONLY_RARE = RNG.integers(30, 40, size=(5, 40)).astype("int32")


class Pair:
    """An embedding and the softmax that is its reverse, with random weights."""

    def __init__(self, dtype="float32", share=False, tie=True, **changes):
        self.settings = {**SETTINGS, **changes}
        self.embedding = AdaptiveEmbedding(**self.settings, dtype=dtype)
        self.softmax = AdaptiveSoftmax(
            **self.settings,
            share_tail_projections=share,
            tie_weights=tie,
            dtype=dtype,
        )
        self.embedding.build((None, None))
        self.softmax.build((None, None, 8))
        randomize_weights(self.embedding)
        randomize_weights(self.softmax, seed=8)

    @property
    def shared(self):
        tables = self.embedding.tables if self.softmax.tie_weights else None
        return {"tables": tables, "projections": self.embedding.projections}

    @property
    def weights(self):
        return [each.value for each in self.softmax.weights + self.embedding.weights]

    def nll(self, hidden, target_ids):
        return self.softmax.negative_log_likelihood(hidden, target_ids, **self.shared)

    def embedded_nll(self, hidden, target_ids):
        """The nats of targets after hidden states and the embeddings of other ids."""
        return self.nll(hidden + self.embedding(target_ids[::-1]), target_ids)

    def dense_embedded_nll(self, hidden, target_ids):
        return self.dense_nll(hidden + self.dense_embedding(target_ids[::-1]), target_ids)

    def dense_embedding(self, token_ids):
        """Embeddings with every cluster for every token, differentiated by the backend."""
        layer, flat_ids, total = self.embedding, ops.reshape(token_ids, [-1]), 0.0
        clusters = layer.clusters
        spans = clusters.spans if len(layer.tables) > 1 else [(0, clusters.vocabulary_size)]
        for span, table, projection in zip(spans, layer.tables, layer.projections, strict=True):
            first, end = span
            rows = ops.take(table, ops.clip(flat_ids - first, 0, end - first - 1), axis=0)
            rows = rows if projection is None else ops.matmul(rows, projection)
            is_member = ops.logical_and(flat_ids >= first, flat_ids < end)
            total = total + rows * ops.cast(ops.expand_dims(is_member, 1), rows.dtype)
        return ops.reshape(total, (*token_ids.shape, -1)) * clusters.hidden_dim**0.5

    def dense_nll(self, hidden, target_ids):
        """Nats with all clusters for all tokens, differentiated by the backend."""
        log_probs = self.softmax(hidden, **self.shared)
        picked = ops.take_along_axis(log_probs, ops.expand_dims(target_ids, -1), axis=-1)
        return -picked[..., 0]

    def expected_log_probs(self, hidden):
        softmax, settings = self.softmax, self.settings
        own, embeddings = arrays(softmax.projections), arrays(self.embedding.projections)
        projections = [
            adaptive_reference.output_projection(
                cluster, settings, softmax.share_tail_projections, own, embeddings
            )
            for cluster in range(len(settings["cutoffs"]) + 1)
        ]
        tables = arrays(self.embedding.tables if softmax.tie_weights else softmax.tables)
        entries = [None, None]
        if settings["cutoffs"]:
            entries = arrays([softmax.cluster_weight, softmax.cluster_bias])
        return adaptive_reference.log_probabilities(
            hidden, tables, arrays(softmax.biases), projections, *entries, settings
        )

    def expected_embedding(self, token_ids):
        weights = arrays(self.embedding.tables), arrays(self.embedding.projections), self.settings
        rows = [[adaptive_reference.embedding(each, *weights) for each in row] for row in token_ids]
        return np.array(rows)

    def expected_nll(self, hidden, target_ids):
        return np.array(
            [
                [
                    -self.expected_log_probs(state)[target]
                    for state, target in zip(*row, strict=True)
                ]
                for row in zip(hidden, target_ids, strict=True)
            ]
        )


def arrays(variables):
    return [None if each is None else ops.convert_to_numpy(each.value) for each in variables]


def gradients(function, weights, hidden, target_ids):
    """Gradients of an uneven sum of nats with respect to hidden states and weights."""
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        nll = function(hidden, target_ids)
        slope = tf.reshape(tf.sin(tf.range(tf.size(nll), dtype=nll.dtype)), tf.shape(nll))
        loss = tf.reduce_sum(nll * slope)
    results = tape.gradient(loss, [hidden, *weights], unconnected_gradients="zero")
    return loss, [tf.convert_to_tensor(each) for each in results]


def compiled(function, mode, *unknown):
    if mode == "eager":
        return function
    signature = unknown if mode == "unknown shape" else None
    return tf.function(function, jit_compile=mode == "xla", input_signature=signature)


def sizes_and_options():
    """The combinations whose options change anything."""
    for size in adaptive_reference.SIZES:
        division_factor, embedding_dim, cutoffs = size
        widths = [embedding_dim // division_factor**cluster for cluster in range(len(cutoffs) + 1)]
        has_choice = division_factor > 1 and SETTINGS["hidden_dim"] in widths
        for project_same_dim in (True, False):
            for share, tie in ((True, True), (False, True), (False, False)):
                is_new = (project_same_dim or has_choice) and (bool(cutoffs) or not share)
                if is_new:
                    yield (*size, project_same_dim, share, tie)


@pytest.mark.parametrize(
    ("division_factor", "embedding_dim", "cutoffs", "project_same_dim", "share", "tie"),
    list(sizes_and_options()),
)
def test_nats_probabilities_and_embeddings_match_the_oracle(
    division_factor, embedding_dim, cutoffs, project_same_dim, share, tie
):
    pair = Pair(
        division_factor=division_factor,
        embedding_dim=embedding_dim,
        cutoffs=cutoffs,
        project_same_dim=project_same_dim,
        share=share,
        tie=tie,
    )
    nll = ops.convert_to_numpy(pair.nll(HIDDEN[:1], TARGET_IDS[:1]))
    assert max_difference(nll, pair.expected_nll(HIDDEN[:1], TARGET_IDS[:1])) <= 1e-5
    log_probs = ops.convert_to_numpy(pair.softmax(HIDDEN[:1], **pair.shared))
    np.testing.assert_allclose(np.exp(log_probs).sum(-1), 1.0, atol=1e-5)
    assert max_difference(log_probs[0, 0], pair.expected_log_probs(HIDDEN[0, 0])) <= 1e-5
    embedded = pair.embedding(TARGET_IDS)
    assert max_difference(embedded, pair.expected_embedding(TARGET_IDS)) <= 1e-5


@pytest.mark.parametrize(
    "target_ids",
    [ONLY_RARE, ONLY_RARE - 30, np.full((5, 40), 25, "int32"), ONLY_RARE % 4 * 10 + 3],
    ids=["only rare", "none rare", "all the same", "even"],
)
def test_no_token_is_dropped_nor_left_without_an_embedding(target_ids):
    pair = Pair()
    if target_ids is ONLY_RARE:
        assert target_ids.size > 3 * pair.softmax.clusters.tail_capacities(target_ids.size)[-1]
    nll = ops.convert_to_numpy(pair.nll(MANY_HIDDEN, target_ids))
    assert max_difference(nll, pair.dense_nll(MANY_HIDDEN, target_ids)) <= 1e-5
    assert np.all(nll > 0.0)
    embedded = pair.embedding(target_ids)
    assert max_difference(embedded, pair.expected_embedding(target_ids)) <= 1e-5
    assert np.all(np.any(ops.convert_to_numpy(embedded) != 0.0, axis=-1))


def test_tails_that_are_absent_are_not_computed():
    pair = Pair()
    pair.softmax.biases[2].assign(np.full(10, np.nan))
    target_ids = np.where(TARGET_IDS // 10 == 2, 35, TARGET_IDS).astype("int32")
    _, results = gradients(pair.nll, pair.weights, tf.constant(HIDDEN), tf.constant(target_ids))
    assert all(np.all(np.isfinite(result)) for result in results)


@pytest.mark.parametrize("mode", ["eager", slow_case("xla"), "unknown shape"])
@pytest.mark.parametrize(
    ("hidden", "target_ids", "changes"),
    [
        (HIDDEN, TARGET_IDS, {}),
        (MANY_HIDDEN, ONLY_RARE, {}),
        (HIDDEN, TARGET_IDS, {"division_factor": 1, "embedding_dim": 4, "share": True}),
    ],
    ids=["mixed", "many chunks", "one table"],
)
def test_gradients_match_the_dense_computation(mode, hidden, target_ids, changes):
    pair = Pair("float64", **changes)
    hidden, target_ids = tf.constant(hidden, "float64"), tf.constant(target_ids)

    def computed(hidden, target_ids):
        return gradients(pair.embedded_nll, pair.weights, hidden, target_ids)

    unknown = tf.TensorSpec((None, None, 8), "float64"), tf.TensorSpec((None, None), "int32")
    loss, results = compiled(computed, mode, *unknown)(hidden, target_ids)
    dense = gradients(pair.dense_embedded_nll, pair.weights, hidden, target_ids)
    assert abs(loss - dense[0]) <= 1e-10 * abs(dense[0])
    for name, one, other in zip(["hidden", *pair.weights], results, dense[1], strict=True):
        assert max_difference(one, other) <= 1e-10 * max(1.0, np.abs(other).max()), name


def test_half_precision_has_a_float32_loss_that_is_near():
    single, half = Pair(share=True), Pair("mixed_bfloat16", share=True)
    nll = half.nll(HIDDEN, TARGET_IDS)
    assert keras.backend.standardize_dtype(nll.dtype) == "float32"
    assert max_difference(nll, single.nll(HIDDEN, TARGET_IDS)) <= 0.15
    inputs = tf.constant(HIDDEN), tf.constant(TARGET_IDS)
    _, ours = gradients(half.nll, half.weights, *inputs)
    _, wanted = gradients(single.nll, single.weights, *inputs)
    for one, other in zip(ours, wanted, strict=True):
        assert one.dtype == other.dtype
        assert max_difference(one, other) <= 0.1 * np.abs(other).max()


def test_the_certain_token_costs_nothing_and_large_logits_stay_finite():
    pair = Pair()
    pair.softmax.cluster_bias.assign([0.0, 1e4, 0.0])
    pair.softmax.biases[2].assign(np.where(np.arange(10) == 5, 1e5, 0.0))
    target_ids = np.where(TARGET_IDS % 2, TARGET_IDS, 25).astype("int32")
    nll = ops.convert_to_numpy(pair.nll(HIDDEN, target_ids))
    assert np.all(np.isfinite(nll))
    assert np.all(nll[target_ids == 25] == 0.0)


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


@pytest.mark.parametrize("ids", [np.array([0.5]), [np.nan], [True], 1.5])
def test_ids_are_integers(ids):
    with pytest.raises(ValueError, match=r"must be integers\. Received: token_ids of type"):
        check_token_ids(ids, V)


# 2**32 would be 0 in 32 bits.
@pytest.mark.parametrize(
    ("token_id", "as_input"), [(V, np.asarray), (-1, tf.constant), (2**32, tf.constant)]
)
def test_every_reader_refuses_ids_outside_the_vocabulary(token_id, as_input):
    model = expressive()
    bad, memory = as_input(np.where(GOOD == 6, token_id, GOOD)), model.initial_memory(2)
    stateful = txl_tf.StatefulTransformerXL(model.config, batch_size=2)
    evaluator = Evaluator(model.config, txl_tf.EvaluationConfig(batch_size=1), jit_compile=False)
    text = EvaluationText.of_tokens(
        "text", np.where(GOOD == 6, V, GOOD).ravel(), num_bytes=8, num_characters=8, num_words=8
    )
    sampler = txl_tf.samplers.GreedySampler()
    for read in (
        lambda: model(bad, memory),
        lambda: model.log_probs(bad, memory),
        lambda: model.score(bad, GOOD, memory),
        lambda: model.score(GOOD, bad, memory),
        lambda: model.embedding(bad),
        lambda: model.hidden_states(bad, memory),
        lambda: stateful(bad),
        lambda: ContextLosses(model, 2)(np.asarray(bad)),
        lambda: evaluator.evaluate(text, step=0),
        lambda: txl_tf.generate(model, np.asarray(bad), max_tokens=1, sampler=sampler),
    ):
        with pytest.raises(ValueError, match=r"must be in \[0, 13\)\. Received: from [-\d]+"):
            read()
    model.score(GOOD, GOOD, memory)
