"""Text files in which every line is a document."""

from collections.abc import Iterator, Sequence

from txl_tf.data.text_sources.document_marks import grouped_documents
from txl_tf.data.text_sources.file_documents import checked_blocks
from txl_tf.data.text_sources.text_files import text_files
from txl_tf.data.text_sources.text_pieces import text_pieces


class LineDocuments:
    """The documents of text files: every line is one, with its line end.

    Lines without anything but their end are left out.

    Args:
        paths: sequence of str. Files, folders or patterns; see `text_files`.
        check_utf8: bool. Whether text that is not UTF-8 is refused. Defaults to
            `False`, which takes any bytes.

    Raises:
        InputMissingError: If a path has no file.
    """

    def __init__(self, paths: Sequence[str], *, check_utf8: bool = False) -> None:
        self.files = text_files(paths)
        self._check_utf8 = check_utf8

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        """Yields documents; a line longer than a piece comes in several."""
        for path in self.files:
            pieces = text_pieces(checked_blocks(path, check_utf8=self._check_utf8))
            yield from grouped_documents(_numbered_lines(pieces))


def _numbered_lines(pieces: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    number = 0
    for piece in pieces:
        start = 0
        while start < len(piece):
            end = piece.find(b"\n", start) + 1 or len(piece)
            line = piece[start:end]
            if line not in (b"\n", b"\r\n"):
                yield number, line
            number += line.endswith(b"\n")
            start = end
