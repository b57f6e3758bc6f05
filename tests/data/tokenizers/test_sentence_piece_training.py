import sys

import pytest

from tests.data.tokenizers.trained_sentence_piece import LINES, TEXT, trained_sentence_piece
from txl_tf.data.tokenizers.sentence_piece_training import train_sentence_piece
from txl_tf.errors import UsageError


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_the_same_text_gives_the_same_bytes(model_type):
    pieces = [line.encode() + b"\n" for line in LINES]
    again = train_sentence_piece(pieces, 320, model_type=model_type)
    assert again.model == trained_sentence_piece(model_type).model


def test_a_sample_is_the_same_every_time():
    models = {
        train_sentence_piece([TEXT], 300, model_type="bpe", max_lines=101).model for _ in "ab"
    }
    assert len(models) == 1
    assert models != {train_sentence_piece([TEXT], 300, model_type="bpe").model}


def test_long_lines_and_nul_are_learned_from():
    text = TEXT.replace(b"\n", b" \0") * 4
    assert max(map(len, text.split(b"\n"))) > 8192
    tokenizer = train_sentence_piece([text], 320, model_type="bpe")
    assert len(tokenizer.encode(TEXT)) < len(TEXT) / 2


def test_what_cannot_be_trained_says_so():
    with pytest.raises(ValueError, match="Received: vocabulary_size=100000"):
        train_sentence_piece([TEXT], 100_000, model_type="bpe")
    with pytest.raises(ValueError, match="Received: vocabulary_size=100"):
        train_sentence_piece([TEXT], 100)
    with pytest.raises(ValueError, match="`max_lines` must be more than 100"):
        train_sentence_piece([TEXT], 320, max_lines=20)
    with pytest.raises(ValueError, match="Received: 'words'"):
        train_sentence_piece([TEXT], 300, model_type="words")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UsageError, match="needs sentencepiece, which is not installed"):
        train_sentence_piece([TEXT], 300)
