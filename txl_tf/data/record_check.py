"""Looks for what no record of a data set can have."""

import dataclasses
import functools

import numpy as np

from txl_tf.data.frame_layout import FrameLayout
from txl_tf.data.manifest import Manifest
from txl_tf.data.record_format import frame_bytes
from txl_tf.data.shard_manifest import ShardManifest

_BLOCK_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class RecordCheck:
    """Checks frames: whether they are records of the right size with ids of the vocabulary.

    A checksum says that a file is as it was written. This says that what was
    written can be trained on: an id outside of the vocabulary would look up no
    row of the embedding, and on some devices that is no error.

    Args:
        manifest: `Manifest` of the data set.
    """

    manifest: Manifest

    @property
    def frame_bytes(self) -> int:
        """Size of a frame of a full record."""
        return frame_bytes(self._record_tokens, self.manifest.token_bytes)

    @property
    def block_bytes(self) -> int:
        """How much of a file to look at at once: some megabytes of whole records."""
        return max(1, _BLOCK_BYTES // self.frame_bytes) * self.frame_bytes

    def first_problem(
        self, block: bytes, first_record: int, shard: ShardManifest
    ) -> tuple[int, str] | None:
        """Looks through consecutive frames.

        Args:
            block: bytes. Whole frames; at the end of a shard its last one may
                be smaller.
            first_record: int. Number of the first one in its shard.
            shard: `ShardManifest`. What the shard must be.

        Returns:
            Number of the first record with a problem and what it is, or `None`.
        """
        size = self._record_tokens
        layout = self._layout(size)
        num_wanted = max(0, shard.tokens // size - first_record)
        num_full = min(len(block) // layout.num_bytes, num_wanted)
        end = num_full * layout.num_bytes
        problem = self._problem_of_equal(block[:end], layout)
        if problem is None and end < len(block):
            problem = self._problem_of_rest(block[end:], shard.tokens % size)
            if problem is not None:
                problem = num_full, problem[1]
        return None if problem is None else (first_record + problem[0], problem[1])

    @functools.cached_property
    def _record_tokens(self) -> int:
        """Tokens of the largest record: no shard need have as many as a record may."""
        shards = [shard for split in self.manifest.splits for shard in split.shards]
        most = max((shard.tokens for shard in shards), default=1)
        return min(self.manifest.tokens_per_record, most)

    def _layout(self, num_tokens: int) -> FrameLayout:
        return FrameLayout.of(num_tokens, self.manifest.token_bytes)

    def _problem_of_rest(self, block: bytes, num_tokens: int) -> tuple[int, str] | None:
        if not num_tokens or len(block) != self._layout(num_tokens).num_bytes:
            return 0, "A record is cut off, or one too many."
        return self._problem_of_equal(block, self._layout(num_tokens))

    def _problem_of_equal(self, block: bytes, layout: FrameLayout) -> tuple[int, str] | None:
        frames = np.frombuffer(block, np.uint8).reshape(-1, layout.num_bytes)
        differs = (frames[:, layout.fixed_places] != layout.fixed_bytes).any(axis=1)
        if differs.any():
            return int(np.argmax(differs)), "A record is not of the size and form it must have."
        size = self.manifest.vocabulary_size
        if not frames.size or size > np.iinfo(layout.dtype).max:
            return None
        tokens = frames[:, layout.first_token_byte : layout.last_token_byte]
        token_ids = np.ascontiguousarray(tokens).view(layout.dtype)
        if token_ids.min() >= 0 and token_ids.max() < size:
            return None
        wrong = (token_ids < 0) | (token_ids >= size)
        record = int(np.argmax(wrong.any(axis=1)))
        place = int(np.argmax(wrong[record]))
        what = (
            f"Token {place} of a record is {token_ids[record, place]}; the vocabulary has {size}."
        )
        return record, what
