"""Units of text in a preparation: documents, their pieces, batches of work, and counts."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from txl_tf.data.tokenizers.tokenizer import InvalidTextError, document_bytes
from txl_tf.errors import StorageError

# A long document is an iterable of pieces, so that it need not fit into memory.
Document = str | bytes | Iterable[bytes]
Splits = Mapping[str, Iterable[Document]]
"""Documents by the name of their split, in reading order."""
_Result = TypeVar("_Result")


def pieces_of(document: Document) -> Iterable[bytes]:
    """Returns the pieces of a document; a str or bytes is one piece."""
    return (document_bytes(document),) if isinstance(document, bytes | str) else document


class Reread:
    """Iterable that calls a picklable function for a new iterator on every pass."""

    def __init__(self, function: Callable[..., Iterator[Any]], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments

    def __iter__(self) -> Iterator[Any]:
        return self._function(*self._arguments)


class DocumentPiece(NamedTuple):
    """Piece of a document that can be encoded and counted without its neighbours.

    The defaults describe a whole document. `document` is the number of the document in its
    split, from 0. `offset_bytes` and `offset_lines` count the bytes and line feeds of the document
    before the piece. `continues_word` is true if the byte before the piece is not white space.
    """

    text: bytes
    split: str = ""
    document: int = 0
    offset_bytes: int = 0
    offset_lines: int = 0
    begins_document: bool = True
    ends_document: bool = True
    begins_line: bool = True
    continues_word: bool = False


# A batch is so large that sending it to a worker costs little, and so small that dozens fit into
# memory.
BATCH_BYTES = 1 << 19
_MAX_PIECES = 4096
_SPACES = b" \t\n\r\x0b\x0c"


def work_batches(split: str, documents: Iterable[Document]) -> Iterator[list[DocumentPiece]]:
    """Groups the pieces of a split, in order and across documents, into batches for workers.

    A batch ends when it has half a mebibyte of text or 4,096 pieces. A document without text is one
    piece without text.
    """
    batch: list[DocumentPiece] = []
    num_bytes = 0
    for number, document in enumerate(documents):
        for piece in document_pieces(document, split, number):
            batch.append(piece)
            num_bytes += len(piece.text)
            if num_bytes >= BATCH_BYTES or len(batch) == _MAX_PIECES:
                yield batch
                batch, num_bytes = [], 0
    if batch:
        yield batch


def document_pieces(
    document: Document, split: str = "", number: int = 0
) -> Iterator[DocumentPiece]:
    """Yields the pieces of a document that have text, or one empty piece if no piece has text.

    No CR LF is divided: a CR at the end of a piece is moved to the beginning of the next one.
    """
    piece = DocumentPiece(b"", split, number)
    for text in pieces_of(document):
        if not piece.text:
            text = document_bytes(text)
        elif text and piece.text.endswith(b"\r"):
            piece, text = piece._replace(text=piece.text[:-1]), b"\r" + text
        if not piece.text:
            piece = piece._replace(text=text)
        elif text:
            yield piece._replace(ends_document=False)
            last = piece.text[-1:]
            piece = piece._replace(
                text=text,
                offset_bytes=piece.offset_bytes + len(piece.text),
                offset_lines=piece.offset_lines + piece.text.count(b"\n"),
                begins_document=False,
                begins_line=last in (b"\n", b"\r"),
                continues_word=last not in _SPACES,
            )
    yield piece


def map_pieces(
    function: Callable[[bytes, bool, bool], _Result], pieces: Iterable[DocumentPiece]
) -> list[_Result]:
    """Applies a function of text, `begins_line` and `ends_document` to pieces.

    Turns an InvalidTextError of the function into a DataDamagedError with the place of the text.
    """
    results = []
    for piece in pieces:
        try:
            results.append(function(piece.text, piece.begins_line, piece.ends_document))
        except InvalidTextError as error:
            raise error.damaged(
                f"split {piece.split}, document {piece.document + 1}",
                "Correct the text, or prepare it with the byte tokenizer.",
                lines_before=piece.offset_lines,
                bytes_before=piece.offset_bytes,
            ) from error
    return results


_IS_SPACE = np.isin(np.arange(256), list(_SPACES))
# Bytes 0x80 to 0xBF continue a UTF-8 character. As int8 they are -128 to -65, below all others.
_FIRST_NOT_CONTINUATION = -64


class TextCounts(NamedTuple):
    """Counts of text: bytes, UTF-8 characters, words between ASCII white space, and documents.

    A character is a byte that does not continue another character, so any bytes can be counted. A
    word that continues in the next piece counts once.
    """

    bytes: int = 0
    characters: int = 0
    words: int = 0
    documents: int = 0

    @classmethod
    def of(cls, pieces: Sequence[DocumentPiece]) -> Self:
        """Counts one or more consecutive pieces; `total` adds up such counts."""
        # A space is put before each piece that does not continue a word. Then each new word follows
        # a space, and no continued word does.
        parts = [piece.text if piece.continues_word else b" " + piece.text for piece in pieces]
        values = np.frombuffer(b"".join(parts), np.int8)
        is_space = _IS_SPACE[values.view(np.uint8)]
        num_bytes = sum(len(piece.text) for piece in pieces)
        num_added = len(values) - num_bytes
        return cls(
            bytes=num_bytes,
            characters=int(np.count_nonzero(values >= _FIRST_NOT_CONTINUATION)) - num_added,
            words=int(np.count_nonzero(is_space[:-1] & ~is_space[1:])),
            documents=sum(piece.begins_document for piece in pieces),
        )

    @classmethod
    def total(cls, counts: Iterable[Self]) -> Self:
        """Adds up the counts of one or more batches."""
        return cls(*map(sum, zip(*counts, strict=True)))


PIECE_BYTES = 1 << 20


def text_changed() -> StorageError:
    """Returns the error for a text that differs from its first reading."""
    return StorageError(
        "The text changed while it was read.", remedy="Start again, and do not change the text."
    )


def byte_range(blocks: Iterable[bytes], start_byte: int, stop_byte: int) -> Iterator[bytes]:
    """Yields the bytes of a stream from `start_byte` up to `stop_byte`.

    Raises StorageError if the stream ends earlier.
    """
    offset = 0
    for block in blocks:
        part = block[max(0, start_byte - offset) : max(0, stop_byte - offset)]
        offset += len(block)
        if part:
            yield part
        if offset >= stop_byte:
            return
    raise text_changed()


def split_at_lines(blocks: Iterable[bytes], piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Cuts a stream of bytes into pieces at line ends; the blocks do not determine the cuts.

    A piece has up to `piece_bytes` bytes. It ends after the last line feed in its second half.
    Without one it ends after the last space there, and without that between two characters. So
    only lines longer than half of `piece_bytes` are divided.
    """
    rest = bytearray()
    for block in blocks:
        rest += block
        start = 0
        while len(rest) - start >= piece_bytes:
            window = bytes(rest[start : start + piece_bytes])
            end = _last_boundary(window, piece_bytes // 2)
            yield window[:end]
            start += end
        del rest[:start]
    if rest:
        yield bytes(rest)


def _last_boundary(window: bytes, start: int) -> int:
    for separator in (b"\n", b" "):
        index = window.rfind(separator, start)
        if index >= 0:
            return index + 1
    # At most three bytes continue a character.
    for end in range(len(window) - 1, len(window) - 5, -1):
        if window[end] & 0xC0 != 0x80:
            return end
    return len(window)
