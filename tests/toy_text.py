"""A small text to evaluate."""

from tests.toy_batches import toy_tokens
from txl_tf.evaluation.result import EvaluationText

NUM_TOKENS = 3398


def toy_text(vocabulary_size):
    """A text of `NUM_TOKENS` predictions."""
    tokens = toy_tokens(NUM_TOKENS + 1, vocabulary_size)
    return EvaluationText(
        name="toy",
        num_tokens=len(tokens),
        read_tokens=lambda start, stop: tokens[start:stop],
        read_document_starts=lambda start, stop: tokens[start:stop] == 0,
        num_bytes=len(tokens),
        num_characters=len(tokens),
        num_words=len(tokens),
    )
