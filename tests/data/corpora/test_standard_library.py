import hashlib

import pytest

from txl_tf.data.corpora.standard_library import python_standard_library_splits
from txl_tf.errors import InputMissingError


def test_the_library_of_this_python_is_read():
    splits = python_standard_library_splits()
    documents = {name: list(documents) for name, documents in splits.items()}
    sizes = {name: sum(map(len, found)) for name, found in documents.items()}
    assert list(sizes) == ["train", "valid", "test"]
    assert 5_000_000 < sizes["train"] < 30_000_000
    assert min(sizes["valid"], sizes["test"]) > 100_000
    together = [document for found in documents.values() for document in found]
    assert all(document.startswith(b"# file: ") for document in together)
    assert all(document.endswith(b"\n") for document in together)
    headers = [document.split(b"\n", 1)[0] for document in together]
    assert b"# file: argparse.py" in headers
    assert not [header for header in headers if b"/test/" in header or b"-packages/" in header]


def test_the_path_decides_the_split_and_the_order(tmp_path):
    for index in range(200):
        (tmp_path / f"module_{index}.py").write_text(f"x = {index}")
    (tmp_path / "a" / "test").mkdir(parents=True)
    for skipped in ("a/test/case.py", "empty.py", "data.txt"):
        (tmp_path / skipped).write_text("" if skipped == "empty.py" else "skipped")
    splits = python_standard_library_splits(str(tmp_path))
    names = {
        name: [document.split(b"\n")[0].removeprefix(b"# file: ").decode() for document in found]
        for name, found in splits.items()
    }
    assert sum(map(len, names.values())) == 200
    for split, found in names.items():
        assert found == sorted(found, key=lambda name: hashlib.sha256(name.encode()).digest())
        for name in found:
            place = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 2**32
            assert split == ("train" if place < 0.9 else "valid" if place < 0.95 else "test")
    assert b"skipped" not in b"".join(b"".join(found) for found in splits.values())


def test_a_python_without_its_source_is_named(tmp_path):
    with pytest.raises(InputMissingError) as caught:
        python_standard_library_splits(str(tmp_path))
    assert str(tmp_path) in str(caught.value)
