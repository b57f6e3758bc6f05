"""A session file has one writer, and one that has lost its lock writes nothing."""

import os

import numpy as np
import pytest

from tests.generation.models import expressive, prompt
from txl_tf.errors import DataDamagedError, InputMissingError, OutputExistsError, StorageError
from txl_tf.generation import GenerationSession, SessionFile
from txl_tf.generation import session_file as module
from txl_tf.samplers import GreedySampler


@pytest.fixture(scope="module")
def model():
    return expressive()


def session(model):
    return GenerationSession(model, GreedySampler(), jit_compile=False)


@pytest.fixture(params=["local", "store"])
def path(request, tmp_path, monkeypatch):
    if request.param == "local":
        return str(tmp_path / "story.npz")
    lock = module.DirectoryLock
    monkeypatch.setattr(module, "DirectoryLock", lambda folder: lock(folder, settle_seconds=0.0))
    return f"ram://{tmp_path.name}/story.npz"


def test_the_second_writer_is_told_and_changes_nothing(model, path):
    first, second = session(model), session(model)
    with SessionFile(path) as file:
        assert not file.exists()
        first.write(prompt(4, 1), max_tokens=2)
        first.save(file)
        before = file.read(1 << 30)
        second.write(prompt(5, 1), max_tokens=2)
        with pytest.raises(OutputExistsError, match="is writing this session"):
            second.save(path)
        with pytest.raises(OutputExistsError, match="is writing this session"), SessionFile(path):
            pass
        second.load(path)  # reading is free
        assert file.read(1 << 30) == before
    # What was read is up to date, so the second one may take over.
    expected = first.write(max_tokens=3)
    np.testing.assert_array_equal(second.write(max_tokens=3), expected)
    second.save(path)
    if "://" not in path:
        assert os.listdir(os.path.dirname(path)) == ["story.npz"]


def test_what_another_has_written_since_is_not_written_over(model, path):
    first, second = session(model), session(model)
    first.write(prompt(4, 1), max_tokens=2)
    first.save(path)
    second.load(path)
    second.write(max_tokens=1)
    second.save(path)
    first.write(max_tokens=1)
    with pytest.raises(OutputExistsError, match="has written this session since it was read"):
        first.save(path)
    first.load(path)
    first.write(max_tokens=1)
    first.save(path)
    second.save(f"{path}.other")


def test_what_cannot_be_read_or_locked_is_said(model, tmp_path):
    with pytest.raises(StorageError, match="There is no such folder"):
        session(model).save(tmp_path / "none" / "story.npz")
    assert os.listdir(tmp_path) == []
    with pytest.raises(InputMissingError, match="There is no session"):
        session(model).load(tmp_path / "story.npz")
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path / "pipe.npz", tmp_path):
        with pytest.raises(DataDamagedError, match="must be"):
            session(model).load(path)
