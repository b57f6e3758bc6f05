"""Bad text of every kind: refused with its place, or kept as documented."""

import functools

import numpy as np
import pytest

from tests.data.tokenizers.official_words import official_lines
from tests.data.tokenizers.trained_sentence_piece import trained_sentence_piece
from txl_tf.data.text import split_at_lines
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer, CharacterVocabularyBuilder
from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordVocabularyBuilder

GOOD = "A line.\nna\u00efve caf\u00e9 \u65e5\u672c\n\n"
REFUSED = {
    "invalid UTF-8": GOOD.encode() + b"a\xc3(",
    "cut character": GOOD.encode() + "\u65e5".encode()[:2],
    "over-long form": GOOD.encode() + b"\xc0\xaf\n",
    "UTF-16": GOOD.encode("utf-16"),
    "UTF-32": GOOD.encode("utf-32"),
    "Latin-1": GOOD[:17].encode("latin-1"),
    "binary": np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8).tobytes(),
    "lone surrogate": GOOD.encode() + b"\xed\xa0\x80",
}
KEPT = {
    "NUL": GOOD + "a\0b \0\n",
    "U+FEFF": GOOD + "\ufeff",
    "CR LF": GOOD.replace("\n", "\r\n"),
    "CR": GOOD.replace("\n", "\r"),
    "other line ends": GOOD + "a\x0bb\x0cc\x85d\u2028e\u2029f",
    "NFD": GOOD + "nai\u0308ve cafe\u0301",
    "long word": GOOD + "x" * 200_000 + "\n" + "\u65e5" * 100_000,
}


@functools.cache
def make(kind):
    everything = "".join(KEPT.values()).encode()
    if kind == "characters":
        characters = CharacterVocabularyBuilder()
        characters.count(everything)
        return characters.build()
    if kind == "words":
        words = WordVocabularyBuilder(WordRule(add_eos=True))
        for text in KEPT.values():
            words.number(text.encode())
        return words.build()
    return ByteTokenizer() if kind == "bytes" else trained_sentence_piece("bpe")


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", ["characters", "words", "sentencepiece"])
def test_what_is_not_utf8_is_refused_with_line_and_byte(kind, name):
    text = REFUSED[name]
    with pytest.raises(UnicodeDecodeError) as expected:
        text.decode()
    with pytest.raises(InvalidTextError, match="not UTF-8") as caught:
        make(kind).encode(text)
    assert caught.value.offset_bytes == expected.value.start
    assert caught.value.line == text[: expected.value.start].count(b"\n") + 1


@pytest.mark.parametrize("name", [*REFUSED, *KEPT])
def test_the_byte_tokenizer_takes_everything(name):
    text = REFUSED[name] if name in REFUSED else KEPT[name].encode()
    assert make("bytes").decode_bytes(make("bytes").encode(text)) == text


@pytest.mark.parametrize("name", KEPT)
def test_unusual_characters_are_kept(name):
    text = KEPT[name].encode()
    for kind in ("characters", "sentencepiece"):
        assert make(kind).decode_bytes(make(kind).encode(text)) == text
    lines = [" ".join(line) + "\n" for line in official_lines(text)]
    assert make("words").decode_bytes(make("words").encode(text)) == "".join(lines).encode()


def test_a_word_longer_than_a_piece_of_text_is_cut_between_characters():
    text = ("\u65e5" * 700_000).encode()
    builder = WordVocabularyBuilder(WordRule())
    numbers = [each for part in builder.number_pieces(split_at_lines([text])) for each in part]
    parts = [builder.words[number] for number in numbers]
    assert len(parts) == 3
    assert b"".join(parts) == text
    assert all(part.decode() for part in parts)
