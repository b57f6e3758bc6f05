import numpy as np
import pytest

from txl_tf.evaluation.evaluation_rows import EvaluationRows


def read_all(num_tokens, batch_size, segment_length):
    """All batches over tokens that are their own places."""
    rows = EvaluationRows(num_tokens, batch_size, segment_length)
    tokens = np.arange(num_tokens)

    def read_tokens(start, stop):
        assert 0 <= start < stop <= num_tokens
        return tokens[start:stop]

    return rows, list(rows.batches(read_tokens))


def random_cases(count):
    generator = np.random.default_rng(11)
    cases = [(2, 1, 1), (2, 9, 4), (3, 2, 5), (5, 9, 4), (101, 10, 10), (101, 10, 1)]
    for _ in range(count):
        cases.append(tuple(int(each) for each in generator.integers([2, 1, 1], [80, 14, 12])))
    return cases


def test_every_target_is_scored_exactly_once():
    for case in random_cases(300):
        num_tokens, batch_size, segment_length = case
        rows, batches = read_all(*case)
        assert rows.batch_size == min(batch_size, num_tokens - 1)
        assert len(batches) == rows.num_segments
        scored = []
        for batch in batches:
            for array in batch:
                assert array.shape == (rows.batch_size, segment_length)
            np.testing.assert_array_equal(
                batch.target_ids[batch.is_scored], batch.token_ids[batch.is_scored] + 1
            )
            scored.extend(batch.target_ids[batch.is_scored].tolist())
        # The first token is nobody's target.
        assert sorted(scored) == list(range(1, num_tokens)), case


def test_each_row_is_one_stretch_that_goes_on_from_segment_to_segment():
    for case in random_cases(100):
        rows, batches = read_all(*case)
        next_token = 0
        lengths = []
        for row in range(rows.batch_size):
            is_scored = np.concatenate([batch.is_scored[row] for batch in batches])
            targets = np.concatenate([batch.target_ids[row] for batch in batches])[is_scored]
            # Nothing is scored after the padding has begun.
            assert not np.any(np.diff(is_scored.astype(int)) > 0), case
            np.testing.assert_array_equal(
                targets, np.arange(next_token + 1, next_token + 1 + len(targets))
            )
            next_token += len(targets)
            lengths.append(len(targets))
        assert max(lengths) - min(lengths) <= 1, case
        assert lengths == sorted(lengths, reverse=True), case


@pytest.mark.parametrize("num_tokens", [0, 1])
def test_a_split_without_targets_is_refused(num_tokens):
    with pytest.raises(ValueError, match=f"Received: num_tokens={num_tokens}"):
        EvaluationRows(num_tokens, 4, 8)
