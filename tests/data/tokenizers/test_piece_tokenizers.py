"""Tokenizers of pieces: SentencePiece with the trainer of its models, and WordPiece."""

import re

import numpy as np
import pytest

from tests.data.tokenizers.trained_sentence_piece import LINES, TEXT, trained_sentence_piece
from txl_tf.data import vocabulary_training
from txl_tf.data.tokenizers.piece_tokenizers import SUFFIX_INDICATOR, WordPieceTokenizer
from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.data.tokenizers.word_tokenizer import WordRule
from txl_tf.data.vocabulary_training import SentencePieceTraining

MODEL_TYPES = ["bpe", "unigram"]


def trained(texts, vocabulary_size, model_type="bpe"):
    training = SentencePieceTraining(vocabulary_size=vocabulary_size, model_type=model_type)
    return training.train_on(texts)


def test_words_become_fewer_tokens_than_bytes():
    for model_type in MODEL_TYPES:
        tokenizer = trained_sentence_piece(model_type)
        assert len(tokenizer.encode(TEXT)) < len(TEXT) / 2
        assert (tokenizer.vocabulary_size, tokenizer.token_dtype) == (320, np.dtype("<u2"))


def test_text_that_would_not_come_back_is_refused_with_its_place():
    with pytest.raises(InvalidTextError, match=r"U\+10FFFE") as error:
        trained_sentence_piece("bpe").encode("one\ntwo\nthree \U0010fffe")
    assert (error.value.line, error.value.offset_bytes) == (3, 14)


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_bytes(model_type):
    again = trained([line + "\n" for line in LINES], 320, model_type)
    assert again.model == trained_sentence_piece(model_type).model


def test_a_sample_is_the_same_every_time(monkeypatch):
    whole = trained([TEXT.decode()], 300).model
    monkeypatch.setattr(vocabulary_training, "_MAX_LINES", 101)
    models = {trained([TEXT.decode()], 300).model for _ in "ab"}
    assert len(models) == 1
    assert models != {whole}


def test_long_lines_and_nul_are_learned_from():
    text = TEXT.replace(b"\n", b" \0") * 4
    assert max(map(len, text.split(b"\n"))) > 8192
    tokenizer = trained([text.decode()], 320)
    assert len(tokenizer.encode(TEXT)) < len(TEXT) / 2


def test_a_vocabulary_size_out_of_range_is_named():
    with pytest.raises(ValueError, match=r"at least \d+, for the unknown.*=100") as error:
        trained([TEXT.decode()], 100, "unigram")
    smallest = int(re.search(r"at least (\d+)", str(error.value))[1])
    assert trained([TEXT.decode()], smallest, "unigram").vocabulary_size == smallest
    assert smallest < trained([TEXT.decode()], 100_000, "unigram").vocabulary_size < 100_000


def tiny():
    pieces = ["<unk>", "<eos>", "un", "aff", "able"]
    pieces += [SUFFIX_INDICATOR + "aff", SUFFIX_INDICATOR + "able", "#", SUFFIX_INDICATOR + "#"]
    rule = WordRule(add_eos=True)
    return WordPieceTokenizer(pieces, rule, unknown_token="<unk>")


def test_words_are_their_longest_beginnings():
    assert tiny().encode(b"unaffable able\nunx ##able").tolist() == [2, 5, 6, 4, 1, 0, 7, 8, 6, 1]
    assert tiny().decode_bytes([2, 5, 6, 4, 1, 0, 7, 8, 6, 1]) == b"unaffable able\n<unk> ##able\n"
    assert tiny().decode_bytes([5, 6, 4]) == b"affable able"
    assert tiny().encode(b"").tolist() == []
