"""Plan of the tokens that every row reads at every step.

Letters: B rows over all replicas, T segment length, S segments per epoch and row.
"""

import dataclasses
import hashlib

import numpy as np

from txl_tf.errors import DataDamagedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentPlan:
    """Order in which the rows of a batch read a token stream.

    The stream is cut into `B * S` segments of `T` tokens. Row `r` reads the `S` segments from
    number `r * S` on, one in each step. So its memory holds the text before a segment, except where
    `starts` says that the row begins with an empty memory.

    With `rotate`, each epoch begins at another place. The cuts move by fewer tokens than a batch
    has, and row 0 begins at another segment; after the last segment follows the first. SHA-256 of
    the fingerprint, the seed and the epoch determines the places, so they never change.

    Raises DataDamagedError if the stream is shorter than one batch and the token after it.
    """

    num_tokens: int
    num_rows: int
    segment_length: int
    seed: int = 0
    fingerprint: str = ""
    rotate: bool = False

    def __post_init__(self) -> None:
        if self.steps_per_epoch <= 0:
            min_tokens = self.num_rows * self.segment_length + 1
            raise DataDamagedError(
                f"The text has too few tokens for one batch: {self.num_tokens}, not {min_tokens}.",
                where=f"batch of {self.num_rows} rows with {self.segment_length} tokens each, and "
                "the token after the last",
                remedy="Use more text, fewer rows or shorter segments.",
            )

    @property
    def steps_per_epoch(self) -> int:
        """Number `S` of segments that each row reads in an epoch, one in each step."""
        return (self.num_tokens - 1) // (self.num_rows * self.segment_length)

    @property
    def num_segments(self) -> int:
        """Number `B * S` of segments that all rows together read in an epoch."""
        return self.num_rows * self.steps_per_epoch

    @property
    def tail_tokens(self) -> int:
        """Number of tokens that an epoch reads neither as input nor as target."""
        return self.num_tokens - 1 - self.num_segments * self.segment_length

    def rotation(self, epoch: int) -> tuple[int, int]:
        """Returns how many tokens an epoch moves the cuts, and the first segment of row 0."""
        if not self.rotate:
            return 0, 0
        digest = hashlib.sha256(f"{self.fingerprint}:{self.seed}:{epoch}".encode()).digest()
        shift_tokens = int.from_bytes(digest[:16], "big") % (self.tail_tokens + 1)
        first_segment = int.from_bytes(digest[16:], "big") % self.num_segments
        return shift_tokens, first_segment

    def positions(self, step: int) -> np.ndarray:
        """Returns the position of the first token of every row's segment, int64 `[B]`.

        `step` is counted from 0 over all epochs.
        """
        epoch, epoch_step = divmod(step, self.steps_per_epoch)
        shift_tokens, first_segment = self.rotation(epoch)
        rows = np.arange(self.num_rows, dtype=np.int64)
        segments = rows * self.steps_per_epoch + epoch_step + first_segment
        return shift_tokens + segments % self.num_segments * self.segment_length

    def starts(self, step: int) -> np.ndarray:
        """Returns whether each row does not continue its previous segment, bool `[B]`.

        At step 0 all are True.
        """
        if step == 0:
            return np.ones(self.num_rows, dtype=bool)
        return self.positions(step) != self.positions(step - 1) + self.segment_length
