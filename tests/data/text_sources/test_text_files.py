import os

import pytest

from txl_tf.data.text_sources.text_files import text_files
from txl_tf.errors import InputMissingError, UsageError


@pytest.fixture
def folder(tmp_path):
    for name in ("b/2.txt", "b/1.txt", "a.txt", "b-c.txt", ".hidden/x.txt", "b/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    (tmp_path / "empty").mkdir()
    return tmp_path


def names_of(folder, paths):
    return [os.path.relpath(path, folder) for path in text_files([str(path) for path in paths])]


def test_folders_are_read_by_name_without_hidden_files(folder):
    expected = ["a.txt", "b/1.txt", "b/2.txt", "b-c.txt"]
    assert names_of(folder, [folder]) == expected


def test_files_keep_their_order_and_may_be_hidden(folder):
    paths = [folder / "b-c.txt", folder / ".hidden" / "x.txt", folder / "a.txt"]
    assert names_of(folder, paths) == ["b-c.txt", ".hidden/x.txt", "a.txt"]


def test_patterns_match_by_name(folder):
    assert names_of(folder, [folder / "b*.txt"]) == ["b-c.txt"]
    assert names_of(folder, [folder / "**" / "[12].txt"]) == ["b/1.txt", "b/2.txt"]
    (folder / "odd[1].txt").write_text("text")
    assert names_of(folder, [folder / "odd[1].txt"]) == ["odd[1].txt"]


@pytest.mark.parametrize("name", ["absent", "empty", "*.none"])
def test_a_path_without_files_is_named(folder, name):
    with pytest.raises(InputMissingError) as caught:
        text_files([str(folder / name)])
    assert str(folder / name) in str(caught.value)


def test_a_file_cannot_be_named_twice(folder):
    (folder / "link").symlink_to(folder / "a.txt")
    for paths in ([folder / "a.txt", folder / "a.txt"], [folder]):
        with pytest.raises(UsageError, match="twice") as caught:
            text_files([str(path) for path in paths])
        assert str(folder / "a.txt") in str(caught.value)


def test_a_loop_of_folders_ends(folder):
    (folder / "b" / "loop").symlink_to(folder)
    assert names_of(folder, [folder]) == ["a.txt", "b/1.txt", "b/2.txt", "b-c.txt"]
