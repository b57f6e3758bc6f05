"""The tokens of a chunk of text."""

from typing import NamedTuple

import numpy as np

from txl_tf.data.text_counts import TextCounts


class TokenChunk(NamedTuple):
    """What comes of consecutive pieces of a split.

    Args:
        token_ids: int vector. The tokens.
        document_starts: int64 vector. The places in `token_ids` where documents
            begin; one past the last for one that begins with the next token.
        counts: `TextCounts`. Counts of the text.
    """

    token_ids: np.ndarray
    document_starts: np.ndarray
    counts: TextCounts
