import itertools
import random

import pytest

from tests.data.tokenizers.hostile_texts import hostile_texts
from tests.data.tokenizers.official_words import official_lines
from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.data.tokenizers.word_tokenizer import LINE_MARK, WordRule

OPTIONS = [
    {"lower_case": lower_case, **marks}
    for lower_case in (False, True)
    for marks in ({}, {"add_eos": True}, {"add_double_eos": True})
]


def official_words(text, **options):
    """All symbols of a text, the tokens of lines as marks."""
    marked_places = {"add_eos": (-1,), "add_double_eos": (0, -1)}
    places = next((marked_places[name] for name in marked_places if options.get(name)), ())
    for symbols in official_lines(text, **options):
        words = [symbol.encode() for symbol in symbols]
        for place in places:
            words[place] = LINE_MARK
        yield from words


def test_white_space_is_that_of_python_for_every_character():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    text = "a".join(characters)
    assert WordRule().split(text.encode()) == [word.encode() for word in text.split()]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_hostile_text_is_split_as_officially(options):
    for text in hostile_texts(2000):
        assert WordRule(**options).split(text) == list(official_words(text, **options)), text


def test_ordinary_text_is_split_as_officially():
    chosen = random.Random(1)
    words = ["the", "The", "caf\u00e9", "=", "@-@", "\u201cno\u201d", "<unk>", "\n", "\n", "\n\n"]
    text = " ".join(chosen.choices(words, k=20_000)).encode()
    for options in OPTIONS:
        assert WordRule(**options).split(text) == list(official_words(text, **options))


def test_a_line_can_come_in_parts():
    rule = WordRule(add_double_eos=True)
    assert rule.split(b"a b", True, False) == [LINE_MARK, b"a", b"b"]
    assert rule.split(b" c", False, False) == [b"c"]
    assert rule.split(b" d\ne", False, True) == [b"d", LINE_MARK, LINE_MARK, b"e", LINE_MARK]
    assert rule.split(b"", False, True) == [LINE_MARK]
    assert rule.split(b"", True, True) == []


def test_a_word_can_never_be_the_mark():
    literal = WordRule(add_eos=True).split("\u00ff <eos>\n".encode())
    assert literal == ["\u00ff".encode(), b"<eos>", LINE_MARK]


@pytest.mark.parametrize("damage", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf"])
def test_text_that_is_not_utf8_is_refused_with_its_place(damage):
    before = "first\nsecond \u00e9 ".encode()
    for options in OPTIONS:
        with pytest.raises(InvalidTextError, match="not UTF-8") as caught:
            WordRule(**options).split(before + damage + b"\nthird")
        assert (caught.value.line, caught.value.offset_bytes) == (2, len(before))


def test_a_line_has_one_kind_of_token():
    with pytest.raises(ValueError, match="Received: add_eos=True"):
        WordRule(add_eos=True, add_double_eos=True)
    assert [WordRule(**options).marks_lines for options in OPTIONS] == list(
        itertools.islice(itertools.cycle([False, True, True]), len(OPTIONS))
    )
