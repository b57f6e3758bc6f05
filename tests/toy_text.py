"""Small texts to evaluate."""

import numpy as np

from tests.toy_batches import toy_tokens
from txl_tf.evaluation.result import EvaluationText

NUM_TOKENS = 3398


def text_of(tokens, starts=(0,)):
    """A text with three bytes a token, whose documents begin at the places `starts`."""
    is_start = np.isin(np.arange(len(tokens)), starts)
    return EvaluationText(
        name="valid",
        num_tokens=len(tokens),
        read_tokens=lambda start, stop: tokens[start:stop],
        read_document_starts=lambda start, stop: is_start[start:stop],
        num_bytes=3 * len(tokens),
        num_characters=2 * len(tokens),
        num_words=len(tokens),
    )


def toy_text(vocabulary_size):
    """A text of `NUM_TOKENS` predictions."""
    tokens = toy_tokens(NUM_TOKENS + 1, vocabulary_size)
    return text_of(tokens, np.flatnonzero(tokens == 0))
