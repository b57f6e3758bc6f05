"""WordPiece tokenizer and the learner of its vocabulary."""

import collections
import functools
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from txl_tf.data.text import PIECE_BYTES
from txl_tf.data.tokenizers.tokenizer import (
    Tokenizer,
    checked_token_ids,
    narrowest_token_dtype,
)
from txl_tf.data.tokenizers.word_splitting import LINE_MARK, WordRule, join_words
from txl_tf.data.tokenizers.word_tokenizer import WordVocabularyBuilder
from txl_tf.storage.untrusted_files import parse_json

if TYPE_CHECKING:
    import tensorflow_text

    from txl_tf.data.tokenizers.graph_tokenizers import GraphWordPieceTokenizer


# A no-break space is white space for the rule and so in no word; the usual "##" can be one.
SUFFIX_INDICATOR = "\u00a0"
_OPTIONS_FILE = "vocabulary.json"
_PIECES_FILE = "vocabulary.txt"


class WordPieceTokenizer(Tokenizer):
    """WordPiece tokenizer: splits each word by greedy longest match.

    Schuster and Nakajima (2012); run by tensorflow-text (Song et al. 2021), the
    same operation that an export has in its graph. Words are split by white
    space alone, so that `decode` gives the text back up to white space, unless
    a word has NUL or a character that no piece has: all of it becomes
    `unknown_token`.

    Args:
        pieces: sequence of str. The vocabulary, the two tokens among it. Pieces
            that go on with a word begin with `SUFFIX_INDICATOR`.
        rule: `WordRule`. How text is split into words.
        unknown_token: str. The piece for words that cannot be composed.
        eos_token: optional str. The piece that marks lines, where the rule
            marks them. Defaults to `None`.

    Raises:
        ValueError: If the pieces are not different, or a token is missing.
    """

    kind = "wordpiece"
    uses_tensorflow = True
    reads_lines = True
    _definition = b"txl-tf tokenizer; kind wordpiece; version 1\n"

    def __init__(
        self,
        pieces: Sequence[str],
        rule: WordRule,
        *,
        unknown_token: str,
        eos_token: str | None = None,
    ) -> None:
        if rule.marks_lines != (eos_token is not None):
            raise ValueError(
                "`eos_token` is for rules that mark lines, and they need it. "
                f"Received: eos_token={eos_token!r}, rule={rule}"
            )
        tokens = {"unknown_token": unknown_token, "eos_token": eos_token}
        for name, token in tokens.items():
            if token is not None and token not in pieces:
                raise ValueError(f"`{name}` must be in the vocabulary. Received: {token!r}")
        stems = [piece.removeprefix(SUFFIX_INDICATOR).encode() for piece in pieces]
        if len(set(pieces)) != len(pieces) or WordRule().split(b"\n".join(stems)) != stems:
            raise ValueError(
                "`pieces` must be different and without white space within. "
                f"Received: {len(pieces)} pieces, {len(set(pieces))} different ones"
            )
        if any("\0" in piece for piece in pieces):
            raise ValueError(
                "`pieces` must not have NUL, at which tensorflow-text ends them. "
                f"Received: {next(piece for piece in pieces if chr(0) in piece)!r}"
            )
        self.rule = rule
        self.unknown_token = unknown_token
        self.eos_token = eos_token
        self.pieces = list(pieces)
        self.vocabulary_size = len(self.pieces)
        self.token_dtype = narrowest_token_dtype(self.vocabulary_size)
        self._mark_id = None if eos_token is None else self.pieces.index(eos_token)
        self._encoded = [piece.encode() for piece in self.pieces]

    @classmethod
    def from_vocabulary_files(cls, files: Mapping[str, bytes]) -> Self:
        options = parse_json(files[_OPTIONS_FILE])
        tokens = {name: options.pop(name) for name in ("eos_token", "unknown_token")}
        pieces = files[_PIECES_FILE].decode().removesuffix("\n").split("\n")
        return cls(pieces, WordRule.from_dict(options), **tokens)

    @property
    def vocabulary_files(self) -> Mapping[str, bytes]:
        """Names and contents of the files: the pieces, one a line, and the options."""
        options: dict[str, Any] = self.rule.to_dict()
        options |= {"eos_token": self.eos_token, "unknown_token": self.unknown_token}
        return {
            _PIECES_FILE: b"\n".join(self._encoded) + b"\n",
            _OPTIONS_FILE: (json.dumps(options, indent=2) + "\n").encode(),
        }

    def encode_piece(self, text: bytes, begins_line: bool, ends_document: bool) -> np.ndarray:
        words = self.rule.split(text, begins_line, ends_document)
        if not words:
            return np.zeros(0, self.token_dtype)
        # Every different word is looked up once.
        numbers: dict[bytes, int] = collections.defaultdict(itertools.count().__next__)
        places = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
        mark = (self.eos_token or "").encode()
        found = self._operation.tokenize([mark if each == LINE_MARK else each for each in numbers])
        return _gathered(found.values.numpy(), found.row_splits.numpy(), places).astype(
            self.token_dtype
        )

    def decode(self, token_ids: np.ndarray | Sequence[int]) -> bytes:
        """Turns token ids back into text.

        Args:
            token_ids: vector of ints in `[0, vocabulary_size)`.

        Returns:
            The words with a space between them, and lines as
            `WordTokenizer.decode` writes them.

        Raises:
            ValueError: If an id is out of range or not an integer.
        """
        ids = checked_token_ids(token_ids, self.vocabulary_size)
        text = join_words(ids, self._encoded, self._mark_id, self.rule.add_double_eos)
        # What is left of the indicator follows no word: the ids began within one.
        indicator = SUFFIX_INDICATOR.encode()
        return text.replace(b" " + indicator, b"").replace(indicator, b"")

    def graph_tokenizer(self) -> "GraphWordPieceTokenizer":
        from txl_tf.data.tokenizers.graph_tokenizers import GraphWordPieceTokenizer

        return GraphWordPieceTokenizer(self._operation, self._encoded, self.rule, self._mark_id)

    @functools.cached_property
    def _operation(self) -> "tensorflow_text.FastWordpieceTokenizer":
        import tensorflow as tf
        import tensorflow_text

        return tensorflow_text.FastWordpieceTokenizer(
            vocab=self.pieces,
            suffix_indicator=SUFFIX_INDICATOR,
            unknown_token=self.unknown_token,
            # No word is longer than the piece of text it is in.
            max_bytes_per_word=PIECE_BYTES,
            no_pretokenization=True,
            token_out_type=tf.int32,
        )


