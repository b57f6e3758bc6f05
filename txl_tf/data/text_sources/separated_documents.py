"""Text files whose documents are separated by a line."""

from collections.abc import Iterator, Sequence

from txl_tf.data.text_sources.document_marks import line_pattern, marked_documents
from txl_tf.data.text_sources.file_documents import checked_blocks
from txl_tf.data.text_sources.text_files import text_files
from txl_tf.data.text_sources.text_pieces import text_pieces


class SeparatedDocuments:
    """The documents of text files with a separator line between them.

    The separator belongs to no document, several of them in a row are one, and
    a file begins a document.

    Args:
        paths: sequence of str. Files, folders or patterns; see `text_files`.
        separator: bytes. The line, without its end; empty for empty lines.
        check_utf8: bool. Whether text that is not UTF-8 is refused. Defaults to
            `False`, which takes any bytes.

    Raises:
        InputMissingError: If a path has no file.
        ValueError: If the separator is not one line.
    """

    def __init__(self, paths: Sequence[str], separator: bytes, *, check_utf8: bool = False) -> None:
        self._mark = line_pattern(separator)
        self.files = text_files(paths)
        self._check_utf8 = check_utf8

    def __iter__(self) -> Iterator[Iterator[bytes]]:
        """Yields documents, each an iterator over pieces of at most a mebibyte."""
        for path in self.files:
            pieces = text_pieces(checked_blocks(path, check_utf8=self._check_utf8))
            yield from marked_documents(pieces, self._mark, keep_mark=False)
