"""Learns the pieces of WordPiece from counted words."""

import math

import numpy as np

from txl_tf.data.tokenizers.word_piece_tokenizer import SUFFIX_INDICATOR, WordPieceTokenizer
from txl_tf.data.tokenizers.word_rule import LINE_MARK
from txl_tf.data.tokenizers.word_vocabulary_builder import WordVocabularyBuilder

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

    Returns:
        The tokenizer.

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
    """The pieces for the lowest threshold that gives no more than are wanted.

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