def _gathered(values: np.ndarray, row_splits: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns the values of the given rows of a ragged array, one row after the other."""
    lengths = np.diff(row_splits)[rows]
    ends = np.cumsum(lengths)
    shifts = row_splits[:-1][rows] - (ends - lengths)
    return values[np.arange(ends[-1]) + np.repeat(shifts, lengths)]


_EOS_TOKEN = "<eos>"
_DOUBLE_EOS_TOKEN = "<S>"
# Part of the vocabulary that may stay empty; every further step takes as long as the first.
_SLACK = 0.05


def train_word_pieces(
    builder: WordVocabularyBuilder,
    vocabulary_size: int,
    *,
    unknown_token: str = "<unk>",
    max_words: int = 20_000,
    max_characters: int = 1000,
) -> WordPieceTokenizer:
    """Learns a vocabulary of word pieces, by tensorflow-text's learner.

    The same counts give the same pieces. The learner's time grows with the
    number of different words, so that only the most frequent are used.

    Args:
        builder: `WordVocabularyBuilder`. The words of the text and its rule.
        vocabulary_size: int. Largest number of pieces; learning ends when there
            are at most 5 % fewer, or no threshold comes nearer.
        unknown_token: str. The piece for words that cannot be composed.
            Defaults to `"<unk>"`.
        max_words: int. Number of different words to learn from. Defaults to
            `20_000`.
        max_characters: int. Number of different characters that pieces are made
            of, the most frequent ones. Defaults to `1000`.

    Raises:
        ValueError: If there are no words, or `vocabulary_size` is too small.
    """
    rule = builder.rule
    eos_token = None
    if rule.marks_lines:
        eos_token = _EOS_TOKEN if rule.add_eos else _DOUBLE_EOS_TOKEN
    words, counts = builder.words, builder.counts
    order = np.argsort(-counts, kind="stable")
    # Pieces cannot have NUL, see `WordPieceTokenizer`.
    left_out = {LINE_MARK, *(word for word in words if b"\0" in word)}
    word_counts = [(words[i].decode(), int(counts[i])) for i in order if words[i] not in left_out]
    if not word_counts:
        raise ValueError("`builder` must have counted words. Received: none")
    reserved = [unknown_token, *([] if eos_token is None else [eos_token])]
    pieces = _learned(word_counts[:max_words], vocabulary_size, reserved, max_characters)
    return WordPieceTokenizer(pieces, rule, unknown_token=unknown_token, eos_token=eos_token)


def _learned(
    word_counts: list[tuple[str, int]],
    vocabulary_size: int,
    reserved: list[str],
    max_characters: int,
) -> list[str]:
    """Returns the pieces for the lowest threshold that gives no more than are wanted.

    The learner's own search can end at a threshold that gives too many, and it
    halves counts, of which most are small, where this halves their logarithm.
    """
    # Every word that comes as often as the threshold is a piece.
    low = word_counts[min(vocabulary_size, len(word_counts)) - 1][1]
    high = word_counts[0][1] + 1
    best: list[str] = []
    smallest = 0
    while low <= high and len(best) < (1 - _SLACK) * vocabulary_size:
        threshold = math.isqrt(low * high)
        pieces = _learned_at(threshold, word_counts, reserved, max_characters)
        if len(pieces) <= vocabulary_size:
            best = max(best, pieces, key=len)
            high = threshold - 1
        else:
            smallest = len(pieces)
            low = threshold + 1
    if not best:
        raise ValueError(
            f"`vocabulary_size` must be at least about {smallest}, because every character of the "
            f"text is a piece, at the beginning of a word and within. Received: {vocabulary_size}"
        )
    return best


def _learned_at(
    threshold: int, word_counts: list[tuple[str, int]], reserved: list[str], max_characters: int
) -> list[str]:
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib

    pieces = wordpiece_tokenizer_learner_lib.learn(
        word_counts,
        # With equal bounds it learns once, whatever the size.
        vocab_size=len(word_counts),
        reserved_tokens=reserved,
        lower_thresh=threshold,
        upper_thresh=threshold,
        max_unique_chars=max_characters,
        joiner=SUFFIX_INDICATOR,
    )
    return [piece for piece in dict.fromkeys(pieces) if piece != SUFFIX_INDICATOR]
