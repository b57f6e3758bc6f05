"""Tokens of the joined texts of examples, and their targets."""

import dataclasses

import numpy as np
import pytest

from tests.tasks.small_examples import BYTES, example, task_of
from txl_tf.data.tokenizers.character_tokenizer import CharacterTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.tasks.encoding import encode_examples, fingerprint_of


def encoded(kind, *examples, tokenizer=BYTES, **settings):
    return encode_examples(task_of(kind, **settings), tokenizer, examples)


def text_of(found, number=0):
    begin, end = found.offsets[number : number + 2]
    return bytes(found.token_ids[begin:end].tolist()).decode()


def test_the_texts_of_an_example_are_joined_and_ended_by_the_separator():
    result = encoded(
        "classification", example("one", "two", label="yes"), example("three", label="no")
    )
    assert [text_of(result, 0), text_of(result, 1)] == ["one\ntwo\n", "three\n"]
    assert result.targets.tolist() == [1, 0]
    assert result.num_tokens.tolist() == [8, 6]
    assert result.padded_length(5) == 10
    result = encoded("regression", example("a", label=2.5), separator=" | ")
    assert text_of(result) == "a | "
    assert (result.targets.dtype, result.targets.tolist()) == (np.float32, [2.5])


def test_texts_of_a_word_vocabulary_need_a_token_between_them():
    words = ["<eos>", "<unk>", "who", "it's", "so."]
    tokenizer = WordTokenizer(words, WordRule(add_eos=True), unknown_token="<unk>")
    pair = example("who", "it's so.", label="no")
    result = encoded("classification", pair, tokenizer=tokenizer)
    assert result.token_ids.tolist() == [2, 0, 3, 4, 0]
    # Without a token for the end of a line, a model could not tell two texts apart.
    tokenizer = WordTokenizer(words, WordRule(), unknown_token="<unk>")
    with pytest.raises(MismatchError, match="separator"):
        encoded("classification", pair, tokenizer=tokenizer)


def test_a_text_is_read_from_its_beginning_up_to_the_limit():
    result = encoded("classification", example("abcdef", label="no"), max_tokens=4)
    assert text_of(result) == "abcd"


def test_files_without_labels_have_no_targets():
    assert encoded("classification", example("a")).targets is None


@pytest.mark.parametrize(
    ("examples", "settings", "error", "message"),
    [
        ([example("a", label="maybe")], {}, MismatchError, "file, line 1"),
        ([example("a", label="no"), example("b", number=1)], {}, DataDamagedError, "line 2"),
        ([example("a", "b", label="no")], {"separator": ""}, MismatchError, "separator"),
        ([example("", label="no")], {"separator": ""}, DataDamagedError, "no token"),
    ],
)
def test_examples_that_cannot_be_encoded_are_refused(examples, settings, error, message):
    with pytest.raises(error) as failure:
        encoded("classification", *examples, **settings)
    assert message in str(failure.value)


def test_a_character_that_is_not_known_names_its_example():
    tokenizer = CharacterTokenizer(list("ab\n"))
    with pytest.raises(DataDamagedError, match="U\\+0063") as error:
        encoded("classification", example("abc", label="no"), tokenizer=tokenizer)
    assert error.value.where == "file, line 1"


def test_the_fingerprint_is_of_tokens_places_and_targets():
    base = encoded("classification", example("ab", label="no"), example("c", label="yes"))
    others = (
        encoded("classification", example("ab", label="yes"), example("c", label="yes")),
        encoded("classification", example("ab", label="no"), example("d", label="yes")),
        encoded("classification", example("ab\nc", label="no"), example("", label="yes")),
        dataclasses.replace(base, targets=None),
    )
    prints = {each.fingerprint for each in (base, *others)}
    assert len(prints) == 5
    assert fingerprint_of([base, others[0]]) != fingerprint_of([others[0], base])
