"""The evaluator against sums that are made by hand from `model.score`."""

import functools
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.slow_case import slow_case
from tests.small_models import arrays_of
from tests.toy_batches import strategy_of, toy_experiment, toy_tokens, weight_of
from txl_tf.config.experiment import EvaluationConfig
from txl_tf.config.model import LSTMConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.evaluation.result import EvaluationText
from txl_tf.inference import execution_plan
from txl_tf.models import create_model
from txl_tf.models.transformer_xl import TransformerXL

CONFIG = toy_experiment(model={"num_layers": 2}).model
TOKENS = toy_tokens(62)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1234)
    return TransformerXL(CONFIG)


def text_of(tokens, name="valid", num_bytes=None):
    count = len(tokens) if num_bytes is None else num_bytes
    return EvaluationText.of_tokens(
        name, tokens, num_bytes=count, num_characters=count, num_words=count
    )


def evaluate(model, tokens=TOKENS, jit_compile=False, replicas=1, **lengths):
    evaluator = Evaluator(
        model.config,
        EvaluationConfig(**lengths),
        jit_compile=jit_compile,
        strategy=strategy_of(replicas),
    )
    evaluator.load_arrays(arrays_of(model))
    return evaluator.evaluate(text_of(tokens), step=17)


def sum_over_row(model, tokens, segment_length, memory_length):
    """Nats of one row, segment by segment, the shorter tail by itself."""
    memory = model.initial_memory(1, memory_length)
    total = 0.0
    for first in range(0, len(tokens) - 1, segment_length):
        segment = tokens[first : first + segment_length + 1]
        nll, memory = model.score(segment[None, :-1], segment[None, 1:], memory)
        total += np.sum(np.asarray(nll, "float64"))
    return total


def whole_text(model, tokens=TOKENS):
    nll, _ = model.score(tokens[None, :-1], tokens[None, 1:], model.initial_memory(1, 0))
    return float(np.sum(np.asarray(nll, "float64")))


@pytest.mark.parametrize("jit_compile", [slow_case(False), True])
def test_the_total_is_the_sum_over_all_rows(model, jit_compile):
    result = evaluate(model, jit_compile=jit_compile, batch_size=3, warm_up_tokens=0)
    # 61 targets in 3 rows: one row of 21, two of 20.
    stretches = [TOKENS[:22], TOKENS[21:42], TOKENS[41:]]
    expected = sum(
        sum_over_row(model, stretch, CONFIG.segment_length, CONFIG.memory_length)
        for stretch in stretches
    )
    assert result.total_nats == pytest.approx(expected, rel=1e-5)
    assert (result.num_tokens, result.step, result.split) == (61, 17, "valid")
    assert (result.segment_length, result.memory_length) == (5, 7)


@pytest.mark.parametrize(
    ("batch_size", "segment_length", "replicas"),
    [(1, 1, 1), (1, 100, 1), (2, 7, 2), (3, 25, 1), (3, 4, 2), (7, 4, 1)],
)
def test_with_memory_for_everything_it_is_one_pass_over_the_text(
    model, batch_size, segment_length, replicas
):
    result = evaluate(
        model,
        batch_size=batch_size,
        segment_length=segment_length,
        memory_length=61,
        warm_up_tokens="all",
        replicas=replicas,
    )
    assert result.num_tokens == 61
    assert result.total_nats == pytest.approx(whole_text(model), rel=1e-5)


# Two layers with 7 remembered tokens and segments of 5 depend on 22 tokens before.
@pytest.mark.parametrize("same_length", [False, slow_case(True)])
def test_with_less_memory_a_full_warm_up_makes_the_rows_not_matter(model, same_length):
    options = {"same_length": same_length}
    single = evaluate(model, batch_size=1, **options)
    for batch_size in (2, 6):
        rows = evaluate(model, batch_size=batch_size, warm_up_tokens="all", **options)
        assert rows.total_nats == pytest.approx(single.total_nats, rel=1e-6)
        assert rows.warm_up_tokens == (14 if same_length else 22)
    # As many tokens as the memory holds bring the figures near, and none does not.
    partly = evaluate(model, batch_size=6, warm_up_tokens=7, **options).total_nats
    not_at_all = evaluate(model, batch_size=6, warm_up_tokens=0, **options).total_nats
    assert abs(partly - single.total_nats) < 0.3 * abs(not_at_all - single.total_nats)
    assert abs(partly - single.total_nats) > 1e-6 * single.total_nats


