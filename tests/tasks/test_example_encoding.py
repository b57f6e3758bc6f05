"""Examples as tokens: texts joined, words and answers at their places."""

import dataclasses

import numpy as np
import pytest

from txl_tf.config.experiment import TaskConfig
from txl_tf.data.tokenizers.character_tokenizer import ByteTokenizer, CharacterTokenizer
from txl_tf.data.tokenizers.word_tokenizer import WordRule, WordTokenizer
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.tasks.encoding import ExampleEncoder, fingerprint_of
from txl_tf.tasks.examples import Answer, Example

BYTES = ByteTokenizer()


def task_of(kind, **settings):
    labels = ("no", "yes") if kind == "classification" else None
    return TaskConfig(**{"kind": kind, "labels": labels, "metric": "accuracy", **settings})


def example(*texts, number=0, **values):
    return Example(name=str(number), where=f"file, line {number + 1}", texts=texts, **values)


def encoded(kind, *examples, tokenizer=BYTES, **settings):
    return ExampleEncoder(task_of(kind, **settings), tokenizer).encode(examples)


def text_of(found, number=0):
    begin, end = found.offsets[number : number + 2]
    return bytes(found.token_ids[begin:end].tolist()).decode()


def test_the_texts_of_an_example_are_joined_and_ended_by_the_separator():
    result = encoded(
        "classification", example("one", "two", label="yes"), example("three", label="no")
    )
    assert [text_of(result, 0), text_of(result, 1)] == ["one\ntwo\n", "three\n"]
    assert result.targets.tolist() == [1, 0]
    assert result.num_tokens.tolist() == [[8], [6]]
    assert result.padded_length(5) == 10
    result = encoded("regression", example("a", label=2.5), separator=" | ")
    assert text_of(result) == "a | "
    assert (result.targets.dtype, result.targets.tolist()) == (np.float32, [2.5])


def test_choices_follow_the_text_each_in_a_text_of_its_own():
    choices = [("cat", "dog"), ("x", "y", "z")]
    examples = [example("which", choices=each, label=1) for each in choices]
    result = encoded("choice", *examples)
    assert [text_of(result, number) for number in range(6)] == [
        "which\ncat\n",
        "which\ndog\n",
        "",
        "which\nx\n",
        "which\ny\n",
        "which\nz\n",
    ]
    assert (result.num_choices, result.targets.tolist()) == (3, [1, 1])
    # An empty text before the choices is no text.
    assert text_of(encoded("choice", example("", choices=("cat", "dog"), label=0))) == "cat\n"


PASSAGE = 'It was "King John", they said;  in 1199.'


@pytest.mark.parametrize("answer", ["It", "King John", "1199", "they said", "said;  in 1199"])
def test_the_span_of_an_answer_covers_its_words(answer):
    answers = (Answer(text=answer, start=PASSAGE.index(answer)),)
    result = encoded("span", example("Who?", PASSAGE, answers=answers))
    assert text_of(result) == f"Who?\n{PASSAGE}\n"
    first, last = result.targets[0]
    assert text_of(result)[first : last + 1].strip() == answer
    places = result.words[0]
    word = places.first_tokens.tolist().index(first), places.last_tokens.tolist().index(last)
    assert PASSAGE[places.starts[word[0]] : places.stops[word[1]]] == answer


def test_no_answer_and_one_beyond_the_limit_are_the_last_token():
    answers = (Answer(text="1199", start=PASSAGE.index("1199")),)
    cases = (
        (example("Who?", PASSAGE, is_answerable=False), {}),
        (example("Who?", PASSAGE, answers=answers), {"max_tokens": 30}),
    )
    for each, settings in cases:
        result = encoded("span", each, **settings)
        last = len(result.token_ids) - 1
        assert result.targets.tolist() == [[last, last]]


def test_words_of_a_word_vocabulary_lie_between_white_space():
    words = ["<eos>", "<unk>", "who", "it's", "so."]
    rule = WordRule(add_eos=True)
    tokenizer = WordTokenizer(words, rule, unknown_token="<unk>")
    answers = (Answer(text="it's", start=0),)
    result = encoded("span", example("who", "it's so.", answers=answers), tokenizer=tokenizer)
    assert result.token_ids.tolist() == [2, 0, 3, 4, 0]
    assert result.targets.tolist() == [[2, 2]]
    # Without a token for the end of a line, two texts could not be told apart.
    tokenizer = WordTokenizer(words, WordRule(), unknown_token="<unk>")
    with pytest.raises(MismatchError, match="separator"):
        encoded("span", example("who", "so.", answers=answers), tokenizer=tokenizer)


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
