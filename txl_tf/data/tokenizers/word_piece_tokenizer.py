"""WordPiece tokenizer and the learner of its vocabulary."""

import functools
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from txl_tf.data.text import PIECE_BYTES
from txl_tf.data.tokenizers.word_tokenizer import LINE_MARK, RuleTokenizer, WordRule
from txl_tf.imports import tensorflow as tf
from txl_tf.imports import tensorflow_text

# The no-break space is white space, so no word contains it; a word can begin with the usual "##".
SUFFIX_INDICATOR = "\u00a0"


class WordPieceTokenizer(RuleTokenizer):
    """WordPiece tokenizer: splits each word by greedy longest match (Schuster and Nakajima 2012).

    It runs the tensorflow-text operation that exports contain (Song et al. 2021). Pieces that
    continue a word begin with `SUFFIX_INDICATOR`. `decode` restores text up to white space, but a
    word with NUL or an unknown character becomes `unknown_token`. Raises ValueError for duplicate
    pieces or a missing token.
    """

    kind = "wordpiece"
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
                "`pieces` must be different, not empty and without white space. "
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
        # Each distinct word is looked up once.
        numbers: dict[bytes, int] = defaultdict(itertools.count().__next__)
        places = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
        mark = (self.eos_token or "").encode()
        found = self.operation.tokenize([mark if each == LINE_MARK else each for each in numbers])
        return _gathered(found.values.numpy(), found.row_splits.numpy(), places).astype(
            self.token_dtype
        )

    def _decode(self, ids: np.ndarray) -> bytes:
        text = super()._decode(ids)
        # A remaining indicator is at the beginning of ids that start within a word.
        indicator = SUFFIX_INDICATOR.encode()
        return text.replace(b" " + indicator, b"").replace(indicator, b"")

    @functools.cached_property
    def operation(self) -> "tensorflow_text.FastWordpieceTokenizer":
        """The operation of tensorflow-text on words."""
        return tensorflow_text.FastWordpieceTokenizer(
            vocab=self.pieces,
            suffix_indicator=SUFFIX_INDICATOR,
            unknown_token=self.unknown_token,
            # No word is longer than a piece of text.
            max_bytes_per_word=PIECE_BYTES,
            no_pretokenization=True,
            token_out_type=tf.int32,
        )


def _gathered(values: np.ndarray, row_splits: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Concatenates the given rows of a ragged array."""
    lengths = np.diff(row_splits)[rows]
    ends = np.cumsum(lengths)
    shifts = row_splits[:-1][rows] - (ends - lengths)
    return values[np.arange(ends[-1]) + np.repeat(shifts, lengths)]


# Fraction of the learned pieces that may be cut off; each search step takes as long as the first.
_SLACK = 0.05
_MAX_WORDS = 20_000
_MAX_CHARACTERS = 1000


def train_word_pieces(
    counts: Counter[bytes],
    rule: WordRule,
    vocabulary_size: int,
    *,
    unknown_token: str = "<unk>",
) -> WordPieceTokenizer:
    """Learns a vocabulary from counts of `rule.split`, by the learner of tensorflow-text.

    Equal counts give equal pieces. Time grows with the number of distinct words, so only the
    most frequent 20,000 are used; pieces use the 1000 most frequent characters. A
    small text gives fewer than `vocabulary_size`, which includes special pieces. Raises ValueError
    without words, or if the size is too small.
    """
    eos_token = rule.default_eos_token
    # Pieces cannot contain NUL, see `WordPieceTokenizer`.
    word_counts = [
        (word.decode(), count)
        for word, count in counts.most_common()
        if word != LINE_MARK and b"\0" not in word
    ]
    if not word_counts:
        raise ValueError("`counts` must have words. Received: none")
    reserved = [unknown_token, *([] if eos_token is None else [eos_token])]
    pieces = _learned(word_counts[:_MAX_WORDS], vocabulary_size, reserved)
    return WordPieceTokenizer(pieces, rule, unknown_token=unknown_token, eos_token=eos_token)


def _learned(
    word_counts: list[tuple[str, int]],
    vocabulary_size: int,
    reserved: list[str],
) -> list[str]:
    """Returns the pieces for the highest threshold that gives enough, without the rarest.

    The learner's own search can end with too many or too few: it bisects counts, this search
    bisects their logarithm, because most counts are small.
    """
    # Every word that occurs at least as often as the threshold is a piece.
    low = word_counts[min(vocabulary_size, len(word_counts)) - 1][1]
    high = word_counts[0][1] + 1
    best: list[str] = []
    while low <= high and not vocabulary_size <= len(best) <= (1 + _SLACK) * vocabulary_size:
        threshold = math.isqrt(low * high)
        pieces = _learned_at(threshold, word_counts, reserved)
        if len(pieces) >= vocabulary_size:
            best = pieces
            low = threshold + 1
        else:
            best = max(best, pieces, key=len)
            high = threshold - 1
    # Single characters are kept, in both forms: at the beginning of a word and within.
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
    threshold: int, word_counts: list[tuple[str, int]], reserved: list[str]
) -> list[str]:
    from tensorflow_text.tools.wordpiece_vocab import wordpiece_tokenizer_learner_lib

    pieces = wordpiece_tokenizer_learner_lib.learn(
        word_counts,
        # Equal bounds make it learn once, for any size.
        vocab_size=len(word_counts),
        reserved_tokens=reserved,
        lower_thresh=threshold,
        upper_thresh=threshold,
        max_unique_chars=_MAX_CHARACTERS,
        joiner=SUFFIX_INDICATOR,
    )
    return [piece for piece in dict.fromkeys(pieces) if piece != SUFFIX_INDICATOR]
