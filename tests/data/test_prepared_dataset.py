import numpy as np
import pytest


@pytest.mark.parametrize("num_tokens", [1, 63, 64, 320, 321, 1500])
def test_any_range_of_tokens_can_be_read(make_dataset, num_tokens):
    dataset, tokens = make_dataset(num_tokens)
    assert dataset.num_tokens("train") == num_tokens
    random = np.random.default_rng(num_tokens)
    ends = [np.sort(random.integers(0, num_tokens + 1, 2)) for _ in range(50)]
    for start, stop in [(0, num_tokens), (num_tokens, num_tokens), *ends]:
        result = dataset.read_tokens("train", start, stop)
        assert result.dtype == np.int32
        np.testing.assert_array_equal(result, tokens[start:stop])
