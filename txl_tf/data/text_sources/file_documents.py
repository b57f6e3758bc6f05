"""Text files, each of them one document."""

import itertools
from collections.abc import Iterator, Sequence

from txl_tf.data.text_sources.text_blocks import text_blocks
from txl_tf.data.text_sources.text_files import text_files
from txl_tf.data.text_sources.text_pieces import text_pieces
from txl_tf.data.text_sources.text_validation import validated_text


class FileDocuments:
    """The documents of text files: one a file; empty files are left out.

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
        """Yields documents, each an iterator over pieces of about a mebibyte."""
        for path in self.files:
            blocks = checked_blocks(path, check_utf8=self._check_utf8)
            first = next(blocks, None)
            if first is not None:
                yield text_pieces(itertools.chain([first], blocks))


def checked_blocks(path: str, *, check_utf8: bool) -> Iterator[bytes]:
    """Reads a text file, and refuses text that is not UTF-8 where that is asked.

    Args:
        path: str. The file, compressed or not.
        check_utf8: bool. Whether to check.

    Returns:
        Iterator over blocks of bytes.
    """
    blocks = text_blocks(path)
    return validated_text(blocks, path) if check_utf8 else blocks
