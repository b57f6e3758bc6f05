"""Kinds of files: compressed files, archives and containers of data, identified by first bytes.

The name of a file does not matter. Every job reads text and lines through `decoded_content` and
`check_text`, so that no job takes a container for text.
"""

import bz2
import functools
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from txl_tf.errors import DataDamagedError, first_line

# The mark of a disk image is at 32,769 bytes.
_START_BYTES = 40_000
_MARK_BYTES = 16
_BLOCK_BYTES = 1 << 20
# Decoders get small inputs, so that the output for each input is small.
_COMPRESSED_BYTES = 2048
_MEMORY_BYTES = 1 << 27


def _zstd_decoder() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=_MEMORY_BYTES).decompressobj()


# Decoders of compressed files by a pattern of their first bytes. The loops over them, below, limit
# memory and report a file that was cut, which the file objects of the libraries do not.
_DECODERS: dict[bytes, Callable[[], Any]] = {
    rb"\x1f\x8b": lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS | 16),
    rb"BZh[1-9][1\x17]": bz2.BZ2Decompressor,
    rb"\xfd7zXZ\x00": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY_BYTES),
    # The first alternative is a skippable frame, with which `pzstd` begins.
    rb"[\x50-\x5f]\x2a\x4d\x18|\x28\xb5\x2f\xfd": _zstd_decoder,
}

