"""One process at a time makes a folder, whoever has locked the one above it."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.storage.places import Turns
from txl_tf.errors import OutputExistsError
from txl_tf.storage.staging import StagingFolder


def test_a_trainer_that_has_locked_the_folder_above_is_not_waited_for(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        with StagingFolder(str(tmp_path / "out"), last_file="a") as staging:
            with open(f"{staging.path}/a", "w") as file:
                file.write("a")
            staging.publish()
    finally:
        os.close(folder)
    assert os.listdir(tmp_path) == ["out"]


def test_while_one_makes_it_another_is_told_and_leaves_it_alone(tmp_path):
    with StagingFolder(str(tmp_path / "out"), last_file="a") as staging:
        with pytest.raises(OutputExistsError, match="Another process"):
            StagingFolder(str(tmp_path / "out"), last_file="a").__enter__()
        assert os.listdir(tmp_path) == [os.path.basename(staging.path)]
    assert os.listdir(tmp_path) == []


def test_what_killed_processes_left_is_removed_and_no_link_followed(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("kept")
    (tmp_path / ".out.preparing-1").mkdir()
    (tmp_path / ".out.preparing-1" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / ".locking.out.preparing-2").mkdir()
    with StagingFolder(str(tmp_path / "out"), last_file="a") as staging:
        assert sorted(os.listdir(tmp_path)) == sorted([os.path.basename(staging.path), "kept"])
    assert (tmp_path / "kept" / "file").read_text() == "kept"


def test_of_many_that_come_at_once_one_at_a_time_goes_on(tmp_path):
    turns = Turns(lambda: StagingFolder(str(tmp_path / "out"), last_file="a"))
    for _ in range(10):
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda _: turns.try_one(), range(4)))
    assert turns.most_at_once == 1
    assert turns.done >= 10
    assert os.listdir(tmp_path) == []
