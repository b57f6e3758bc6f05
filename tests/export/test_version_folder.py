"""Versions appear whole or not at all, whatever happens to the process that writes them."""

import os
import signal
import subprocess
import sys
import time

import pytest
import tensorflow as tf

from txl_tf.errors import OutputExistsError, StorageError
from txl_tf.export import next_version
from txl_tf.export.export_verification import verify_export
from txl_tf.export.version_folder import write_version

NUM_KILLS = 2
# Writes version after version until it is killed.
EXPORTER = """
import sys
from tests.export.test_version_folder import small_root
from txl_tf.export import next_version
from txl_tf.export.version_folder import write_version

out = sys.argv[1]
root, signatures = small_root()
while True:
    write_version(f"{out}/{next_version(out)}", root, signatures, {}, {"assets.extra/a": b"a"})
    print("written", flush=True)
"""


def small_root():
    """The smallest thing that can be exported."""
    root = tf.Module()
    root.weight = tf.Variable(tf.ones([1000]))
    double = tf.function(
        lambda x: {"y": x + root.weight[0]}, input_signature=[tf.TensorSpec([None], tf.float32)]
    )
    return root, {"double": double}


def test_versions_count_on_from_the_highest(tmp_path):
    out = str(tmp_path / "models")
    assert next_version(out) == 1
    for name in ("3", "20", ".21.preparing-x", "latest", "-4"):
        os.makedirs(os.path.join(out, name))
    assert next_version(out) == 21
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        next_version(str(tmp_path / "file"))


def test_a_version_is_written_once(tmp_path):
    root, signatures = small_root()
    folder = str(tmp_path / "1")
    write_version(folder, root, signatures, {"x": [-1]}, {"assets.extra/card": b"text"})
    assert verify_export(folder) == 5  # graph, two of variables, card and list
    assert os.listdir(tmp_path) == ["1"]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(OutputExistsError):
        write_version(folder, root, signatures, {}, {})
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_who_looks_while_exports_are_killed_sees_whole_versions(tmp_path):
    out = tmp_path / "models"
    out.mkdir()
    seen = set()
    for kill in range(NUM_KILLS):
        process = subprocess.Popen(
            [sys.executable, "-c", EXPORTER, str(out)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout.readline() == "written\n"
            deadline = time.monotonic() + 0.2 + 0.13 * kill
            while time.monotonic() < deadline:
                seen |= look(out, seen)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
        seen |= look(out, seen)
        hidden = [name for name in os.listdir(out) if not name.isdecimal()]
        assert len(hidden) <= 1  # what was being written, which the next one removes
    assert len(seen) >= NUM_KILLS
    assert {int(name) for name in seen} == set(range(1, len(seen) + 1))


def look(out, seen):
    """Loads the versions that are new, as a server does."""
    new = {name for name in os.listdir(out) if name.isdecimal()} - seen
    for name in new:
        assert verify_export(str(out / name)) > 4
        answer = tf.saved_model.load(str(out / name)).signatures["double"](tf.constant([1.0]))
        assert answer["y"] == 2.0
    return new
