"""Tokenizer of characters."""

import collections
import random

import numpy as np
import pytest

from tests.data.tokenizers.hostile_texts import CHARACTERS, hostile_texts
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.data.vocabulary_training import CharacterTraining


def trained(text, **options):
    return CharacterTraining(**options).build(collections.Counter(text.decode()))


def test_unknown_characters_have_a_token_or_are_an_error_with_a_place():
    text = "ab\n\u00e9\u65e5b".encode()
    with pytest.raises(InvalidTextError, match=r"U\+65E5 is not in the vocabulary") as error:
        CharacterTokenizer(list("ab\n\u00e9")).encode(text)
    assert (error.value.line, error.value.offset_bytes) == (2, 5)
    named = CharacterTokenizer(list("ab\n"), unknown_token="<unk>")
    assert named.encode(text).tolist() == [0, 1, 2, 3, 3, 1]
    assert named.decode_bytes(named.encode(text)) == b"ab\n<unk><unk>b"
    assert (named.vocabulary_size, named.token_dtype) == (4, np.uint8)
    shared = CharacterTokenizer(list("ab\n"), unknown_token="b")
    assert shared.encode(text).tolist() == [0, 1, 2, 1, 1, 1]


def text_with_ties(seed):
    characters = list(CHARACTERS * 3)
    random.Random(seed).shuffle(characters)
    return "".join(characters).encode()


@pytest.mark.parametrize("options", [{}, {"min_frequency": 4}, {"vocabulary_size": 9}], ids=str)
def test_the_order_is_the_official_one_ties_included(options):
    for text in [text_with_ties(0), text_with_ties(1), b"\n".join(hostile_texts(100))]:
        counted = collections.Counter(text.decode()).most_common(options.get("vocabulary_size"))
        characters = [each for each, count in counted if count >= options.get("min_frequency", 0)]
        if characters:
            assert trained(text, **options).characters == characters
        else:
            with pytest.raises(ValueError, match="one or more"):
                trained(text, **options)


def test_the_unknown_character_has_an_id():
    for unknown_token, characters in (("?", ["a", "?"]), ("<unk>", ["a"]), (None, ["a", "b"])):
        tokenizer = trained(b"aaabb?", vocabulary_size=2, unknown_token=unknown_token)
        assert (tokenizer.vocabulary_size, tokenizer.characters) == (2, characters)
