"""A piece of text with all that must be known of the text before it."""

from typing import NamedTuple


class TextPiece(NamedTuple):
    """A piece of a document that can be encoded and counted by itself.

    Args:
        text: bytes. The piece.
        split: str. Name of the split.
        document: int. Number of the document in its split.
        offset_bytes: int. Bytes of the document before the piece.
        offset_lines: int. Line feeds in those bytes.
        begins_document: bool. Whether the document begins with the piece.
        ends_document: bool. Whether it ends with the piece.
        begins_line: bool. Whether a line begins with the piece.
        splits_line_end: bool. Whether the piece begins with the LF of a CR LF.
        continues_word: bool. Whether the byte before is no white space.
    """

    text: bytes
    split: str
    document: int
    offset_bytes: int
    offset_lines: int
    begins_document: bool
    ends_document: bool
    begins_line: bool
    splits_line_end: bool
    continues_word: bool
