"""The evaluator, compared with sums of the nats that `model.score` returns."""

import keras
import numpy as np
import pytest

from tests.evaluation.evaluators import evaluator_of, nats_of
from tests.slow_case import slow_case
from tests.small_models import text_of, toy_experiment, toy_tokens, weight_of
from txl_tf.config.model import LSTMConfig
from txl_tf.errors import NonFiniteError
from txl_tf.models import create_model
from txl_tf.models.transformer_xl import TransformerXL

CONFIG = toy_experiment(model={"num_layers": 2}).model
TOKENS = toy_tokens(62)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(1234)
    return TransformerXL(CONFIG)


def evaluate(model, tokens=TOKENS, **settings):
    return evaluator_of(model, **settings).evaluate(text_of(tokens), step=17)


def sum_over_row(model, tokens, segment_length, memory_length):
    """Returns the total nats of one row, read by segments, of which the last may be shorter."""
    memory, total = model.initial_memory(1, memory_length), 0.0
    for first in range(0, len(tokens) - 1, segment_length):
        segment = tokens[first : first + segment_length + 1]
        nll, memory = model.score(segment[None, :-1], segment[None, 1:], memory)
        total += np.sum(np.asarray(nll, "float64"))
    return total


@pytest.mark.parametrize("jit_compile", [slow_case(False), True])
def test_the_total_is_the_sum_over_all_rows(model, jit_compile):
    result = evaluate(model, jit_compile=jit_compile, batch_size=3, warm_up_tokens=0)
    # The 61 targets are divided into one row of 21 and two rows of 20.
    rows = [TOKENS[:22], TOKENS[21:42], TOKENS[41:]]
    expected = sum(sum_over_row(model, row, 5, 7) for row in rows)
    assert result.total_nats == pytest.approx(expected, rel=1e-5)
    assert (result.num_tokens, result.step, result.split) == (61, 17, "valid")
    assert (result.segment_length, result.memory_length) == (5, 7)
    # The first of the 62 tokens is no target, so its share of the text does not count.
    assert (result.num_bytes, result.num_characters, result.num_words) == (183, 122, 61)


@pytest.mark.parametrize(
    ("batch_size", "segment_length", "replicas"),
    [(1, 1, 1), (1, 100, 1), (2, 7, 2), (3, 25, 1), (3, 4, 2), (7, 4, 1)],
)
def test_a_memory_of_the_whole_text_gives_one_pass_over_it(
    model, batch_size, segment_length, replicas
):
    lengths = {"batch_size": batch_size, "segment_length": segment_length, "memory_length": 61}
    result = evaluate(model, warm_up_tokens="all", replicas=replicas, **lengths)
    assert result.num_tokens == 61
    one_pass = sum_over_row(model, TOKENS, segment_length=61, memory_length=0)
    assert result.total_nats == pytest.approx(one_pass, rel=1e-5)


# With a memory of 7 and segments of 5, a score of two layers depends on 22 earlier tokens.
@pytest.mark.parametrize(
    "options",
    [
        {},
        slow_case({"same_length": True}),
        {"same_length": True, "same_length_keys": "memory"},
    ],
)
def test_after_a_full_warm_up_rows_do_not_matter_nor_segments_of_same_length(model, options):
    single = evaluate(model, batch_size=1, **options)
    for batch_size, length in ((2, 5), (6, 5), (3, 11 if options else 5)):
        rows = {"batch_size": batch_size, "segment_length": length}
        result = evaluate(model, warm_up_tokens="all", **rows, **options)
        assert result.total_nats == pytest.approx(single.total_nats, rel=1e-6)
        assert result.warm_up_tokens == (14 if options else 22)
        assert options.items() <= result.to_dict().items()


