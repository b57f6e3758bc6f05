"""WordPiece tokenizer and the learner of its vocabulary."""

import collections
import functools
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from txl_tf.data.text import PIECE_BYTES
from txl_tf.data.tokenizers.word_splitting import LINE_MARK, RuleTokenizer, WordRule
from txl_tf.data.tokenizers.word_tokenizer import WordVocabularyBuilder

if TYPE_CHECKING:
    import tensorflow_text

    from txl_tf.data.tokenizers.graph_tokenizers import GraphWordPieceTokenizer


# A no-break space is white space for the rule and so in no word; the usual "##" can be one.
SUFFIX_INDICATOR = "\u00a0"


class WordPieceTokenizer(RuleTokenizer):
    """WordPiece tokenizer: splits each word by greedy longest match.

    Schuster and Nakajima (2012); run by tensorflow-text (Song et al. 2021), the
    same operation that an export has in its graph. Words are split by white
    space alone, so that `decode` gives the text back up to white space, unless
    a word has NUL or a character that no piece has: all of it becomes
    `unknown_token`.

    Args:
        pieces: sequence of str. The vocabulary, the two tokens among it. Pieces
            that continue a word begin with `SUFFIX_INDICATOR`.
        rule: `WordRule`. How text is split into words.
        unknown_token: str. The piece for words that cannot be composed.
        eos_token: optional str. The piece that marks lines, where the rule
            marks them. Defaults to `None`.

    Raises:
        ValueError: If the pieces are not different, or a token is missing.
    """

    kind = "wordpiece"
    uses_tensorflow = True
    _definition = b"txl-tf tokenizer; kind wordpiece; version 1\n"

    def __init__(
        self,
        pieces: Sequence[str],
        rule: WordRule,
        *,
        unknown_token: str,
        eos_token: str | None = None,
    ) -> None:
        super().__init__(pieces, rule, eos_token=eos_token, unknown_token=unknown_token)
        self.pieces = list(pieces)
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

    def _decode(self, ids: np.ndarray) -> bytes:
        text = super()._decode(ids)
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


# Part of the learned pieces that may be cut off; every further step takes as long as the first.
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
        vocabulary_size: int. Largest number of pieces, special ones included. A
            small text gives fewer.
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
    eos_token = rule.default_eos_token
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
    """Returns the pieces for the highest threshold that gives enough, without the rarest.

    The learner's own search ends at a threshold that gives too many or too few, and it
    halves counts, most of which are small, where this halves their logarithm.
    """
    # Every word that comes as often as the threshold is a piece.
    low = word_counts[min(vocabulary_size, len(word_counts)) - 1][1]
    high = word_counts[0][1] + 1
    best: list[str] = []
    while low <= high and not vocabulary_size <= len(best) <= (1 + _SLACK) * vocabulary_size:
        threshold = math.isqrt(low * high)
        pieces = _learned_at(threshold, word_counts, reserved, max_characters)
        if len(pieces) >= vocabulary_size:
            best = pieces
            low = threshold + 1
        else:
            best = max(best, pieces, key=len)
            high = threshold - 1
    # Characters stay, at the beginning of a word and within.
    fixed = {p for p in best if p in reserved or len(p.removeprefix(SUFFIX_INDICATOR)) == 1}
    if len(fixed) > vocabulary_size:
        raise ValueError(
            f"`vocabulary_size` must be at least {len(fixed)}, because every character of the "
            f"text is a piece, at the beginning of a word and within. Received: {vocabulary_size}"
        )
    others = [piece for piece in best if piece not in fixed]
    left_out = set(others[vocabulary_size - len(fixed) :])
    return [piece for piece in best if piece not in left_out]


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
