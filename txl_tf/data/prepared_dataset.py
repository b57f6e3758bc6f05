"""Prepared data set on disk: manifest, tokenizer and random access to tokens."""

import bisect
import functools
import itertools
import os
from collections.abc import Callable
from typing import Self

import numpy as np

from txl_tf.data.manifest import MANIFEST_FILE, Manifest, ShardManifest
from txl_tf.data.records import frame_bytes, parse_frame
from txl_tf.data.tokenizers import TOKENIZERS, load_tokenizer
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.data.verification import verify_no_surplus, verify_shards
from txl_tf.errors import DataDamagedError, StorageError
from txl_tf.storage.files import first_line, is_remote, list_folder, read_file
from txl_tf.storage.untrusted_files import MAX_DESCRIPTION_BYTES, listed_file, storage_errors

_VOCABULARY_REMEDY = "Restore it from a copy, or from the data set that was prepared with it."


def read_tokenizer(folder: str, kind: str, sha256: str, prefix: str = "") -> Tokenizer:
    """Builds a tokenizer from the files of its vocabulary, whose names begin with `prefix`.

    Hidden files, left by killed processes, are skipped. Raises DataDamagedError if the files are
    missing, not regular or not the vocabulary with this fingerprint, and StorageError.
    """
    files = {}
    with storage_errors("The vocabulary cannot be read", folder):
        for name in list_folder(folder):
            if name.startswith(prefix) and not name.startswith("."):
                path = listed_file(folder, name, listed_in=folder, remedy=_VOCABULARY_REMEDY)
                files[name] = read_file(path, max_bytes=MAX_DESCRIPTION_BYTES)
    if not files and kind != "bytes":
        what = f"The vocabulary of the tokenizer ({kind}) is missing."
        raise DataDamagedError(what, where=folder, remedy=_VOCABULARY_REMEDY)
    tokenizer = load_tokenizer(kind, files, where=folder)
    if tokenizer.fingerprint != sha256:
        raise DataDamagedError(
            f"The vocabulary has SHA-256 {tokenizer.fingerprint}, not {sha256}.",
            where=", ".join(os.path.join(folder, name) for name in files) or folder,
            remedy=_VOCABULARY_REMEDY,
        )
    return tokenizer


def dataset_tokenizer(folder: str, manifest: Manifest) -> Tokenizer:
    """Builds the tokenizer of a prepared data set; errors of `read_tokenizer`."""
    kind, sha256 = manifest.tokenizer_kind, manifest.tokenizer_sha256
    return read_tokenizer(folder, kind, sha256, prefix="vocabulary.")


_REMEDY = "Restore the file, or prepare the data set again."


