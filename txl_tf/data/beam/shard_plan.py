"""Which tokens of a split are in which shard."""

import dataclasses

import numpy as np

from txl_tf.data.record_format import frame_bytes


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """The place of every token, as `RecordWriter` would give it.

    Args:
        chunk_tokens: tuple of int. Tokens of every chunk, in order.
        tokens_per_record: int.
        token_bytes: int. Width of a stored token.
        shard_bytes: int. Size at which a shard ends.
    """

    chunk_tokens: tuple[int, ...]
    tokens_per_record: int
    token_bytes: int
    shard_bytes: int

    @property
    def num_tokens(self) -> int:
        """Tokens of the split."""
        return sum(self.chunk_tokens)

    @property
    def tokens_per_shard(self) -> int:
        """Tokens of every shard but the last."""
        frame = frame_bytes(self.tokens_per_record, self.token_bytes)
        return max(1, self.shard_bytes // frame) * self.tokens_per_record

    @property
    def num_shards(self) -> int:
        """Shards of the split."""
        return -(-self.num_tokens // self.tokens_per_shard)

    def chunk_starts(self) -> np.ndarray:
        """Returns the first token of every chunk, as int64 vector."""
        return np.cumsum([0, *self.chunk_tokens[:-1]], dtype=np.int64)
