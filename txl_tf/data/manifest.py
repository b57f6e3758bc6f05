"""Manifest of a prepared data set: splits, shards, token counts and checksums."""

import dataclasses
import json
import os
from typing import Self

from txl_tf.config.base import FrozenConfig
from txl_tf.data.text import TextCounts
from txl_tf.errors import DataDamagedError, InputMissingError
from txl_tf.storage.files import read_file, write_file
from txl_tf.storage.untrusted_files import (
    MAX_DESCRIPTION_BYTES,
    json_sha256,
    parse_json_object,
    storage_errors,
)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitManifest(FrozenConfig):
    """One split: a token stream cut into shards, in order.

    Args:
        name: str. Letters, digits and underscores, such as `"train"`.
        tokens: int. Tokens in the split.
        bytes: int. Bytes of the text of the tokens.
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

    @classmethod
    def of(cls, name: str, counts: TextCounts, shards: tuple[ShardManifest, ...]) -> Self:
        """Describes a written split; raises DataDamagedError if it has no token or no text."""
        if not shards or not counts.bytes:
            raise DataDamagedError(
                "A split of the input is empty.",
                where=f"split {name}",
                remedy="Give more text, or leave this split out.",
            )
        tokens = sum(shard.tokens for shard in shards)
        return cls(name=name, tokens=tokens, shards=shards, **counts._asdict())


def shard_file_name(split: str, index: int, num_shards: int) -> str:
    """Returns the name of one shard, such as `train-00000-of-00008.tfrecord`."""
    return f"{split}-{index:05d}-of-{num_shards:05d}.tfrecord"


FORMAT_VERSION = 2
MANIFEST_FILE = "manifest.json"
# An error message may quote a whole manifest, with one line per shard.
_MAX_REASON_CHARACTERS = 300
_REMEDY = "Prepare the data set again."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest(FrozenConfig):
    """Description of a prepared data set: tokenizer, splits, shards and checksums.

    Args:
        format_version: int. Version of the layout of the folder.
        corpus_name: str. Name of the text.
        tokenizer_kind: str. Such as `"bytes"`.
        tokenizer_sha256: str. Fingerprint of the tokenizer, in hexadecimal.
        vocabulary_size: int. Number of different token ids.
        token_bytes: int. Width of a stored token in bytes: 1, 2 or 4,
            little-endian.
        tokens_per_record: int. Tokens in every record except the last of a shard.
        splits: tuple of `SplitManifest`. The splits, in the order written.
    """

    format_version: int
    corpus_name: str
    tokenizer_kind: str
    tokenizer_sha256: str
    vocabulary_size: int
    token_bytes: int
    tokens_per_record: int
    splits: tuple[SplitManifest, ...]

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits, in the order written."""
        return tuple(split.name for split in self.splits)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of everything that determines the tokens."""
        deciding = self.to_dict()
        del deciding["corpus_name"]
        deciding["splits"] = [
            {
                "name": split.name,
                "tokens": split.tokens,
                "shards": [[shard.tokens, shard.sha256] for shard in split.shards],
            }
            for split in self.splits
        ]
        return json_sha256(deciding)

    def split(self, name: str) -> SplitManifest:
        """Returns the split of that name.

        Raises:
            ValueError: If there is no such split.
        """
        for split in self.splits:
            if split.name == name:
                return split
        known = ", ".join(self.split_names)
        raise ValueError(f"`split` must be one of: {known}. Received: {name!r}")

    def write(self, folder: str) -> None:
        """Writes the manifest file, with its checksum, into the folder of a data set."""
        values = self.to_dict()
        values["manifest_sha256"] = json_sha256(values)
        content = json.dumps(values, indent=2) + "\n"
        write_file(os.path.join(folder, MANIFEST_FILE), content.encode())

    @classmethod
    def read(cls, folder: str) -> Self:
        """Reads the manifest file of a folder.

        Raises:
            InputMissingError: If the folder or its manifest does not exist.
            DataDamagedError: If the file is not a manifest of this version.
            StorageError: If the file cannot be read.
        """
        path = os.path.join(folder, MANIFEST_FILE)
        with storage_errors("The manifest cannot be read", path):
            try:
                content = read_file(path, max_bytes=MAX_DESCRIPTION_BYTES)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise InputMissingError(
                    "There is no prepared data set: its manifest is missing.",
                    where=path,
                    remedy="Name the folder that `txl prepare` wrote, or prepare the data set.",
                ) from error
        values = parse_json_object(content, where=path, remedy=_REMEDY)
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise DataDamagedError(
                f"The manifest has format version {version!r}; version {FORMAT_VERSION} is known.",
                where=path,
                remedy="Prepare the data set with this version of the program.",
            )
        if values.pop("manifest_sha256", None) != json_sha256(values):
            what = "The manifest does not match its own checksum, manifest_sha256."
            raise DataDamagedError(what, where=path, remedy=_REMEDY)
        try:
            return cls.from_dict(values)
        except ValueError as error:
            reason = " ".join(str(error).split())[:_MAX_REASON_CHARACTERS]
            what = f"The manifest is not valid: {reason}"
            raise DataDamagedError(what, where=path, remedy=_REMEDY) from error
