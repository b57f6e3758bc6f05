"""Unicode character tokenizer and the builder of its vocabulary."""

import collections
import json
import random

import numpy as np
import pytest

from tests.data.tokenizers.hostile_texts import CHARACTERS, hostile_texts, random_pieces
from txl_tf.data.tokenizers import load_tokenizer
from txl_tf.data.tokenizers.character_tokenizer import (
    ByteTokenizer,
    CharacterTokenizer,
    CharacterVocabularyBuilder,
)
from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.errors import DataDamagedError


def trained(text, **options):
    builder = CharacterVocabularyBuilder()
    builder.count(text)
    return builder.build(**options)


def test_every_text_survives_the_round_trip():
    texts = hostile_texts(2000)
    tokenizer = trained(b"".join(texts))
    for text in texts:
        ids = tokenizer.encode(text)
        assert len(ids) == len(text.decode())
        assert tokenizer.decode_bytes(ids) == text
    assert tokenizer.decode_bytes([]) == b""


def test_unknown_characters_have_a_token_or_are_an_error_with_a_place():
    text = "ab\n\u00e9\u65e5b".encode()
    with pytest.raises(InvalidTextError, match=r"U\+65E5 is not in the vocabulary") as caught:
        CharacterTokenizer(list("ab\n\u00e9")).encode(text)
    assert (caught.value.line, caught.value.offset_bytes) == (2, 5)
    named = CharacterTokenizer(list("ab\n"), unknown_token="<unk>")
    assert named.encode(text).tolist() == [0, 1, 2, 3, 3, 1]
    assert named.decode_bytes(named.encode(text)) == b"ab\n<unk><unk>b"
    assert (named.vocabulary_size, named.token_dtype) == (4, np.uint8)
    shared = CharacterTokenizer(list("ab\n"), unknown_token="b")
    assert shared.encode(text).tolist() == [0, 1, 2, 1, 1, 1]


def test_text_that_is_not_utf8_is_refused_with_its_place():
    with pytest.raises(InvalidTextError, match="byte 0xe9") as caught:
        CharacterTokenizer(list("a\n")).encode(b"a\n\naa\xe9a")
    assert (caught.value.line, caught.value.offset_bytes) == (3, 5)


def test_pieces_are_encoded_as_the_whole_and_place_their_errors():
    text = "first\nsecond \u65e5\n third".encode()
    tokenizer = trained(text)
    parts = list(tokenizer.encode_pieces([text[:4], text[4:12], b"", text[12:]]))
    assert np.concatenate(parts).tolist() == tokenizer.encode(text).tolist()
    with pytest.raises(InvalidTextError) as caught:
        list(tokenizer.encode_pieces([text, b"\nx"]))
    assert (caught.value.line, caught.value.offset_bytes) == (4, len(text) + 1)


def test_the_files_are_the_tokenizer_whatever_the_characters():
    tokenizer = trained(b"".join(hostile_texts(300)), unknown_token="\ufffd")
    files = tokenizer.vocabulary_files
    again = CharacterTokenizer.from_vocabulary_files(files)
    assert again.characters == tokenizer.characters
    assert again.fingerprint == tokenizer.fingerprint
    assert b"U+000A\n" in files["vocabulary.txt"]
    assert b"U+1F600\n" in files["vocabulary.txt"]


def test_the_fingerprint_never_changes_and_covers_the_options():
    tokenizer = CharacterTokenizer(list("ab\n"))
    assert tokenizer.fingerprint == (
        "3bcb92f027e887e71a18cf3eb6793aae28777a00b25f2ab286f6640d450688ad"
    )
    others = CharacterTokenizer(list("ba\n")), CharacterTokenizer(list("ab\n"), unknown_token="a")
    assert len({each.fingerprint for each in (tokenizer, *others)}) == 3


@pytest.mark.parametrize("characters", [[], ["a", "bc"], ["a", ""], ["a", "b", "a"]])
def test_vocabularies_that_are_none_are_refused(characters):
    with pytest.raises(ValueError, match="`characters` must be"):
        CharacterTokenizer(characters)


