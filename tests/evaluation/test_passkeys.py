"""Passkey documents: where the key lies, and that distances are compared on equal terms."""

import numpy as np
import pytest

from txl_tf.evaluation.passkeys import (
    KeyPattern,
    PasskeyDocuments,
    PasskeySentences,
    training_texts,
)

SENTENCES = PasskeySentences.parse("The key is KEY.", "Again, the key is KEY.")
FILLER = " The sea is wide, the sky is far."


def encode(text):
    return np.array([ord(character) for character in text])


def text_of(token_ids):
    return "".join(map(chr, token_ids))


def documents_of(filler=FILLER, keys=None, num_choices=4, seed=0):
    keys = KeyPattern("A0") if keys is None else keys
    common = {"num_choices": num_choices, "seed": seed}
    return PasskeyDocuments(encode, SENTENCES, keys, encode(filler), **common)


def test_a_pattern_has_every_key_once():
    keys = KeyPattern("A0-a")
    assert len(keys) == 26 * 10 * 26
    assert len(set(keys)) == len(keys)
    assert keys[0] == "A0-a" and keys[len(keys) - 1] == keys[-1] == "Z9-z"
    with pytest.raises(IndexError):
        keys[len(keys)]
    assert KeyPattern("A0")[257:259] == ["Z7", "Z8"]


@pytest.mark.parametrize("distance", [0, 1, 32, 640])
@pytest.mark.parametrize("number", [0, 3])
def test_the_key_lies_at_the_stated_distance(distance, number):
    document = documents_of().document(number, distance, 704)
    text, key = text_of(document.prompt), text_of(document.answers[0])
    assert len(text) == 704
    assert text.endswith(" Again, the key is")
    statement = f" The key is{key}."
    assert text.count(statement) == 1
    between = text[text.index(statement) + len(statement) : -len(" Again, the key is")]
    assert len(between) == distance
    # The answer begins right behind the prompt.
    assert len(text) - text.index(f"{key}.") == document.key_distance_tokens


def test_the_statement_stands_in_one_stream_of_filler():
    document = documents_of().document(0, 50, 400)
    statement = f" The key is{text_of(document.answers[0])}."
    before, after = text_of(document.prompt).removesuffix(" Again, the key is").split(statement)
    repeated = FILLER * 20
    assert repeated.endswith(before + after)


def test_a_long_filler_gives_each_document_another_part():
    filler = text_of(np.random.default_rng(0).integers(97, 123, 5000))
    texts = [text_of(documents_of(filler).document(number, 0, 200).prompt) for number in range(5)]
    leads = [text[:100] for text in texts]
    assert len(set(leads)) == 5
    assert all(lead in filler for lead in leads)


def test_number_and_seed_decide_the_keys_and_the_distance_does_not():
    documents = documents_of()
    answers = [text_of(each) for each in documents.document(7, 0, 300).answers]
    assert len(set(answers)) == 4
    again = documents_of().document(7, 64, 500)
    assert [text_of(each) for each in again.answers] == answers
    for other in (documents.document(8, 0, 300), documents_of(seed=1).document(7, 0, 300)):
        assert [text_of(each) for each in other.answers] != answers


def test_keys_may_differ_in_length():
    documents = documents_of(keys=["red", "orange", "blue"], num_choices=3)
    assert documents.longest_answer(2) == len(" orange")
    for number in range(4):
        document = documents.document(number, 10, documents.fixed_tokens(4) + 10)
        assert sorted(map(text_of, document.answers)) == [" blue", " orange", " red"]


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="`num_tokens` must be at least 133"):
        documents_of().document(0, 100, 132)
    assert len(documents_of().document(0, 100, 133).prompt) == 133
    with pytest.raises(ValueError, match="`filler`"):
        documents_of("")
    with pytest.raises(ValueError, match="`num_choices` must be from 1 to the 2 keys"):
        documents_of(keys=["a", "b"], num_choices=3)
    for sentence in ("The key.", "KEY is it.", "The KEY is KEY."):
        with pytest.raises(ValueError, match="`statement` must have KEY once"):
            PasskeySentences.parse(sentence, "It is KEY")
        with pytest.raises(ValueError, match="`question` must have KEY once"):
            PasskeySentences.parse("It is KEY", sentence)


def test_training_texts_have_the_distances_in_equal_parts():
    texts = list(training_texts(documents_of(num_choices=1), 300, [0, 2, 5], 16, seed=3))
    between, leads = [], []
    for prompt, answer in texts:
        text, key = text_of(prompt), text_of(answer)
        lead, _, rest = text.partition(f" The key is{key}.")
        between.append(len(rest) - len(" Again, the key is"))
        leads.append(len(lead))
        # The longest key drawn may be longer than this one.
        assert len(lead) + between[-1] < (2 + 5) * 16 + len(" A0")
    counts = {length: between.count(length) for length in set(between)}
    assert set(counts) == {0, 32, 80}
    assert min(counts.values()) > 70
    assert min(leads) < 8 and max(leads) > 90
    repeated = list(training_texts(documents_of(num_choices=1), 300, [0, 2, 5], 16, seed=3))
    np.testing.assert_equal(repeated, texts)
