"""Vocabularies of SentencePiece."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from txl_tf.data.document import Document
from txl_tf.data.parallel.chunk_encoding import located
from txl_tf.data.parallel.ordered_workers import OrderedWorkers
from txl_tf.data.parallel.text_chunks import text_chunks
from txl_tf.data.tokenizers.sentence_piece_tokenizer import SentencePieceTokenizer
from txl_tf.data.tokenizers.sentence_piece_training import train_sentence_piece
from txl_tf.data.tokenizers.utf8_text import decode_utf8
from txl_tf.data.vocabularies.vocabulary_training import (
    Progress,
    VocabularyTraining,
    no_vocabulary,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePieceTraining(VocabularyTraining):
    """Trains a SentencePiece model; see `train_sentence_piece`.

    The training runs in this process; the workers encode.

    Args:
        vocabulary_size: int. Number of pieces. Defaults to `32_000`.
        model_type: str. `"bpe"` or `"unigram"`. Defaults to `"unigram"`.
    """

    vocabulary_size: int = 32_000
    model_type: Literal["bpe", "unigram"] = "unigram"

    def train(
        self,
        splits: Mapping[str, Iterable[Document]],
        workers: OrderedWorkers,
        progress: Progress,
    ) -> SentencePieceTokenizer:
        """Trains; see `VocabularyTraining`."""
        texts = self._texts(splits, progress)
        try:
            return train_sentence_piece(texts, self.vocabulary_size, model_type=self.model_type)
        except ValueError as error:
            raise no_vocabulary(error) from error

    def _texts(
        self, splits: Mapping[str, Iterable[Document]], progress: Progress
    ) -> Iterator[bytes]:
        for name in self.counted(splits):
            for chunk in text_chunks(name, splits[name]):
                for piece in chunk:
                    # The trainer would say nothing of where the text is wrong.
                    located(lambda piece: decode_utf8(piece.text), piece)
                    yield piece.text
                    progress(name, len(piece.text))
