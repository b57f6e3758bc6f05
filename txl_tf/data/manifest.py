"""The description of a prepared data set, kept beside its records."""

import dataclasses
import hashlib
import json
import os
from typing import Any, Self

from txl_tf.config.frozen_config import FrozenConfig
from txl_tf.data.split_manifest import SplitManifest
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError

FORMAT_VERSION = 2
MANIFEST_FILE = "manifest.json"
# A message can quote all of a manifest, which has a line for every shard.
_MAX_REASON_CHARACTERS = 300
_REMEDY = "Prepare the data set again."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest(FrozenConfig):
    """What a prepared data set contains and how to check it.

    Args:
        format_version: int. Version of the layout of the folder.
        corpus_name: str. Name of the text.
        tokenizer_kind: str. Such as `"bytes"`.
        tokenizer_sha256: str. Fingerprint of the tokenizer, in hexadecimal.
        vocabulary_size: int. Number of different token ids.
        token_bytes: int. Width of a stored token in bytes: 1, 2 or 4,
            little-endian.
        tokens_per_record: int. Tokens in every record but a shard's last.
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

    def validate(self) -> None:
        if self.format_version != FORMAT_VERSION:
            raise ValueError(
                f"`format_version` must be {FORMAT_VERSION}. Received: {self.format_version}"
            )
        if self.token_bytes not in (1, 2, 4):
            raise ValueError(f"`token_bytes` must be 1, 2 or 4. Received: {self.token_bytes}")
        for name in ("vocabulary_size", "tokens_per_record"):
            if getattr(self, name) <= 0:
                raise ValueError(f"`{name}` must be positive. Received: {getattr(self, name)}")
        names = self.split_names
        if not names or len(set(names)) != len(names):
            raise ValueError(f"`splits` must have different names. Received: {names}")
        for shard in (shard for split in self.splits for shard in split.shards):
            records = -(-shard.tokens // self.tokens_per_record)
            if shard.records != records:
                raise ValueError(
                    f"{shard.file} with {shard.tokens} tokens must have {records} records. "
                    f"Received: {shard.records}"
                )

    @property
    def split_names(self) -> tuple[str, ...]:
        """Names of the splits, in the order written."""
        return tuple(split.name for split in self.splits)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, over everything that decides the tokens."""
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
        return _canonical_sha256(deciding)

    def split(self, name: str) -> SplitManifest:
        """Returns the split of that name.

        Args:
            name: str. Name of the split.

        Returns:
            The `SplitManifest`.

        Raises:
            ValueError: If there is no such split.
        """
        for split in self.splits:
            if split.name == name:
                return split
        known = ", ".join(self.split_names)
        raise ValueError(f"`split` must be one of: {known}. Received: {name!r}")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Builds a manifest from plain JSON types.

        Args:
            values: dict. What `to_dict` returns.

        Returns:
            The manifest.

        Raises:
            ValueError: If a key is unknown or missing or a value is not valid.
        """
        splits = values.get("splits")
        if isinstance(splits, list) and all(isinstance(split, dict) for split in splits):
            built = tuple(SplitManifest.from_dict(split) for split in splits)
            values = {**values, "splits": built}
        return super().from_dict(values)

    def to_json(self) -> bytes:
        """Returns the content of the manifest file, its own checksum included."""
        values = self.to_dict()
        values["manifest_sha256"] = _canonical_sha256(values)
        return (json.dumps(values, indent=2) + "\n").encode()

    def write(self, folder: str) -> None:
        """Writes the manifest file into a folder.

        Args:
            folder: str. The folder of the data set.
        """
        import tensorflow as tf

        with tf.io.gfile.GFile(os.path.join(folder, MANIFEST_FILE), "wb") as file:
            file.write(self.to_json())

    @classmethod
    def read(cls, folder: str) -> Self:
        """Reads the manifest file of a folder.

        Args:
            folder: str. The folder of the data set.

        Returns:
            The manifest.

        Raises:
            InputMissingError: If the folder or its manifest does not exist.
            DataDamagedError: If the file is not a manifest of this version.
            StorageError: If the file cannot be read.
        """
        path = os.path.join(folder, MANIFEST_FILE)
        return cls.from_json(_read_file(path), where=path)

    @classmethod
    def from_json(cls, content: bytes, *, where: str = MANIFEST_FILE) -> Self:
        """Builds a manifest from the content of a manifest file.

        Args:
            content: bytes. What `to_json` returns.
            where: str. Name of the file, for errors.

        Returns:
            The manifest.

        Raises:
            DataDamagedError: If the content is not a manifest of this version.
        """
        try:
            values = json.loads(content)
        except ValueError as error:
            what = "The manifest is not JSON."
            raise DataDamagedError(what, where=f"{where}: {error}", remedy=_REMEDY) from error
        if not isinstance(values, dict):
            what = "The manifest is not a JSON object."
            raise DataDamagedError(what, where=where, remedy=_REMEDY)
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise DataDamagedError(
                f"The manifest has format version {version!r}; version {FORMAT_VERSION} is known.",
                where=where,
                remedy="Prepare the data set with this version of the program.",
            )
        checksum = values.pop("manifest_sha256", None)
        try:
            manifest = cls.from_dict(values)
        except ValueError as error:
            what = "The manifest is not valid."
            reason = f"{where}: {str(error)[:_MAX_REASON_CHARACTERS]}"
            raise DataDamagedError(what, where=reason, remedy=_REMEDY) from error
        if checksum != _canonical_sha256(values):
            what = "The manifest does not match its own checksum, manifest_sha256."
            raise DataDamagedError(what, where=where, remedy=_REMEDY)
        return manifest


def _canonical_sha256(values: dict[str, Any]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read_file(path: str) -> bytes:
    import tensorflow as tf

    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()
    except (tf.errors.NotFoundError, tf.errors.FailedPreconditionError) as error:
        raise InputMissingError(
            "There is no prepared data set: its manifest is missing.",
            where=path,
            remedy="Name the folder that `txl prepare` wrote, or prepare the data set.",
        ) from error
    except tf.errors.OpError as error:
        what = f"The manifest cannot be read: {error.message.splitlines()[0]}"
        raise StorageError(what, where=path, remedy="Check the storage.") from error
