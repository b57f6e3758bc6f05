"""The evaluator against sums that are made by hand from `model.score`."""

import math

import keras
import numpy as np
import pytest

from tests.toy_batches import ToyBatches, strategy_of, toy_experiment, toy_tokens, weight_of
from txl_tf.config.evaluation_config import EvaluationConfig
from txl_tf.errors import NonFiniteError
from txl_tf.evaluation.evaluator import Evaluator
from txl_tf.models.transformer_xl import TransformerXL
from txl_tf.training.trainer import Trainer

CONFIG = toy_experiment(model={"num_layers": 2}).model
TOKENS = toy_tokens(62)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1234)
    return TransformerXL(CONFIG)


def evaluate(model, tokens=TOKENS, jit_compile=False, bytes_per_token=1.0, **lengths):
    evaluator = Evaluator(model.config, EvaluationConfig(**lengths), jit_compile=jit_compile)
    evaluator.load_weights_of(model)
    return evaluator.evaluate(
        "valid",
        len(tokens),
        lambda start, stop: tokens[start:stop],
        bytes_per_token=bytes_per_token,
        step=17,
    )


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


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_total_is_the_sum_over_all_rows(model, jit_compile):
    result = evaluate(model, jit_compile=jit_compile, batch_size=3)
    # 61 targets in 3 rows: one row of 21, two of 20.
    stretches = [TOKENS[:22], TOKENS[21:42], TOKENS[41:]]
    expected = sum(
        sum_over_row(model, stretch, CONFIG.segment_length, CONFIG.memory_length)
        for stretch in stretches
    )
    assert result.total_nats == pytest.approx(expected, rel=1e-5)
    assert (result.num_tokens, result.step, result.split) == (61, 17, "valid")
    assert (result.segment_length, result.memory_length) == (5, 7)


@pytest.mark.parametrize("segment_length", [1, 4, 7, 25, 100])
def test_with_memory_for_everything_the_cuts_do_not_matter(model, segment_length):
    result = evaluate(model, batch_size=1, segment_length=segment_length, memory_length=61)
    assert result.total_nats == pytest.approx(whole_text(model), rel=1e-5)


def test_lengths_other_than_those_of_training_are_used_and_reported(model):
    result = evaluate(model, batch_size=1, segment_length=3, memory_length=11, clamp_length=4)
    assert (result.segment_length, result.memory_length, result.clamp_length) == (3, 11, 4)
    clamped = TransformerXL(CONFIG.replace(clamp_length=4))
    clamped.set_weights(model.get_weights())
    expected = sum_over_row(clamped, TOKENS, 3, 11)
    assert result.total_nats == pytest.approx(expected, rel=1e-5)
    unclamped = sum_over_row(model, TOKENS, 3, 11)
    assert abs(unclamped - expected) > 1e-3


def test_memory_makes_a_difference(model):
    remembered = evaluate(model, batch_size=1).total_nats
    forgotten = evaluate(model, batch_size=1, memory_length=0).total_nats
    assert abs(remembered - forgotten) > 1e-2


def test_perplexity_and_bits_come_from_the_totals_and_not_from_means_of_batches(model):
    # 11 targets in segments of 5: the last batch has one target.
    tokens = TOKENS[:12]
    result = evaluate(model, tokens, bytes_per_token=1.5, batch_size=1)
    total = sum_over_row(model, tokens, CONFIG.segment_length, CONFIG.memory_length)
    assert result.num_tokens == 11
    assert result.perplexity == pytest.approx(math.exp(total / 11), rel=1e-5)
    assert result.num_bytes == pytest.approx(16.5)
    assert result.bits_per_byte == pytest.approx(total / math.log(2.0) / 16.5, rel=1e-5)


def test_fewer_tokens_than_rows_are_scored_all_the_same(model):
    result = evaluate(model, TOKENS[:4], batch_size=10)
    expected = sum(sum_over_row(model, TOKENS[i : i + 2], 5, 7) for i in range(3))
    assert (result.batch_size, result.num_tokens) == (3, 3)
    assert result.total_nats == pytest.approx(expected, rel=1e-5)


def test_the_batches_can_be_tracked(model):
    evaluator = Evaluator(CONFIG, EvaluationConfig(batch_size=2), jit_compile=False)
    evaluator.load_weights_of(model)
    totals, seen = [], []

    def track(batches, total):
        totals.append(total)
        for batch in batches:
            seen.append(batch)
            yield batch

    evaluator.evaluate(
        "test",
        21,
        lambda start, stop: TOKENS[start:stop],
        bytes_per_token=1.0,
        step=0,
        track=track,
    )
    assert (totals, len(seen)) == ([2], 2)


def test_a_total_that_is_not_finite_is_an_error(model):
    broken = TransformerXL(CONFIG)
    weight_of(broken, "softmax/bias").assign(np.full(CONFIG.vocabulary_size, np.nan))
    with pytest.raises(NonFiniteError, match="split valid is not finite") as raised:
        evaluate(broken)
    assert raised.value.exit_code == 70
    assert raised.value.where == "weights of step 17"


def test_evaluating_leaves_the_training_run_untouched():
    batches = ToyBatches(toy_tokens(), 4)
    experiment = toy_experiment(model={"dropout": 0.2}, training={"num_steps": 6})
    undisturbed = Trainer(experiment, strategy_of(1), batches.dataset_function)
    expected = [report.nats_per_token for report in undisturbed.run()]
    trainer = Trainer(experiment, strategy_of(1), batches.dataset_function)
    evaluator = Evaluator(experiment.model, EvaluationConfig(batch_size=2), jit_compile=False)
    losses = []
    for report in trainer.run():
        losses.append(report.nats_per_token)
        before = trainer.state()
        evaluator.load_weights_of(trainer.model)
        evaluator.evaluate(
            "valid",
            30,
            lambda start, stop: TOKENS[start:stop],
            bytes_per_token=1.0,
            step=report.step,
        )
        after = trainer.state()
        for name, array in before.items():
            np.testing.assert_array_equal(array, after[name], err_msg=name)
    assert losses == expected
