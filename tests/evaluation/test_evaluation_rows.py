import numpy as np
import pytest

from txl_tf.evaluation import evaluator
from txl_tf.evaluation.evaluator import EvaluationRows
from txl_tf.evaluation.result import EvaluationText


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """A text is read in more than one block."""
    monkeypatch.setattr(evaluator, "_READ_TOKENS", 17)


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
        warm_up = int(generator.integers(0, 40))
        rows, batches = read_all(*case, warm_up, int(generator.integers(1, 5)))
        scored = []
        for row in range(rows.batch_size):
            is_read = np.concatenate([batch.places[row] > 0 for batch in batches])
            is_scored = np.concatenate([batch.is_scored[row] for batch in batches])
            tokens = np.concatenate([batch.token_ids[row] for batch in batches])
            targets = np.concatenate([batch.target_ids[row] for batch in batches])
            starts = np.concatenate([batch.document_starts[row] for batch in batches])
            places = np.concatenate([batch.places[row] for batch in batches])
            read = tokens[is_read]
            np.testing.assert_array_equal(read, np.arange(read[0], read[0] + len(read)))
            np.testing.assert_array_equal(starts[is_read], read % 7 == 0)
            np.testing.assert_array_equal(places[is_read], read + 1)
            np.testing.assert_array_equal(targets[is_read], read + 1)
            assert not np.any(is_scored & ~is_read) and not np.any(starts & ~is_read)
            first = tokens[is_scored][0]
            if warm_up:
                # Cut where a single row is cut, after the warm-up or the beginning of the text.
                assert read[0] % segment_length == 0
                earliest = max(first - warm_up - segment_length, -1)
                assert earliest < read[0] <= max(first - warm_up, 0)
            else:
                assert read[0] == first
            scored.append(places[is_scored])
        np.testing.assert_array_equal(np.concatenate(scored), np.arange(1, num_tokens))
        assert rows.num_steps == len(batches)
        assert rows.batch_size == min(case[1], num_tokens - 1)


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_a_split_without_targets_is_refused(num_tokens):
    with pytest.raises(ValueError, match=f"Received: num_tokens={num_tokens}"):
        EvaluationRows(num_tokens, 4, 8)
