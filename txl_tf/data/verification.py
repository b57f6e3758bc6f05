"""Verification of a data set: shards, records and counts against its manifest."""

import concurrent.futures
import dataclasses
import functools
import hashlib
import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from txl_tf.data.manifest import MANIFEST_FILE, Manifest, ShardManifest
from txl_tf.data.records import FrameLayout, first_wrong_id, frame_bytes
from txl_tf.data.text import DocumentPiece, TextCounts
from txl_tf.data.tokenizers.tokenizer import Tokenizer
from txl_tf.errors import DataDamagedError
from txl_tf.storage.files import file_blocks, file_bytes, first_line, list_folder, path_exists
from txl_tf.storage.untrusted_files import listed_file, storage_errors

if TYPE_CHECKING:
    from txl_tf.data.prepared_dataset import PreparedDataset

_BLOCK_BYTES = 4 << 20


@dataclasses.dataclass(frozen=True)
class RecordCheck:
    """Check of frames: record size, and token ids within the vocabulary.

    A checksum matches a file that was written with wrong ids. On some devices an id outside the
    vocabulary is no error.
    """

    manifest: Manifest

    @property
    def frame_bytes(self) -> int:
        """Size of a frame of a full record."""
        return frame_bytes(self._record_tokens, self.manifest.token_bytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of whole records, some megabytes, to check at once."""
        return max(1, _BLOCK_BYTES // self.frame_bytes) * self.frame_bytes

    def first_problem(
        self, block: bytes, first_record: int, shard: ShardManifest
    ) -> tuple[int, str] | None:
        """Returns number and problem of the first bad record, or `None`.

        `block` has whole frames; only the last frame of a shard may be smaller. `first_record` is
        the number of the block's first record in the shard.
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
        """Tokens of the largest record: every shard may be shorter than a full record."""
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
        wrong = first_wrong_id(token_ids, size)
        if wrong is None:
            return None
        record, place = divmod(wrong[0], token_ids.shape[1])
        return record, f"Token {place} of a record {wrong[1]}"


_REMEDY = "Restore the file, or prepare the data set again."


def verify_shard(
    folder: str,
    shard: ShardManifest,
    manifest: Manifest,
    progress: Callable[[int], None] | None = None,
    *,
    with_checksums: bool = False,
) -> None:
    """Checks SHA-256, record sizes and token ids of a shard in one reading.

    `with_checksums` reads again for the checksums of each record. Raises DataDamagedError, with the
    record if known, or StorageError if the file cannot be read.
    """
    path = os.path.join(folder, shard.file)
    check = RecordCheck(manifest)
    with storage_errors("A shard cannot be read", path):
        listed_file(folder, shard.file, listed_in=MANIFEST_FILE, remedy=_REMEDY)
        size = file_bytes(path)
        if size != shard.bytes:
            what = f"A shard has {size} bytes; its manifest says {shard.bytes}."
            _, problem, num_records = _read(path, shard, check, None)
            num_records = min(num_records, shard.records)
            raise _damaged(what, path, problem[0] if problem else num_records)
        found, problem, _ = _read(path, shard, check, progress)
        checksum_record = None
        if with_checksums or found != shard.sha256:
            checksum_record = _first_wrong_checksum(path)
    if found != shard.sha256:
        what = f"A shard has SHA-256 {found}; its manifest says {shard.sha256}."
        raise _damaged(what, path, problem[0] if problem else checksum_record)
    if problem is not None:
        raise _damaged(problem[1], path, problem[0])
    if checksum_record is not None:
        raise _damaged("A record does not match its own checksum.", path, checksum_record)


def verify_shards(
    folder: str,
    manifest: Manifest,
    progress: Callable[[int], None] | None = None,
    *,
    with_checksums: bool = False,
) -> None:
    """Checks all shards with one thread per core; `progress` is called from the threads.

    Raises DataDamagedError for the first damaged shard in order, StorageError for an unreadable
    file.
    """
    shards = [shard for split in manifest.splits for shard in split.shards]

    def verify(shard: ShardManifest) -> None:
        verify_shard(folder, shard, manifest, progress, with_checksums=with_checksums)

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count() or 1) as executor:
        results = [executor.submit(verify, shard) for shard in shards]
        try:
            for result in results:
                result.result()
        finally:
            executor.shutdown(cancel_futures=True)


