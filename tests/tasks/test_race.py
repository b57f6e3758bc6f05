"""Articles of RACE, and each way in which one can be damaged."""

import json

import pytest

from tests.tasks.task_files import ARTICLE, refusal, write_race
from txl_tf.tasks.published import level_of, read_race


def test_every_question_becomes_an_example_with_four_choices(tmp_path):
    data = read_race(str(write_race(tmp_path)))
    assert (data.name, data.kind, data.labels) == ("race", "choice", ())
    assert {split: len(examples) for split, examples in data.splits.items()} == {
        "train": 12,
        "valid": 12,
        "test": 12,
    }
    first, second, third = data.splits["train"][:3]
    assert first.texts == (ARTICLE["article"],)
    assert first.choices[0] == "Tom's bicycle is red ."
    assert second.choices[1] == "Where does Tom ride? To school."
    assert third.choices[2] == r"\1 has a \1 ."
    assert [each.label for each in (first, second, third)] == [0, 1, 3]
    assert first.name == "middle/0-0"
    assert first.where == f"{tmp_path}/train/middle/0.txt, question 1"
    assert [level_of(each) for each in data.splits["valid"][5:7]] == ["middle", "high"]


def test_the_test_may_be_missing_and_nothing_else(tmp_path):
    (write_race(tmp_path) / "test").rename(tmp_path / "other")
    assert set(read_race(str(tmp_path)).splits) == {"train", "valid"}
    (tmp_path / "dev" / "middle").rename(tmp_path / "gone")
    refusal(read_race, str(tmp_path), code=66, where="dev/middle", says="no articles")


@pytest.mark.parametrize(
    "change, place, says",
    [
        ({"article": ""}, "0.txt", "'article' is empty"),
        ({"article": None}, "0.txt", "'article' is missing"),
        ({"questions": "one"}, "0.txt", "as many questions as"),
        ({"questions": []}, "0.txt", "as many questions as"),
        ({"answers": ["A"]}, "0.txt", "as many questions as"),
        ({"questions": [" ", "q", "q"]}, "0.txt, question 1", "'question' is empty"),
        ({"answers": ["A", "E", "A"]}, "0.txt, question 2", "A, B, C or D. Received: 'E'"),
        ({"answers": ["A", "", "A"]}, "0.txt, question 2", "A, B, C or D. Received: ''"),
        ({"answers": ["A", "A", 0]}, "0.txt, question 3", "A, B, C or D. Received: 0"),
        ({"options": [["a"] * 4, ["a"] * 3, ["a"] * 4]}, "0.txt, question 2", "four options"),
        ({"options": [["a"] * 4, "abcd", ["a"] * 4]}, "0.txt, question 2", "four options"),
    ],
)
def test_each_fault_is_refused_with_file_and_question(tmp_path, change, place, says):
    path = write_race(tmp_path) / "dev" / "high" / "0.txt"
    path.write_text(json.dumps(ARTICLE | change))
    refusal(read_race, str(tmp_path), code=65, where=f"dev/high/{place}", says=says)


def test_a_file_that_is_no_json_is_refused(tmp_path):
    (write_race(tmp_path) / "train" / "high" / "1.txt").write_text("{")
    refusal(read_race, str(tmp_path), code=65, where="train/high/1.txt", says="not JSON")
