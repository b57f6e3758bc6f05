"""Pieces of text from tokens: characters of several tokens, and texts to stop before."""

import numpy as np
import pytest

from txl_tf.causal_lm.causal_lm import TextSession, prompt_tokens, stop_tokens, text_until
from txl_tf.config.generation import GenerationConfig
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer, CharacterTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer


class Recited:
    """A session that writes what it was given."""

    def __init__(self, text, tokenizer=None):
        self._tokens = iter((tokenizer or ByteTokenizer()).encode(text.encode()))
        self.prompts = []

    def write(self, prompt_ids=None, *, max_tokens):
        assert max_tokens == 1
        self.prompts.append(None if prompt_ids is None else prompt_ids[0].tolist())
        return np.array([[next(self._tokens)]], np.int32)


def written(text, num_tokens, stop_texts=(), prompt="say "):
    writer = TextSession(Recited(text), ByteTokenizer(), GenerationConfig(stop=stop_texts))
    return list(writer.stream(prompt, max_tokens=num_tokens))


def test_a_character_comes_when_its_last_byte_does():
    assert written("aé€", 6) == ["a", "", "é", "", "", "€", ""]


def test_pieces_of_a_long_text_join_to_it_and_few_tokens_are_decoded_for_each(monkeypatch):
    text = "a€, é; " * 40
    count, decoded = len(text.encode()), []
    decode = ByteTokenizer.decode
    monkeypatch.setattr(
        ByteTokenizer, "decode", lambda self, ids: decoded.append(len(ids)) or decode(self, ids)
    )
    pieces = written(text, count)
    assert "".join(pieces) == text and not any("\ufffd" in piece for piece in pieces)
    assert max(decoded) <= 128 + 3  # twice the context, and what a character has beyond it
    assert "".join(written(text, count - 3, ["; x"])) == text[:-3] + "\ufffd"
    end = text.index(", é; a€, é", 200)
    assert "".join(written(text[:end] + "stop" + text, count, ["stop"])) == text[:end]


@pytest.mark.parametrize(
    ("stops", "expected"),
    [
        ([], "one two three"),
        (["two"], "one "),
        (["three", " t"], "one"),
        (["two threads"], "one two three"),
        (["one"], ""),
    ],
)
def test_writing_ends_before_the_first_stop_text(stops, expected):
    assert "".join(written("one two three", 13, stops)) == expected


def test_what_may_begin_a_stop_text_is_held_back():
    assert written("a\nb\n\nc", 6, ["\n\n"]) == ["a", "", "\nb", "", ""]


def test_a_stop_text_in_the_prompt_stops_nothing():
    assert "".join(written("and so on", 9, ["say"])) == "and so on"


def test_a_turn_without_prompt_goes_on():
    session = Recited("first second")
    writer = TextSession(session, ByteTokenizer())
    assert writer.write("go ", max_tokens=6) == "first "
    assert writer.write(max_tokens=6) == "second"
    assert session.prompts == [list(b"go "), *[None] * 11]


WORDS = WordTokenizer(["well", "known", "is", "@-@", "@,@", "@.@", "1", "2", "."], WordRule())
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


def test_stop_texts_are_those_of_the_joined_text():
    text = "is well @-@ known . 1"
    settings = GenerationConfig(stop="-known", max_tokens=6)
    assert TextSession(Recited(text, WORDS), WORDS, settings).write("known") == " is well"
    prompt_ids, row = WORDS.encode(b"known"), WORDS.encode(text.encode())
    assert text_until(WORDS, prompt_ids, row, ["-known"]) == " is well"
    raw = WordTokenizer([word.decode() for word in WORDS.tokens], WordRule())
    assert text_until(raw, prompt_ids, row, []) == f" {text}"


def test_a_stop_text_of_one_token_is_a_stop_token():
    assert stop_tokens(ByteTokenizer(), ["\n", "ab", "é"]) == [10]
    letters = CharacterTokenizer(["a", "b"])
    assert stop_tokens(letters, ["b", "ab", "z"]) == [letters.encode(b"b")[0]]


def test_a_byte_order_mark_is_no_part_of_a_prompt():
    assert prompt_tokens(WORDS, "\ufeffwell known").tolist() == [0, 1]


def test_unknown_words_of_a_prompt_are_named(caplog):
    tokenizer = WordTokenizer(["a", "<unk>"], WordRule(), unknown_token="<unk>")
    assert prompt_tokens(tokenizer, "a b c b").tolist() == [0, 1, 1, 1]
    assert caplog.messages == ["3 of 4 tokens of the prompt are unknown to the model: b, c"]
