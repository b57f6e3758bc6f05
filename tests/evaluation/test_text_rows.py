import numpy as np
import pytest

from txl_tf.evaluation import text_rows
from txl_tf.evaluation.text_rows import EvaluationRows, EvaluationText


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """A text is read in more than one block."""
    monkeypatch.setattr(text_rows, "_READ_TOKENS", 17)


def read_all(num_tokens, *sizes):
    """All batches over tokens that are their own places, of which each seventh begins a document"""
    rows = EvaluationRows(num_tokens, *sizes)
    tokens = np.arange(num_tokens)

    def read_tokens(start, stop):
        assert 0 <= start < stop <= num_tokens
        return tokens[start:stop]

    text = EvaluationText(
        name="valid",
        num_tokens=num_tokens,
        read_tokens=read_tokens,
        read_document_starts=lambda start, stop: tokens[start:stop] % 7 == 0,
        num_bytes=0,
        num_characters=0,
        num_words=0,
    )
    return rows, list(rows.batches(text))


def random_cases(count):
    generator = np.random.default_rng(11)
    cases = [(2, 1, 1), (2, 9, 4), (3, 2, 5), (5, 9, 4), (101, 10, 10), (101, 10, 1)]
    for _ in range(count):
        cases.append(tuple(int(each) for each in generator.integers([2, 1, 1], [80, 14, 12])))
    return cases


def test_rows_read_what_they_warm_up_with_and_do_not_score_it():
    generator = np.random.default_rng(5)
    for case in random_cases(200):
        num_tokens, _, segment_length = case
        warm_up = int(generator.integers(1, 40))
        rows, batches = read_all(*case, warm_up, int(generator.integers(1, 5)))
        scored = []
        for row in range(rows.batch_size):
            is_read = np.concatenate([batch.places[row] > 0 for batch in batches])
            is_scored = np.concatenate([batch.is_scored[row] for batch in batches])
            tokens = np.concatenate([batch.token_ids[row] for batch in batches])
            starts = np.concatenate([batch.document_starts[row] for batch in batches])
            places = np.concatenate([batch.places[row] for batch in batches])
            read = tokens[is_read]
            np.testing.assert_array_equal(read, np.arange(read[0], read[0] + len(read)))
            np.testing.assert_array_equal(starts[is_read], read % 7 == 0)
            np.testing.assert_array_equal(places[is_read], read + 1)
            assert not np.any(is_scored & ~is_read) and not np.any(starts & ~is_read)
            # Cut where a single row is cut, after the warm-up or the beginning of the text.
            first = tokens[is_scored][0]
            assert read[0] % segment_length == 0
            assert max(first - warm_up - segment_length, -1) < read[0] <= max(first - warm_up, 0)
            scored.append(places[is_scored])
        np.testing.assert_array_equal(np.concatenate(scored), np.arange(1, num_tokens))
        assert rows.num_steps == len(batches)


def test_every_target_is_scored_exactly_once():
    for case in random_cases(300):
        num_tokens, batch_size, segment_length = case
        rows, batches = read_all(*case)
        assert rows.batch_size == min(batch_size, num_tokens - 1)
        assert len(batches) == rows.num_steps
        scored = []
        for batch in batches:
            for array in (*batch.arrays(), batch.places):
                assert array.shape == (rows.batch_size, segment_length)
            np.testing.assert_array_equal(
                batch.target_ids[batch.is_scored], batch.token_ids[batch.is_scored] + 1
            )
            scored.extend(batch.target_ids[batch.is_scored].tolist())
        # The first token is nobody's target.
        assert sorted(scored) == list(range(1, num_tokens)), case


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_a_split_without_targets_is_refused(num_tokens):
    with pytest.raises(ValueError, match=f"Received: num_tokens={num_tokens}"):
        EvaluationRows(num_tokens, 4, 8)
