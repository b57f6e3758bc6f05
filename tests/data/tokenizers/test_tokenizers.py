import pytest
import tensorflow as tf

from tests.data.tokenizers.trained_sentence_piece import trained_sentence_piece
from txl_tf.data.tokenizers import TOKENIZERS, load_tokenizer
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer, CharacterTokenizer
from txl_tf.data.tokenizers.word_piece_tokenizer import WordPieceTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.errors import DataDamagedError

MAKERS = {
    "bytes": ByteTokenizer,
    "characters": lambda: CharacterTokenizer(list("ab ")),
    "words": lambda: WordTokenizer(["a", "b"], WordRule(), unknown_token="a"),
    "wordpiece": lambda: WordPieceTokenizer(["a", "b"], WordRule(), unknown_token="a"),
    "sentencepiece": lambda: trained_sentence_piece("bpe"),
}


def test_every_kind_is_known_once():
    assert [tokenizer.kind for tokenizer in TOKENIZERS] == list(MAKERS)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_tokenizer_is_built_from_its_files(kind):
    tokenizer = MAKERS[kind]()
    loaded = load_tokenizer(tokenizer.kind, tokenizer.vocabulary_files)
    assert type(loaded) is type(tokenizer)
    assert loaded.fingerprint == tokenizer.fingerprint
    assert loaded.vocabulary_size == tokenizer.vocabulary_size
    assert loaded.encode(b"a b").tolist() == tokenizer.encode(b"a b").tolist()


@pytest.mark.parametrize("kind", MAKERS)
def test_every_token_has_a_text_of_its_own(kind):
    tokenizer = MAKERS[kind]()
    texts = tokenizer.token_texts()
    assert len(set(texts)) == len(texts) == tokenizer.vocabulary_size
    if kind != "sentencepiece":  # whose pieces have a mark instead of a space
        ids = range(tokenizer.vocabulary_size)
        assert texts == [tokenizer.decode_bytes([token_id]) for token_id in ids]


def test_text_outside_of_the_vocabulary_has_the_unknown_id():
    unknown_token = CharacterTokenizer(list("ab"), unknown_token="<unk>")
    tokenizers = [MAKERS["words"](), MAKERS["wordpiece"](), unknown_token]
    assert [tokenizer.unknown_id for tokenizer in tokenizers] == [0, 0, 2]
    for tokenizer in tokenizers:
        assert tokenizer.encode("?").tolist() == [tokenizer.unknown_id]
    # The pieces of SentencePiece have one, although bytes stand for all text.
    assert MAKERS["sentencepiece"]().unknown_id == 0
    assert MAKERS["characters"]().unknown_id is MAKERS["bytes"]().unknown_id is None


@pytest.mark.parametrize("kind", MAKERS)
def test_a_byte_order_mark_is_dropped(kind):
    tokenizer = MAKERS[kind]()
    expected = tokenizer.encode("a b").tolist()
    assert tokenizer.encode("\ufeffa b").tolist() == expected
    assert tokenizer.encode(b"\xef\xbb\xbfa b").tolist() == expected
    graph_ids = tokenizer.graph_tokenizer().tokenize(tf.constant(["\ufeffa b"]))
    assert graph_ids.to_list() == [expected]


def damaged(files):
    """Every file of a vocabulary missing, empty, cut, or not its kind."""
    for name, content in files.items():
        yield {other: files[other] for other in files if other != name}
        for wrong in (b"", content[: len(content) // 2], b"[]", b"null", b"\xff\xfe", b"{}\n"):
            yield {**files, name: wrong}


@pytest.mark.parametrize("kind", list(MAKERS)[1:])
def test_damaged_files_never_give_the_same_tokenizer(kind):
    tokenizer = MAKERS[kind]()
    refused = 0
    for files in damaged(tokenizer.vocabulary_files):
        try:
            assert load_tokenizer(kind, files).fingerprint != tokenizer.fingerprint
        except DataDamagedError as error:
            assert str(error).startswith(f"The vocabulary is not one of {kind}: ")
            refused += 1
    assert refused >= 5


def test_what_is_not_known_is_refused():
    with pytest.raises(DataDamagedError, match="no tokenizer of the kind 'moses'"):
        load_tokenizer("moses", {}, where="here")
    with pytest.raises(DataDamagedError, match="Bytes have no vocabulary"):
        load_tokenizer("bytes", {"vocabulary.txt": b""})
