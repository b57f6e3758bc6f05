"""Vocabularies of words."""

import dataclasses
from collections.abc import Iterable, Mapping

from txl_tf.data.document import Document
from txl_tf.data.parallel.ordered_workers import OrderedWorkers
from txl_tf.data.tokenizers.word_rule import LINE_MARK, WordRule
from txl_tf.data.tokenizers.word_tokenizer import WordTokenizer
from txl_tf.data.vocabularies.numbered_texts import NumberedTexts
from txl_tf.data.vocabularies.vocabulary_training import (
    Progress,
    VocabularyTraining,
    no_vocabulary,
)
from txl_tf.data.vocabularies.word_numbers import WordNumbers
from txl_tf.errors import DataDamagedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordTraining(VocabularyTraining):
    """Counts words; see `WordVocabularyBuilder.build`.

    The text is read once: its words are numbered as they come, the numbers go
    to files, and become token ids by one look-up when the vocabulary is known.

    Args:
        rule: `WordRule`. How text is split into words.
        special_tokens: tuple of str. Defaults to none.
        eos_token: optional str. Defaults to `None`.
        unknown_token: optional str. Defaults to `None`.
        min_frequency: int. Defaults to `0`.
        max_size: optional int. Defaults to all words.
    """

    rule: WordRule
    special_tokens: tuple[str, ...] = ()
    eos_token: str | None = None
    unknown_token: str | None = None
    min_frequency: int = 0
    max_size: int | None = None

    def train(
        self,
        splits: Mapping[str, Iterable[Document]],
        workers: OrderedWorkers,
        progress: Progress,
    ) -> WordTokenizer:
        """Counts the words; see `VocabularyTraining`."""
        numbers = WordNumbers(self.rule)
        for name in self.counted(splits):
            for chunk in numbers.chunks(name, splits[name], workers):
                progress(name, chunk.counts.bytes)
        return self._build(numbers)

    def tokenize(
        self,
        splits: Mapping[str, Iterable[Document]],
        workers: OrderedWorkers,
        scratch_folder: str,
        progress: Progress,
    ) -> NumberedTexts:
        """Numbers the words; see `VocabularyTraining`."""
        numbers = WordNumbers(self.rule)
        texts = NumberedTexts(scratch_folder)
        counted = self.counted(splits)
        for name in counted:
            texts.store(name, numbers.chunks(name, splits[name], workers), progress)
        tokenizer = self._build(numbers)
        for name in splits:
            if name not in counted:
                texts.store(name, numbers.chunks(name, splits[name], workers), progress)
        words = numbers.words
        try:
            texts.use(tokenizer, tokenizer.ids_of(words))
        except KeyError as error:
            word = error.args[0].decode() if error.args[0] != LINE_MARK else "of line ends"
            raise DataDamagedError(
                f"The word {word[:80]!r} is in the text and not in the vocabulary.",
                where=f"splits {', '.join(splits)}",
                remedy="Name a token for unknown words, or count all splits.",
            ) from error
        return texts

    def _build(self, numbers: WordNumbers) -> WordTokenizer:
        try:
            return numbers.vocabulary_builder().build(
                special_tokens=self.special_tokens,
                min_frequency=self.min_frequency,
                max_size=self.max_size,
                eos_token=self.eos_token,
                unknown_token=self.unknown_token,
            )
        except ValueError as error:
            raise no_vocabulary(error) from error
