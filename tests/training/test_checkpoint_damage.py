"""Whatever happens to a checkpoint's files, what is loaded is what was saved."""

import json

import pytest

from tests.training.test_checkpoint_store import assert_is_state_of, store_with
from txl_tf.errors import DataDamagedError

FILES = ["manifest.json", "state.data-00000-of-00001", "state.index"]
OLDER, NEWER = 5, 10


@pytest.fixture
def store_and_folder(tmp_path):
    """A store with two checkpoints and the folder of the newer one."""
    store = store_with(tmp_path, [OLDER, NEWER])
    folder = tmp_path / f"step-{NEWER:08d}"
    assert sorted(path.name for path in folder.iterdir()) == FILES
    return store, folder


def assert_passed_over(store, folder, file_name):
    """The newer checkpoint makes way for the older one, with a reason that names the file."""
    step, arrays, complaints = store.load_latest()
    assert step == OLDER
    assert_is_state_of(OLDER, arrays)
    assert len(complaints) == 1
    assert str(folder / file_name) in complaints[0]


@pytest.mark.parametrize("file_name", FILES)
def test_a_flipped_bit_anywhere_is_found(store_and_folder, file_name):
    store, folder = store_and_folder
    path = folder / file_name
    content = path.read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        assert_passed_over(store, folder, file_name)
    path.write_bytes(content)
    assert_is_state_of(NEWER, store.load_latest()[1])


@pytest.mark.parametrize("file_name", FILES)
def test_a_truncated_file_is_found(store_and_folder, file_name):
    store, folder = store_and_folder
    path = folder / file_name
    content = path.read_bytes()
    for length in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        assert_passed_over(store, folder, file_name)


@pytest.mark.parametrize("file_name", FILES)
def test_a_missing_file_is_found(store_and_folder, file_name):
    store, folder = store_and_folder
    (folder / file_name).unlink()
    assert_passed_over(store, folder, file_name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "7",
        "{}",
        "{" * 20000,
        "[" * 100000,
        '{"files": 3, "format_version": 1}',
        '{"files": {"state.index": 5}, "format_version": 1, "step": 10, "arrays": {}, '
        '"identity": {}, "manifest_sha256": "00"}',
    ],
    ids=str.__len__,
)
def test_a_manifest_that_is_garbage_is_found(store_and_folder, text):
    store, folder = store_and_folder
    (folder / "manifest.json").write_text(text)
    assert_passed_over(store, folder, "manifest.json")


def test_a_manifest_that_is_not_text_is_found(store_and_folder):
    store, folder = store_and_folder
    (folder / "manifest.json").write_bytes(bytes(range(256)))
    assert_passed_over(store, folder, "manifest.json")


def test_a_manifest_of_a_later_format_is_not_guessed_at(store_and_folder):
    store, folder = store_and_folder
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["format_version"] = 2
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert_passed_over(store, folder, "manifest.json")


def test_files_of_another_checkpoint_are_found(store_and_folder):
    store, folder = store_and_folder
    data = "state.data-00000-of-00001"
    (folder / data).write_bytes((folder.parent / f"step-{OLDER:08d}" / data).read_bytes())
    assert_passed_over(store, folder, data)


def test_a_checkpoint_under_the_name_of_another_step_is_found(store_and_folder):
    store, folder = store_and_folder
    moved = folder.with_name("step-00000099")
    folder.rename(moved)
    assert_passed_over(store, moved, "")


def test_if_all_are_damaged_it_is_an_error_and_not_a_new_beginning(store_and_folder):
    store, folder = store_and_folder
    for step_folder in folder.parent.iterdir():
        (step_folder / "state.index").write_bytes(b"")
    with pytest.raises(DataDamagedError, match="None of the 2 checkpoints is whole") as raised:
        store.load_latest()
    assert raised.value.exit_code == 65
    assert raised.value.where == str(folder.parent)
    with pytest.raises(DataDamagedError):
        store.load(NEWER)
