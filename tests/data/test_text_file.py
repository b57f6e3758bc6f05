import pytest

from txl_tf.data.corpora.text_file import read_text_splits
from txl_tf.errors import DataDamagedError, InputMissingError


def texts_of(splits):
    return {
        name: b"".join(piece for document in documents for piece in document)
        for name, documents in splits.items()
    }


def test_splits_are_contiguous_and_end_at_lines(tmp_path):
    path = tmp_path / "text"
    text = b"".join(b"line %d\n" % index for index in range(1000))
    path.write_bytes(text)
    splits = texts_of(read_text_splits(str(path)))
    assert list(splits) == ["train", "valid", "test"]
    assert b"".join(splits.values()) == text
    assert all(part.endswith(b"\n") for part in splits.values())
    assert abs(len(splits["train"]) - 0.9 * len(text)) < 20
    assert abs(len(splits["valid"]) - 0.05 * len(text)) < 20


def test_splits_can_be_read_twice(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"line\n" * 100)
    splits = read_text_splits(str(path), 0.2, 0.3)
    assert texts_of(splits) == texts_of(splits)


def test_a_fraction_of_zero_leaves_the_split_out(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"line\n" * 100)
    assert list(texts_of(read_text_splits(str(path), 0, 0))) == ["train"]
    assert texts_of(read_text_splits(str(path), 0, 0))["train"] == b"line\n" * 100
    half = texts_of(read_text_splits(str(path), 0, 0.5))
    assert half == {"train": b"line\n" * 50, "test": b"line\n" * 50}
    half = texts_of(read_text_splits(str(path), 0.5, 0))
    assert half == {"train": b"line\n" * 50, "valid": b"line\n" * 50}


@pytest.mark.parametrize(
    ("unit", "ends"), [(b"line\n", b"\n"), (b"word ", b" "), ("\u20ac".encode(), b"\xac")]
)
def test_long_files_come_in_pieces_that_cut_nothing(tmp_path, unit, ends):
    path = tmp_path / "text"
    text = unit * (5_000_000 // len(unit))
    path.write_bytes(text)
    splits = read_text_splits(str(path))
    pieces = [piece for documents in splits.values() for each in documents for piece in each]
    assert b"".join(pieces) == text
    assert max(map(len, pieces)) < 3_000_000
    assert all(piece.endswith(ends) for piece in pieces)


def test_bytes_that_are_no_text_are_cut_anywhere(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"\x80" * 3_000_000)
    assert b"".join(texts_of(read_text_splits(str(path))).values()) == b"\x80" * 3_000_000


def test_a_missing_file_is_named(tmp_path):
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(InputMissingError) as caught:
            read_text_splits(str(path))
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"x", b"one line only\n"])
def test_a_file_without_enough_text_is_named(tmp_path, content):
    path = tmp_path / "text"
    path.write_bytes(content)
    with pytest.raises(DataDamagedError, match="empty") as caught:
        read_text_splits(str(path))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("fractions", [(-0.1, 0.1), (0.5, 0.5), (float("nan"), 0.1)])
def test_wrong_fractions_are_refused(tmp_path, fractions):
    with pytest.raises(ValueError, match="Received: "):
        read_text_splits(str(tmp_path), *fractions)
