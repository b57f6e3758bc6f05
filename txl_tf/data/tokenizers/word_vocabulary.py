"""Counts words, in parts and in order, and makes a vocabulary of them."""

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from txl_tf.data.tokenizers.tokenizer import encode_in_order
from txl_tf.data.tokenizers.word_splitting import LINE_MARK, WordRule
from txl_tf.data.tokenizers.word_tokenizer import WordTokenizer

_DEFAULT_TOKENS = {"add_eos": "<eos>", "add_double_eos": "<S>"}


class WordVocabularyBuilder:
    """Builder of a word vocabulary: numbers words by first occurrence and counts them.

    The numbers are those of the order of first sight. They make text readable
    once: what `number` returns becomes token ids by one look-up in the array
    `tokenizer.ids_of(builder.words)`, when the vocabulary is known.

    Parts of a text can be counted by builders of their own, in processes of
    their own. Merged in the order of the text, they give the vocabulary of one
    pass, ties included: a word that is new in a part is new before everything
    that only later parts have.

    Args:
        rule: `WordRule`. How text is split.

    Example:
    ```python
    builder = WordVocabularyBuilder(WordRule(add_eos=True))
    numbers = builder.number(text)
    tokenizer = builder.build()
    token_ids = tokenizer.ids_of(builder.words)[numbers]
    ```
    """

    def __init__(self, rule: WordRule) -> None:
        self.rule = rule
        self._numbers: dict[bytes, int] = collections.defaultdict(itertools.count().__next__)
        self._counts = np.zeros(1024, np.int64)

    @property
    def words(self) -> list[bytes]:
        """The words by number, `LINE_MARK` for the token of lines among them."""
        return list(self._numbers)

    @property
    def counts(self) -> np.ndarray:
        """How often each word came, as int64 vector by number."""
        return self._counts[: len(self._numbers)]

    def number(
        self, text: bytes, begins_line: bool = True, ends_document: bool = True
    ) -> np.ndarray:
        """Counts the words of a text and returns their numbers.

        Args:
            text: bytes. UTF-8 text, or a piece of it.
            begins_line: bool. Whether the text begins a line. Defaults to
                `True`.
            ends_document: bool. Whether the text ends. Defaults to `True`.

        Returns:
            uint32 vector of numbers, which are no token ids yet.

        Raises:
            InvalidTextError: If the text is not UTF-8.
        """
        words = self.rule.split(text, begins_line, ends_document)
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.uint32, len(words))
        self._add(np.bincount(numbers, minlength=len(self._numbers)))
        return numbers

    def number_pieces(self, pieces: Iterable[bytes]) -> Iterator[np.ndarray]:
        """Counts the words of a document that comes in pieces.

        Args:
            pieces: iterable of bytes. The pieces of one document, cut where
                `text_pieces` cuts.

        Returns:
            Iterator over the numbers of every piece.

        Raises:
            InvalidTextError: If the text is not UTF-8.
        """
        return encode_in_order(self.number, pieces)

    def merge(self, words: Sequence[bytes], counts: np.ndarray) -> np.ndarray:
        """Adds what another builder has counted in the text that follows.

        Args:
            words: sequence of bytes. `words` of the other builder.
            counts: int64 vector. `counts` of the other builder.

        Returns:
            uint32 vector that turns the numbers of the other builder into
            those of this one.
        """
        numbers = np.fromiter(map(self._numbers.__getitem__, words), np.uint32, len(words))
        # `np.bincount` would add in floating point.
        added = np.zeros(len(self._numbers), np.int64)
        added[numbers] = counts
        self._add(added)
        return numbers

    def _add(self, counts: np.ndarray) -> None:
        if len(counts) > len(self._counts):
            grown = np.zeros(2 * len(counts), np.int64)
            grown[: len(self._counts)] = self._counts
            self._counts = grown
        self._counts[: len(counts)] += counts

    def build(
        self,
        *,
        special_tokens: Sequence[str] = (),
        min_frequency: int = 0,
        max_size: int | None = None,
        eos_token: str | None = None,
        unknown_token: str | None = None,
    ) -> WordTokenizer:
        """Makes the vocabulary, in the order of the official code.

        First come the special tokens, then the words by falling count. Words
        that came equally often stay in the order of first sight.

        Args:
            special_tokens: sequence of str. The first words of the vocabulary.
                Defaults to none.
            min_frequency: int. Words that came less often are left out.
                Defaults to `0`.
            max_size: optional int. Number of counted words to keep; special
                tokens are not among them unless the text has them too.
                Defaults to all.
            eos_token: optional str. The token of lines, which is put before
                the special tokens unless it is one. Defaults to `"<eos>"`, and
                to `"<S>"` for a rule with `add_double_eos`.
            unknown_token: optional str. The token of words that are left out.
                It keeps its place among special tokens or words, and is put
                last where it is neither. Defaults to none.

        Returns:
            The tokenizer.

        Raises:
            ValueError: If there are no words.
        """
        if self.rule.marks_lines:
            default = "add_eos" if self.rule.add_eos else "add_double_eos"
            eos_token = eos_token or _DEFAULT_TOKENS[default]
            if eos_token not in special_tokens:
                special_tokens = (eos_token, *special_tokens)
        words = self.words
        order = np.argsort(-self.counts, kind="stable")
        if LINE_MARK in self._numbers:
            # Lines are no words of the text.
            order = order[order != self._numbers[LINE_MARK]]
        order = order[:max_size]
        kept = [words[i].decode() for i in order[self.counts[order] >= min_frequency]]
        last = () if unknown_token is None else (unknown_token,)
        vocabulary = dict.fromkeys((*special_tokens, *kept, *last))
        return WordTokenizer(
            list(vocabulary), self.rule, eos_token=eos_token, unknown_token=unknown_token
        )
