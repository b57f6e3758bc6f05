"""What a manifest says of one file of records."""

import dataclasses

from txl_tf.config.frozen_config import FrozenConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardManifest(FrozenConfig):
    """One shard: a file of consecutive records of a split's token stream.

    Args:
        file: str. Name of the file inside the data set's folder.
        tokens: int. Tokens in the shard.
        records: int. Records in the shard.
        bytes: int. Size of the file in bytes.
        sha256: str. SHA-256 of the file, in hexadecimal.
    """

    file: str
    tokens: int
    records: int
    bytes: int
    sha256: str

    def validate(self) -> None:
        for name in ("tokens", "records", "bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"`{name}` must be positive. Received: {getattr(self, name)}")
        if len(self.sha256) != 64 or set(self.sha256) - set("0123456789abcdef"):
            raise ValueError(f"`sha256` must be 64 hexadecimal digits. Received: {self.sha256!r}")
