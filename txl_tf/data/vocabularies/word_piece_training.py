"""Vocabularies of parts of words."""

import dataclasses
from collections.abc import Iterable, Mapping

from txl_tf.data.document import Document
from txl_tf.data.parallel.ordered_workers import OrderedWorkers
from txl_tf.data.tokenizers.word_piece_tokenizer import WordPieceTokenizer
from txl_tf.data.tokenizers.word_piece_training import train_word_pieces
from txl_tf.data.tokenizers.word_rule import WordRule
from txl_tf.data.vocabularies.vocabulary_training import (
    Progress,
    VocabularyTraining,
    no_vocabulary,
)
from txl_tf.data.vocabularies.word_numbers import WordNumbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordPieceTraining(VocabularyTraining):
    """Counts words and learns parts of them; see `train_word_pieces`.

    Args:
        rule: `WordRule`. How text is split into words.
        vocabulary_size: int. Largest number of pieces. Defaults to `32_000`.
        unknown_token: str. Defaults to `"<unk>"`.
    """

    rule: WordRule
    vocabulary_size: int = 32_000
    unknown_token: str = "<unk>"

    def train(
        self,
        splits: Mapping[str, Iterable[Document]],
        workers: OrderedWorkers,
        progress: Progress,
    ) -> WordPieceTokenizer:
        """Learns; see `VocabularyTraining`."""
        numbers = WordNumbers(self.rule)
        for name in self.counted(splits):
            for chunk in numbers.chunks(name, splits[name], workers):
                progress(name, chunk.counts.bytes)
        try:
            return train_word_pieces(
                numbers.vocabulary_builder(),
                self.vocabulary_size,
                unknown_token=self.unknown_token,
            )
        except ValueError as error:
            raise no_vocabulary(error) from error
