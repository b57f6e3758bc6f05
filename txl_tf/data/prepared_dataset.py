"""Prepared data set: its manifest, the checks of its files, and random access to its tokens."""

import bisect
import concurrent.futures
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable
from typing import Self

import numpy as np

from txl_tf.config.base import FrozenConfig
from txl_tf.data.records import RECORDS_REMEDY, frame_bytes, parse_frame
from txl_tf.data.tokenizers import load_tokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import (
    DataDamagedError,
    InputMissingError,
    StorageError,
    errors_as,
    first_line,
    storage_errors,
)
from txl_tf.imports import tensorflow as tf
from txl_tf.storage.files import (
    file_bytes,
    file_sha256,
    is_remote,
    list_folder,
    path_exists,
    read_file,
    write_file,
)
from txl_tf.storage.listed_files import listed_file
from txl_tf.storage.strict_json import (
    MAX_DESCRIPTION_BYTES,
    json_file,
    json_sha256,
    parse_json_object,
)

FORMAT_VERSION = 2
MANIFEST_FILE = "manifest.json"
_PREPARE_REMEDY = "Prepare the data set again."
_VOCABULARY_REMEDY = "Restore the vocabulary from a copy, or from a data set prepared with it."


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardManifest(FrozenConfig):
    """Description of a shard: a file in the data set with consecutive records of a split."""

    file: str
    tokens: int
    records: int
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplitManifest(FrozenConfig):
    """Description of a split: the shards of its token stream, in order, and counts of its text."""

    name: str
    tokens: int
    bytes: int
    characters: int
    words: int
    documents: int
    shards: tuple[ShardManifest, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest(FrozenConfig):
    """Description of a prepared data set: tokenizer, splits, shards and checksums.

    A stored token has `token_bytes` bytes, little-endian. Every record has `tokens_per_record`
    tokens; only the last record of a split may have fewer.
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
        """Names of the splits, in the order in which they were written."""
        return tuple(split.name for split in self.splits)

    @property
    def shards(self) -> list[ShardManifest]:
        """Shards of all splits, in the order of the splits."""
        return [shard for split in self.splits for shard in split.shards]

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of everything that determines the tokens."""
        values = self.to_dict()
        del values["corpus_name"]
        values["splits"] = [
            {
                "name": split.name,
                "tokens": split.tokens,
                "shards": [[shard.tokens, shard.sha256] for shard in split.shards],
            }
            for split in self.splits
        ]
        return json_sha256(values)

    def split(self, name: str) -> SplitManifest:
        """Returns a split by name; ValueError for an unknown name."""
        for split in self.splits:
            if split.name == name:
                return split
        names = ", ".join(self.split_names)
        raise ValueError(f"`split` must be one of: {names}. Received: {name!r}")

    def write(self, folder: str) -> None:
        """Writes the manifest file, with its checksum, into the folder of a data set."""
        values = self.to_dict()
        values["manifest_sha256"] = json_sha256(values)
        write_file(os.path.join(folder, MANIFEST_FILE), json_file(values))

    @classmethod
    def read(cls, folder: str) -> Self:
        """Reads the manifest of a folder.

        Raises InputMissingError if it is missing, DataDamagedError if it is not valid or does not
        match its own checksum, and StorageError if it cannot be read.
        """
        path = os.path.join(folder, MANIFEST_FILE)
        with storage_errors("The manifest cannot be read", path):
            try:
                content = read_file(path, max_bytes=MAX_DESCRIPTION_BYTES)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise InputMissingError(
                    "The folder has no prepared data set: manifest.json is missing.",
                    where=path,
                    remedy="Name the folder that `txl prepare` wrote, or prepare the data set.",
                ) from error
        values = parse_json_object(content, where=path, remedy=_PREPARE_REMEDY)
        version = values.get("format_version")
        if version != FORMAT_VERSION:
            raise DataDamagedError(
                f"The manifest has format version {version!r}, but must have {FORMAT_VERSION}.",
                where=path,
                remedy="Prepare the data set again with this version of the program.",
            )
        if values.pop("manifest_sha256", None) != json_sha256(values):
            raise DataDamagedError(
                "The manifest does not match its own checksum, manifest_sha256.",
                where=path,
                remedy=_PREPARE_REMEDY,
            )
        with errors_as(
            DataDamagedError, ValueError, "The manifest is not valid", path, _PREPARE_REMEDY
        ):
            return cls.from_dict(values)


def verify_shard(
    folder: str, shard: ShardManifest, progress: Callable[[int], None] | None = None
) -> None:
    """Compares size and SHA-256 of a shard with the manifest; DataDamagedError if they differ.

    `progress` gets the size of each block that is read.
    """
    path = os.path.join(folder, shard.file)
    with storage_errors("The file cannot be read", path):
        listed_file(folder, shard.file, listed_in=MANIFEST_FILE, remedy=RECORDS_REMEDY)
        if (size := file_bytes(path)) != shard.bytes:
            what = f"The file has {size} bytes; the manifest says {shard.bytes}."
        elif (checksum := file_sha256(path, progress)) != shard.sha256:
            what = f"The file has SHA-256 {checksum}; the manifest says {shard.sha256}."
        else:
            return
    raise DataDamagedError(what, where=path, remedy=RECORDS_REMEDY)


def read_tokenizer(folder: str, kind: str, sha256: str, prefix: str = "") -> Tokenizer:
    """Builds a tokenizer from the files of a folder whose names begin with a prefix.

    Raises DataDamagedError if they are not the files of a tokenizer of this kind with this
    fingerprint.
    """
    files = {}
    with storage_errors("The vocabulary cannot be read", folder):
        for name in list_folder(folder):
            if name.startswith(prefix) and not name.startswith("."):
                path = listed_file(folder, name, listed_in=folder, remedy=_VOCABULARY_REMEDY)
                files[name] = read_file(path, max_bytes=MAX_DESCRIPTION_BYTES)
    tokenizer = load_tokenizer(kind, files, where=folder)
    if tokenizer.fingerprint != sha256:
        raise DataDamagedError(
            f"The vocabulary must have SHA-256 {sha256}, but has {tokenizer.fingerprint}.",
            where=", ".join(os.path.join(folder, name) for name in files) or folder,
            remedy=_VOCABULARY_REMEDY,
        )
    return tokenizer


def dataset_tokenizer(folder: str, manifest: Manifest) -> Tokenizer:
    """Builds the tokenizer of a prepared data set; raises the errors of `read_tokenizer`."""
    kind, sha256 = manifest.tokenizer_kind, manifest.tokenizer_sha256
    return read_tokenizer(folder, kind, sha256, prefix="vocabulary.")


class PreparedDataset:
    """Prepared data set in a folder, with random access to its tokens.

    `PreparedDataset.open` makes one and checks the files. The constructor checks no file, but each
    shard is checked before it is read.

    Args:
        folder: str. Folder of the data set.
        manifest: `Manifest`. Manifest of the folder.

    Example:
    ```python
    dataset = PreparedDataset.open(folder)
    dataset.read_tokens("train", 0, 100)  # the first hundred tokens
    ```
    """

    def __init__(self, folder: str, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._checked_files: set[str] = set()
        self._starts = {
            split.name: [0, *itertools.accumulate(shard.tokens for shard in split.shards)]
            for split in manifest.splits
        }

    def __repr__(self) -> str:
        manifest = self.manifest
        splits = ", ".join(f"{split.name}={split.tokens:,} tokens" for split in manifest.splits)
        tokenizer = f"{manifest.tokenizer_kind}, {manifest.vocabulary_size} ids"
        return f"<{type(self).__name__} {self.folder!r} ({tokenizer}): {splits}>"

    @classmethod
    def open(cls, folder: str, verify: bool = True) -> Self:
        """Opens a data set and checks its files.

        Args:
            folder: str. Folder of the data set.
            verify: bool. If `True`, every file is read and compared with the manifest. If `False`,
                only the sizes of local files are compared. Defaults to `True`.

        Raises:
            InputMissingError: If there is no data set.
            DataDamagedError: If the files differ from the manifest.
            StorageError: If a file cannot be read.
        """
        dataset = cls(folder, Manifest.read(folder))
        if verify:
            dataset.verify()
        elif not is_remote(folder):  # In a store each file would need a request.
            for shard in dataset.manifest.shards:
                dataset._check_file(shard)
        return dataset

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of everything that determines the tokens."""
        return self.manifest.fingerprint

    @functools.cached_property
    def unknown_id(self) -> int | None:
        """Id of the token for text outside the vocabulary; `None` if there is no such token."""
        return dataset_tokenizer(self.folder, self.manifest).unknown_id

    def verify(self, *, progress: Callable[[int], None] | None = None) -> None:
        """Reads every file and compares it with the manifest.

        Args:
            progress: optional function, which is called from several threads with the size of each
                block that was read.

        Raises:
            DataDamagedError: If a file is missing, differs or is not in the manifest, or if the
                vocabulary differs.
            StorageError: If a file cannot be read.
        """
        shards = self.manifest.shards
        for name in set(list_folder(self.folder)) - {shard.file for shard in shards}:
            path = os.path.join(self.folder, name)
            # The listing of a store may be outdated, so the file itself is asked for.
            if ".tfrecord" in name and path_exists(path):
                raise DataDamagedError(
                    "A .tfrecord file in the folder is not in the manifest.",
                    where=path,
                    remedy="Remove the file if it is not wanted, or prepare the data set again.",
                )
        dataset_tokenizer(self.folder, self.manifest)
        verify = functools.partial(verify_shard, self.folder, progress=progress)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as executor:
            list(executor.map(verify, shards))  # The first damaged shard in order raises its error.
        self._checked_files.update(shard.file for shard in shards)

    def num_tokens(self, split: str) -> int:
        """Returns the number of tokens of a split; ValueError if there is no such split."""
        return self.manifest.split(split).tokens

    def read_tokens(self, split: str, start: int, stop: int) -> np.ndarray:
        """Reads a range of tokens, and only the records that contain it.

        Args:
            split: str. Name of the split.
            start: int. Position of the first token.
            stop: int. Position after the last token.

        Returns:
            int32 vector of `stop - start` token ids.

        Raises:
            ValueError: If there is no such split or range.
            DataDamagedError: If a record is damaged.
            StorageError: If a file cannot be read.
        """
        return self._read(split, start, stop)[0]

    def read_document_starts(self, split: str, start: int, stop: int) -> np.ndarray:
        """Reads whether each token of a range begins a document, as a bool vector.

        Arguments and errors are the same as for `read_tokens`.
        """
        return self._read(split, start, stop)[1]

    def _read(self, split: str, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        shards = self.manifest.split(split).shards
        starts = self._starts[split]
        if not 0 <= start <= stop <= starts[-1]:
            raise ValueError(
                f"`start` and `stop` must be a range within [0, {starts[-1]}]. "
                f"Received: start={start}, stop={stop}"
            )
        parts = [(np.zeros(0, np.int32), np.zeros(0, bool))]
        while start < stop:
            index = bisect.bisect_right(starts, start) - 1
            end, first = min(stop, starts[index + 1]), starts[index]
            parts.append(self._read_shard(shards[index], start - first, end - first))
            start = end
        tokens, document_starts = map(np.concatenate, zip(*parts, strict=True))
        return tokens.astype(np.int32), document_starts

    def _read_shard(
        self, shard: ShardManifest, start: int, stop: int
    ) -> tuple[np.ndarray, np.ndarray]:
        size, width = self.manifest.tokens_per_record, self.manifest.token_bytes
        first, last = start // size, (stop - 1) // size
        path = os.path.join(self.folder, shard.file)
        parts = []
        self._check_file(shard)
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                file.seek(first * frame_bytes(size, width))
                for record in range(first, last + 1):
                    num_tokens = min(size, shard.tokens - record * size)
                    frame = file.read(frame_bytes(num_tokens, width))
                    parts.append(
                        parse_frame(frame, num_tokens, width, where=f"{path}, record {record}")
                    )
        except (tf.errors.NotFoundError, tf.errors.OutOfRangeError) as error:
            raise DataDamagedError(
                "The file is missing, or shorter than the manifest says.",
                where=path,
                remedy=RECORDS_REMEDY,
            ) from error
        except tf.errors.OpError as error:
            raise StorageError(
                f"The file cannot be read: {first_line(error)}",
                where=path,
                remedy="Check the storage.",
            ) from error
        window = slice(start - first * size, stop - first * size)
        token_ids, document_starts = map(np.concatenate, zip(*parts, strict=True))
        return token_ids[window], document_starts[window]

    def _check_file(self, shard: ShardManifest) -> None:
        """Checks the file of a shard once, before its first read.

        The manifest determines how many bytes a read requests, so it must not claim too many. A
        file in a store, which nothing read before, is compared with its checksum: `parse_frame`
        compares none.
        """
        if shard.file in self._checked_files:
            return
        if is_remote(self.folder):
            verify_shard(self.folder, shard)
        else:
            with storage_errors("The file cannot be read", os.path.join(self.folder, shard.file)):
                listed_file(
                    self.folder,
                    shard.file,
                    listed_in=os.path.join(self.folder, MANIFEST_FILE),
                    remedy=RECORDS_REMEDY,
                    num_bytes=shard.bytes,
                )
        self._checked_files.add(shard.file)
