"""Reads the text of a split, within a pipeline."""

from collections.abc import Iterable, Iterator, Mapping

from txl_tf.data.document import Document
from txl_tf.data.parallel.text_chunks import text_chunks
from txl_tf.data.parallel.text_piece import TextPiece


class ChunkReading:
    """Reads splits in numbered chunks, the same ones every time.

    Args:
        splits: mapping of split name to documents, which can be sent to other
            machines and are the same there.
    """

    def __init__(self, splits: Mapping[str, Iterable[Document]]) -> None:
        self._splits = dict(splits)

    def __call__(self, split: str) -> Iterator[tuple[str, int, list[TextPiece]]]:
        """Reads a split.

        Args:
            split: str. Name of the split.

        Yields:
            Name of the split, number of the chunk, and its pieces.
        """
        for number, pieces in enumerate(text_chunks(split, self._splits[split])):
            yield split, number, pieces
