"""Text files for preparation: listing, decompression and UTF-8 validation.

Text is taken byte for byte, or refused with file, line and byte offset. Only a byte order mark is
dropped; offsets count from the first byte after it. The byte tokenizer takes every input.
Tokenizers of characters, words and subwords need UTF-8:

| input | text tokenizers |
|---|---|
| bytes that are not UTF-8 (Latin-1, other binary data) | refused |
| UTF-16 or UTF-32, with or without byte order mark | refused, and named as such |
| surrogates encoded as three bytes, over-long forms | refused |
| NUL | kept; more than one byte in five of the first 4096 is UTF-16 or no text: refused |
| UTF-8 byte order mark | left out at the beginning of a file or document, also of bytes |
| CR LF | kept; separators are found whether or not a CR is before the LF |
| CR alone, VT, FF, U+0085, U+2028, U+2029 | kept; documents and pieces end at LF only |
| combining characters (NFD) | kept; nothing is composed |
| words and lines of any length | kept; beyond half a mebibyte they are cut between characters |
"""

import bz2
import codecs
import dataclasses
import glob
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any

from txl_tf.data.text import BYTE_ORDER_MARK, document_bytes
from txl_tf.errors import DataDamagedError, InputMissingError, StorageError, UsageError
from txl_tf.storage.files import open_regular_file
from txl_tf.storage.untrusted_files import storage_errors

UNREADABLE = "The text file cannot be read"
_BLOCK_BYTES = 1 << 20
# Not `gzip.open` and the like: `lzma.open` has no memory limit and skips what follows the data, and
# `zstandard.open` does not report truncated data. One zstd block of four bytes can expand to 128
# KiB, and its decoder does not limit its output: small inputs keep the output small.
_ZSTD_INPUT_BYTES = 2048
_ZSTD_WINDOW_BYTES = 1 << 27
_XZ_MEMORY_BYTES = 1 << 27


def text_blocks(path: str) -> Iterator[bytes]:
    """Yields blocks of a file without byte order mark, decompressing gzip, bzip2, xz and zstd.

    The first bytes, not the name, give the format; several compressed parts in a row are all read.
    Raises InputMissingError, DataDamagedError with the position, or StorageError if the file cannot
    be read or the zstd package is missing.
    """
    blocks = _blocks(path)
    start = b""
    for block in blocks:
        start += block
        if len(start) >= len(BYTE_ORDER_MARK):
            break
    if start := document_bytes(start):
        yield start
    yield from blocks


def _blocks(path: str) -> Iterator[bytes]:
    with storage_errors(UNREADABLE, path):
        try:
            if os.path.isdir(path):
                raise FileNotFoundError  # a folder is no text file
            with open_regular_file(path) as file:
                make_decoder = _decoder_of(file.read(6), path)
                file.seek(0)
                if make_decoder is not None:
                    yield from _decompressed(file, path, make_decoder)
                while block := file.read(_BLOCK_BYTES):
                    yield block
        except FileNotFoundError as error:
            raise InputMissingError(
                "There is no such text file.", where=path, remedy="Name an existing file."
            ) from error


@dataclasses.dataclass(frozen=True)
class _Decoder:
    """Decoder of one compressed part, with bounded output per step."""

    decoder: Any
    errors: tuple[type[Exception], ...]
    """Exceptions that damaged data raise."""
    limit: tuple[int, ...] = (_BLOCK_BYTES,)
    """Largest output, for decoders with such an argument."""
    max_input_bytes: int | None = None

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        """Decodes input; returns the output and the input left over."""
        taken = data[: self.max_input_bytes] if getattr(self.decoder, "needs_input", True) else b""
        output = self.decoder.decompress(taken, *self.limit) if taken or self.limit else b""
        left = self.decoder.unused_data + getattr(self.decoder, "unconsumed_tail", b"")
        return output, left + data[len(taken) :]


def _gzip_decoder() -> _Decoder:
    return _Decoder(zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), (zlib.error,))


def _xz_decoder() -> _Decoder:
    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
    return _Decoder(decoder, (lzma.LZMAError, MemoryError))


def _zstd_decoder() -> _Decoder:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    errors = (zstandard.ZstdError,)
    return _Decoder(decompressor.decompressobj(), errors, (), _ZSTD_INPUT_BYTES)


def _decoder_of(start: bytes, path: str) -> Callable[[], _Decoder] | None:
    if start.startswith(b"\x1f\x8b"):
        return _gzip_decoder
    if start == b"\xfd7zXZ\x00":
        return _xz_decoder
    if re.match(rb"BZh[1-9][1\x17]", start):
        return lambda: _Decoder(bz2.BZ2Decompressor(), (OSError, ValueError))
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            import zstandard  # noqa: F401
        except ImportError as error:
            raise StorageError(
                "The file is compressed with zstd, and the package zstandard is not installed.",
                where=path,
                remedy="Install zstandard, or decompress the file.",
            ) from error
        return _zstd_decoder
    return None


