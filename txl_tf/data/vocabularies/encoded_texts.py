"""Splits of text, encoded while they are read."""

from collections.abc import Iterable, Iterator, Mapping

from txl_tf.data.document import Document
from txl_tf.data.parallel.chunk_encoding import ChunkEncoding
from txl_tf.data.parallel.ordered_workers import OrderedWorkers
from txl_tf.data.parallel.text_chunks import text_chunks
from txl_tf.data.parallel.token_chunk import TokenChunk
from txl_tf.data.tokenizer import Tokenizer


class EncodedTexts:
    """Encodes the splits of a text with a tokenizer.

    Args:
        splits: dict of split name to documents.
        tokenizer: `Tokenizer`.
        workers: `OrderedWorkers`. Who encodes.
    """

    def __init__(
        self,
        splits: Mapping[str, Iterable[Document]],
        tokenizer: Tokenizer,
        workers: OrderedWorkers,
    ) -> None:
        self.tokenizer = tokenizer
        self._splits = splits
        self._workers = workers
        self._encoding = ChunkEncoding(tokenizer)

    def chunks(self, split: str) -> Iterator[TokenChunk]:
        """Encodes a split.

        Args:
            split: str. Name of the split.

        Yields:
            The tokens, in order.

        Raises:
            DataDamagedError: If the text is not one that the tokenizer takes.
        """
        return self._workers.map(self._encoding, text_chunks(split, self._splits[split]))
