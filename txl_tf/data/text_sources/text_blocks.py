"""The bytes of a text file, decompressed where it is compressed."""

import lzma
import os
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Protocol

from txl_tf.errors import DataDamagedError, InputMissingError, JobError, StorageError
from txl_tf.file_storage import open_regular_file

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

    Args:
        path: str. The file.

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

    Returns:
        A `StorageError` to be raised.
    """
    what = f"The text file cannot be read: {error.strerror or error}"
    return StorageError(what, where=path, remedy="Check the file and its permissions.")


class _Decoder(Protocol):
    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What damaged data raises."""

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
