"""Pieces of text from tokens: characters of several tokens, and texts to stop before."""

import numpy as np
import pytest

from txl_tf.causal_lm.text_pieces import (
    TextPieces,
    first_stop,
    prompt_tokens,
    text_until,
    tokens_until,
)
from txl_tf.causal_lm.text_session import TextSession
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.byte_tokenizer import ByteTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer


class Recited:
    """A session that writes what it was given, and knows what it would remember."""

    def __init__(self, text, tokenizer=None):
        self._tokens = iter((tokenizer or ByteTokenizer()).encode(text.encode()))
        self.remembered = []

    def constants(self):
        return ()

    def read(self, prompt_ids):
        self.remembered += prompt_ids[0].tolist()

    def write(self, *, max_tokens, constants):
        assert (max_tokens, constants) == (1, ())
        self.remembered.append(int(next(self._tokens)))
        return np.array([self.remembered[-1:]], np.int32)

    def mark(self):
        return list(self.remembered)

    def rewind(self, mark, rows):
        self.remembered = mark + rows[0].tolist()


def written(text, num_tokens, stop_texts=(), prompt="say "):
    writer = TextSession(Recited(text), ByteTokenizer(), GenerationConfig(stop=stop_texts))
    return list(writer.stream(prompt, max_tokens=num_tokens))


@pytest.mark.parametrize(
    ("text", "stop_texts", "pieces"),
    [
        # A character comes with its last byte.
        ("aé€", [], ["a", "", "é", "", "", "€", ""]),
        # A possible beginning of a stop text is held back.
        ("a\nb\n\nc", ["\n\n"], ["a", "", "\nb", "", ""]),
        # A stop text in the prompt stops nothing.
        ("and so", ["say"], ["a", "n", "d", " ", "", "so", ""]),
    ],
)
def test_a_piece_is_written_as_soon_as_it_is_certain(text, stop_texts, pieces):
    assert written(text, 6, stop_texts) == pieces


def test_pieces_of_a_long_text_join_to_it_and_few_tokens_are_decoded_for_each(monkeypatch):
    text = "a€, é; " * 40
    count, decoded = len(text.encode()), []
    decode = ByteTokenizer.decode
    monkeypatch.setattr(
        ByteTokenizer, "decode", lambda self, ids: decoded.append(len(ids)) or decode(self, ids)
    )
    pieces = written(text, count)
    assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)
    assert max(decoded) <= 128 + 3  # twice the context, and the rest of a character
    assert "".join(written(text, count - 3, ["; x"])) == text[:-3] + "\ufffd"
    end = text.index(", é; a€, é", 200)
    assert "".join(written(text[:end] + "stop" + text, count, ["stop"])) == text[:end]


def test_the_stop_text_that_is_complete_first_ends_a_text_also_token_by_token():
    draw = np.random.default_rng(0)
    for _ in range(300):
        text = "".join(draw.choice(list("abc"), size=12))
        stops = ["".join(draw.choice(list("abc"), size=draw.integers(1, 5))) for _ in range(3)]
        ends = [(k, -len(s), k - len(s)) for k in range(13) for s in stops if text[:k].endswith(s)]
        assert first_stop(text, stops) == (min(ends)[2] if ends else None)
        assert "".join(written(text, 12, stops)) == text[: first_stop(text, stops)]


def test_memory_ends_where_the_text_ends():
    session = Recited("one two, three")
    writer = TextSession(session, ByteTokenizer(), GenerationConfig(stop=[", t", "ee"]))
    assert writer.write("say ", max_tokens=14) == "one two"
    assert bytes(session.remembered) == b"say one two"
    # A token with the end of the text and the beginning of the stop text is encoded again.
    words = WordTokenizer(["say", "one", "oneself", "elf", "two"], WordRule())
    for text, stop, kept in (("one oneself", "self", [1, 1]), ("one elf", "lf", [1])):
        pieces = TextPieces(words, words.encode("say"), [stop])
        for token_id in words.encode(text):
            pieces.add(token_id)
        assert pieces.is_over and pieces.kept_ids().tolist() == kept


def test_offsets_of_tokens_are_the_offsets_of_their_characters():
    for text, places in (
        ("a\u00e9\u20ac b", [0, 1, 1, 2, 2, 2, 3, 4]),
        (b"a\xc3b\xff\xffc".decode(errors="surrogateescape"), [0, 1, 2, 3, 4, 5]),
    ):
        content = text.encode(errors="surrogateescape")
        pieces, offsets = TextPieces(ByteTokenizer(), np.zeros(0, np.int32)), []
        for byte in content:
            pieces.add(byte)
            offsets.append(pieces.offset)
        assert offsets == places
    pieces, tokens = TextPieces(WORDS_IN_FULL, np.array([2])), []
    for token_id in [0, 3, 1]:
        tokens += pieces.token_texts([token_id])
        pieces.add(token_id)
    assert tokens == [" well", " @-@", " known"]


class Loud(ByteTokenizer):
    """A tokenizer whose token `!` changes the text before it."""

    def decode_bytes(self, token_ids):
        text = super().decode_bytes(token_ids)
        return text.upper() if text.endswith(b"!") else text


def test_a_token_that_changes_the_text_before_it_changes_no_text_of_another_token():
    assert TextPieces(Loud(), np.array([97])).token_texts([33, 98]) == ["!", "b"]


WORDS = WordTokenizer(["well", "known", "is", "@-@", "@,@", "@.@", "1", "2", "."], WordRule())
WORDS_IN_FULL = WordTokenizer([word.decode() for word in WORDS.tokens], WordRule())
WORDS.joins_marks = True


def test_words_are_joined_at_marks_as_they_come():
    text = "well @-@ known is 1 @.@ 2 . @-@"
    writer = TextSession(Recited(text, WORDS), WORDS)
    pieces = list(writer.stream("known", max_tokens=9))
    assert pieces == [" well", "", "-known", " is", " 1", "", ".2", " .", "", " @-@"]
    # The mark that a turn ended with was shown; what follows it does not take it back.
    writer = TextSession(Recited("well @-@ known", WORDS), WORDS)
    assert writer.write("is", max_tokens=2) == " well @-@"
    assert writer.write(max_tokens=1) == " known"


def test_stop_texts_match_the_joined_text():
    text = "is well @-@ known . 1"
    settings = GenerationConfig(stop="-known", max_tokens=6)
    assert TextSession(Recited(text, WORDS), WORDS, settings).write("known") == " is well"
    prompt_ids, row = WORDS.encode(b"known"), WORDS.encode(text.encode())
    assert text_until(WORDS, prompt_ids, row, ["-known"]) == " is well"
    assert tokens_until(WORDS, prompt_ids, row, ["-known"]).tolist() == row[:2].tolist()
    assert text_until(WORDS_IN_FULL, prompt_ids, row, []) == f" {text}"


def test_a_byte_order_mark_is_no_part_of_a_prompt():
    assert prompt_tokens(WORDS, "\ufeffwell known").tolist() == [0, 1]


def test_unknown_words_of_a_prompt_are_named(caplog):
    tokenizer = WordTokenizer(["a", "<unk>"], WordRule(), unknown_token="<unk>")
    assert prompt_tokens(tokenizer, "a b c b").tolist() == [0, 1, 1, 1]
    assert caplog.messages == ["3 of 4 tokens of the prompt are unknown to the model: b, c"]
