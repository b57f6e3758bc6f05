"""A run without its checkpoints is refused, and never restarts from step 0."""

import shutil
from pathlib import Path

import pytest

from tests.pipelines.toy_run import (
    CHECKPOINT_EVERY_STEPS,
    contents_of,
    result_of,
    stopping_after,
    toy_run_experiment,
    toy_training,
    train,
)
from tests.slow_case import slow_case
from txl_tf.errors import DataDamagedError
from txl_tf.storage.files import path_exists, remove_folder, write_file


@pytest.fixture(scope="module", autouse=True)
def toy_steps():
    with toy_training():
        yield


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy") / "unbroken"
    train(folder)
    return folder


@pytest.fixture
def run(unbroken, tmp_path):
    return Path(shutil.copytree(unbroken, tmp_path / "run"))


def remove(run, *steps):
    for step in steps:
        remove_folder(f"{run}/checkpoints/step-{step:08d}")


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("checkpoints", "newest checkpoint that can be read is of step 0"),
        ("checkpoints/step-00000018", "best checkpoint is missing"),
    ],
)
def test_a_run_without_all_or_its_best_checkpoint_is_refused_untouched(
    run, unbroken, folder, message
):
    shutil.rmtree(run / folder)
    before = contents_of(run)
    # Twice, and with another period: what a refused start leaves must not mislead the next.
    for period in (CHECKPOINT_EVERY_STEPS, 1000, CHECKPOINT_EVERY_STEPS):
        with pytest.raises(DataDamagedError, match=rf"{message}(.|\n)*Restore") as error:
            train(run, toy_run_experiment(checkpoint_every_steps=period))
        assert len(str(error.value).splitlines()) == 3
        assert contents_of(run) == before
    shutil.rmtree(run)  # as one of the remedies says
    train(run)
    assert result_of(run) == result_of(unbroken)


@pytest.mark.parametrize("place", ["local", slow_case("store")])
def test_the_newest_ones_may_be_made_again_if_the_ledger_explains_it(place, tmp_path):
    """Of 12, 16, 18, 20 and 24 steps, all but the first of these are gone, one by one."""
    run = str(tmp_path / "run") if place == "local" else f"ram://{tmp_path.name}/run"
    experiment = toy_run_experiment(num_kept_checkpoints=10, evaluate_every_steps=1000)
    train(run, experiment)
    expected = result_of(run)
    remove(run, 24)
    train(run, experiment)
    assert result_of(run) == expected
    remove(run, 24, 20)
    with pytest.raises(DataDamagedError, match="reached step 24, but its newest checkpoint"):
        train(run, experiment)


@pytest.mark.parametrize("num_steps", [2, 10])
def test_a_process_that_ended_before_the_first_checkpoint_has_lost_nothing(
    tmp_path, unbroken, num_steps
):
    """The ended process had a longer checkpoint period than the resuming one."""
    run = tmp_path / "run"
    experiment = toy_run_experiment(checkpoint_every_steps=1000, evaluate_every_steps=1000)
    with pytest.raises(ZeroDivisionError), stopping_after(num_steps, ZeroDivisionError):
        train(run, experiment)
    assert len((run / "ledger.jsonl").read_text().splitlines()) == num_steps + 1
    train(run)
    assert result_of(run) == result_of(unbroken)


def test_a_best_checkpoint_that_was_not_noted_any_more_is_noted(run, unbroken):
    note = run / "checkpoints" / "best.json"
    note.unlink()
    train(run)
    assert note.read_bytes() == (unbroken / "checkpoints" / "best.json").read_bytes()


@pytest.mark.parametrize("place", ["local", "store"])
def test_temporary_files_of_killed_processes_are_removed(place, tmp_path):
    run = str(tmp_path / "run") if place == "local" else f"ram://{tmp_path.name}/run"
    with pytest.raises(ZeroDivisionError), stopping_after(10, ZeroDivisionError):
        train(run)
    left = [f"{run}/.run.json.0123.tmp", f"{run}/vocabulary/.vocabulary.txt.0123.tmp"]
    left += [f"{run}/checkpoints/.best.json.0123.tmp"]
    for path in left:
        write_file(path, b"{")
    train(run)
    assert [path for path in left if path_exists(path)] == []