def verify_no_surplus(folder: str, shards: Iterable[ShardManifest]) -> None:
    """Raises DataDamagedError if a folder has record files that its manifest does not name."""
    named = {shard.file for shard in shards}
    for name in list_folder(folder):
        # The listing of an object store may be outdated, so ask for the file itself.
        path = os.path.join(folder, name)
        if ".tfrecord" in name and name not in named and path_exists(path):
            raise DataDamagedError(
                "A record file is not in the manifest.",
                where=path,
                remedy="Remove the file if it is not wanted, or prepare the data set again.",
            )


def _read(
    path: str,
    shard: ShardManifest,
    check: RecordCheck,
    progress: Callable[[int], None] | None,
) -> tuple[str, tuple[int, str] | None, int]:
    """Returns the SHA-256, the first bad record with its problem, and the number of records."""
    digest = hashlib.sha256()
    problem = None
    record = 0
    for block in file_blocks(path, check.block_bytes):
        digest.update(block)
        if problem is None:
            problem = check.first_problem(block, record, shard)
        record += len(block) // check.frame_bytes
        if progress is not None:
            progress(len(block))
    return digest.hexdigest(), problem, record


def _first_wrong_checksum(path: str) -> int | None:
    import tensorflow as tf

    records = tf.data.TFRecordDataset(path, buffer_size=4 << 20)
    try:
        # One call releases the GIL and holds no record.
        records.reduce(np.int64(0), lambda count, _: count + 1)
        return None
    except tf.errors.DataLossError:
        pass
    except tf.errors.OpError as error:
        raise OSError(first_line(error)) from error
    number = 0
    try:
        for _ in records:
            number += 1
    except tf.errors.DataLossError:
        return number
    return None


def _damaged(what: str, path: str, record: int | None = None) -> DataDamagedError:
    where = path if record is None else f"{path}, record {record}"
    return DataDamagedError(what, where=where, remedy=_REMEDY)


_COUNTED_TOKENS = 1 << 22


def verify_counts(dataset: "PreparedDataset", tokenizer: Tokenizer) -> bool:
    """Compares bytes, characters and words of every split with its tokens.

    Returns False if the tokens do not determine the text: they must be bytes, or characters without
    an unknown one. Raises DataDamagedError if a count is wrong; empty documents leave no token.
    """
    tells = {"bytes": True, "characters": getattr(tokenizer, "unknown_token", None) is None}
    if not tells.get(tokenizer.kind, False):
        return False
    for split in dataset.manifest.splits:
        found = _counts(dataset, tokenizer, split.name)
        for name, counted in found._asdict().items():
            stated = getattr(split, name)
            if stated < counted or (stated != counted and name != "documents"):
                raise DataDamagedError(
                    f"`{name}` of `{split.name}` is {stated}; the tokens have {counted}.",
                    where=os.path.join(dataset.folder, MANIFEST_FILE),
                    remedy="Restore the manifest, or prepare the data set again.",
                )
    return True


def _counts(dataset: "PreparedDataset", tokenizer: Tokenizer, split: str) -> TextCounts:
    counts = TextCounts()
    ends_in_word = False
    num_tokens = dataset.num_tokens(split)
    for start in range(0, num_tokens, _COUNTED_TOKENS):
        stop = min(start + _COUNTED_TOKENS, num_tokens)
        begins = np.flatnonzero(dataset.read_document_starts(split, start, stop))
        token_ids = dataset.read_tokens(split, start, stop)
        pieces = []
        ends = zip([0, *begins], [*begins, stop - start], strict=True)
        for index, (first, last) in enumerate(ends):
            if first == last:
                continue  # the block begins with a document
            text = tokenizer.decode_bytes(token_ids[first:last])
            continues_word = ends_in_word and index == 0
            piece = DocumentPiece(text, begins_document=index > 0, continues_word=continues_word)
            pieces.append(piece)
            ends_in_word = bool(text[-1:].strip(b" \t\n\r\x0b\x0c"))
        counts = counts.plus(TextCounts.of(pieces))
    return counts
