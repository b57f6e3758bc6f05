"""What every tokenizer has in common, and the texts and files that each of them refuses."""

import functools
from collections import Counter

import hypothesis
import hypothesis.strategies as st
import pytest

from tests.data.tokenizers.hostile_texts import encode_in_pieces, hostile_texts
from tests.data.tokenizers.official_words import official_lines
from tests.data.tokenizers.spelled_word_piece import spelled_word_piece
from tests.data.tokenizers.trained_sentence_piece import trained_sentence_piece
from txl_tf.data.tokenizers import load_tokenizer
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.id_tokenizer import IdTokenizer
from txl_tf.data.tokenizers.piece_tokenizers import (
    SUFFIX_INDICATOR,
    SentencePieceTokenizer,
    WordPieceTokenizer,
)
from txl_tf.data.tokenizers.tokenizer import InvalidTextError
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.data.vocabulary_training import CharacterTraining, WordTraining
from txl_tf.errors import DataDamagedError

MAKERS = {
    "bytes": ByteTokenizer,
    "characters": lambda: CharacterTokenizer(list("ab \n")),
    "ids": lambda: IdTokenizer(4, ["a", "b"]),
    "words": lambda: WordTokenizer(["a", "b"], WordRule(), unknown_token="a"),
    "wordpiece": lambda: WordPieceTokenizer(["a", "b"], WordRule(), unknown_token="a"),
    "sentencepiece": lambda: trained_sentence_piece("bpe"),
}


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


@hypothesis.given(st.lists(st.text(st.sampled_from("a1 \n\u2028"), max_size=3), max_size=20))
def test_ids_are_read_as_they_were_written_whatever_their_labels_are(labels):
    tokenizer, ids = IdTokenizer(20, labels), list(range(20))
    assert tokenizer.encode(tokenizer.decode(ids)).tolist() == ids
    assert tokenizer.encode(" ".join(map(str, ids))).tolist() == ids
    for index, (label, text) in enumerate(zip(labels, tokenizer.token_texts(), strict=False)):
        assert text.decode() in ("_".join(label.split()), str(index))


@pytest.mark.parametrize("kind", MAKERS)
def test_a_byte_order_mark_is_dropped(kind):
    tokenizer = MAKERS[kind]()
    expected = tokenizer.encode("a b").tolist()
    assert tokenizer.encode("\ufeffa b").tolist() == expected
    assert tokenizer.encode(b"\xef\xbb\xbfa b").tolist() == expected


@pytest.mark.parametrize("kind", MAKERS)
def test_ids_outside_of_the_vocabulary_are_refused(kind):
    tokenizer = MAKERS[kind]()
    for ids in ([tokenizer.vocabulary_size], [-1], [0.5]):
        with pytest.raises(ValueError, match="Received: "):
            tokenizer.decode_bytes(ids)


@pytest.mark.parametrize("kind", list(MAKERS)[1:])
def test_a_missing_or_empty_vocabulary_file_is_damage(kind):
    files = MAKERS[kind]().vocabulary_files
    for name in files:
        for rest in ({**files, name: b""}, {each: files[each] for each in files if each != name}):
            with pytest.raises(DataDamagedError, match="not valid for the tokenizer"):
                load_tokenizer(kind, rest)


def test_an_unknown_kind_or_surplus_vocabulary_file_is_refused():
    with pytest.raises(DataDamagedError, match="Received: 'moses'"):
        load_tokenizer("moses", {}, where="here")
    with pytest.raises(DataDamagedError, match="must be no vocabulary file"):
        load_tokenizer("bytes", {"vocabulary.txt": b""})


GOOD = "A line.\nna\u00efve caf\u00e9 \u65e5\u672c\n\n"
REFUSED = {
    "invalid UTF-8": GOOD.encode() + b"a\xc3(",
    "cut character": GOOD.encode() + "\u65e5".encode()[:2],
    "UTF-16": GOOD.encode("utf-16"),
    "Latin-1": GOOD[:17].encode("latin-1"),
    "lone surrogate": GOOD.encode() + b"\xed\xa0\x80",
}
FINGERPRINTS = {
    "bytes": "4faef591ec8b2c8e28e42b17b1803e84f3155b3dcaf7f80dc72537c01e1f662b",
    "characters": "3bcb92f027e887e71a18cf3eb6793aae28777a00b25f2ab286f6640d450688ad",
    "words": "8af7ba02ce481e74b245c361bca11bd94994c1ee83ff107a4115d6f4c86dc535",
    "wordpiece": "a87b58996b5d0eda62ce0c95be3f5650067c4e38dce292396ba412251f9ac95a",
}
LINES = WordRule(add_eos=True)
PIECES = ["<unk>", "<eos>", "un", "aff", "able"]
PIECES += [*(SUFFIX_INDICATOR + piece for piece in ("aff", "able")), "#", SUFFIX_INDICATOR + "#"]


