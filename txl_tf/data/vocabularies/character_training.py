"""Vocabularies of characters."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from txl_tf.data.document import Document
from txl_tf.data.parallel.chunk_encoding import located
from txl_tf.data.parallel.ordered_workers import OrderedWorkers
from txl_tf.data.parallel.text_chunks import text_chunks
from txl_tf.data.parallel.text_piece import TextPiece
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.character_vocabulary_builder import CharacterVocabularyBuilder
from txl_tf.data.vocabularies.vocabulary_training import (
    Progress,
    VocabularyTraining,
    no_vocabulary,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CharacterTraining(VocabularyTraining):
    """Counts characters; see `CharacterVocabularyBuilder.build`.

    Args:
        min_frequency: int. Defaults to `0`.
        max_size: optional int. Defaults to all characters.
        unknown_token: optional str. Defaults to `None`.
    """

    min_frequency: int = 0
    max_size: int | None = None
    unknown_token: str | None = None

    def train(
        self,
        splits: Mapping[str, Iterable[Document]],
        workers: OrderedWorkers,
        progress: Progress,
    ) -> CharacterTokenizer:
        """Counts; see `VocabularyTraining`."""
        builder = CharacterVocabularyBuilder()
        for name in self.counted(splits):
            for found in workers.map(_count, text_chunks(name, splits[name])):
                characters, counts, num_bytes = found
                builder.merge(characters, counts)
                progress(name, num_bytes)
        try:
            return builder.build(
                min_frequency=self.min_frequency,
                max_size=self.max_size,
                unknown_token=self.unknown_token,
            )
        except ValueError as error:
            raise no_vocabulary(error) from error


def _count(pieces: Sequence[TextPiece]) -> tuple[list[str], np.ndarray, int]:
    builder = CharacterVocabularyBuilder()
    for piece in pieces:
        located(lambda piece: builder.count(piece.text), piece)
    return builder.characters, builder.counts, sum(len(piece.text) for piece in pieces)
