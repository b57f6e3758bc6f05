"""Checkpoints of every format so far are read to the last bit; of a later one, not guessed at."""

import json
import shutil
from pathlib import Path

import pytest

from tests.training.test_checkpoint_store import IDENTITY, assert_is_state_of
from txl_tf.errors import DataDamagedError, MismatchError
from txl_tf.training.checkpoint_format import FORMAT_VERSION, checksum
from txl_tf.training.checkpoint_store import CheckpointStore

HERE = Path(__file__).parent
FORMATS = range(1, FORMAT_VERSION + 1)


def folder_of(version):
    return HERE / f"checkpoints_of_format_{version}"


@pytest.mark.parametrize("version", FORMATS)
def test_a_checkpoint_of_every_format_is_read_to_the_last_bit(version):
    step, arrays, complaints = CheckpointStore(folder_of(version), IDENTITY).load_latest()
    assert (step, complaints) == (5, [])
    assert_is_state_of(5, arrays)


@pytest.mark.parametrize("version", FORMATS)
def test_a_flipped_bit_is_found_in_every_format(version, tmp_path):
    shutil.copytree(folder_of(version), tmp_path, dirs_exist_ok=True)
    path = tmp_path / "step-00000005" / "state.data-00000-of-00001"
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), 7):
        content[place] ^= 4
        path.write_bytes(content)
        with pytest.raises(DataDamagedError, match=r"what was written|cannot be read"):
            CheckpointStore(tmp_path, IDENTITY).load(5)
        content[place] ^= 4


def test_a_whole_checkpoint_of_a_later_format_is_refused_as_such(tmp_path):
    shutil.copytree(folder_of(FORMAT_VERSION), tmp_path, dirs_exist_ok=True)
    path = tmp_path / "step-00000005" / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["manifest_sha256"]
    manifest["format_version"] = FORMAT_VERSION + 1
    path.write_text(json.dumps(manifest | {"manifest_sha256": checksum(manifest)}))
    with pytest.raises(MismatchError, match=f"format {FORMAT_VERSION + 1}") as raised:
        CheckpointStore(tmp_path, IDENTITY).load_latest()
    assert raised.value.exit_code == 78
    assert raised.value.where == str(path)
