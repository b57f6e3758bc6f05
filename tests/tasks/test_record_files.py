"""Records of JSON Lines, TSV and CSV, and the places of what is wrong."""

import csv
import gzip
import lzma

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.task_files import refusal, write_lines
from txl_tf.tasks.examples import Record, read_records
from txl_tf.tasks.published import read_squad

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def read(path, columns=("a", "b"), **options):
    return list(read_records(str(path), columns, **options))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("records")


@settings(max_examples=30)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_json_lines_come_back_as_they_were_written(folder, rows):
    path = write_lines(folder / "any.jsonl", *({"a": a, "b": b} for a, b in rows))
    assert [tuple(each.values.values()) for each in read(path)] == rows


@settings(max_examples=30)
@given(rows=st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_csv_comes_back_as_the_module_wrote_it(folder, rows):
    path = folder / "any.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    assert [tuple(each.values.values()) for each in read(path)] == rows


@settings(max_examples=30)
@given(
    rows=st.lists(
        st.tuples(*[st.text(st.characters(codec="utf-8", exclude_characters="\t\r\n"))] * 2),
        min_size=1,
        max_size=4,
    )
)
def test_tsv_takes_every_quote_as_it_is(folder, rows):
    path = folder / "any.tsv"
    text = "".join(f"{a}\t{b}\n" for a, b in [("a", "b"), *rows])
    path.write_text(text, newline="", encoding="utf-8")
    assert [tuple(each.values.values()) for each in read(path)] == rows


def test_records_know_their_first_line(tmp_path):
    path = tmp_path / "several.csv"
    path.write_bytes(b'\xef\xbb\xbfa,b,c\r\n"one\r\nand more",2,x\r\n3,4,y\r\n\r\n')
    records = read(path)
    assert [(each.where, each.number) for each in records] == [
        (f"{path}, line 2", 0),
        (f"{path}, line 4", 1),
    ]
    assert records[0].values == {"a": "one\r\nand more", "b": "2"}


def test_a_long_field_is_read_and_empty_lines_are_skipped(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text(f"a,b\n\n{'x' * 200_000},y\n")
    assert [(len(each.values["a"]), each.where) for each in read(path)] == [
        (200_000, f"{path}, line 3")
    ]


@pytest.mark.parametrize("compress, ending", [(gzip.compress, "gz"), (lzma.compress, "xz")])
def test_compressed_files_are_read(tmp_path, compress, ending):
    path = tmp_path / f"few.tsv.{ending}"
    path.write_bytes(compress(b"a\tb\n1\t2\n"))
    assert read(path)[0].values == {"a": "1", "b": "2"}


# Without the time of day, so that a case has one name in all processes.
CUT = gzip.compress(b'{"a": 1}', mtime=0)[:-9]


@pytest.mark.parametrize(
    "name, content, code, where, says",
    [
        ("x.txt", b"a\tb\n", 2, "x.txt", ".jsonl, .json, .tsv, .csv"),
        ("x.tsv", b"", 65, "x.tsv", "no record"),
        ("x.jsonl", b"\n\n", 65, "x.jsonl", "no record"),
        ("x.tsv", b"a\tB c\n1\t2\n", 78, "line 2", "no column 'b'"),
        ("x.tsv", b"a\tbb\n1\t2\n", 78, "line 2", "Did you mean bb?"),
        ("x.tsv", b"a\ta\n1\t2\n", 65, "line 1", "stands twice"),
        ("x.tsv", b"a\tb\n1\t2\n1\t2\t3\n", 65, "line 3", "3 fields; 2 are expected"),
        ("x.tsv", b"a\tb\n1\t2\n\xff\t4\n", 65, "line 3", "not UTF-8, from its byte 0"),
        ("x.csv", b'a,b\n1,2\n"3,4\n5,6\n', 65, "line 3", "not CSV"),
        ("x.csv", b'a,b\n"1"x,2\n', 65, "line 2", "not CSV"),
        ("x.jsonl", b'{"a": 1, "b": 2}\n{"a": 1\n', 65, "line 2", "not JSON"),
        ("x.jsonl", b'{"a": NaN, "b": 2}\n', 65, "line 1", "must be finite"),
        ("x.jsonl", b'{"a": 1, "a": 1, "b": 2}\n', 65, "line 1", "stand once"),
        ("x.jsonl", b'{"a": "\\ud800", "b": 2}\n', 65, "line 1", "lone surrogate"),
        ("x.jsonl", b"[1]\n", 65, "line 1", "not a JSON object"),
        ("x.jsonl", b'{"a": 1, "c": 2}\n', 78, "line 1", "no column 'b'"),
        ("x.jsonl", b'{"a": 1, "b": 2}\n{"a": 1}\n', 65, "line 2", "no column 'b'"),
        ("x.jsonl.gz", CUT, 65, "compressed file", "end too early"),
    ],
)
def test_each_fault_is_refused_with_its_place(tmp_path, name, content, code, where, says):
    path = tmp_path / name
    path.write_bytes(content)
    error = refusal(read, path, code=code, where=where, says=says)
    assert str(path) in error.where


def test_names_of_columns_with_line_ends_do_not_break_the_message(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('a,"b\n\n\n\nb"\n1,2\n')
    refusal(read, path, code=78, where="line 6", says=r"'b\n\n\n\nb'")


def test_missing_files_and_folders_are_told_from_damaged_ones(tmp_path):
    refusal(read, tmp_path / "no.tsv", code=66, where="no.tsv", says="no such text file")
    (tmp_path / "folder.tsv").mkdir()
    refusal(read, tmp_path / "folder.tsv", code=66, where="folder.tsv", says="no such text file")
    document = {"train": str(tmp_path / "x.json")}
    refusal(read_squad, document, code=66, where="x.json", says="no such file")
    (tmp_path / "x.json").write_text("[]")
    refusal(read_squad, document, code=65, where="x.json", says="not a JSON")


def test_lines_with_too_few_fields_are_left_out_up_to_a_number(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("a\tb\n1\n2\t3\n4\n5\t6\n")
    assert [each.values["a"] for each in read(path, max_broken_lines=2)] == ["2", "5"]
    refusal(lambda: read(path, max_broken_lines=1), code=65, where="line 4", says="1 fields")


def test_a_file_without_a_header_takes_given_columns(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text("1\t2\n")
    assert read(path, header=("a", "b"))[0].where.endswith("line 1")


@pytest.mark.parametrize("value", ["-1.5e3", " 2 ", 0, 7, -0.25])
def test_numbers_are_read_from_text_and_json(value):
    assert Record("f", 0, {"n": value}).number_in("n") == float(value)


@pytest.mark.parametrize("value", ["nan", "inf", "1e39", "1_0", "one", "", None, True, [1], 10**39])
def test_what_is_no_finite_number_is_refused(value):
    record = Record("f, line 9", 0, {"n": value})
    refusal(record.number_in, "n", code=65, where="f, line 9", says="must be a finite number")


@pytest.mark.parametrize("value", [None, "", " \t", 3, ["x"]])
def test_what_is_no_text_is_refused(value):
    record = Record("f, line 9", 0, {"t": value})
    refusal(record.text, "t", code=65, where="f, line 9", says="'t'")
