"""Which tokens every row reads at every step: arithmetic, no state.

Letters: B rows over all replicas, T segment length, S segments per epoch and row.
"""

import dataclasses
import hashlib

import numpy as np

from txl_tf.errors import DataDamagedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentPlan:
    """The order in which a token stream is read.

    The stream is cut into `B * S` segments of `T` tokens and row `r` reads the
    `S` segments from `r * S` on, one per step, so that its memory is always
    that of the text before. With `rotate`, each epoch begins at another place:
    the cuts move by fewer than a batch's tokens, and the segments are dealt
    from another one on, around the end. The places follow from the
    fingerprint, the seed and the epoch by SHA-256, and so never change.

    Args:
        num_tokens: int. Tokens of the stream.
        num_rows: int. Rows `B` over all replicas and hosts.
        segment_length: int. Tokens `T` per row and step.
        seed: int. Decides the rotation. Defaults to `0`.
        fingerprint: str. Fingerprint of the data. Defaults to `""`.
        rotate: bool. Whether each epoch begins at another place. Defaults to
            `False`.

    Raises:
        ValueError: If a number is not positive.
        DataDamagedError: If the stream is shorter than one batch.
    """

    num_tokens: int
    num_rows: int
    segment_length: int
    seed: int = 0
    fingerprint: str = ""
    rotate: bool = False

    def __post_init__(self) -> None:
        for name in ("num_rows", "segment_length"):
            if getattr(self, name) <= 0:
                raise ValueError(f"`{name}` must be positive. Received: {getattr(self, name)}")
        if self.num_tokens < 0:
            raise ValueError(f"`num_tokens` must not be negative. Received: {self.num_tokens}")
        if self.segments_per_epoch <= 0:
            needed = self.num_rows * self.segment_length + 1
            raise DataDamagedError(
                f"{self.num_tokens} tokens are fewer than one batch.",
                where=f"{self.num_rows} rows of {self.segment_length} tokens and a last target "
                f"need {needed} tokens.",
                remedy="Use more text, fewer rows or shorter segments.",
            )

    @property
    def segments_per_epoch(self) -> int:
        """Segments `S` that each row reads in an epoch: the steps of an epoch."""
        return (self.num_tokens - 1) // (self.num_rows * self.segment_length)

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every row reads its share once."""
        return self.segments_per_epoch

    @property
    def num_segments(self) -> int:
        """Segments `B * S` that all rows together read in an epoch."""
        return self.num_rows * self.segments_per_epoch

    @property
    def tail_tokens(self) -> int:
        """Tokens that an epoch reads neither as input nor as target."""
        return self.num_tokens - 1 - self.num_segments * self.segment_length

    def rotation(self, epoch: int) -> tuple[int, int]:
        """Returns where an epoch begins.

        Args:
            epoch: int. Counted from 0.

        Returns:
            Tokens by which the cuts are moved, and the segment that row 0
            begins with.
        """
        if not self.rotate:
            return 0, 0
        digest = hashlib.sha256(f"{self.fingerprint}:{self.seed}:{epoch}".encode()).digest()
        shift_tokens = int.from_bytes(digest[:16], "big") % (self.tail_tokens + 1)
        first_segment = int.from_bytes(digest[16:], "big") % self.num_segments
        return shift_tokens, first_segment

    def positions(self, step: int) -> np.ndarray:
        """Returns the first token of every row's segment.

        Args:
            step: int. Counted from 0 over all epochs.

        Returns:
            int64 vector `[B]`.

        Raises:
            ValueError: If `step` is negative.
        """
        if step < 0:
            raise ValueError(f"`step` must not be negative. Received: {step}")
        epoch, epoch_step = divmod(step, self.segments_per_epoch)
        shift_tokens, first_segment = self.rotation(epoch)
        rows = np.arange(self.num_rows, dtype=np.int64)
        segments = rows * self.segments_per_epoch + epoch_step + first_segment
        return shift_tokens + segments % self.num_segments * self.segment_length

    def starts(self, step: int) -> np.ndarray:
        """Returns which rows read a segment that does not continue their last one.

        Args:
            step: int. Counted from 0 over all epochs.

        Returns:
            bool vector `[B]`; all `True` at step 0.
        """
        if step == 0:
            return np.ones(self.num_rows, dtype=bool)
        return self.positions(step) != self.positions(step - 1) + self.segment_length

    def stretches(self, row: int, epoch: int) -> tuple[tuple[int, int], ...]:
        """Returns the pieces of the stream that a row reads in an epoch.

        Args:
            row: int. In `[0, B)`.
            epoch: int. Counted from 0.

        Returns:
            One or two pairs of first token and number of segments, in order.
        """
        if not 0 <= row < self.num_rows:
            raise ValueError(f"`row` must be in [0, {self.num_rows}). Received: {row}")
        shift_tokens, first_segment = self.rotation(epoch)
        first = (row * self.segments_per_epoch + first_segment) % self.num_segments
        until_end = min(self.segments_per_epoch, self.num_segments - first)
        pieces = [(shift_tokens + first * self.segment_length, until_end)]
        if until_end < self.segments_per_epoch:
            pieces.append((shift_tokens, self.segments_per_epoch - until_end))
        return tuple(pieces)
