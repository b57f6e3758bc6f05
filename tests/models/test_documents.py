"""Documents that are kept apart: each is read as if it were alone."""

import numpy as np
import pytest

from tests.small_models import small_config
from txl_tf.models.transformer_xl import TransformerXL

CONFIG = small_config(6, 9, vocabulary_size=17, initializer_stddev=0.3)


@pytest.fixture(scope="module")
def model():
    return TransformerXL(CONFIG)


def read(model, tokens, starts, segment_length=6):
    """Losses of a row that is read segment by segment, and the last memory."""
    memory = model.initial_memory(1)
    losses, lengths = [], []
    for first in range(0, len(tokens) - 1, segment_length):
        stop = min(first + segment_length, len(tokens) - 1)
        hidden, memory = model(
            tokens[None, first:stop],
            memory,
            document_starts=None if starts is None else starts[None, first:stop],
        )
        targets = tokens[None, first + 1 : stop + 1]
        losses.append(model.negative_log_likelihood(hidden, targets)[0])
        lengths.append(int(memory.valid_length[0]))
    return np.concatenate(losses), lengths


# Documents of one token, one that ends with a segment, one longer than the memory.
@pytest.mark.parametrize("sizes", [[3, 1, 2, 5, 20, 4], [6, 6, 12, 1, 1, 9], [35]])
def test_every_document_is_read_as_if_it_were_alone(model, sizes):
    tokens = np.random.default_rng(1).integers(0, 17, sum(sizes) + 1).astype("int32")
    begins = np.cumsum([0, *sizes[:-1]])
    starts = np.zeros(len(tokens), bool)
    starts[begins] = True
    losses, lengths = read(model, tokens, starts)
    for begin, size in zip(begins, sizes, strict=True):
        # Read alone in one segment, but for what the memory no longer reaches.
        reach = min(size, CONFIG.memory_length)
        alone, _ = read(model, tokens[begin : begin + reach + 1], None, segment_length=reach)
        np.testing.assert_allclose(losses[begin : begin + reach], alone, atol=1e-5)
    ends = np.minimum(np.arange(6, len(tokens) + 5, 6), len(tokens) - 1)
    expected = [min(end - begins[begins < end][-1], CONFIG.memory_length) for end in ends]
    assert lengths == expected


def test_without_starts_nothing_is_hidden(model):
    tokens = np.random.default_rng(2).integers(0, 17, 25).astype("int32")
    never = np.zeros(25, bool)
    np.testing.assert_allclose(
        read(model, tokens, never)[0], read(model, tokens, None)[0], atol=1e-6
    )
    split = never.copy()
    split[12] = True
    assert np.abs(read(model, tokens, split)[0] - read(model, tokens, None)[0])[12:].max() > 1e-3