@pytest.mark.parametrize("replicas", [1, 2])
def test_by_default_the_number_of_rows_hardly_matters(model, replicas):
    tokens = toy_tokens(600)
    single = evaluate(model, tokens, batch_size=1)
    rows = evaluate(model, tokens, batch_size=128, replicas=replicas)
    assert (single.batch_size, single.warm_up_tokens) == (1, 0)
    # A quarter of the targets is enough for 13 times a memory of 7 and 4 more tokens of a segment.
    assert (rows.batch_size, rows.warm_up_tokens) == (14, 7)
    assert "14 rows" in rows.conditions and "warm-up 7" in rows.conditions
    assert rows.total_nats == pytest.approx(single.total_nats, rel=1e-3)
    # A short text has fewer rows than there are replicas.
    short = [evaluate(model, tokens[:40], replicas=each).total_nats for each in (1, replicas)]
    assert short[1] == pytest.approx(short[0], rel=1e-6)
    cold = evaluate(model, tokens, batch_size=128, warm_up_tokens=0)
    assert abs(cold.total_nats - single.total_nats) > 1e-2 * single.total_nats


def test_a_sample_scores_its_tokens_nearly_as_the_whole_text(model):
    evaluator, text = evaluator_of(model, batch_size=3), text_of(toy_tokens(600))
    (_, whole), (result, sample) = (
        nats_of(evaluator, text),
        nats_of(evaluator, text, max_tokens=200),
    )
    scored = np.flatnonzero(~np.isnan(sample))
    assert result.split == "valid_sample" and result.num_tokens == len(scored) == 100
    assert result.num_bytes == pytest.approx(300) and result.batch_size == 3
    assert np.mean(sample[scored]) == pytest.approx(np.mean(whole[scored]), rel=1e-2)
    again = evaluator.evaluate(text, step=0, max_tokens=599)
    assert again.split == "valid" and again.total_nats == pytest.approx(np.nansum(whole))


@pytest.mark.parametrize(
    ("changes", "settings"),
    [
        ({"position_encoding": "shaw", "num_positions": 4}, {}),
        ({"position_encoding": "sinusoidal"}, {}),
        ({"clamp_length": 4}, {"segment_length": 12, "memory_length": 11, "clamp_length": 4}),
    ],
)
def test_other_positions_and_lengths_are_read_exactly(changes, settings):
    model = TransformerXL(CONFIG.replace(**changes))
    # All segments are whole, because absolute positions are counted from the end of a segment.
    tokens, lengths = TOKENS[:61], {"segment_length": 5, "memory_length": 7} | settings
    total = sum_over_row(model, tokens, lengths["segment_length"], lengths["memory_length"])
    for rows in ({"batch_size": 1}, {"batch_size": 4, "warm_up_tokens": "all"}):
        result = evaluate(model, tokens, **rows, **settings)
        assert result.total_nats == pytest.approx(total, rel=1e-5)
        assert lengths.items() <= result.to_dict().items()


def test_a_recurrent_model_warms_up_on_the_whole_text_before_a_row():
    config = LSTMConfig(vocabulary_size=13, num_layers=1, hidden_dim=8, segment_length=5)
    model = create_model(config)
    nll, _ = model.score(TOKENS[None, :-1], TOKENS[None, 1:], model.initial_memory(1))
    for options in ({"batch_size": 1}, {"batch_size": 4, "warm_up_tokens": "all"}):
        result = evaluate(model, **options)
        assert result.total_nats == pytest.approx(float(np.sum(nll)), rel=1e-5)
    assert (result.memory_length, result.same_length_keys) == (0, None)


def test_a_total_that_is_not_finite_is_an_error():
    broken = TransformerXL(CONFIG)
    weight_of(broken, "softmax/bias").assign(np.full(CONFIG.vocabulary_size, np.nan))
    with pytest.raises(NonFiniteError, match="split valid is not finite") as raised:
        evaluate(broken)
    assert raised.value.where == "weights of step 17"


def test_products_are_exact_while_a_text_is_scored(model, rounds_products):
    evaluator, during = evaluator_of(model, batch_size=1), []

    def observe(*_):
        during.append(rounds_products())

    evaluator.evaluate(text_of(TOKENS), step=0, observe=observe)
    assert set(during) == {False} and rounds_products()
