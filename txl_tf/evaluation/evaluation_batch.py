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
        is_scored: bool array `(B, T)`; False where a row has no token left.
    """

    token_ids: np.ndarray
    target_ids: np.ndarray
    is_scored: np.ndarray