@pytest.mark.parametrize(
    "unknown_token", [True, 0, 1, -1, 2**40, 0.5, 1e308, [], [[1]], {}, "\ud800"], ids=repr
)
def test_an_unknown_token_that_is_no_text_is_refused(unknown_token):
    """A file says so; decoding would fail much later, in the middle of a training."""
    files = {
        "vocabulary.txt": b"U+0061\n",
        "vocabulary.json": json.dumps({"unknown_token": unknown_token}).encode(),
    }
    with pytest.raises(DataDamagedError, match="somewhere"):
        load_tokenizer("characters", files, where="somewhere")
    with pytest.raises(ValueError, match=r"Received|surrogates"):
        CharacterTokenizer(list("ab"), unknown_token=unknown_token)


@pytest.mark.parametrize("ids", [[3], [-1], [0.5]])
def test_ids_outside_of_the_vocabulary_are_refused(ids):
    with pytest.raises(ValueError, match="Received: "):
        CharacterTokenizer(list("ab\n")).decode_bytes(ids)


def text_with_ties(seed):
    characters = list(CHARACTERS * 3)
    random.Random(seed).shuffle(characters)
    return "".join(characters).encode()


@pytest.mark.parametrize("options", [{}, {"min_frequency": 4}, {"vocabulary_size": 9}], ids=str)
def test_the_order_is_the_official_one_ties_included(options):
    for text in [text_with_ties(0), text_with_ties(1), b"\n".join(hostile_texts(100))]:
        builder = CharacterVocabularyBuilder()
        builder.count(text)
        counted = collections.Counter(text.decode()).most_common(options.get("vocabulary_size"))
        kept = [each for each, count in counted if count >= options.get("min_frequency", 0)]
        if kept:
            assert builder.build(**options).characters == kept
        else:
            with pytest.raises(ValueError, match="at least one"):
                builder.build(**options)


def test_the_unknown_character_is_one_of_the_ids():
    builder = CharacterVocabularyBuilder()
    builder.count(b"aaabb?")
    for unknown_token, characters in (("?", ["a", "?"]), ("<unk>", ["a"]), (None, ["a", "b"])):
        tokenizer = builder.build(vocabulary_size=2, unknown_token=unknown_token)
        assert (tokenizer.vocabulary_size, tokenizer.characters) == (2, characters)


def test_parts_merged_in_order_give_the_vocabulary_of_one_pass():
    chosen = random.Random(0)
    for seed in range(8):
        text = text_with_ties(seed)
        whole, merged = CharacterVocabularyBuilder(), CharacterVocabularyBuilder()
        whole.count(text)
        for piece in random_pieces(text, chosen):
            part = CharacterVocabularyBuilder()
            part.count(piece)
            merged.merge(part.characters, part.counts)
        assert merged.characters == whole.characters
        assert merged.counts.tolist() == whole.counts.tolist()


def test_every_byte_survives_the_round_trip():
    text = bytes(range(256)) * 3 + "h\u00e9 \u20ac".encode()
    ids = ByteTokenizer().encode(text)
    assert ids.dtype == np.uint8
    assert ids.tolist() == list(text)
    assert ByteTokenizer().decode_bytes(ids) == text
    assert ByteTokenizer().decode_bytes(ids.astype(np.int64).tolist()) == text
    assert ByteTokenizer().decode_bytes([]) == b""
    assert ByteTokenizer().decode([*"aé".encode(), 0xC3, 98]) == "aé\ufffdb"


def test_pieces_are_encoded_one_by_one():
    parts = ByteTokenizer().encode_pieces([b"ab", b"", b"\xff"])
    assert [part.tolist() for part in parts] == [[97, 98], [], [255]]


def test_the_fingerprint_never_changes():
    assert ByteTokenizer().fingerprint == (
        "4faef591ec8b2c8e28e42b17b1803e84f3155b3dcaf7f80dc72537c01e1f662b"
    )


@pytest.mark.parametrize("ids", [[256], [-1], [1.5]])
def test_ids_that_are_no_bytes_are_refused(ids):
    with pytest.raises(ValueError, match="Received: "):
        ByteTokenizer().decode_bytes(ids)
