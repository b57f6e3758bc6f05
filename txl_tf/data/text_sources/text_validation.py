r"""What text may be: the one place that decides about unusual bytes.

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
from collections.abc import Iterable, Iterator

from txl_tf.errors import DataDamagedError

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

    Yields:
        The pieces.

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