_PARQUET = rb"PAR[1E][\x00-\x1f]"
# Kinds that have a reader, by a pattern of their first bytes.
_READABLE = {
    "parquet": _PARQUET,
    "zip": rb"PK(\x03\x04|\x05\x06)",
    # The second alternative is an old form without a mark: octal numbers that end with NUL.
    "tar": rb".{257}ustar[\0 ]|.{100}(?:[0-7 ]{6}[0-7 \0]\0){3}[0-7 ]{11}[0-7 \0]",
}
_TABLE_REMEDY = (
    "Write its texts into Parquet or JSON Lines: txl prepare --format parquet, --format jsonl"
)
_UNPACK_REMEDY = "Unpack it, as by 7z x, and name the text files."
# A pattern of first bytes, the kind of file, and how to get its text.
_CONTAINERS = (
    (_PARQUET, "a Parquet file", "Name its column: txl prepare --format parquet --field NAME"),
    (
        rb"ARROW1\0\0|\xff{4}[^\xff].\0\0|FEA1",
        "an Arrow file",
        "Make a file for txl prepare --format parquet: "
        "datasets.load_from_disk(FOLDER).to_parquet(FILE)",
    ),
    (rb"\x93NUMPY", "a NumPy array", "For ids: txl prepare --format ids; or write a text file."),
    (rb"\x89HDF\r\n\x1a\n|SQLite format 3\0|.{8}DUCK", "a database", _TABLE_REMEDY),
    (rb"Obj\x01|ORC[\0-\x1f]|SEQ[\x04-\x06]|.{3}\0{5}.{4}\n", "a file of records", _TABLE_REMEDY),
    (
        rb"(?:[\x91-\x9f]|\xdc..|\xdd.{4})?(?:[\x81-\x9f]|\xde\0.)(?:[\xa1-\xbf]|\xd9.)[ -~]",
        "a MessagePack file",
        _TABLE_REMEDY,
    ),
    (
        rb"\x80[\x02-\x05][\x8a\x95\](}cXKM]|[]}]q\0|\([ld]p0\n|.{2,5}\0{3,6}\{\"",
        "a file of Python objects or tensors",
        _TABLE_REMEDY,
    ),
    (
        rb"%PDF-|\xd0\xcf\x11\xe0|\{\\rtf|PK\x03\x04.{26}(?:\[Content_Types\]|_rels/|docProps/|mimetype)",
        "a document with its layout",
        "Convert it to a text file, as by pdftotext or pandoc -t plain.",
    ),
    (rb"WARC/[01]\.", "a web archive", "Extract its texts, as by warcio."),
    (rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18", "compressed by lz4", "Unpack it: lz4 -d FILE"),
    # A text may also begin with `x^`, but has no control characters.
    (
        rb"\x78(?:[\x01\x9c\xda]|\x5e.{,200}[\0-\x08\x0e-\x1f])",
        "compressed by zlib",
        "Unpack it: pigz -dc FILE",
    ),
    (rb"LZIP[\0\1]", "compressed by lzip", "Unpack it: lzip -d FILE"),
    (rb"\x1f[\x9d\xa0]", "compressed by compress", "Unpack it: gzip -d FILE"),
    (rb"\x5d\0\0.{10}\0", "compressed by lzma", "Unpack it: xz -d --format=lzma FILE"),
    (rb"\x89LZO\0|\xff\x06\0\0sNaPpY", "compressed by lzop or snappy", "Unpack it."),
    (
        rb"7z\xbc\xaf|Rar!\x1a|!<arch>\n|xar!\0|07070[12][0-9A-Fa-f]{104}|.{32769}CD001|070707[0-7]{70}|\xc7\x71",
        "an archive of another kind than zip and tar",
        _UNPACK_REMEDY,
    ),
)
_JSON = re.compile(
    rb'\s*(?:\[\s*)?\{[ \t]*"[^"\\\n]{1,80}"[ \t]*:|\[[ \t]*[0-9]+(?:,[ \t]*[0-9]+){3}'
)


def kind_of(start: bytes) -> str | None:
    """Returns the kind of a content by its first bytes: `"parquet"`, `"zip"`, `"tar"` or `None`."""
    return next((kind for kind, pattern in _READABLE.items() if _begins(pattern, start)), None)


def _begins(pattern: bytes, start: bytes) -> bool:
    return re.match(pattern, start, re.DOTALL) is not None


def check_text(
    start: bytes, where: str, *, may_be_json: bool = True, may_be_archive: bool = False
) -> None:
    """Raises DataDamagedError if the first bytes of a content show that it is not plain text."""
    for pattern, kind, remedy in _CONTAINERS:
        if _begins(pattern, start):
            raise DataDamagedError(f"The file is {kind}, not text.", where=where, remedy=remedy)
    is_compressed = any(_begins(mark, start) for mark in _DECODERS)
    if is_compressed or (kind_of(start) and not may_be_archive):
        raise DataDamagedError("The file is packed, not text.", where=where, remedy=_UNPACK_REMEDY)
    if not may_be_json and _JSON.match(start):
        raise DataDamagedError(
            "The file is JSON, not text.",
            where=where,
            remedy="Name its field: txl prepare --format jsonl --field NAME, or --format ids. "
            "For the JSON itself: txl prepare --format text, or a pipe.",
        )


def decoded_content(file: Any, where: str) -> tuple[bytes, Iterator[bytes]]:
    """Returns the first bytes and all blocks of a buffered binary file, both decompressed.

    Decompresses gzip, bzip2, xz and zstd, also several compressed parts in a row. The blocks raise
    DataDamagedError with the position in the compressed file.
    """
    mark = file.peek(_MARK_BYTES)[:_MARK_BYTES]
    make_decoder = next((make for each, make in _DECODERS.items() if _begins(each, mark)), None)
    blocks: Iterator[bytes] = iter(functools.partial(file.read, _BLOCK_BYTES), b"")
    if make_decoder is not None:
        blocks = _decompressed(file, where, make_decoder)
    start: list[bytes] = []
    while sum(map(len, start)) < _START_BYTES and (block := next(blocks, b"")):
        start.append(block)
    content = b"".join(start)
    return content[:_START_BYTES], itertools.chain([content], blocks)


def _decompressed(file: Any, where: str, make_decoder: Callable[[], Any]) -> Iterator[bytes]:
    decoder = make_decoder()
    num_bytes = 0
    while data := file.read(_COMPRESSED_BYTES):
        num_bytes += len(data)
        while data:
            if decoder.eof:
                # Files from tapes and from some archives end with zeros.
                data = data.lstrip(b"\0")
                if not data:
                    break
                decoder = make_decoder()
            try:
                yield from filter(None, _decoded(decoder, data))
            # Every decoder has its own class of errors.
            except Exception as error:
                if re.search("too much memory|limit exceeded", str(error)):
                    raise DataDamagedError(
                        f"Decompressing takes more than {_MEMORY_BYTES >> 20} MiB of memory.",
                        where=where,
                        remedy="Unpack it first: zstd -d --long=31 FILE, or xz -d FILE",
                    ) from error
                raise _damage_error(
                    f"are damaged: {first_line(error)}", where, num_bytes
                ) from error
            data = decoder.unused_data if decoder.eof else b""
    if not decoder.eof:
        raise _damage_error("end too early", where, num_bytes)


def _decoded(decoder: Any, data: bytes) -> Iterator[bytes]:
    """Yields the output of a decoder for an input, in small blocks if the decoder can do so."""
    if not hasattr(decoder, "needs_input"):
        yield decoder.decompress(data)
        return
    yield decoder.decompress(data, _BLOCK_BYTES)
    while not (decoder.eof or decoder.needs_input):
        yield decoder.decompress(b"", _BLOCK_BYTES)


def _damage_error(what: str, where: str, num_bytes: int) -> DataDamagedError:
    return DataDamagedError(
        f"The compressed data of the file {what}.",
        where=f"{where}, byte {num_bytes} of the compressed file",
        remedy="Get the file again.",
    )
