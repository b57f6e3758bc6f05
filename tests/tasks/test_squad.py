"""Files of SQuAD 1.1 and 2.0, and their figures against a slow implementation."""

import random
import string

import pytest

from tests.tasks.task_files import PASSAGE, refusal, squad_document, write_json
from txl_tf.tasks.examples import Answer, Example
from txl_tf.tasks.metrics import normalized_answer, span_scores
from txl_tf.tasks.published import read_squad


@pytest.mark.parametrize("version, num_questions", [("1.1", 2), ("v2.0", 3)])
def test_both_versions_are_read(tmp_path, version, num_questions):
    path = write_json(tmp_path / "dev.json", squad_document(version))
    data = read_squad({"train": path, "valid": path})
    assert (data.name, data.kind) == ("squad", "span")
    examples = data.splits["valid"]
    assert len(examples) == num_questions
    assert examples[0].texts == ("Who ruled first?", PASSAGE)
    assert (examples[0].name, examples[0].where) == ("56ddde6b", f"{path}, question 56ddde6b")
    assert [answer.start for answer in examples[0].answers] == [19, 49]
    assert all(PASSAGE[a.start :].startswith(a.text) for each in examples for a in each.answers)
    assert [each.is_answerable for each in examples] == [True, True, False][:num_questions]


def test_other_splits_may_lack_answers(tmp_path):
    document = squad_document("1.1")
    del document["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    path = write_json(tmp_path / "dev.json", document)
    first = read_squad({"test": path}).splits["test"][0]
    assert (first.answers, first.is_answerable) == ((), True)
    place = f"{path}, question 56ddde6b"
    refusal(read_squad, {"valid": path}, code=65, where=place, says="has no answer")


QUESTION = "dev.json, question 56ddde6b"


@pytest.mark.parametrize(
    "change, where, says",
    [
        (
            {"answers": [{"text": "Rollo", "answer_start": 18}]},
            QUESTION,
            "at character 18: 'Rollo'",
        ),
        ({"answers": [{"text": "Rollo", "answer_start": -50}]}, QUESTION, "at character -50"),
        ({"answers": [{"text": "Rollo", "answer_start": "19"}]}, QUESTION, "`answer_start`"),
        ({"answers": {}}, QUESTION, "'answers' must be a list"),
        ({"is_impossible": "no"}, QUESTION, "'is_impossible' must be true or false"),
        ({"is_impossible": True}, QUESTION, "impossible, and has answers"),
        ({"question": " "}, QUESTION, "'question' is empty"),
        ({"id": None}, "data[0].paragraphs[0].qas[0]", "'id' is missing"),
        ({"id": "56ddde6c"}, "question 56ddde6c", "stands in"),
    ],
)
def test_each_fault_is_refused_with_file_and_question(tmp_path, change, where, says):
    document = squad_document()
    document["data"][0]["paragraphs"][0]["qas"][0] |= change
    path = write_json(tmp_path / "dev.json", document)
    error = refusal(read_squad, {"valid": path}, code=65, where=where, says=says)
    assert error.where.startswith(path)


@pytest.mark.parametrize(
    "document, where, says",
    [
        ({}, "dev.json", "'data' must be a list of objects"),
        ({"data": []}, "dev.json", "no question"),
        ({"data": [{"paragraphs": 3}]}, "dev.json, data[0]", "'paragraphs' must be"),
        ({"data": [{"paragraphs": [{}]}]}, "data[0].paragraphs[0]", "'context' is missing"),
        ({"data": [{"paragraphs": [{"context": "c"}]}]}, "data[0].paragraphs[0]", "'qas' must"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, document, where, says):
    path = write_json(tmp_path / "dev.json", document)
    refusal(read_squad, {"valid": path}, code=65, where=where, says=says)


def slow_words(text):
    """Words of an answer, letter by letter and without regular expressions."""
    letters = [letter for letter in text.lower() if letter not in string.punctuation]
    words, word = [], ""
    for letter in [*letters, " "]:
        if letter.isspace():
            words += [word] if word else []
            word = ""
        else:
            word += letter
    return [each for each in words if each not in ("a", "an", "the")]


def slow_scores(answers, text, has_version_2):
    """Exact match and F1 of one question, by removing words one after another."""
    accepted = [slow_words(answer) for answer in answers]
    if has_version_2:
        accepted = [each for each in accepted if each]
        accepted = accepted if accepted else [[]]
    given = slow_words(text)
    best_exact, best_f1 = 0, 0
    for right in accepted:
        best_exact = max(best_exact, int(right == given))
        left, same = list(right), 0
        for word in given:
            if word in left:
                left.remove(word)
                same += 1
        if has_version_2 and (not right or not given):
            f1 = int(right == given)
        else:
            f1 = 2 * same / (len(right) + len(given)) if same else 0
        best_f1 = max(best_f1, f1)
    return best_exact, best_f1


WORDS = ("the", "The", "a", "an", "cat", "Cat.", "dog", "dog's", "-", "42", "an-cat", "Émile")


def random_text(source, most=4):
    return " ".join(source.choice(WORDS) for _ in range(source.randrange(most)))


@pytest.mark.parametrize("has_version_2", [False, True])
def test_scores_are_those_of_a_slow_implementation(has_version_2):
    source = random.Random(7)
    for _ in range(60):
        examples, texts = [], []
        for number in range(source.randrange(1, 8)):
            is_answerable = not has_version_2 or (number > 0 and source.random() < 0.6)
            answers = tuple(
                Answer(text=random_text(source, 5), start=0)
                for _ in range(source.randrange(1, 4) if is_answerable else 0)
            )
            examples.append(
                Example(
                    name=str(number),
                    where="w",
                    texts=("q", "p"),
                    answers=answers,
                    is_answerable=is_answerable,
                )
            )
            texts.append(random_text(source))
        pairs = [
            slow_scores([answer.text for answer in example.answers], text, has_version_2)
            for example, text in zip(examples, texts, strict=True)
        ]
        parts = {"": pairs}
        if has_version_2:
            kept = list(zip(pairs, examples, strict=True))
            parts["_has_answer"] = [pair for pair, each in kept if each.is_answerable]
            parts["_no_answer"] = [pair for pair, each in kept if not each.is_answerable]
        expected = {}
        for part, found in parts.items():
            if found:
                expected[f"exact_match{part}"] = sum(pair[0] for pair in found) / len(found)
                expected[f"span_f1{part}"] = sum(pair[1] for pair in found) / len(found)
        expected.pop("span_f1_no_answer", None)
        assert span_scores(examples, texts) == pytest.approx(expected, abs=1e-12)


def test_known_scores():
    """Worked by hand: half of the words, articles, and the rules of empty texts."""
    assert normalized_answer("The  Cat's\thome, an hour") == "cats home hour"
    one = Example(name="1", where="w", texts=("q", "p"), answers=(Answer(text="big cat", start=0),))
    none = Example(name="2", where="w", texts=("q", "p"), is_answerable=False)
    assert span_scores([one], ["the cat"]) == {
        "exact_match": 0.0,
        "span_f1": pytest.approx(2 / 3),
    }
    assert span_scores([one, none], ["a big cat", ""])["span_f1"] == 1.0
    assert span_scores([one, none], ["", "cat"])["exact_match_no_answer"] == 0.0
