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


@pytest.mark.parametrize(
    "call",
    [
        lambda dataset: dataset.num_tokens("trian"),
        lambda dataset: dataset.read_tokens("trian", 0, 1),
        lambda dataset: dataset.read_tokens("train", -1, 1),
        lambda dataset: dataset.read_tokens("train", 2, 1),
        lambda dataset: dataset.read_tokens("train", 0, 101),
    ],
)
def test_unknown_splits_and_ranges_are_refused(make_dataset, call):
    dataset, _ = make_dataset(100)
    with pytest.raises(ValueError, match="Received: "):
        call(dataset)
