"""Loss by position in the document.

Shape letters used in this module: D documents, N targets, P buckets of positions.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np


@dataclasses.dataclass(frozen=True, kw_only=True)
class PositionLoss:
    """Mean loss of the tokens in a range of positions.

    Attributes:
        first: int. First position, counted from 0, the first token of a document.
        last: optional int. Last position; `None` where there is no bound.
        num_tokens: int. Targets there.
        nats_per_token: float.
    """

    first: int
    last: int | None
    num_tokens: int
    nats_per_token: float


class PositionLosses:
    """Sums of the losses of a text by position in the document.

    Args:
        document_starts: ascending int vector `(D,)`. Places of the tokens that begin
            a document, the first one 0.
        firsts: ascending ints, the first one 0. First position of each bucket.

    Raises:
        ValueError: If one of them does not begin with 0 or does not ascend.
    """

    def __init__(self, document_starts: np.ndarray, firsts: Sequence[int]) -> None:
        for name, values in (("document_starts", document_starts), ("firsts", firsts)):
            if not len(values) or values[0] != 0 or np.any(np.diff(values) <= 0):
                shown = list(map(int, values[:5]))
                raise ValueError(
                    f"`{name}` must begin with 0 and ascend. "
                    f"Received: {len(values)} numbers that begin with {shown}"
                )
        self._document_starts = np.asarray(document_starts)
        self._firsts = np.asarray(firsts)
        self._nats = np.zeros(len(firsts))
        self._counts = np.zeros(len(firsts), np.int64)

    def add(self, places: np.ndarray, nats: np.ndarray) -> None:
        """Adds targets.

        Args:
            places: int vector `(N,)`. Their places in the text.
            nats: float64 vector `(N,)`.
        """
        document = np.searchsorted(self._document_starts, places, side="right") - 1
        positions = places - self._document_starts[document]
        bucket = np.searchsorted(self._firsts, positions, side="right") - 1
        self._nats += np.bincount(bucket, nats, len(self._firsts))
        self._counts += np.bincount(bucket, minlength=len(self._firsts))

    def result(self) -> list[PositionLoss]:
        """Returns the means of the buckets that have a target."""
        lasts = [*map(int, self._firsts[1:] - 1), None]
        return [
            PositionLoss(
                first=int(first),
                last=last,
                num_tokens=int(count),
                nats_per_token=float(nats / count),
            )
            for first, last, count, nats in zip(
                self._firsts, lasts, self._counts, self._nats, strict=True
            )
            if count
        ]


def doubling_positions(longest_document: int) -> list[int]:
    """Returns 0, 1, 2, 4, 8 and so on, as far as a document of so many tokens has positions."""
    firsts = [0]
    while max(2 * firsts[-1], 1) < longest_document:
        firsts.append(max(2 * firsts[-1], 1))
    return firsts