def test_a_fingerprint_never_changes_and_covers_vocabulary_and_options():
    tokenizers = {
        "bytes": ByteTokenizer(),
        "characters": CharacterTokenizer(list("ab\n")),
        "words": WordTokenizer(["<eos>", "a", "b"], LINES),
        "wordpiece": WordPieceTokenizer(PIECES, LINES, unknown_token="<unk>"),
    }
    fingerprints = {kind: tokenizer.fingerprint for kind, tokenizer in tokenizers.items()}
    assert fingerprints == FINGERPRINTS
    others = [
        CharacterTokenizer(list("ba\n")),
        CharacterTokenizer(list("ab\n"), unknown_token="a"),
        WordTokenizer(["<eos>", "a", "b"], WordRule()),
        WordTokenizer(["<eos>", "a", "b"], WordRule(lower_case=True)),
        WordTokenizer(["<eos>", "b", "a"], LINES),
        WordTokenizer(["<eos>", "a", "b"], LINES, unknown_token="b"),
    ]
    assert len({*fingerprints.values(), *(each.fingerprint for each in others)}) == 10


def words(vocabulary):
    return WordTokenizer(vocabulary, WordRule())


def word_piece(pieces):
    return WordPieceTokenizer(pieces, WordRule(), unknown_token="?")


@pytest.mark.parametrize(
    ("create", "vocabulary", "message"),
    [
        *((CharacterTokenizer, each, "`characters` must") for each in ([], ["a", "bc"], ["a", ""])),
        (CharacterTokenizer, ["a", "b", "a"], "`characters` must"),
        (word_piece, ["a"], "must have the `unknown_token`"),
        (word_piece, ["?", "a", "a"], "must be different"),
        (word_piece, ["?", "a b"], "without white space"),
        (word_piece, ["?", SUFFIX_INDICATOR], "without white space"),
        (words, [], "at least one"),
        (
            words,
            ["a", "b\u2028"],
            "without white space",
        ),
        (words, ["a", ""], "without white space"),
        (words, ["a", "b", "a"], "must be different"),
        (SentencePieceTokenizer, b"model", "must be a SentencePiece model"),
    ],
)
def test_vocabularies_that_are_not_valid_are_refused(create, vocabulary, message):
    with pytest.raises(ValueError, match=message):
        create(vocabulary)


@pytest.mark.parametrize("kind", ["characters", "bpe", "unigram"])
def test_every_text_survives_the_round_trip(kind):
    texts = hostile_texts(300)
    if kind == "characters":
        tokenizer = CharacterTraining().build(Counter(b"".join(texts).decode()))
    else:
        tokenizer = trained_sentence_piece(kind)
    for text in [*texts, b""]:
        assert tokenizer.decode_bytes(tokenizer.encode(text)) == text


@pytest.mark.parametrize("marks", [{}, {"add_eos": True}, {"add_double_eos": True}], ids=str)
@pytest.mark.parametrize("kind", ["words", "wordpiece"])
def test_words_decode_to_the_text_with_plain_white_space(kind, marks):
    text = b"\n".join(hostile_texts(300)).translate(None, b"\0<>")
    if kind == "words":
        rule = WordRule(**marks, lower_case=True)
        tokenizer = WordTraining(rule=rule).build(Counter(rule.split(text)))
    else:
        tokenizer = spelled_word_piece(text, **marks)
    lines = [" ".join(line) for line in official_lines(text, lower_case=kind == "words")]
    expected = "".join(line + "\n" for line in lines) if marks else " ".join(filter(None, lines))
    assert tokenizer.decode_bytes(tokenizer.encode(text)) == expected.encode()


@functools.cache
def made(kind):
    """A tokenizer whose vocabulary covers `GOOD` and the word `a`."""
    if kind == "characters":
        return CharacterTraining().build(Counter(GOOD))
    if kind == "words":
        rule = WordRule(add_eos=True)
        return WordTraining(rule=rule).build(Counter(rule.split(f"{GOOD}a".encode())))
    if kind == "ids":
        return IdTokenizer(9999, [word.decode() for word in made("words").tokens])
    return MAKERS[kind]()


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("kind", list(MAKERS)[1:])
def test_invalid_utf8_is_refused_with_line_and_byte(kind, name):
    text = REFUSED[name]
    with pytest.raises(UnicodeDecodeError) as expected:
        text.decode()
    with pytest.raises(InvalidTextError, match="not UTF-8") as error:
        made(kind).encode(text)
    assert error.value.offset_bytes == expected.value.start
    assert error.value.line == text[: expected.value.start].count(b"\n") + 1


@pytest.mark.parametrize("kind", MAKERS)
def test_pieces_are_encoded_as_the_whole_and_place_their_errors(kind):
    tokenizer = made(kind)
    text = GOOD.encode() * 3
    pieces = [text[:8], b"", *text[8:].splitlines(keepends=True)]
    assert encode_in_pieces(tokenizer, pieces).tolist() == tokenizer.encode(text).tolist()
    if kind != "bytes":
        with pytest.raises(DataDamagedError, match=f"document 1, line 11, byte {len(text) + 3}"):
            encode_in_pieces(tokenizer, [*pieces, b"a\r", b"\n\xff"])