class PreparedDataset:
    """Folder of records with its manifest, and random access to the tokens.

    Use `PreparedDataset.open`, which checks the files.

    Args:
        folder: str. The folder of the data set.
        manifest: `Manifest` of the folder.

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
    def open(
        cls,
        folder: str,
        verify: bool = True,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> Self:
        """Opens a data set.

        Args:
            folder: str. The folder of the data set.
            verify: bool. If `True`, reads every file and compares it with the manifest; else only
                the sizes of local files are compared. Defaults to `True`.
            progress: optional function, called from threads with the bytes
                read since last.

        Raises:
            InputMissingError: If there is no data set.
            DataDamagedError: If the files differ from the manifest.
            StorageError: If a file cannot be read.
        """
        dataset = cls(folder, Manifest.read(folder))
        if verify:
            dataset.verify(progress=progress)
        elif not is_remote(folder):  # where each file would take a request
            for shard in dataset._all_shards():
                dataset._check_file(shard)
        return dataset

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of everything that determines the tokens."""
        return self.manifest.fingerprint

    @functools.cached_property
    def unknown_id(self) -> int | None:
        """Id of text outside the vocabulary; `None` if there is no such token.

        It is `None` for a custom tokenizer class, too.
        """
        if self.manifest.tokenizer_kind not in (each.kind for each in TOKENIZERS):
            return None
        return dataset_tokenizer(self.folder, self.manifest).unknown_id

    def _all_shards(self) -> list[ShardManifest]:
        return [shard for split in self.manifest.splits for shard in split.shards]

    def verify(
        self, *, progress: Callable[[int], None] | None = None, with_checksums: bool = False
    ) -> None:
        """Reads every file and compares it with the manifest.

        Args:
            progress: optional function, called from threads with the bytes
                read since last.
            with_checksums: bool. If `True`, also computes the checksums of every record. Defaults
                to `False`; see `verify_shard`.

        Raises:
            DataDamagedError: If a file is missing, differs or is surplus, or the vocabulary is
                another one.
            StorageError: If a file cannot be read.
        """
        verify_no_surplus(self.folder, self._all_shards())
        if self.manifest.tokenizer_kind in (tokenizer.kind for tokenizer in TOKENIZERS):
            dataset_tokenizer(self.folder, self.manifest)
        verify_shards(self.folder, self.manifest, progress, with_checksums=with_checksums)

    def num_tokens(self, split: str) -> int:
        """Returns the number of tokens of a split. Raises ValueError for an unknown split."""
        return self.manifest.split(split).tokens

    def shard_starts(self, split: str) -> list[int]:
        """Returns the first token of every shard, and the number of tokens of the split."""
        self.manifest.split(split)
        return list(self._starts[split])

    def shard_paths(self, split: str) -> list[str]:
        """Returns the paths of the shards of a split, in order."""
        shards = self.manifest.split(split).shards
        return [os.path.join(self.folder, shard.file) for shard in shards]

    def record_location(self, split: str, token: int) -> tuple[str, int]:
        """Returns file and record of a stored token.

        Raises:
            ValueError: If there is no such split or token.
        """
        shards = self.manifest.split(split).shards
        if not 0 <= token < self.num_tokens(split):
            raise ValueError(f"`token` must be in [0, {self.num_tokens(split)}). Received: {token}")
        index = bisect.bisect_right(self._starts[split], token) - 1
        record = (token - self._starts[split][index]) // self.manifest.tokens_per_record
        return shards[index].file, record

    def read_tokens(self, split: str, start: int, stop: int) -> np.ndarray:
        """Reads a range of tokens, touching only the records that hold it.

        Args:
            split: str. Name of the split.
            start: int. First token.
            stop: int. One past the last token.

        Returns:
            int32 vector of `stop - start` token ids.

        Raises:
            ValueError: If there is no such split or range.
            DataDamagedError: If a record is damaged.
            StorageError: If a file cannot be read.
        """
        return self._read(split, start, stop)[0]

    def read_document_starts(self, split: str, start: int, stop: int) -> np.ndarray:
        """Reads which tokens of a range begin a document, as bool vector; see `read_tokens`."""
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
            end = min(stop, starts[index + 1])
            first = starts[index]
            parts.append(self._read_shard(shards[index], start - first, end - first))
            start = end
        tokens, document_starts = zip(*parts, strict=True)
        return np.concatenate(tokens, dtype=np.int32, casting="unsafe"), np.concatenate(
            document_starts
        )

    def _read_shard(
        self, shard: ShardManifest, start: int, stop: int
    ) -> tuple[np.ndarray, np.ndarray]:
        import tensorflow as tf

        size = self.manifest.tokens_per_record
        first, last = start // size, (stop - 1) // size
        path = os.path.join(self.folder, shard.file)
        parts = []
        self._check_file(shard)
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                file.seek(first * self._full_frame_bytes())
                for record in range(first, last + 1):
                    tokens = min(size, shard.tokens - record * size)
                    frame = file.read(frame_bytes(tokens, self.manifest.token_bytes))
                    where = f"{path}, record {record}"
                    width = self.manifest.token_bytes
                    parts.append(parse_frame(frame, tokens, width, where=where))
        except (tf.errors.NotFoundError, tf.errors.OutOfRangeError) as error:
            what = "A shard is missing or shorter than its manifest says."
            raise DataDamagedError(what, where=path, remedy=_REMEDY) from error
        except tf.errors.OpError as error:
            what = f"A shard cannot be read: {first_line(error)}"
            raise StorageError(what, where=path, remedy="Check the storage.") from error
        wanted = slice(start - first * size, stop - first * size)
        token_ids, document_starts = (np.concatenate(part) for part in zip(*parts, strict=True))
        return token_ids[wanted], document_starts[wanted]

    def _full_frame_bytes(self) -> int:
        return frame_bytes(self.manifest.tokens_per_record, self.manifest.token_bytes)

    def _check_file(self, shard: ShardManifest) -> None:
        """Checks a shard file once, before its manifest decides how many bytes are read."""
        if shard.file in self._checked_files:
            return
        path = os.path.join(self.folder, shard.file)
        listed_in = os.path.join(self.folder, MANIFEST_FILE)
        with storage_errors("A shard cannot be looked at", path):
            listed_file(
                self.folder,
                shard.file,
                listed_in=listed_in,
                remedy=_REMEDY,
                num_bytes=shard.bytes,
            )
        self._checked_files.add(shard.file)
