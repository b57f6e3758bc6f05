import numpy as np
import pytest

from tests.data.tokenizers.hostile_texts import hostile_texts
from tests.data.tokenizers.trained_sentence_piece import TEXT, trained_sentence_piece
from txl_tf.data.tokenizers.invalid_text_error import InvalidTextError
from txl_tf.data.tokenizers.sentence_piece_tokenizer import SentencePieceTokenizer

MODEL_TYPES = ["bpe", "unigram"]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_text_survives_the_round_trip(model_type):
    tokenizer = trained_sentence_piece(model_type)
    texts = [*hostile_texts(2000), TEXT]
    for text in texts[::10]:
        assert tokenizer.decode(tokenizer.encode(text)) == text, text
    # The rest all at once, because every call costs milliseconds.
    graph_tokenizer = tokenizer.graph_tokenizer()
    assert graph_tokenizer.detokenize(graph_tokenizer.tokenize(texts)).numpy().tolist() == texts
    assert tokenizer.decode([]) == b""
    assert tokenizer.encode(b"").size == 0


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_pieces_at_line_ends_are_encoded_as_the_whole(model_type):
    tokenizer = trained_sentence_piece(model_type)
    text = TEXT + b"\n\n" + b"\n".join(hostile_texts(100))
    parts = list(tokenizer.encode_pieces(line + b"\n" for line in text.split(b"\n")))
    assert np.concatenate(parts).tolist() == tokenizer.encode(text + b"\n").tolist()


def test_words_become_fewer_tokens_than_bytes():
    for model_type in MODEL_TYPES:
        tokenizer = trained_sentence_piece(model_type)
        assert len(tokenizer.encode(TEXT)) < len(TEXT) / 2
        assert (tokenizer.vocabulary_size, tokenizer.token_dtype) == (320, np.dtype("<u2"))


@pytest.mark.parametrize(
    ("damage", "reason"), [(b"\xff", "not UTF-8"), ("\U0010fffe".encode(), r"U\+10FFFE")]
)
def test_text_that_would_not_come_back_is_refused_with_its_place(damage, reason):
    tokenizer = trained_sentence_piece("bpe")
    with pytest.raises(InvalidTextError, match=reason) as caught:
        list(tokenizer.encode_pieces([b"one\n", b"two\nthree " + damage]))
    assert (caught.value.line, caught.value.offset_bytes) == (3, 14)


def test_the_files_are_the_tokenizer():
    tokenizer = trained_sentence_piece("unigram")
    again = SentencePieceTokenizer.from_vocabulary_files(tokenizer.vocabulary_files)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


def test_bytes_that_are_no_model_are_refused():
    with pytest.raises(ValueError, match="must be a SentencePiece model"):
        SentencePieceTokenizer(b"model")


@pytest.mark.parametrize("ids", [[320], [-1], [0.5]])
def test_ids_outside_of_the_vocabulary_are_refused(ids):
    with pytest.raises(ValueError, match="Received: "):
        trained_sentence_piece("bpe").decode(ids)
