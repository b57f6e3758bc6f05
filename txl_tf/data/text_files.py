"""Text files for preparation: listing, decompression and UTF-8 validation.

Nothing is ever dropped, replaced or normalised. Either text is taken as it is,
byte for byte, or it is refused with file, line and byte offset.

The byte tokenizer takes every input, so it needs none of this. Tokenizers of
characters, words and subwords need UTF-8:

| input | text tokenizers |
|---|---|
| bytes that are not UTF-8 (Latin-1, other binary data) | refused |
| UTF-16 or UTF-32, with or without byte order mark | refused, and named as such |
| surrogates encoded as three bytes, over-long forms | refused |
| NUL | kept; more than one byte in five of the first 4096 is UTF-16 or no text: refused |
| UTF-8 byte order mark | kept, as the character U+FEFF |
| CR LF | kept; separators are found whether or not a CR is before the LF |
| CR alone, VT, FF, U+0085, U+2028, U+2029 | kept; documents and pieces end at LF only |
| combining characters (NFD) | kept; nothing is composed |
| words and lines of any length | kept; beyond half a mebibyte they are cut between characters |
"""

import codecs
import glob
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Protocol

from txl_tf.errors import DataDamagedError, InputMissingError, JobError, StorageError, UsageError
from txl_tf.storage.files import open_regular_file

_BLOCK_BYTES = 1 << 20
# One zstd block of four bytes can stand for 128 KiB, and its decoder has no
# limit on what it returns: small inputs keep the output small.
_ZSTD_INPUT_BYTES = 2048
_ZSTD_WINDOW_BYTES = 1 << 27
_XZ_MEMORY_BYTES = 1 << 27


def text_blocks(path: str) -> Iterator[bytes]:
    """Reads a file block by block, decompressing gzip, xz and zstd.

    The first bytes of the file say how it is compressed, not its name. Files
    of several compressed parts one after another are read to the end.

    Yields:
        Blocks of bytes of at most some mebibytes.

    Raises:
        InputMissingError: If there is no such file.
        DataDamagedError: If the file ends within its compressed data or the
            data are damaged. The error names the file and the position.
        StorageError: If the file cannot be read, or is zstd and the package
            that reads it is not installed.
    """
    try:
        if os.path.isdir(path):
            raise FileNotFoundError  # a folder is no text file, whatever is in it
        with open_regular_file(path) as file:
            start = file.read(6)
            file.seek(0)
            make_decoder = _decoder_of(start, path)
            if make_decoder is None:
                while block := file.read(_BLOCK_BYTES):
                    yield block
            else:
                yield from _decompressed(file, path, make_decoder)
    except FileNotFoundError as error:
        raise InputMissingError(
            "There is no such text file.", where=path, remedy="Name an existing file."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str, error: OSError) -> JobError:
    """Returns the error for a file that cannot be read.

    Args:
        path: str. The file.
        error: `OSError`. What the system said.
    """
    what = f"The text file cannot be read: {error.strerror or error}"
    return StorageError(what, where=path, remedy="Check the file and its permissions.")


class _Decoder(Protocol):
    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """Exception types that damaged compressed data raises."""

    @property
    def eof(self) -> bool:
        """Whether the end of the compressed data was read."""

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        """Takes input; returns output and the input that is left over."""


class _GzipDecoder:
    errors: tuple[type[Exception], ...] = (zlib.error,)

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        output = self._decoder.decompress(data, _BLOCK_BYTES)
        return output, self._decoder.unused_data if self.eof else self._decoder.unconsumed_tail


class _XzDecoder:
    errors: tuple[type[Exception], ...] = (lzma.LZMAError, MemoryError)

    def __init__(self) -> None:
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        taken = data if self._decoder.needs_input else b""
        output = self._decoder.decompress(taken, _BLOCK_BYTES)
        left = data[len(taken) :]
        return output, self._decoder.unused_data + left if self.eof else left


class _ZstdDecoder:
    def __init__(self) -> None:
        import zstandard

        self.errors: tuple[type[Exception], ...] = (zstandard.ZstdError,)
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        self._decoder = decompressor.decompressobj()

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    def step(self, data: bytes) -> tuple[bytes, bytes]:
        taken, left = data[:_ZSTD_INPUT_BYTES], data[_ZSTD_INPUT_BYTES:]
        output = self._decoder.decompress(taken) if taken else b""
        return output, self._decoder.unused_data + left if self.eof else left


def _decoder_of(start: bytes, path: str) -> Callable[[], _Decoder] | None:
    if start.startswith(b"\x1f\x8b"):
        return _GzipDecoder
    if start == b"\xfd7zXZ\x00":
        return _XzDecoder
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        try:
            import zstandard  # noqa: F401
        except ImportError as error:
            raise StorageError(
                "The file is compressed with zstd, and the package zstandard is not installed.",
                where=path,
                remedy="Install zstandard, or decompress the file.",
            ) from error
        return _ZstdDecoder
    return None


def _decompressed(
    file: IO[bytes], path: str, make_decoder: Callable[[], _Decoder]
) -> Iterator[bytes]:
    data = file.read(_BLOCK_BYTES)
    while data:
        decoder = make_decoder()
        while not decoder.eof:
            is_last = not data
            try:
                output, data = decoder.step(data)
            except decoder.errors as error:
                raise _damaged(f"are damaged: {error}", path, file, data) from error
            if output:
                yield output
            elif is_last and not decoder.eof:
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
    """Lists the files of some paths.

    A folder stands for the files in it and in the folders below it, by name,
    without those whose names begin with a dot. A path with `*`, `?` or `[` that
    does not exist stands for the files and folders that match it, by name.

    Args:
        paths: sequence of str. Files, folders or patterns.

    Returns:
        List of paths of files, in the order of `paths`; the same on every
        machine.

    Raises:
        InputMissingError: If a path has no file.
        UsageError: If a file is named twice.
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
_REMEDY = "Convert the file to UTF-8, or prepare it with the byte tokenizer."
_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)


def validated_text(pieces: Iterable[bytes], where: str) -> Iterator[bytes]:
    """Passes the pieces of a text on unchanged, if they are UTF-8.

    Args:
        pieces: iterable of bytes. All of one file, from its beginning; a
            character may cross pieces.
        where: str. Name of the file, for errors.

    Raises:
        DataDamagedError: If the text is not UTF-8. The error names the file,
            the line and the byte, both counted from 1 and 0.
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
            # The decoder counts from the beginning of a character it holds back.
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
