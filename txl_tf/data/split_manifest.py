"""What a manifest says of one split."""

import dataclasses
import re
from typing import Any, Self

from txl_tf.config.frozen_config import FrozenConfig
from txl_tf.data.shard_manifest import ShardManifest

_SPLIT_NAME = re.compile(r"[A-Za-z0-9_]+")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitManifest(FrozenConfig):
    """One split: a token stream cut into shards, in order.

    Args:
        name: str. Such as `"train"`: letters, digits and underscores.
        tokens: int. Tokens in the split.
        bytes: int. Bytes of the text that the tokens stand for.
        characters: int. UTF-8 code points of that text.
        words: int. Words of that text, separated by white space.
        documents: int. Documents of that text.
        shards: tuple of `ShardManifest`. The files, in the order of the stream.
    """

    name: str
    tokens: int
    bytes: int
    characters: int
    words: int
    documents: int
    shards: tuple[ShardManifest, ...]

    def validate(self) -> None:
        if not _SPLIT_NAME.fullmatch(self.name):
            raise ValueError(
                "`name` of a split must be letters, digits and underscores. "
                f"Received: {self.name!r}"
            )
        self._check_counts()
        for index, shard in enumerate(self.shards):
            expected = shard_file_name(self.name, index, len(self.shards))
            if shard.file != expected:
                raise ValueError(
                    f"Shard {index} of `{self.name}` must be {expected}. Received: {shard.file!r}"
                )
        total = sum(shard.tokens for shard in self.shards)
        if total != self.tokens:
            raise ValueError(
                f"The shards of `{self.name}` must hold {self.tokens} tokens. Received: {total}"
            )

    def _check_counts(self) -> None:
        for name in ("bytes", "characters", "words", "documents"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"`{name}` of `{self.name}` must not be negative. "
                    f"Received: {getattr(self, name)}"
                )
        if self.tokens and not self.bytes:
            # Figures are divided by it after an evaluation.
            raise ValueError(f"`bytes` of `{self.name}` must be positive. Received: {self.bytes}")
        for name in ("characters", "words"):
            if getattr(self, name) > self.bytes:
                raise ValueError(
                    f"`{name}` of `{self.name}` must be at most its {self.bytes} bytes. "
                    f"Received: {getattr(self, name)}"
                )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Builds a split from plain JSON types.

        Args:
            values: dict. What `to_dict` returns.

        Returns:
            The split.

        Raises:
            ValueError: If a key is unknown or missing or a value is not valid.
        """
        shards = values.get("shards")
        if isinstance(shards, list) and all(isinstance(shard, dict) for shard in shards):
            built = tuple(ShardManifest.from_dict(shard) for shard in shards)
            values = {**values, "shards": built}
        return super().from_dict(values)


def shard_file_name(split: str, index: int, num_shards: int) -> str:
    """Returns the name of one shard, such as `train-00000-of-00008.tfrecord`."""
    return f"{split}-{index:05d}-of-{num_shards:05d}.tfrecord"
