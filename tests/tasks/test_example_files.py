"""Own data of every kind, in every form, and each thing that is refused."""

import pytest

from tests.tasks.task_files import refusal, write_lines
from txl_tf.errors import MismatchError, UsageError
from txl_tf.tasks.examples import Answer, Columns, read_own_data

PAIR = Columns(text=("text",))
LABELLED = [{"text": "good", "label": "pos"}, {"text": "bad", "label": "neg"}]


def read_one(kind, columns, path, split="train", labels=None):
    return read_own_data({split: str(path)}, kind, columns, labels).splits[split]


@pytest.mark.parametrize(
    "name, content",
    [
        ("x.jsonl", '{"q": "a b", "p": "c", "y": "pos"}\n{"q": "d", "p": "e", "y": "neg"}\n'),
        ("x.json", '{"q": "a b", "p": "c", "y": "pos"}\n{"q": "d", "p": "e", "y": "neg"}\n'),
        ("x.tsv", "y\tq\tp\npos\ta b\tc\nneg\td\te\n"),
        ("x.csv", 'p,q,y\n"c",a b,pos\ne,d,neg\n'),
    ],
)
def test_every_form_gives_the_same_examples(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    data = read_own_data(
        {"train": str(path), "valid": str(path)},
        "classification",
        Columns(text=("q", "p"), label="y"),
    )
    assert (data.name, data.kind, data.labels) == ("own", "classification", ("neg", "pos"))
    assert data.metrics == ("accuracy", "f1_macro")
    found = [(each.name, each.texts, each.label) for each in data.splits["valid"]]
    assert found == [("0", ("a b", "c"), "pos"), ("1", ("d", "e"), "neg")]
    assert data.splits["train"][0].where.startswith(f"{path}, line ")


def test_given_classes_keep_their_order_and_may_be_more(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", *LABELLED)
    given = ("pos", "unseen", "neg")
    assert read_own_data({"train": path}, "classification", PAIR, given).labels == given


def test_integers_and_truth_values_of_json_are_names(tmp_path):
    records = [{"text": "a", "label": 3}, {"text": "b", "label": True}]
    path = write_lines(tmp_path / "x.jsonl", *records)
    assert read_own_data({"train": path}, "classification", PAIR).labels == ("3", "true")


def test_test_files_may_lack_labels(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", {"text": "a"}, {"text": "b", "label": "pos"})
    examples = read_one("classification", PAIR, path, "test", ("neg", "pos"))
    assert [each.label for each in examples] == [None, "pos"]
    none = Columns(label=None)
    assert read_one("regression", none, path, "predict")[1].label is None


def test_regression_reads_numbers(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("text\tlabel\na\t2.5\nb\t-1e2\n")
    assert [each.label for each in read_one("regression", PAIR, path)] == [2.5, -100.0]


@pytest.mark.parametrize("label", [1, "1", "B"])
def test_choices_are_columns_or_a_list_and_the_answer_a_number_or_a_letter(tmp_path, label):
    record = {"text": "q", "one": "x", "two": "y", "all": ["x", "y"], "label": label}
    path = write_lines(tmp_path / "x.jsonl", record)
    for columns in (("one", "two"), ("all",)):
        (example,) = read_one("choice", Columns(choices=columns), path)
        assert (example.choices, example.label) == (("x", "y"), 1)


def test_answers_are_found_in_the_passage(tmp_path):
    columns = Columns(text=("q", "p"), label="a")
    answers = [{"text": "b", "answer_start": 4}]
    records = [
        {"q": "?", "p": "a b b", "a": "b"},
        {"q": "?", "p": "a b b", "a": answers},
        {"q": "?", "p": "a b b", "a": ""},
        {"q": "?", "p": "a b b", "a": []},
    ]
    path = write_lines(tmp_path / "x.jsonl", *records)
    examples = read_one("span", columns, path)
    assert [each.answers for each in examples] == [
        (Answer(text="b", start=2),),
        (Answer(text="b", start=4),),
        (),
        (),
    ]
    assert [each.is_answerable for each in examples] == [True, True, False, False]
    unlabelled = write_lines(tmp_path / "y.jsonl", {"q": "?", "p": "a"})
    assert read_one("span", columns, unlabelled, "test")[0].is_answerable


def test_ids_name_the_examples(tmp_path):
    records = [each | {"id": name} for each, name in zip(LABELLED, ("x-1", 7), strict=True)]
    path = write_lines(tmp_path / "x.jsonl", *records)
    examples = read_one("classification", Columns(id="id"), path)
    assert [each.name for each in examples] == ["x-1", "7"]


@pytest.mark.parametrize(
    "kind, columns, record, code, says",
    [
        ("classification", Columns(text=("txt",)), {}, 78, "Did you mean text?"),
        ("classification", Columns(id="id"), {}, 78, "no column 'id'"),
        ("classification", PAIR, {"text": " "}, 65, "'text' is empty"),
        ("classification", PAIR, {"text": 5}, 65, "no string, but 5"),
        ("classification", PAIR, {"label": ""}, 65, "label in the field 'label' is missing"),
        ("classification", PAIR, {"label": 0.5}, 65, "must be a name"),
        ("regression", PAIR, {"label": "1e999"}, 65, "must be a finite number"),
        ("choice", Columns(choices=("c",)), {"c": ["x"], "label": 0}, 65, "two options"),
        ("choice", Columns(choices=("c",)), {"c": ["x", ""], "label": 0}, 65, "none empty"),
        ("choice", Columns(choices=("c",)), {"c": ["x", "y"], "label": 2}, 65, "0 to 1"),
        ("choice", Columns(choices=("c",)), {"c": ["x", "y"], "label": -1}, 65, "0 to 1"),
        ("span", Columns(text=("text", "p")), {"p": "a", "label": "b"}, 65, "not stand in the"),
        ("span", Columns(text=("text", "p")), {"p": "a", "label": [{}]}, 65, "`answer_start`"),
        (
            "span",
            Columns(text=("text", "p")),
            {"p": "ab", "label": [{"text": "b", "answer_start": 0}]},
            65,
            "at character 0: 'b'",
        ),
    ],
)
def test_each_fault_is_refused_with_its_line(tmp_path, kind, columns, record, code, says):
    path = write_lines(tmp_path / "x.jsonl", {"text": "t", "label": "pos"} | record)
    refusal(read_one, kind, columns, path, code=code, where=f"{path}, line 1", says=says)


def test_a_label_of_another_split_is_refused_with_its_line(tmp_path):
    train = write_lines(tmp_path / "train.jsonl", *LABELLED)
    valid = write_lines(tmp_path / "valid.jsonl", LABELLED[0], {"text": "t", "label": "ne"})
    paths = {"train": train, "valid": valid}
    error = refusal(
        read_own_data,
        paths,
        "classification",
        PAIR,
        code=78,
        where=f"{valid}, line 2",
        says="Did you mean neg?",
    )
    assert error.remedy == "The 2 classes are: 'neg', 'pos'"
    given = ("pos", "other")
    with pytest.raises(MismatchError, match="'neg' is no class"):
        read_own_data({"train": train}, "classification", PAIR, given)


def test_one_class_alone_is_refused(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", LABELLED[0])
    refusal(
        read_one,
        "classification",
        PAIR,
        path,
        code=78,
        where="x.jsonl",
        says="at least two classes",
    )


def test_an_id_that_stands_twice_is_refused_with_both_lines(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", *(each | {"id": "same"} for each in LABELLED))
    error = refusal(
        read_one,
        "classification",
        Columns(id="id"),
        path,
        code=65,
        where="x.jsonl, line 2",
        says="'same'",
    )
    assert f"{path}, line 1" in error.what


@pytest.mark.parametrize(
    "kind, columns, labels",
    [
        ("clasification", Columns(), None),
        ("classification", Columns(text=()), None),
        ("classification", Columns(choices=("c",)), None),
        ("classification", Columns(), ("one",)),
        ("classification", Columns(), ("one", "one")),
        ("classification", Columns(label=None), None),
        ("regression", Columns(), ("one", "two")),
        ("choice", Columns(), None),
        ("span", Columns(), None),
    ],
)
def test_columns_that_do_not_fit_the_kind_are_refused(tmp_path, kind, columns, labels):
    path = write_lines(tmp_path / "x.jsonl", *LABELLED)
    with pytest.raises(UsageError):
        read_own_data({"train": path}, kind, columns, labels)


def test_a_column_has_one_meaning():
    with pytest.raises(ValueError, match=r"one meaning\. Received: 'a' twice"):
        Columns(text=("a",), label="a")
