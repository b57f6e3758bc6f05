"""Tokenizer of words: their order, unknown ones, lines and the marks of WikiText."""

import random
from collections import Counter

import pytest

from tests.data.tokenizers.hostile_texts import hostile_texts
from tests.data.tokenizers.official_words import official_vocabulary
from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.data.tokenizers.word_tokenizer import LINE_MARK, WordRule, WordTokenizer
from txl_tf.data.vocabulary_training import WordTraining

TEXT = b"\n".join(hostile_texts(500)) + "\nthe cat \u201csat\u201d\n\n on the mat".encode()


def trained(rule, text=TEXT, **options):
    return WordTraining(rule=rule, **options).build(Counter(rule.split(text)))


def tiny(**options):
    return WordTokenizer(["<eos>", "a", "b"], WordRule(add_eos=True), **options)


def test_ids_that_begin_within_a_line_decode_to_lines():
    rule = WordRule(add_double_eos=True)
    tokenizer = WordTokenizer(["<S>", "a", "b"], rule)
    assert tokenizer.encode(b"a b\n\nb").tolist() == [0, 1, 2, 0, 0, 0, 0, 2, 0]
    assert tokenizer.decode_bytes([0, 1, 2, 0, 0, 0, 0, 2, 0]) == b"a b\n\nb\n"
    assert tokenizer.decode_bytes([1, 2, 0, 0, 2]) == b"a b\nb"


def test_unknown_words_have_a_token_or_are_an_error_with_a_place():
    with pytest.raises(InvalidTextError, match="'\u00e9x' is not in the vocabulary") as error:
        tiny().encode("a b\r\n b\u00a0\u00e9x a".encode())
    assert (error.value.line, error.value.offset_bytes) == (2, 9)
    tokenizer = tiny(unknown_token="b")
    assert tokenizer.encode("a \u00e9x b <eos>\n".encode()).tolist() == [1, 2, 2, 0, 0]
    assert tokenizer.fingerprint != tiny().fingerprint


def random_text(seed, num_words=5000):
    """Words with many ties: few counts, many words, lines of all lengths."""
    generator = random.Random(seed)
    words = [f"w{generator.randrange(1500)}" for _ in range(num_words)]
    return " ".join(word + generator.choice(["", "", "\n", "\n\n"]) for word in words).encode()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_freq": 3},
        {"vocabulary_size": 40},
        {"vocabulary_size": 40, "min_freq": 6, "special": ("<eos>", "<unk>")},
        {"special": ("w7", "<eos>", "w3")},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_is_the_official_one_ties_included(options, seed):
    text = random_text(seed)
    official = official_vocabulary(text, **{"special": ("<eos>",), **options})
    tokenizer = trained(
        WordRule(add_eos=True),
        text,
        special_tokens=options.get("special", ()),
        min_frequency=options.get("min_freq", 0),
        vocabulary_size=options.get("vocabulary_size"),
        unknown_token="<unk>" if "<unk>" in official else None,
    )
    assert [word.decode() for word in tokenizer.tokens] == official
    # The text really has ties for this to be about.
    assert max(Counter(Counter(text.split()).values()).values()) > 50


def test_lines_are_not_counted_as_words():
    def words(**options):
        return trained(WordRule(add_eos=True), b"a <eos>\n\n\nb a\n", **options).tokens

    assert words() == [b"<eos>", b"a", b"b"]
    assert words(special_tokens=("<x>",)) == [b"<eos>", b"<x>", b"a", b"b"]
    assert words(special_tokens=("<x>", "<eos>")) == [b"<x>", b"<eos>", b"a", b"b"]


def test_the_unknown_token_keeps_its_place_or_is_last():
    def words(token, size=None):
        text = b"a a <unk> b"
        return trained(WordRule(), text, unknown_token=token, vocabulary_size=size).tokens

    assert words("<unk>") == [b"a", b"<unk>", b"b"]
    assert words("?") == [b"a", b"<unk>", b"b", b"?"]
    assert words("<unk>", 2) == [b"a", b"<unk>"]
    assert words("?", 2) == [b"a", b"?"]
    with pytest.raises(ValueError, match="`vocabulary_size` must be more than 1"):
        words("?", 1)
    with pytest.raises(ValueError, match="at least one"):
        trained(WordRule(), b"")


MARKED = "the well @-@ known 1 @,@ 000 @.@ 5 m @-@ long , @-@\n@.@ end @-@ @-@ x"
JOINED = "the well-known 1,000.5 m-long , @-@\n@.@ end-@-@ x"


def of_wikitext(text=MARKED, joins_marks=True, **options):
    tokenizer = trained(WordRule(add_eos=True), text.encode(), **options)
    tokenizer.joins_marks = joins_marks
    return tokenizer


def test_text_for_people_is_joined_at_marks():
    tokenizer = of_wikitext()
    token_ids = tokenizer.encode(MARKED)
    assert tokenizer.decode_text(token_ids) == JOINED + "\n"
    assert tokenizer.decode_bytes(token_ids).decode() == MARKED + "\n"
    # By default text is written as it is read.
    output = of_wikitext(joins_marks=False).decode_text(token_ids)
    assert output == MARKED + "\n"
    assert tokenizer.encode(output).tolist() == token_ids.tolist()


def test_a_vocabulary_has_all_marks_or_none():
    assert of_wikitext().has_marks
    for vocabulary in ("a @-@ b @,@ c", "a @-@b @,@ @.@ c"):
        assert not of_wikitext(vocabulary).has_marks


def test_text_that_was_printed_before_stays():
    tokenizer = of_wikitext()
    before, after = tokenizer.encode_piece(b"well @-@", True, False), tokenizer.encode(b"known")
    assert tokenizer.decode_after(before, after) == " known\n"
    assert tokenizer.decode_after(before[:1], [*before[1:], *after]) == "-known\n"


@pytest.mark.parametrize(
    ("text", "num_certain"), [("a b", 3), ("a @-@", 1), ("a @", 1), ("a ", 1), ("@-@", 3)]
)
def test_text_that_may_become_a_mark_is_not_certain(text, num_certain):
    assert of_wikitext().num_certain(text) == num_certain
    assert tiny().num_certain(text) == len(text)


def test_white_space_equals_pythons_for_every_character():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    text = "a".join(characters)
    assert WordRule().split(text.encode()) == [word.encode() for word in text.split()]


def test_a_word_can_never_be_the_mark():
    literal = WordRule(add_eos=True).split("\u00ff <eos>\n".encode())
    assert literal == ["\u00ff".encode(), b"<eos>", LINE_MARK]
