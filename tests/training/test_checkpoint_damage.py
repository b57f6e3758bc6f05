"""Whatever happens to a checkpoint's files, what is loaded is what was saved."""

import hashlib
import json
import os

import numpy as np
import pytest

from tests.training.test_checkpoint_store import arrays_of, assert_is_state_of, store_with
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.training.checkpoint_format import FORMAT_VERSION, checksum, write_arrays

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


def assert_refused(store, folder, file_name, place):
    """Refused every time; every 50th time it is also looked at what is loaded instead."""
    with pytest.raises(DataDamagedError) as raised:
        store.load(NEWER)
    assert raised.value.where == str(folder / file_name)
    if place % 50 == 0:
        assert_passed_over(store, folder, file_name)


@pytest.mark.parametrize("file_name", FILES)
def test_a_flipped_bit_anywhere_is_found(store_and_folder, file_name):
    store, folder = store_and_folder
    path = folder / file_name
    content = path.read_bytes()
    for place, byte in enumerate(content):
        overwrite(path, place, byte ^ 1 << place % 8)
        assert_refused(store, folder, file_name, place)
        overwrite(path, place, byte)
    assert path.read_bytes() == content
    assert_is_state_of(NEWER, store.load_latest()[1])


def overwrite(path, place, byte):
    """In place, because a file system may force a file to the disk that is written anew."""
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes([byte]))


@pytest.mark.parametrize("file_name", FILES)
def test_a_file_cut_at_any_length_is_found(store_and_folder, file_name):
    store, folder = store_and_folder
    path = folder / file_name
    for length in reversed(range(path.stat().st_size)):
        os.truncate(path, length)
        assert_refused(store, folder, file_name, length)


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


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1, None])
def test_a_whole_checkpoint_of_another_format_is_refused_as_such(store_and_folder, version):
    store, folder = store_and_folder
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["manifest_sha256"]
    manifest["format_version"] = version
    path.write_text(json.dumps(manifest | {"manifest_sha256": checksum(manifest)}))
    with pytest.raises(MismatchError, match=f"format {version}; this version reads") as raised:
        store.load(10)
    assert (raised.value.exit_code, raised.value.where) == (78, str(path))


def test_a_manifest_whose_version_alone_was_changed_is_damaged(store_and_folder):
    store, folder = store_and_folder
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["format_version"] += 1
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert_passed_over(store, folder, "manifest.json")


@pytest.mark.parametrize("name", arrays_of(NEWER))
def test_a_missing_array_is_found(store_and_folder, name):
    """Even where all files are what the manifest says, as after a save that forgot one."""
    store, folder = store_and_folder
    arrays = arrays_of(NEWER)
    del arrays[name]
    forge(folder, arrays)
    assert_passed_over(store, folder, "state.index")
    assert f"`{name}`" in store.load_latest()[2][0]


def test_an_array_of_other_values_dtype_or_shape_is_found(store_and_folder):
    store, folder = store_and_folder
    for name, array in arrays_of(NEWER).items():
        kernel = np.asarray(array)
        for other in (
            kernel.reshape(1, *kernel.shape),
            kernel.astype("float64" if kernel.dtype != "float64" else "float32"),
            np.zeros_like(kernel) if kernel.any() else np.ones((2, 1, 4), "float32"),
        ):
            forge(folder, arrays_of(NEWER) | {name: other})
            assert_passed_over(store, folder, "state.data-00000-of-00001")


def forge(folder, arrays):
    """Writes other arrays under the descriptions of the old ones."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["manifest_sha256"]
    write_arrays(str(folder / "state"), arrays)
    for name, expected in manifest["files"].items():
        content = (folder / name).read_bytes()
        expected["bytes"] = len(content)
        if "sha256" in expected:
            expected["sha256"] = hashlib.sha256(content).hexdigest()
    manifest["manifest_sha256"] = checksum(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


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