@pytest.mark.parametrize("replicas", [1, 2])
def test_by_default_the_number_of_rows_hardly_matters(model, replicas):
    tokens = toy_tokens(600)
    single = evaluate(model, tokens, batch_size=1)
    rows = evaluate(model, tokens, batch_size=128, replicas=replicas)
    assert (single.batch_size, single.warm_up_tokens) == (1, 0)
    # A quarter of the tokens is 13 times the memory and the rest of a segment.
    assert (rows.batch_size, rows.warm_up_tokens) == (14, 7)
    assert "14 rows" in rows.conditions and "warm-up 7" in rows.conditions
    assert rows.total_nats == pytest.approx(single.total_nats, rel=1e-3)
    # Fewer rows than replicas.
    short = [evaluate(model, tokens[:40], replicas=each).total_nats for each in (1, replicas)]
    assert short[1] == pytest.approx(short[0], rel=1e-6)
    cold = evaluate(model, tokens, batch_size=128, warm_up_tokens=0)
    assert abs(cold.total_nats - single.total_nats) > 1e-2 * single.total_nats


def test_a_sample_scores_its_tokens_as_the_whole_text_does_and_reads_no_more(model):
    evaluator = Evaluator(CONFIG, EvaluationConfig(batch_size=3), jit_compile=False)
    evaluator.load_arrays(arrays_of(model))
    whole, sample, read = np.zeros(600), np.full(600, np.nan), []

    def track(batches, total):
        for batch in batches:
            read.append(np.count_nonzero(batch.places))
            yield batch

    text, options = text_of(toy_tokens(600)), {"step": 0, "track": track}
    evaluator.evaluate(text, step=0, observe=whole.__setitem__)
    result = evaluator.evaluate(text, observe=sample.__setitem__, max_tokens=200, **options)
    scored = np.flatnonzero(~np.isnan(sample))
    assert result.split == "valid_sample" and result.num_tokens == len(scored) == 100
    assert sum(read) == 200 and result.batch_size == 3
    assert result.num_bytes == pytest.approx(100)
    assert scored[0] < 60 and scored[-1] > 540
    assert np.mean(sample[scored]) == pytest.approx(np.mean(whole[scored]), rel=1e-2)
    again = evaluator.evaluate(text, step=0, max_tokens=599)
    assert again.split == "valid" and again.total_nats == pytest.approx(whole.sum())


@pytest.mark.parametrize("keys", [slow_case("memory_and_self"), "memory"])
def test_where_all_tokens_see_equally_far_segments_do_not_matter(model, keys):
    options = {"same_length": True, "same_length_keys": keys}
    single = evaluate(model, batch_size=1, **options)
    rows = evaluate(model, batch_size=3, segment_length=11, warm_up_tokens="all", **options)
    assert rows.total_nats == pytest.approx(single.total_nats, rel=1e-6)
    assert rows.same_length_keys == keys


@pytest.mark.parametrize(
    "changes",
    [{"position_encoding": "shaw", "num_positions": 4}, {"position_encoding": "sinusoidal"}],
)
def test_other_positions_are_read_exactly_too(changes):
    model = TransformerXL(CONFIG.replace(**changes))
    # Whole segments: absolute positions are counted from the end of a segment.
    tokens = TOKENS[: 12 * CONFIG.segment_length + 1]
    single = evaluate(model, tokens, batch_size=1)
    expected = sum_over_row(model, tokens, CONFIG.segment_length, CONFIG.memory_length)
    assert single.total_nats == pytest.approx(expected, rel=1e-5)
    rows = evaluate(model, tokens, batch_size=4, warm_up_tokens="all")
    assert rows.total_nats == pytest.approx(expected, rel=1e-5)


def test_a_recurrent_model_depends_on_all_that_came_before():
    config = LSTMConfig(vocabulary_size=13, num_layers=1, hidden_dim=8, segment_length=5)
    model = create_model(config)
    nll, _ = model.score(TOKENS[None, :-1], TOKENS[None, 1:], model.initial_memory(1))
    for options in ({"batch_size": 1}, {"batch_size": 4, "warm_up_tokens": "all"}):
        result = evaluate(model, **options)
        assert result.total_nats == pytest.approx(float(np.sum(nll)), rel=1e-5)
    assert (result.memory_length, result.same_length_keys) == (0, None)


def test_lengths_other_than_those_of_training_are_used_and_reported(model):
    result = evaluate(model, batch_size=1, segment_length=8, memory_length=11, clamp_length=4)
    assert (result.segment_length, result.memory_length, result.clamp_length) == (8, 11, 4)
    clamped = TransformerXL(CONFIG.replace(clamp_length=4))
    clamped.set_weights(model.get_weights())
    expected = sum_over_row(clamped, TOKENS, 8, 11)
    assert result.total_nats == pytest.approx(expected, rel=1e-5)
    unclamped = sum_over_row(model, TOKENS, 8, 11)
    assert abs(unclamped - expected) > 1e-3


