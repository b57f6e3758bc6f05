"""Order in which stretches are read: each target is scored once, after its warm-up."""

import itertools

import numpy as np
import pytest

from tests.small_models import small_config, text_of
from txl_tf.config.model import LSTMConfig
from txl_tf.evaluation import reading_order
from txl_tf.evaluation.reading_order import EvaluationRows, Stretches

LSTM = LSTMConfig(vocabulary_size=11, num_layers=1, hidden_dim=4, segment_length=70)


def places_text(num_tokens):
    """Returns a text whose tokens are their own places; each seventh begins a document."""
    return text_of(np.arange(num_tokens), np.arange(0, num_tokens, 7))


def read_all(num_tokens, stretches, *sizes):
    rows = EvaluationRows(stretches, *sizes)
    batches = list(rows.batches(places_text(num_tokens)))
    assert len(batches) == rows.num_steps
    return rows, batches


def check_reading(stretches, rows, batches):
    """Checks that every stretch is read in order from its beginning, and scored from its start."""
    reads = []
    for batch in batches:
        if batch.start == 0:
            reads += [([], []) for _ in range(rows.batch_size)]
        for row, (places, scored) in enumerate(reads[-rows.batch_size :]):
            is_read = batch.places[row] > 0
            tokens = batch.token_ids[row, is_read]
            np.testing.assert_array_equal(batch.document_starts[row, is_read], tokens % 7 == 0)
            np.testing.assert_array_equal(batch.target_ids[row, is_read], tokens + 1)
            assert not np.any(batch.is_scored[row] & ~is_read)
            places.extend(batch.places[row, is_read] - 1)
            scored.extend(batch.places[row, batch.is_scored[row]])
    stretches = zip(*(each.tolist() for each in stretches[:3]), strict=True)
    for (places, scored), stretch in itertools.zip_longest(reads, stretches, fillvalue=(0, 0, 0)):
        begin, start, stop = stretch
        assert places == [*range(begin, stop)] and scored == [*range(start + 1, stop + 1)]


def test_each_target_is_scored_once_after_its_warm_up(monkeypatch):
    monkeypatch.setattr(reading_order, "_READ_TOKENS", 17)  # more than one block
    generator = np.random.default_rng(5)
    cases = [(2, 1, 1), (2, 9, 4), (3, 2, 5), (5, 9, 4), (101, 10, 10), (101, 10, 1)]
    cases += [generator.integers([2, 1, 1], [80, 14, 12]).tolist() for _ in range(40)]
    for num_tokens, most_rows, length in cases:
        config = small_config(length, int(generator.integers(0, 9)))
        for warm_up in (None, 0, int(generator.integers(1, 40)), "all"):
            stretches = Stretches.of_text(num_tokens, most_rows, config, warm_up)
            count = len(stretches.begins)
            assert count == min(most_rows, num_tokens - 1) or (
                warm_up is None and count < most_rows
            )
            begins, starts, stops, warm_up_tokens = stretches
            np.testing.assert_array_equal(starts, [0, *stops[:-1]])
            assert stops[-1] == num_tokens - 1 and np.ptp(stops - starts) <= 1
            early = starts - begins
            if warm_up == 0:
                assert not early.any()
            else:
                # Rows begin where a segment of a single row begins, and have their whole warm-up
                # unless the text begins later.
                assert not (begins % length).any()
                assert (early >= np.minimum(warm_up_tokens, starts)).all()
                assert (early < warm_up_tokens + length).all()
            if warm_up is None:
                assert early.sum() <= 0.25 * num_tokens
            num_rows = int(generator.integers(1, count + 1))
            sizes = num_rows, length, int(generator.integers(1, 5))
            check_reading(stretches, *read_all(num_tokens, stretches, *sizes))


@pytest.mark.parametrize(
    ("config", "num_tokens", "most_rows", "rows", "warm_up"),
    [
        (small_config(64, 64), 300, 128, 1, 0),
        (small_config(64, 64), 16_235, 128, 32, 64),
        (small_config(64, 64), 16_235, 8, 8, 64),
        (small_config(64, 64), 400_000, 128, 128, 64),
        (small_config(128, 3800), 300_000, 128, 20, 3800),
        (LSTM, 300_000, 128, 128, 256),
    ],
)
def test_rows_follow_from_the_text_and_their_memory(config, num_tokens, most_rows, rows, warm_up):
    stretches = Stretches.of_text(num_tokens, most_rows, config)
    assert (len(stretches.begins), stretches.warm_up_tokens) == (rows, warm_up)


@pytest.mark.parametrize("config", [small_config(4, 6), small_config(4, 0), LSTM])
@pytest.mark.parametrize("most_tokens", [150, 1200, 30_000])
def test_a_sample_is_spread_evenly_and_reads_no_more_than_asked(config, most_tokens):
    stretches = Stretches.sample(90_000, most_tokens, config)
    begins, starts, stops, warm_up = stretches
    length = config.segment_length
    assert (stops - begins).sum() <= most_tokens
    assert not (begins % length).any() and (starts - begins == warm_up).all()
    assert (stops - starts >= warm_up).all() and (begins[1:] >= stops[:-1]).all()
    gaps = np.diff(begins)
    assert not gaps.size or np.ptp(gaps) <= length
    if most_tokens == 30_000:
        assert begins[0] < 1.1 * gaps[0] and stops[-1] > 90_000 - 1.1 * gaps[0]
    check_reading(stretches, *read_all(90_000, stretches, min(7, len(begins)), length, 2))


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_a_split_without_targets_is_refused(num_tokens):
    for choose in (Stretches.of_text, Stretches.sample):
        with pytest.raises(ValueError, match=f"Received: num_tokens={num_tokens}"):
            choose(num_tokens, 4, small_config(8, 8))
