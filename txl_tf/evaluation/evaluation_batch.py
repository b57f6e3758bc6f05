"""One step of an evaluation.

Shape letters used in this module: B rows, T segment length.
"""

from typing import NamedTuple

import numpy as np


class EvaluationBatch(NamedTuple):
    """One segment of every row.

    Attributes:
        token_ids: int32 array `(B, T)`.
        target_ids: int32 array `(B, T)`.
        is_scored: bool array `(B, T)`; False where a row warms up, and where it
            has no token left.
        document_starts: bool array `(B, T)`; True for the tokens that begin a
            document, where that is known.
        places: int64 array `(B, T)`; the place of each target in the text.
    """

    token_ids: np.ndarray
    target_ids: np.ndarray
    is_scored: np.ndarray
    document_starts: np.ndarray
    places: np.ndarray
