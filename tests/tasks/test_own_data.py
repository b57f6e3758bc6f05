"""Examples and records from JSON Lines, CSV and TSV; errors name the line of a fault."""

import csv
import gzip
import json
import re

import pytest

from txl_tf.errors import JobError, UsageError
from txl_tf.tasks.own_data import Columns, read_own_data
from txl_tf.tasks.record_files import Record, read_records

TEXT = Columns(text=("text",))
LABELLED = [{"text": "good", "label": "pos"}, {"text": "bad", "label": "neg"}]


def write_lines(path, *records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


def refusal(function, *arguments, code, where, says):
    """Calls a function that must raise a JobError, and checks exit code, place and message."""
    with pytest.raises(JobError, match=re.escape(says)) as failure:
        function(*arguments)
    error = failure.value
    assert error.exit_code == code and error.where.endswith(where)
    assert len(str(error).splitlines()) <= 3
    return error


def read_one(kind, columns, path, split="train", labels=None):
    return read_own_data({split: str(path)}, kind, columns, labels).splits[split]


@pytest.mark.parametrize(
    "name, content",
    [
        ("x.jsonl", '{"q": "a b", "p": "c", "y": "pos"}\n{"q": "d", "p": "e", "y": "neg"}\n'),
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
    assert (data.kind, data.labels) == ("classification", ("neg", "pos"))
    assert data.metrics == ("accuracy", "f1_macro")
    examples = [(each.name, each.texts, each.label) for each in data.splits["valid"]]
    assert examples == [("0", ("a b", "c"), "pos"), ("1", ("d", "e"), "neg")]
    assert data.splits["train"][0].where.startswith(f"{path}, line ")


def test_test_files_may_lack_labels_and_an_argument_names_all_classes(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", {"text": "a"}, {"text": "b", "label": "pos"})
    labels = ("pos", "unseen", "neg")
    data = read_own_data({"test": path}, "classification", TEXT, labels)
    assert data.labels == labels
    assert [example.label for example in data.splits["test"]] == [None, "pos"]
    assert read_one("regression", Columns(label=None), path, "predict")[1].label is None


def test_ids_name_the_examples(tmp_path):
    records = [
        {"text": "a", "label": 3, "id": "x-1"},
        {"text": "b", "label": True, "id": 7},
    ]
    path = write_lines(tmp_path / "x.jsonl", *records)
    examples = read_one("classification", Columns(id="id"), path)
    # Integers and truth values of JSON are names too.
    assert [(each.name, each.label) for each in examples] == [("x-1", "3"), ("7", "true")]


@pytest.mark.parametrize(
    "columns, record, code, says",
    [
        (Columns(id="id"), {}, 78, "no column 'id'"),
        (TEXT, {"label": ""}, 65, "label in the field 'label' is missing"),
        (TEXT, {"label": 0.5}, 65, "must be a name"),
    ],
)
def test_each_fault_is_refused_with_its_line(tmp_path, columns, record, code, says):
    path = write_lines(tmp_path / "x.jsonl", {"text": "t", "label": "pos"} | record)
    call = (read_one, "classification", columns, path)
    refusal(*call, code=code, where=f"{path}, line 1", says=says)


def test_a_single_class_and_a_repeated_id_are_refused(tmp_path):
    path = write_lines(tmp_path / "x.jsonl", LABELLED[0])
    call = (read_one, "classification", TEXT, path)
    refusal(*call, code=78, where="x.jsonl", says="at least two classes")
    path = write_lines(tmp_path / "x.jsonl", *(each | {"id": "same"} for each in LABELLED))
    call = (read_one, "classification", Columns(id="id"), path)
    error = refusal(*call, code=65, where="x.jsonl, line 2", says="'same'")
    assert f"{path}, line 1" in error.what


@pytest.mark.parametrize(
    "kind, columns",
    [
        ("clasification", Columns()),
        ("classification", Columns(text=())),
        ("classification", Columns(label=None)),
    ],
)
def test_columns_that_do_not_fit_the_kind_are_refused(tmp_path, kind, columns):
    path = write_lines(tmp_path / "x.jsonl", *LABELLED)
    with pytest.raises(UsageError):
        read_own_data({"train": path}, kind, columns)
    with pytest.raises(ValueError, match=r"named only once\. Received: 'a' twice"):
        Columns(text=("a",), label="a")


def read(path, columns=("a", "b")):
    return list(read_records(str(path), columns))


def test_quotes_belong_to_csv_and_are_plain_characters_in_tsv(tmp_path):
    rows = [("a", "b"), ('say "so"', ", and\nmore"), ("", "é")]
    with (tmp_path / "x.csv").open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    assert [tuple(each.values.values()) for each in read(tmp_path / "x.csv")] == rows[1:]
    (tmp_path / "x.tsv").write_text('a\tb\n"one\ttwo"\n')
    assert read(tmp_path / "x.tsv")[0].values == {"a": '"one', "b": 'two"'}


def test_records_know_their_first_line(tmp_path):
    path = tmp_path / "several.csv"
    path.write_bytes(b'\xef\xbb\xbfa,b,c\r\n"one\r\nand more",2,x\r\n3,4,y\r\n\r\n')
    records = read(path)
    assert [(each.where, each.number) for each in records] == [
        (f"{path}, line 2", 0),
        (f"{path}, line 4", 1),
    ]
    assert records[0].values == {"a": "one\r\nand more", "b": "2", "c": "x"}


def test_a_long_field_is_read_and_empty_lines_are_skipped(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text(f"a,b\n\n{'x' * 200_000},y\n")
    (record,) = read(path)
    assert (len(record.values["a"]), record.where) == (200_000, f"{path}, line 3")


# The file has no time of day, so the name of the test is the same in all processes.
CUT = gzip.compress(b'{"a": 1}', mtime=0)[:-9]


@pytest.mark.parametrize(
    "name, content, code, where, says",
    [
        ("x.txt", b"a\tb\n", 2, "x.txt", "Name a .jsonl, .json, .tsv"),
        ("x.tsv", b"", 65, "x.tsv", "no record"),
        ("x.tsv", b"a\tB c\n1\t2\n", 78, "line 2", "no column 'b'"),
        ("x.tsv", b"a\tbb\n1\t2\n", 78, "line 2", "Did you mean bb?"),
        ("x.tsv", b"a\ta\n1\t2\n", 65, "line 1", "occurs twice"),
        ("x.tsv", b"a\tb\n1\t2\n1\t2\t3\n", 65, "line 3", "must have 2 fields, not 3"),
        ("x.tsv", b"a\tb\n1\t2\n\xff\t4\n", 65, "line 3", "not UTF-8, from its byte 0"),
        ("x.csv", b'a,b\n1,2\n"3,4\n5,6\n', 65, "line 3", "not CSV"),
        ("x.jsonl", b'{"a": 1, "b": 2}\n{"a": 1\n', 65, "line 2", "JSON is not valid"),
        ("x.jsonl", b"[1]\n", 65, "line 1", "must be an object"),
        ("x.jsonl", b'{"a": 1, "b": 2}\n{"a": 1}\n', 65, "line 2", "no column 'b'"),
        ("x.jsonl.gz", CUT, 65, "compressed file", "end too early"),
    ],
)
def test_each_fault_of_a_file_is_refused_with_its_place(tmp_path, name, content, code, where, says):
    path = tmp_path / name
    path.write_bytes(content)
    error = refusal(read, path, code=code, where=where, says=says)
    assert str(path) in error.where


@pytest.mark.parametrize("value", ["-1.5e3", " 2 ", 0, 7, -0.25])
def test_numbers_are_read_from_text_and_json(value):
    assert Record("f", 0, {"n": value}).number_in("n") == float(value)


@pytest.mark.parametrize(
    ("read_field", "values", "says"),
    [
        (Record.number_in, ["nan", "1e39", "1_0", "one", None, True, [1]], "a finite number"),
        (Record.text, [None, "", " \t", 3], "'x'"),
    ],
)
def test_numbers_must_be_finite_and_texts_not_blank(read_field, values, says):
    for value in values:
        record = Record("f, line 9", 0, {"x": value})
        refusal(read_field, record, "x", code=65, where="f, line 9", says=says)
