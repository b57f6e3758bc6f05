"""Cuts the documents of a split into chunks of work."""

from collections.abc import Iterable, Iterator

from txl_tf.data.document import Document
from txl_tf.data.parallel.text_piece import TextPiece

# Large enough that handing a chunk over costs little, small enough to hold dozens.
CHUNK_BYTES = 1 << 19
_MAX_PIECES = 4096
_SPACES = b" \t\n\r\x0b\x0c"


def text_chunks(split: str, documents: Iterable[Document]) -> Iterator[list[TextPiece]]:
    """Gathers the pieces of documents, in order.

    Args:
        split: str. Name of the split.
        documents: iterable of documents.

    Yields:
        Lists of pieces: half a mebibyte of text or more, of one document or of many.
        A document without text is a piece without text.
    """
    chunk: list[TextPiece] = []
    num_bytes = 0
    for number, document in enumerate(documents):
        pieces = (document,) if isinstance(document, bytes) else document
        for piece in _document_pieces(split, number, pieces):
            chunk.append(piece)
            num_bytes += len(piece.text)
            if num_bytes >= CHUNK_BYTES or len(chunk) == _MAX_PIECES:
                yield chunk
                chunk, num_bytes = [], 0
    if chunk:
        yield chunk


def _document_pieces(split: str, number: int, texts: Iterable[bytes]) -> Iterator[TextPiece]:
    held = TextPiece(b"", split, number, 0, 0, True, True, True, False, False)
    for text in texts:
        if not text:
            continue
        if held.text:
            yield held._replace(ends_document=False)
            held = _following(held, text)
        else:
            held = held._replace(text=text)
    yield held


def _following(piece: TextPiece, text: bytes) -> TextPiece:
    last = piece.text[-1:]
    return piece._replace(
        text=text,
        offset_bytes=piece.offset_bytes + len(piece.text),
        offset_lines=piece.offset_lines + piece.text.count(b"\n"),
        begins_document=False,
        begins_line=last in (b"\n", b"\r"),
        splits_line_end=last == b"\r" and text[:1] == b"\n",
        continues_word=last not in _SPACES,
    )