def _decompressed(
    file: IO[bytes], path: str, make_decoder: Callable[[], _Decoder]
) -> Iterator[bytes]:
    data = file.read(_BLOCK_BYTES)
    while data:
        decoder = make_decoder()
        while not decoder.decoder.eof:
            is_last = not data
            try:
                output, data = decoder.step(data)
            except decoder.errors as error:
                raise _damaged(f"are damaged: {error}", path, file, data) from error
            if output:
                yield output
            elif is_last and not decoder.decoder.eof:
                raise _damaged("end too early", path, file, data)
            data = data or file.read(_BLOCK_BYTES)
        # Files on tapes and in some archives are padded with zeros.
        data = data.lstrip(b"\0") or file.read(_BLOCK_BYTES).lstrip(b"\0")


def _damaged(what: str, path: str, file: IO[bytes], data: bytes) -> DataDamagedError:
    return DataDamagedError(
        f"The compressed data of the file {what}.",
        where=f"{path}, byte {max(0, file.tell() - len(data))} of the compressed file",
        remedy="Get the file again.",
    )


def text_files(paths: Sequence[str]) -> list[str]:
    """Lists the files of paths, in the order of `paths` and the same on every machine.

    A folder stands for its files, recursively and by name, without hidden ones; a pattern with `*`,
    `?` or `[` for its matches. Raises InputMissingError for a path without files, UsageError for a
    file named twice.
    """
    files = [file for path in paths for file in _files_of(path)]
    seen: dict[str, str] = {}
    for file in files:
        real = os.path.realpath(file)
        if real in seen:
            raise UsageError(
                "A text file is named twice.",
                where=file if file == seen[real] else f"{seen[real]} and {file}",
                remedy="Name every file once.",
            )
        seen[real] = file
    return files


def _files_of(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        found = sorted(_below(path), key=lambda name: os.fsencode(name).split(os.sep.encode()))
        return _or_missing(found, path, "The folder has no text files.")
    if glob.has_magic(path):
        matches = sorted(glob.glob(path, recursive=True), key=os.fsencode)
        found = [file for match in matches for file in _files_of(match)]
        return _or_missing(found, path, "No text file matches the pattern.")
    if os.path.exists(path):
        raise UsageError(
            "The text is a pipe or a device. It is read several times, so it must be a file.",
            where=path,
            remedy="Write it into a file first, and name that.",
        )
    return _or_missing([], path, "There is no such text file.")


def _below(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = os.path.join(parent, name)
            if not name.startswith(".") and os.path.isfile(path):
                yield path


def _or_missing(found: list[str], path: str, what: str) -> list[str]:
    if not found:
        raise InputMissingError(what, where=path, remedy="Name an existing file or folder.")
    return found


_EXAMINED_BYTES = 4096
_MAX_NUL_PART = 0.2
_REMEDY = (
    "Convert it to UTF-8, or prepare it with the byte tokenizer. Files can be plain text, or text "
    "compressed with gzip, bzip2, xz or zstd."
)
_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def validated_text(pieces: Iterable[bytes], where: str) -> Iterator[bytes]:
    """Passes on the pieces of a file, from its beginning, if they are UTF-8.

    Raises DataDamagedError with `where`, the line (from 1) and the byte (from 0).
    """
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    lines_before = offset = 0
    for piece in pieces:
        if offset == 0:
            _refuse_other_encodings(piece, where)
        pending = len(decoder.getstate()[0])
        try:
            decoder.decode(piece)
        except UnicodeDecodeError as error:
            # `error.start` counts from the beginning of a character held back.
            place = error.start - pending
            line = lines_before + piece.count(b"\n", 0, max(0, place)) + 1
            value = error.object[error.start]
            raise _not_utf8(f"byte 0x{value:02x}", where, line, offset + place) from error
        lines_before += piece.count(b"\n")
        offset += len(piece)
        yield piece
    held = decoder.getstate()[0]
    if held:
        what = "the text ends within a character"
        raise _not_utf8(what, where, lines_before + 1, offset - len(held))


def _refuse_other_encodings(piece: bytes, where: str) -> None:
    encoding = next((name for mark, name in _MARKS if piece.startswith(mark)), None)
    start = piece[:_EXAMINED_BYTES]
    if encoding is None and start.count(0) > _MAX_NUL_PART * len(start):
        first_nul = start.index(0)
        raise DataDamagedError(
            "The text has so many NUL bytes that it must be UTF-16, UTF-32 or no text.",
            where=_place(where, 1 + start.count(b"\n", 0, first_nul), first_nul),
            remedy=_REMEDY,
        )
    if encoding is not None:
        what = f"The text is {encoding}, not UTF-8."
        raise DataDamagedError(what, where=_place(where, 1, 0), remedy=_REMEDY)


def _not_utf8(what: str, where: str, line: int, offset: int) -> DataDamagedError:
    return DataDamagedError(
        f"The text is not UTF-8: {what}.", where=_place(where, line, offset), remedy=_REMEDY
    )


def _place(where: str, line: int, offset: int) -> str:
    return f"{where}, line {line}, byte {offset}"
