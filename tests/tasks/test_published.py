"""Files of GLUE, RACE and SQuAD as published, and each way in which one can be damaged."""

import json

import pytest

from tests.tasks.task_files import (
    ARTICLE,
    GLUE_FILES,
    PASSAGE,
    refusal,
    squad_document,
    write_glue,
    write_json,
    write_race,
)
from txl_tf.tasks.published import level_of, read_glue, read_race, read_squad

PAIR = ("accuracy", "f1")
# Metrics, first example of train, and the first text of the test.
TASKS = {
    "cola": (
        ("matthews",),
        ("The sailors rode the breeze.",),
        "1",
        "Bill whistled past the house.",
    ),
    "sst2": (("accuracy",), ("a fine film ",), "1", "uneasy mishmash"),
    "mrpc": (PAIR, ('Amrozi accused "the witness".', 'He called him "the witness.'), "1", "One."),
    "stsb": (("pearson", "spearman"), ("A plane.", "An air plane."), 5.0, "A girl."),
    "qqp": (PAIR, ("How do I sleep?", "How can I sleep?"), "1", "Who?"),
    "mnli": (("accuracy",), ("It rains.", "It is wet."), "neutral", "On."),
}


@pytest.mark.parametrize("task", TASKS)
def test_each_form_of_glue_is_read_as_published(tmp_path, task):
    data = read_glue(str(write_glue(tmp_path / task, task)), task)
    metrics, texts, label, of_test = TASKS[task]
    assert (data.name, data.metrics) == (f"glue/{task}", metrics)
    assert data.kind == ("regression" if task == "stsb" else "classification")
    first = data.splits["train"][0]
    assert (first.name, first.texts, first.label) == ("0", texts, label)
    assert len(data.splits["train"]) == 2
    assert data.splits["valid"][0].label is not None
    test = data.splits["test"][0]
    assert (test.texts[0], test.label) == (of_test, None)
    assert test.name == ("9" if task == "mnli" else "0")
    extra = {"valid_mismatched", "test_mismatched"} if task == "mnli" else set()
    assert set(data.splits) == {"train", "valid", "test"} | extra


def test_broken_records_of_qqp_are_left_out_and_empty_questions_kept(tmp_path):
    data = read_glue(str(write_glue(tmp_path, "qqp")), "QQP")
    last = data.splits["train"][1]
    assert (last.name, last.texts) == ("1", ("Where?", ""))
    assert last.where.endswith("line 5")
    header = GLUE_FILES["qqp"]["train"].partition("\n")[0]
    (tmp_path / "train.tsv").write_text(header + "\n" + "5\t6\n" * 17)
    arguments = (read_glue, str(tmp_path), "qqp")
    refusal(*arguments, code=65, where="train.tsv, line 18", says="must have 6 fields, not 2")
    (tmp_path / "train.tsv").write_text(header + "\n1\t2\t3\t\t \t0\n")
    refusal(*arguments, code=65, where="train.tsv, line 2", says="All texts")


def test_files_of_the_test_of_glue_may_be_missing(tmp_path):
    folder = write_glue(tmp_path, "stsb")
    (folder / "test.tsv").unlink()
    assert set(read_glue(str(folder), "STS-B").splits) == {"train", "valid"}
    (folder / "dev.tsv").unlink()
    refusal(read_glue, str(folder), "STS-B", code=66, where="dev.tsv", says="no such text file")


@pytest.mark.parametrize(
    "task, file, old, new, code, place, says",
    [
        ("sst2", "train", "\t1\n", "\t2\n", 78, "line 2", "The 2 classes are: '0', '1'"),
        ("stsb", "train", "5.000", "five", 65, "line 2", "must be a finite number"),
        ("cola", "test", "\n1\t", "\n0\t", 65, "line 3", "'0' is used twice"),
    ],
)
def test_each_fault_of_glue_is_refused_with_its_line(
    tmp_path, task, file, old, new, code, place, says
):
    folder = write_glue(tmp_path, task)
    path = folder / f"{file}.tsv"
    text = GLUE_FILES[task][file]
    assert old in text
    path.write_text(text.replace(old, new, 1))
    refusal(read_glue, str(folder), task, code=code, where=f"{path}, {place}", says=says)


def test_an_unknown_task_is_named_with_the_known_ones(tmp_path):
    error = refusal(read_glue, str(tmp_path), "SST2x", code=2, where="SST2x", says="mean sst2?")
    assert "wnli" in error.remedy


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


def test_the_test_of_race_may_be_missing_and_nothing_else(tmp_path):
    (write_race(tmp_path) / "test").rename(tmp_path / "other")
    assert set(read_race(str(tmp_path)).splits) == {"train", "valid"}
    (tmp_path / "dev" / "middle").rename(tmp_path / "gone")
    refusal(read_race, str(tmp_path), code=66, where="dev/middle", says="no articles")


@pytest.mark.parametrize(
    "change, place, says",
    [
        ({"article": ""}, "0.txt", "'article' is empty"),
        ({"answers": ["A"]}, "0.txt", "must be lists of one length"),
        ({"questions": [" ", "q", "q"]}, "0.txt, question 1", "'question' is empty"),
        ({"answers": ["A", "E", "A"]}, "0.txt, question 2", "A, B, C or D. Received: 'E'"),
        ({"options": [["a"] * 4, ["a"] * 3, ["a"] * 4]}, "0.txt, question 2", "must be four texts"),
    ],
)
def test_each_fault_of_race_is_refused_with_file_and_question(tmp_path, change, place, says):
    path = write_race(tmp_path) / "dev" / "high" / "0.txt"
    path.write_text(json.dumps(ARTICLE | change))
    refusal(read_race, str(tmp_path), code=65, where=f"dev/high/{place}", says=says)


@pytest.mark.parametrize("version, num_questions", [("1.1", 2), ("v2.0", 3)])
def test_both_versions_of_squad_are_read(tmp_path, version, num_questions):
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


def test_other_splits_of_squad_may_lack_answers(tmp_path):
    document = squad_document("1.1")
    del document["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    path = write_json(tmp_path / "dev.json", document)
    first = read_squad({"test": path}).splits["test"][0]
    assert (first.answers, first.is_answerable) == ((), True)
    place = f"{path}, question 56ddde6b"
    refusal(read_squad, {"valid": path}, code=65, where=place, says="is_impossible=False")


QUESTION = "dev.json, question 56ddde6b"


@pytest.mark.parametrize(
    "change, where, says",
    [
        ({"answers": [{"text": "Rollo", "answer_start": 18}]}, QUESTION, "at character 18"),
        ({"answers": {}}, QUESTION, "must have a list of `answers`"),
        ({"is_impossible": "no"}, QUESTION, "is_impossible='no'"),
        ({"is_impossible": True}, QUESTION, "is_impossible=True"),
        ({"id": None}, "data[0].paragraphs[0].qas[0]", "'id' is missing"),
        ({"id": "56ddde6c"}, "question 56ddde6c", "is used twice"),
    ],
)
def test_each_fault_of_squad_is_refused_with_file_and_question(tmp_path, change, where, says):
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
        ({"data": [{"paragraphs": [{"context": "c"}]}]}, "data[0].paragraphs[0]", "'qas' must"),
    ],
)
def test_squad_of_another_form_is_refused(tmp_path, document, where, says):
    path = write_json(tmp_path / "dev.json", document)
    refusal(read_squad, {"valid": path}, code=65, where=where, says=says)