def test_perplexity_and_bits_come_from_the_totals_and_not_from_means_of_batches(model):
    # 11 targets in segments of 5: the last batch has one target.
    tokens = TOKENS[:12]
    evaluator = Evaluator(CONFIG, EvaluationConfig(batch_size=1), jit_compile=False)
    evaluator.load_arrays(arrays_of(model))
    text = EvaluationText.of_tokens("valid", tokens, num_bytes=18, num_characters=15, num_words=6)
    result = evaluator.evaluate(text, step=0)
    total = sum_over_row(model, tokens, CONFIG.segment_length, CONFIG.memory_length)
    assert result.num_tokens == 11
    assert result.perplexity == pytest.approx(math.exp(total / 11), rel=1e-5)
    # The first of the 12 tokens is no target; its share of the text does not count.
    assert (result.num_bytes, result.num_characters, result.num_words) == (16.5, 13.75, 5.5)
    assert result.bits_per_byte == pytest.approx(total / math.log(2.0) / 16.5, rel=1e-5)


def test_fewer_tokens_than_rows_are_scored_all_the_same(model):
    for replicas in (1, 2):
        result = evaluate(model, TOKENS[:4], batch_size=10, warm_up_tokens=0, replicas=replicas)
        expected = sum(sum_over_row(model, TOKENS[i : i + 2], 5, 7) for i in range(3))
        assert (result.batch_size, result.num_tokens) == (3, 3)
        assert result.total_nats == pytest.approx(expected, rel=1e-5)


def test_the_batches_can_be_tracked_and_every_target_observed(model, monkeypatch):
    monkeypatch.setattr(execution_plan, "_TOKENS_PER_READ", 1)
    evaluator = Evaluator(
        CONFIG, EvaluationConfig(batch_size=2, warm_up_tokens=3), jit_compile=False
    )
    evaluator.load_arrays(arrays_of(model))
    totals, seen, observed = [], [], {}

    def track(batches, total):
        totals.append(total)
        for batch in batches:
            seen.append(batch)
            yield batch

    def observe(places, nats):
        for place, value in zip(places.tolist(), nats.tolist(), strict=True):
            assert place not in observed
            observed[place] = value

    result = evaluator.evaluate(text_of(TOKENS[:21]), step=0, track=track, observe=observe)
    assert (totals, len(seen)) == ([3], 3)
    assert sorted(observed) == list(range(1, 21))
    assert sum(observed.values()) == pytest.approx(result.total_nats, rel=1e-12)


def test_a_document_of_a_model_that_keeps_them_apart_is_scored_as_if_alone(model):
    tokens, starts = TOKENS[:34], np.zeros(34, bool)
    starts[[0, 9, 20]] = True
    text = EvaluationText(
        name="valid",
        num_tokens=34,
        read_tokens=lambda start, stop: tokens[start:stop],
        read_document_starts=lambda start, stop: starts[start:stop],
        num_bytes=34,
        num_characters=34,
        num_words=34,
    )
    evaluator = Evaluator(
        CONFIG,
        EvaluationConfig(batch_size=1, memory_length=40),
        jit_compile=False,
        masks_documents=True,
    )
    evaluator.load_arrays(arrays_of(model))
    nats = np.zeros(34)
    result = evaluator.evaluate(text, step=0, observe=functools.partial(np.put, nats))
    for begin, end in ((0, 9), (9, 20), (20, 34)):
        # The last token of a document predicts the first of the next one.
        alone = whole_text(model, tokens[begin : end + 1])
        assert np.sum(nats[begin + 1 : end + 1]) == pytest.approx(alone, rel=1e-5)
    assert result.masks_documents
    together = evaluate(model, tokens, batch_size=1, memory_length=40)
    assert abs(together.total_nats - result.total_nats) > 1e-2


def test_a_total_that_is_not_finite_is_an_error(model):
    broken = TransformerXL(CONFIG)
    weight_of(broken, "softmax/bias").assign(np.full(CONFIG.vocabulary_size, np.nan))
    with pytest.raises(NonFiniteError, match="split valid is not finite") as raised:
        evaluate(broken)
    assert raised.value.exit_code == 70
    assert raised.value.where == "weights of step 17"


def test_products_are_exact_while_a_text_is_scored_whatever_the_process_does(model):
    rounds = tf.config.experimental.tensor_float_32_execution_enabled
    before, seen = rounds(), []
    tf.config.experimental.enable_tensor_float_32_execution(True)
    try:
        evaluator = Evaluator(CONFIG, EvaluationConfig(batch_size=1), jit_compile=False)
        evaluator.load_arrays(arrays_of(model))
        text = text_of(TOKENS[:12])
        evaluator.evaluate(text, step=0, observe=lambda *_: seen.append(rounds()))
        assert set(seen) == {False} and rounds()
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
