"""Vocabularies that are built from the text of a data set: characters, words, SentencePiece.

Worker processes count characters or words, and the counts determine the vocabulary. SentencePiece
has a trainer of its own, which reads the text in the calling process.
"""

import abc
import contextlib
import dataclasses
import io
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Literal

from txl_tf.data.text import DocumentPiece, Splits, map_pieces, split_at_lines, work_batches
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.piece_tokenizers import (
    BLOCK_CHARACTER,
    BLOCK_SUBSTITUTE,
    SentencePieceTokenizer,
)
from txl_tf.data.tokenizers.tokenizer import Tokenizer, decode_utf8
from txl_tf.data.tokenizers.word_tokenizer import LINE_MARK, WordRule, WordTokenizer
from txl_tf.data.workers import ordered_workers
from txl_tf.errors import DataDamagedError, errors_as
from txl_tf.imports import require_extra

Progress = Callable[[str, int], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VocabularyTraining(abc.ABC):
    """Settings of a vocabulary that is built from the text of the splits in `counted_splits`."""

    kind: ClassVar[str]
    counted_splits: tuple[str, ...] = ("train",)

    def train(self, splits: Splits, num_workers: int, progress: Progress) -> Tokenizer:
        """Counts the words or characters of the text, and builds the tokenizer.

        The documents are read once here. `progress` gets the name of the split and the bytes read
        since the last call. Raises DataDamagedError if the text cannot give this vocabulary.
        """
        counts: Counter[Any] = Counter()
        with ordered_workers(self._count, num_workers) as count_all:
            for split, num_bytes, batch_counts in count_all(self._batches(splits)):
                counts.update(batch_counts)  # keeps the order of first occurrence
                progress(split, num_bytes)
        with _vocabulary_errors():
            return self.build(counts)

    def _batches(self, splits: Splits) -> Iterator[list[DocumentPiece]]:
        for name in splits:
            if name in self.counted_splits:
                yield from work_batches(name, splits[name])

    def _count(self, pieces: Sequence[DocumentPiece]) -> tuple[str, int, Counter[Any]]:
        """Returns the split of a batch, its bytes, and the counts of its words or characters."""
        counts: Counter[Any] = Counter()
        for words in map_pieces(self._split, pieces):
            counts.update(words)
        return pieces[0].split, sum(len(piece.text) for piece in pieces), counts

    def _split(self, text: bytes, begins_line: bool, ends_document: bool) -> Sequence[Any]:
        """Splits text into the words or characters to be counted."""
        raise NotImplementedError

    def build(self, counts: Counter[Any]) -> Tokenizer:
        """Builds the tokenizer; raises ValueError if the counts do not give one."""
        raise NotImplementedError


def _vocabulary_errors() -> contextlib.AbstractContextManager[None]:
    """Turns the ValueError for a text that cannot give the vocabulary into DataDamagedError."""
    return errors_as(
        DataDamagedError,
        ValueError,
        "The text cannot give this vocabulary",
        "",
        "Give more text, or another --vocabulary-size.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CountedTraining(VocabularyTraining):
    """Base class of vocabularies whose tokens are sorted by falling count.

    Tokens with equal counts are in the order of their first occurrence.
    """

    min_frequency: int = 0
    vocabulary_size: int | None = None
    unknown_token: str | None = None

    def _tokens(self, counts: Counter[str], special: Sequence[str] = ()) -> list[str]:
        """Returns the special tokens, then the counted ones, and last `unknown_token` if missing.

        Raises ValueError if `vocabulary_size` leaves no room for a counted token.
        """
        size, num_special = self.vocabulary_size, len(set(special))
        frequent_tokens = [
            token for token, count in counts.most_common() if count >= self.min_frequency
        ]
        tokens = list(dict.fromkeys((*special, *frequent_tokens)))
        vocabulary = tokens[:size]
        if self.unknown_token is not None and self.unknown_token not in vocabulary:
            vocabulary = [*tokens[: None if size is None else size - 1], self.unknown_token]
            num_special += 1
        if size is not None and size <= num_special:
            raise ValueError(
                f"`vocabulary_size` must be more than {num_special}, the number of special tokens "
                f"(for line ends and unknown text). Received: {size}"
            )
        return vocabulary


@dataclasses.dataclass(frozen=True, kw_only=True)
class CharacterTraining(_CountedTraining):
    """Training of a vocabulary of characters, sorted by falling count.

    Characters with equal counts are in the order of their first occurrence.

    Args:
        min_frequency: int. Smallest count of a character in the vocabulary. Defaults to `0`.
        vocabulary_size: optional int. Largest number of tokens, which includes `unknown_token`.
            Defaults to all characters.
        unknown_token: optional str. Token for other characters. Defaults to `None`.
    """

    kind = "characters"

    def _split(self, text: bytes, begins_line: bool, ends_document: bool) -> Sequence[Any]:
        return decode_utf8(text)

    def build(self, counts: Counter[str]) -> CharacterTokenizer:
        tokens, unknown = self._tokens(counts), self.unknown_token
        # The tokenizer itself adds the unknown token if it is not one of the characters.
        if counts.get(unknown or "", -1) < self.min_frequency:
            tokens = [token for token in tokens if token != unknown]
        return CharacterTokenizer(tokens, unknown_token=unknown)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WordTraining(_CountedTraining):
    """Training of a vocabulary of words, in the order of the official code.

    Special tokens come first. Then follow words by falling count; words with equal counts are in
    the order of their first occurrence. The token that marks lines comes before all others, and
    `unknown_token` after all others, unless they are special tokens or words.

    Args:
        rule: `WordRule`. Rule that splits text into words.
        special_tokens: tuple of str. First tokens of the vocabulary. Defaults to none.
        unknown_token: optional str. Token for other words. Defaults to `None`.
        min_frequency: int. Smallest count of a word in the vocabulary. Defaults to `0`.
        vocabulary_size: optional int. Largest number of tokens of all kinds. Defaults to all words.
    """

    kind = "words"

    rule: WordRule
    special_tokens: tuple[str, ...] = ()

    def _split(self, text: bytes, begins_line: bool, ends_document: bool) -> Sequence[Any]:
        return self.rule.split(text, begins_line, ends_document)

    def build(self, counts: Counter[bytes]) -> WordTokenizer:
        special, eos_token = self.special_tokens, self.rule.eos_token
        if eos_token is not None and eos_token not in special:
            special = (eos_token, *special)
        words = {word.decode(): count for word, count in counts.items() if word != LINE_MARK}
        tokens = self._tokens(Counter(words), special)
        return WordTokenizer(tokens, self.rule, unknown_token=self.unknown_token)


# The number of threads determines the order of summation, and thereby the result.
_NUM_THREADS = 2
# The trainer would skip longer lines, so they are divided. Learned pieces are far shorter.
_MAX_LINE_BYTES = 4096
_MAX_LINES = 200_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentencePieceTraining(VocabularyTraining):
    """Training of a SentencePiece model, in the calling process.

    The same text gives the same model on any number of cores. The model does not normalise text.
    It has a piece for unknown text, which never occurs, 256 pieces for bytes, the characters that
    cover 99.95 % of the text, and learned pieces. The trainer reads at most 200,000 lines, which it
    samples with a fixed seed. A small text gives fewer pieces than `vocabulary_size`. The training
    needs the package `sentencepiece`.

    Args:
        vocabulary_size: int. Largest number of pieces. Defaults to `32_000`.
        model_type: str. `"bpe"` or `"unigram"`. Defaults to `"unigram"`.
    """

    kind = "sentencepiece"

    vocabulary_size: int = 32_000
    model_type: Literal["bpe", "unigram"] = "unigram"

    def train(self, splits: Splits, num_workers: int, progress: Progress) -> Tokenizer:
        def texts() -> Iterator[str]:
            for batch in self._batches(splits):
                # Text is decoded here, because the trainer does not report where text is invalid.
                yield from map_pieces(lambda text, *_: decode_utf8(text), batch)
                progress(batch[0].split, sum(len(piece.text) for piece in batch))

        with _vocabulary_errors():
            return self.train_on(texts())

    def train_on(self, texts: Iterable[str]) -> SentencePieceTokenizer:
        """Trains a model on texts.

        Raises ValueError for an impossible size, and UsageError if the package is missing.
        """
        require_extra("sentencepiece", "sentencepiece", purpose="Training SentencePiece")
        import sentencepiece

        sentencepiece.set_random_generator_seed(0)
        model = io.BytesIO()
        with tempfile.TemporaryDirectory() as folder:
            try:
                sentencepiece.SentencePieceTrainer.train(
                    sentence_iterator=_short_lines(texts),
                    model_writer=model,
                    model_type=self.model_type,
                    vocab_size=self.vocabulary_size,
                    hard_vocab_limit=False,
                    character_coverage=0.9995,
                    input_sentence_size=_MAX_LINES,
                    shuffle_input_sentence=True,
                    max_sentence_length=2 * _MAX_LINE_BYTES,
                    num_threads=_NUM_THREADS,
                    byte_fallback=True,
                    normalization_rule_tsv=_rule_file(folder, BLOCK_CHARACTER, BLOCK_SUBSTITUTE),
                    denormalization_rule_tsv=_rule_file(folder, BLOCK_SUBSTITUTE, BLOCK_CHARACTER),
                    add_dummy_prefix=False,
                    remove_extra_whitespaces=False,
                    allow_whitespace_only_pieces=True,
                    unk_id=0,
                    bos_id=-1,
                    eos_id=-1,
                    pad_id=-1,
                    minloglevel=2,
                )
            except (RuntimeError, OSError) as error:
                reason = f"SentencePiece refuses the text: {' '.join(str(error).split())}"
                if size := re.search(r"smaller than required_chars. \d+ vs (\d+)", str(error)):
                    least = f"`vocabulary_size` must be at least {size[1]}"
                    reason = f"{least}, for the unknown token, the bytes and the characters."
                raise ValueError(
                    f"{reason} Received: vocabulary_size={self.vocabulary_size}"
                ) from error
        return SentencePieceTokenizer(_without_paths(model.getvalue()))


def _short_lines(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        # The trainer does not accept NUL, which the model encodes as a byte.
        for line in text.replace("\0", "").split("\n"):
            for part in split_at_lines([line.encode()], _MAX_LINE_BYTES):
                yield part.decode()


def _rule_file(folder: str, source: str, target: str) -> str:
    path = os.path.join(folder, f"{ord(source):X}")
    with open(path, "w", encoding="ascii") as file:
        file.write(f"{ord(source):X}\t{ord(target):X}\n")
    return path


def _without_paths(model: bytes) -> bytes:
    """Removes from a model the names of temporary files, which vary, and the kind of its limit."""
    from sentencepiece import sentencepiece_model_pb2

    messages: Any = sentencepiece_model_pb2
    message = messages.ModelProto.FromString(model)
    message.normalizer_spec.ClearField("normalization_rule_tsv")
    message.denormalizer_spec.ClearField("normalization_rule_tsv")
    message.trainer_spec.ClearField("hard_vocab_limit")
    return message.SerializeToString(deterministic=True)
